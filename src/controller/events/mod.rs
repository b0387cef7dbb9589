//! Kubernetes Events: what happened, gathered so that no storm arises, and sent one by one.
//!
//! At most one per object and reason in [`QUIET`]; what happens meanwhile is counted and told with the next. The name of an
//! Event follows from what it says, so a replica that takes over does not tell the same again: the API server has it.

mod tracker;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use crate::controller::trouble::kind_of;
pub(super) use tracker::{Happened, Tracker, What};

/// Between two Events of one object and reason.
pub(super) const QUIET: Duration = Duration::from_secs(60);
/// Objects and reasons that are remembered; what comes beyond is counted only.
const KEPT_MAX: usize = 1024;
/// Events handed out at once.
const BATCH_MAX: usize = 16;
/// Longest name of the object in the name of its Event; the rest is a dot and 16 digits.
const NAME_MAX: usize = 200;
/// Longest note; the API's bound.
const NOTE_BYTES_MAX: usize = 1024;
/// Longest `reportingInstance`; the API's bound.
const INSTANCE_BYTES_MAX: usize = 128;
/// Who reports.
const CONTROLLER: &str = "kvindexer.io/kvindexer";

/// Something that happened to an object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Occurrence {
    /// The IndexerWorker, or the Pod.
    pub(super) regarding: ObjectReference,
    /// The Pod, if `regarding` is not one.
    pub(super) related: Option<ObjectReference>,
    /// False: nobody needs to act.
    pub(super) warning: bool,
    /// CamelCase.
    pub(super) reason: &'static str,
    /// For people; does not vary with time.
    pub(super) note: String,
    /// How often.
    pub(super) times: u64,
    /// It lasts: told once, however often replicas see it.
    pub(super) lasting: bool,
}

/// What is to be told, by object and reason. Pure: time is an argument.
#[derive(Debug, Default)]
pub(super) struct Ledger(BTreeMap<(String, &'static str), Entry>);

#[derive(Debug)]
struct Entry {
    waiting: Option<Occurrence>,
    /// Others of the same object and reason.
    others: u64,
    told: Option<Instant>,
}

impl Ledger {
    /// Notes what happened. False if there is no room for it.
    pub(super) fn note(&mut self, what: Occurrence) -> bool {
        let key = (what.regarding.uid.clone().unwrap_or_default(), what.reason);
        if self.0.len() >= KEPT_MAX && !self.0.contains_key(&key) {
            return false;
        }
        let entry = self.0.entry(key).or_insert(Entry { waiting: None, others: 0, told: None });
        match &mut entry.waiting {
            None => entry.waiting = Some(what),
            Some(first) if first.note == what.note => first.times = first.times.saturating_add(what.times),
            Some(_) => entry.others = entry.others.saturating_add(1),
        }
        true
    }

    /// What may be told at `now`.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Occurrence> {
        let quiet = |told: Option<Instant>| told.is_some_and(|told| now < told + QUIET);
        self.0.retain(|_, entry| entry.waiting.is_some() || quiet(entry.told));
        let ready = self.0.values_mut().filter(|entry| entry.waiting.is_some() && !quiet(entry.told));
        let told = ready.take(BATCH_MAX).filter_map(|entry| {
            let mut what = entry.waiting.take()?;
            entry.told = Some(now);
            if entry.others > 0 {
                what.note.push_str(&format!(" (and {} more)", std::mem::take(&mut entry.others)));
            }
            Some(what)
        });
        told.collect()
    }
}

/// The Event as the API wants it.
#[must_use]
pub(super) fn event(what: &Occurrence, identity: &str) -> Event {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let pod = what.related.as_ref().map(|pod| text(&pod.name)).unwrap_or_default();
    let says = [&text(&what.regarding.uid), what.reason, &pod, &what.note].join("\n");
    let name = text(&what.regarding.name);
    let name = name.get(..NAME_MAX).unwrap_or(&name).trim_end_matches(['-', '.']);
    Event {
        metadata: ObjectMeta {
            namespace: what.regarding.namespace.clone(),
            name: Some(format!("{name}.{:016x}", xxh3_64(says.as_bytes()))),
            ..ObjectMeta::default()
        },
        action: Some("Index".to_owned()),
        event_time: Some(MicroTime(Timestamp::now())),
        note: Some(super::conditions::cut(what.note.clone(), NOTE_BYTES_MAX)),
        reason: Some(what.reason.to_owned()),
        regarding: Some(what.regarding.clone()),
        related: what.related.clone(),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(super::conditions::cut(identity.to_owned(), INSTANCE_BYTES_MAX)),
        type_: Some(if what.warning { "Warning" } else { "Normal" }.to_owned()),
        ..Event::default()
    }
}

/// Creates the Event; if the API server has it, the series goes on.
///
/// # Errors
/// Whatever the API server says.
pub(super) async fn send(client: kube::Client, what: &Occurrence, identity: &str) -> kube::Result<()> {
    let event = event(what, identity);
    let api: Api<Event> = Api::namespaced(client, event.metadata.namespace.as_deref().unwrap_or("default"));
    match api.create(&PostParams::default(), &event).await {
        Err(error) if kind_of(&error) == "conflict" => {}
        other => return other.map(drop),
    }
    if what.lasting {
        return Ok(());
    }
    let name = event.metadata.name.unwrap_or_default();
    let params = PatchParams::default();
    let at = MicroTime(Timestamp::now());
    let series = |count: i64| Patch::Merge(serde_json::json!({"series": {"count": count, "lastObservedTime": at}}));
    // Reading Events is no right of ours: the answer to a patch says what the count was made of.
    let before = api.patch(&name, &params, &Patch::Merge(serde_json::json!({}))).await?;
    let count = before.series.map_or(1, |series| i64::from(series.count)).saturating_add_unsigned(what.times);
    api.patch(&name, &params, &series(count.clamp(2, i64::from(i32::MAX)))).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occurrence(uid: &str, reason: &'static str, note: &str) -> Occurrence {
        let regarding = ObjectReference {
            uid: Some(uid.to_owned()),
            name: Some("llama".to_owned()),
            namespace: Some("serving".to_owned()),
            ..ObjectReference::default()
        };
        Occurrence { regarding, related: None, warning: true, reason, note: note.to_owned(), times: 1, lasting: false }
    }

    fn told(ledger: &mut Ledger, now: Instant) -> Vec<String> {
        ledger.due(now).into_iter().map(|it| format!("{} {} x{}", it.reason, it.note, it.times)).collect()
    }

    #[tokio::test]
    async fn an_object_and_reason_are_told_at_most_once_in_a_while_and_the_rest_is_counted() {
        let mut ledger = Ledger::default();
        let now = Instant::now();
        for what in
            [("u", "Gap", "a"), ("u", "Gap", "a"), ("u", "Gap", "b"), ("u", "Restarted", "c"), ("v", "Gap", "d")]
        {
            assert!(ledger.note(occurrence(what.0, what.1, what.2)));
        }
        assert_eq!(told(&mut ledger, now), ["Gap a (and 1 more) x2", "Restarted c x1", "Gap d x1"]);
        ledger.note(occurrence("u", "Gap", "e"));
        assert!(told(&mut ledger, now + QUIET / 2).is_empty());
        assert_eq!(told(&mut ledger, now + QUIET), ["Gap e x1"]);
        assert!(told(&mut ledger, now + QUIET * 3).is_empty());
        assert!(ledger.0.is_empty(), "what is over is forgotten");
    }

    #[tokio::test]
    async fn a_storm_is_bounded() {
        let mut ledger = Ledger::default();
        let kept = (0..2 * KEPT_MAX).filter(|uid| ledger.note(occurrence(&uid.to_string(), "Gap", "a"))).count();
        assert_eq!(kept, KEPT_MAX);
        assert_eq!(ledger.due(Instant::now()).len(), BATCH_MAX);
    }

    #[test]
    fn the_same_words_have_the_same_name_and_a_long_name_is_cut() {
        let name = |what: &Occurrence| event(what, "kvindexer-0").metadata.name.expect("it has one");
        let first = occurrence("u", "Gap", "a");
        assert_eq!(name(&first), name(&first.clone()));
        assert_ne!(name(&first), name(&occurrence("u", "Gap", "b")));
        assert_ne!(name(&first), name(&occurrence("v", "Gap", "a")));
        let mut long = first.clone();
        long.regarding.name = Some("a-".repeat(126) + "a");
        let name = name(&long);
        assert!(name.len() <= 253 && !name.contains("-."), "{name}");
    }
}
