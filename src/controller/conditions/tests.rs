//! Decisions of conditions, as tables; one status as it is written.

use expect_test::{Expect, expect};

use super::*;
use crate::controller::desired::{Fault, Member, Reason as FaultReason};
use crate::controller::facts::ObjectKey;
use crate::ids::{InstanceId, Seq};
use crate::recovery::{PeerRank, PeerReport, PeerState};
use crate::registry::Status;
use crate::trust::Reason;

/// A rank that is as it should be.
pub(in crate::controller) fn local() -> LocalRank {
    LocalRank {
        status: Status::Active,
        last_error: None,
        state: State::Exact,
        reasons: Vec::new(),
        blocks: 10,
        gaps: 0,
        lives: 0,
        last_seq: Some(Seq(7)),
        endpoint: "tcp://10.0.0.1:5557".to_owned(),
        announced_block_size: None,
    }
}

fn with(reasons: &[Reason]) -> LocalRank {
    let state = reasons.iter().map(|reason| reason.state()).max().unwrap_or(State::Exact);
    let status = if reasons.contains(&Reason::NotConnected) { Status::Pending } else { Status::Active };
    let last_error = (status == Status::Pending).then(|| "connection refused".to_owned());
    LocalRank { status, last_error, state, reasons: reasons.to_vec(), ..local() }
}

fn peer_rank(reasons: &[Reason], differs: bool) -> PeerRank {
    let state = reasons.iter().map(|reason| reason.state()).max().unwrap_or(State::Exact);
    let reasons = reasons.iter().map(|reason| reason.as_str().to_owned()).collect();
    PeerRank { state, reasons, blocks: 10, last_seq: Some(Seq(7)), differs }
}

fn owner(pod: &str) -> (IndexKey, Owner) {
    let instance = InstanceId::parse(&format!("serving/{pod}")).expect("an id");
    (IndexKey::new("m", "default"), Owner::new(instance, 0))
}

fn pod(name: &str) -> ObjectKey {
    ObjectKey { namespace: "serving".to_owned(), name: name.to_owned() }
}

/// One object, and how replicas see it: this one (`kvindexer-0`) and others.
struct Scene {
    finding: ObjectFinding,
    failed: BTreeMap<(IndexKey, Owner), String>,
    local: BTreeMap<(IndexKey, Owner), LocalRank>,
    /// One survey after another.
    surveys: Vec<Vec<PeerReport>>,
}

/// An object whose Pods are all registered here, and exact.
fn scene(pods: &[&str]) -> Scene {
    let member = |name: &&str| {
        let (index, owner) = owner(name);
        let address = "tcp://10.0.0.1:5557".to_owned();
        Member { index, owner, address, pod: Some(pod(name)), container_down: false }
    };
    let finding = ObjectFinding {
        uid: "u".to_owned(),
        generation: 3,
        refused: None,
        members: pods.iter().map(member).collect(),
        faults: Vec::new(),
    };
    let local = pods.iter().map(|name| (owner(name), local())).collect();
    Scene { finding, failed: BTreeMap::new(), local, surveys: Vec::new() }
}

impl Scene {
    fn here(mut self, pod: &str, reasons: &[Reason]) -> Self {
        self.local.insert(owner(pod), with(reasons));
        self
    }

    fn away(mut self, pod: &str) -> Self {
        self.local.remove(&owner(pod));
        self
    }

    fn down(mut self, pod: &str) -> Self {
        let is_it = |member: &&mut Member| member.owner == owner(pod).1;
        self.finding.members.iter_mut().find(is_it).expect("a member").container_down = true;
        self
    }

    fn failed(mut self, pod: &str, why: &str) -> Self {
        self.failed.insert(owner(pod), why.to_owned());
        self
    }

    fn refused(mut self, reason: FaultReason, message: &str) -> Self {
        self.finding.refused = Some(Fault { reason, message: message.to_owned() });
        self
    }

    fn fault(mut self, name: &str, reason: FaultReason, message: &str) -> Self {
        self.finding.faults.push((pod(name), Fault { reason, message: message.to_owned() }));
        self
    }

    /// `kvindexer-1` says this of these Pods, and of no others.
    fn peer(mut self, ready: bool, ranks: &[(&str, &[Reason], bool)]) -> Self {
        let ranks = ranks.iter().map(|(pod, reasons, differs)| (owner(pod), peer_rank(reasons, *differs)));
        let state = PeerState { ready, ranks: ranks.collect() };
        self.surveys.push(vec![PeerReport { url: "u1".to_owned(), name: "kvindexer-1".to_owned(), answer: Ok(state) }]);
        self
    }

    fn silent(mut self) -> Self {
        let answer = Err("connection refused".to_owned());
        self.surveys.push(vec![PeerReport { url: "u1".to_owned(), name: "u1".to_owned(), answer }]);
        self
    }

    fn status(&self, previous: Option<&IndexerWorkerStatus>, second: i64) -> IndexerWorkerStatus {
        let mut replicas = Replicas::default();
        for survey in &self.surveys {
            replicas.absorb(survey.clone());
        }
        let now = Timestamp::from_second(second).expect("in range");
        let own_name = "kvindexer-0";
        let inputs = Inputs { own_name, failed: &self.failed, local: &self.local, replicas: &replicas, now };
        status(&self.finding, &inputs, 2, previous)
    }
}

/// `Accepted Connected Ingesting InSync | trust workers/ready`, each condition by its reason and the first letter of its
/// status.
#[track_caller]
fn check(name: &str, scene: &Scene, want: &str) {
    let status = scene.status(None, 0);
    let conditions = status.conditions.iter().map(|it| format!("{}:{}", &it.status[..1], it.reason));
    let found = format!(
        "{} | {:?} {}/{}",
        conditions.collect::<Vec<_>>().join(" "),
        status.trust,
        status.ready.expect("set"),
        status.workers.expect("set"),
    );
    assert_eq!(found, want, "{name}");
}

#[test]
fn conditions_say_what_this_replica_sees() {
    use Reason::{BlockSizeMismatch, ContainerDown, Gap, NotConnected, NothingHeard, PendingParents, Skipped};
    const WELL: &str = "T:Accepted T:AllConnected T:Ingesting T:InSync | Exact 2/2";
    check("all well", &scene(&["a", "b"]), WELL);
    check("no Pods", &scene(&[]), "T:Accepted F:NoWorkers F:NoWorkers F:NoWorkers | Unknown 0/0");
    for (name, reasons, want) in [
        ("a gap", &[Gap][..], "T:AllConnected T:Ingesting F:Gap | Degraded 1/2"),
        (
            "two reasons: the order is fixed",
            &[Skipped, PendingParents],
            "T:AllConnected T:Ingesting F:PendingParents | Degraded 1/2",
        ),
        ("not connected", &[NotConnected], "F:NotConnected F:NotConnected F:NotConnected | Stale 1/2"),
        ("not connected after a gap", &[Gap, NotConnected], "F:NotConnected F:NotConnected F:NotConnected | Stale 1/2"),
        ("silent", &[NothingHeard], "T:AllConnected F:NothingHeard F:NothingHeard | Stale 1/2"),
        ("block size", &[BlockSizeMismatch], "T:AllConnected F:BlockSizeMismatch F:BlockSizeMismatch | Degraded 1/2"),
        (
            "container down",
            &[NotConnected, ContainerDown],
            "F:ContainerDown F:ContainerDown F:ContainerDown | Stale 1/2",
        ),
    ] {
        check(name, &scene(&["a", "b"]).here("b", reasons), &format!("T:Accepted {want}"));
    }
    check(
        "a container that never ran is registered nowhere",
        &scene(&["a", "b"]).away("b").down("b"),
        "T:Accepted F:ContainerDown F:ContainerDown F:ContainerDown | Stale 1/1",
    );
    check(
        "refused by the registry",
        &scene(&["a", "b"]).away("b").failed("b", "block_size mismatch"),
        "T:Accepted F:NotRegistered F:NotRegistered F:NotRegistered | Stale 1/1",
    );
}

#[test]
fn accepted_tells_what_is_not_in_force() {
    use FaultReason::{BlockSizeMismatch, InvalidSpec, PodAlreadyClaimed, PortNotFound, Unreadable};
    let rest = "F:NoWorkers F:NoWorkers F:NoWorkers | Unknown 0/0";
    check("unreadable", &scene(&[]).refused(Unreadable, "x"), &format!("F:Unreadable {rest}"));
    let well = "T:AllConnected T:Ingesting T:InSync | Exact 1/1";
    check("the last good spec", &scene(&["a"]).refused(InvalidSpec, "x"), &format!("F:InvalidSpec {well}"));
    check("claimed", &scene(&["a"]).fault("b", PodAlreadyClaimed, "by x"), &format!("F:PodAlreadyClaimed {well}"));
    check(
        "the first reason leads",
        &scene(&["a"]).fault("b", PodAlreadyClaimed, "x").fault("c", PortNotFound, "y"),
        &format!("F:PortNotFound {well}"),
    );
    check(
        "a Pod of another block size that is not registered",
        &scene(&["a"]).fault("b", BlockSizeMismatch, "x"),
        &format!("F:BlockSizeMismatch {well}"),
    );
    check(
        "a registered Pod whose engine says another block size",
        &scene(&["a"]).fault("a", BlockSizeMismatch, "x"),
        "T:Accepted T:AllConnected F:BlockSizeMismatch T:InSync | Exact 1/1",
    );
}

#[test]
fn trust_is_the_worst_of_all_replicas_that_serve() {
    use Reason::{Gap, NotConnected};
    let well: &[Reason] = &[];
    let two = |ranks: &[(&str, &[Reason], bool)]| scene(&["a"]).peer(true, ranks).peer(true, ranks);
    const WELL: &str = "T:Accepted T:AllConnected T:Ingesting T:InSync | Exact 1/1";
    check("exact on both", &two(&[("a", well, false)]), WELL);
    for (name, scene, want) in [
        ("a gap there", two(&[("a", &[Gap], false)]), "T:AllConnected T:Ingesting F:Gap | Degraded 0/1"),
        (
            "not connected there",
            two(&[("a", &[NotConnected], false)]),
            "F:NotConnected F:NotConnected F:NotConnected | Stale 0/1",
        ),
        ("differs", two(&[("a", well, true)]), "T:AllConnected T:Ingesting F:ReplicaDiffers | Degraded 0/1"),
        ("missing there, twice", two(&[]), "T:AllConnected T:Ingesting F:NotOnEveryReplica | Stale 0/1"),
    ] {
        check(name, &scene, &format!("T:Accepted {want}"));
    }
    check("missing there, once", &scene(&["a"]).peer(true, &[("a", well, false)]).peer(true, &[]), WELL);
    check("missing there at the first question", &scene(&["a"]).peer(true, &[]), WELL);
    check("it recovers", &scene(&["a"]).peer(false, &[]).peer(false, &[("a", &[NotConnected], false)]), WELL);
    check("one lost question", &scene(&["a"]).peer(true, &[("a", well, false)]).silent(), WELL);
    let silent = scene(&["a"]).peer(true, &[("a", well, false)]).silent().silent();
    check("no answer twice", &silent, "T:Accepted T:AllConnected T:Ingesting U:ReplicaUnreachable | Exact 1/1");
    let gone = Scene { surveys: vec![silent.surveys[0].clone(), vec![]], ..scene(&["a"]) };
    check("it is no replica any more", &gone, WELL);
}

#[test]
fn messages_name_pods_and_replicas_and_say_what_to_do() {
    use Reason::{Gap, NotConnected};
    #[track_caller]
    fn message(scene: &Scene, kind: &str, want: Expect) {
        let status = scene.status(None, 0);
        want.assert_eq(&status.conditions.iter().find(|it| it.type_ == kind).expect("there").message);
    }
    let five = ["a", "b", "c", "d", "e"];
    let many = five.iter().fold(scene(&five), |scene, pod| scene.here(pod, &[Gap]));
    message(
        &many,
        "InSync",
        expect![
            "5 of 5 ranks: serving/a rank 0 (kvindexer-0: gap), serving/b rank 0 (kvindexer-0: gap), serving/c rank 0 (kvindexer-0: gap), and 2 more; batches were lost: with a replay endpoint (spec.ports.replay) they are fetched, else this ends when the engine restarts or clears its cache"
        ],
    );
    let one = scene(&["a", "b"]).here("b", &[NotConnected]);
    message(
        &one,
        "Connected",
        expect![
            "1 of 2 ranks: serving/b rank 0 (kvindexer-0: not_connected; connection refused): look whether the engine listens on this address and a NetworkPolicy allows it"
        ],
    );
    let peer = scene(&["a"]).peer(true, &[("a", &[Gap], true)]);
    message(
        &peer,
        "InSync",
        expect![
            "1 of 1 ranks: serving/a rank 0 (kvindexer-1: gap, replica_differs); `kvindexer diff` shows the blocks; a complete replay repairs this"
        ],
    );
    message(
        &scene(&["a"]).silent().silent(),
        "InSync",
        expect!["no answer from u1: connection refused; what it holds is not known"],
    );
    let fault = scene(&["a"]).fault("b", FaultReason::PodAlreadyClaimed, "claimed by serving/older");
    message(&fault, "Accepted", expect!["not registered as specified: serving/b: claimed by serving/older"]);
}

#[test]
fn the_order_of_observations_changes_nothing() {
    let five = ["a", "b", "c", "d", "e"];
    let mut there = five.iter().fold(scene(&five), |scene, pod| scene.here(pod, &[Reason::Gap]));
    for pod in five {
        there = there.fault(pod, FaultReason::PortNotFound, "x");
    }
    let before = there.status(None, 0);
    there.finding.members.reverse();
    there.finding.faults.reverse();
    assert_eq!(there.status(None, 0), before);
}

#[test]
fn whoever_writes_the_words_are_the_same() {
    let gap: &[Reason] = &[Reason::Gap];
    let here = scene(&["a"]).here("a", gap).peer(true, &[("a", gap, false)]);
    let message = |own_name: &str, peer: &str| {
        let mut replicas = Replicas::default();
        let mut survey = here.surveys[0].clone();
        survey[0].name = peer.to_owned();
        replicas.absorb(survey);
        let now = Timestamp::UNIX_EPOCH;
        let inputs = Inputs { own_name, failed: &here.failed, local: &here.local, replicas: &replicas, now };
        status(&here.finding, &inputs, 0, None)
    };
    let (one, two) = (message("kvindexer-0", "kvindexer-1"), message("kvindexer-1", "kvindexer-0"));
    assert_eq!(change(Some(&one), &two), Change::None);
    assert_eq!(one.instances, two.instances);
}

#[test]
fn a_transition_is_a_flip_of_the_status_and_nothing_else() {
    let times = |status: &IndexerWorkerStatus| -> Vec<i64> {
        status.conditions.iter().map(|it| it.last_transition_time.0.as_second()).collect()
    };
    let first = scene(&["a"]).status(None, 100);
    assert_eq!(times(&first), [100; 4]);
    let same = scene(&["a"]).status(Some(&first), 200);
    assert_eq!((times(&same), change(Some(&first), &same)), (vec![100; 4], Change::None));
    let gap = scene(&["a"]).here("a", &[Reason::Gap]).status(Some(&same), 300);
    assert_eq!(times(&gap), [100, 100, 100, 300]);
    let other_reason = scene(&["a"]).here("a", &[Reason::Skipped]).status(Some(&gap), 400);
    assert_eq!((times(&other_reason), change(Some(&gap), &other_reason)), (vec![100, 100, 100, 300], Change::Loud));
    assert_eq!(times(&scene(&["a"]).status(Some(&other_reason), 500)), [100, 100, 100, 500]);
}

#[test]
fn a_change_is_loud_quiet_or_none() {
    let first = scene(&["a"]).status(None, 0);
    let changed = |change_it: &dyn Fn(&mut Scene)| {
        let mut there = scene(&["a"]);
        change_it(&mut there);
        change(Some(&first), &there.status(Some(&first), 9))
    };
    let rank = |there: &mut Scene, change_it: &dyn Fn(&mut LocalRank)| {
        there.local.values_mut().for_each(change_it);
    };
    assert_eq!(change(None, &first), Change::Loud);
    assert_eq!(changed(&|it| rank(it, &|rank| rank.last_seq = Some(Seq(8)))), Change::None);
    assert_eq!(changed(&|it| rank(it, &|rank| rank.blocks = 11)), Change::Quiet);
    assert_eq!(changed(&|it| it.finding.generation = 4), Change::Loud);
    assert_eq!(changed(&|it| it.finding.members[0].address = "tcp://10.0.0.2:5557".to_owned()), Change::Loud);
    let mut elsewhere = first.clone();
    elsewhere.observed_by = Some("kvindexer-2".to_owned());
    assert_eq!(change(Some(&elsewhere), &first), Change::None, "who writes is no news");
    let words = |error: &str| {
        let mut there = scene(&["a"]).here("a", &[Reason::NotConnected]);
        rank(&mut there, &|rank| rank.last_error = Some(error.to_owned()));
        there.status(None, 0)
    };
    assert_eq!(change(Some(&words("refused")), &words("timed out")), Change::Quiet);
}

#[test]
fn many_instances_are_cut_with_the_troubled_first() {
    let names: Vec<String> = (0..40).map(|number| format!("p{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let there = scene(&names).here("p39", &[Reason::Gap]).here("p20", &[Reason::NotConnected]);
    let status = there.status(None, 0);
    let listed: Vec<&str> = status.instances.iter().map(|it| it.instance_id.as_str()).collect();
    assert_eq!(listed.len(), INSTANCES_MAX);
    assert_eq!(listed[..4], ["serving/p20", "serving/p39", "serving/p00", "serving/p01"]);
    assert_eq!((status.workers, status.ready), (Some(40), Some(38)));
}

#[test]
fn texts_are_cut_at_a_character() {
    assert_eq!(cut("äöü".to_owned(), 6), "äöü");
    assert_eq!(cut("äöüä".to_owned(), 7), "äö...");
    assert_eq!(verdicts::camel_case("replay_incomplete"), "ReplayIncomplete");
    assert_eq!(verdicts::camel_case("a word!_ of 2"), "AwordOf2");
    assert_eq!(verdicts::camel_case("9"), "Degraded");
}

#[test]
fn a_status_reads_like_this() {
    let well: &[Reason] = &[];
    let there = scene(&["a", "b"]).here("b", &[Reason::Gap]).peer(true, &[("a", well, false), ("b", well, false)]);
    let status = serde_json::to_string_pretty(&there.status(None, 1_796_000_000)).expect("it can be written");
    expect![[r#"
        {
          "observedGeneration": 3,
          "observedBy": "kvindexer-0",
          "workers": 2,
          "ready": 1,
          "blocks": 20,
          "gaps": 2,
          "trust": "Degraded",
          "instances": [
            {
              "instanceId": "serving/b",
              "dpRank": 0,
              "address": "tcp://10.0.0.1:5557",
              "trust": "Degraded",
              "reasons": [
                "gap"
              ],
              "lastSequence": "7",
              "message": "kvindexer-0: gap"
            },
            {
              "instanceId": "serving/a",
              "dpRank": 0,
              "address": "tcp://10.0.0.1:5557",
              "trust": "Exact",
              "lastSequence": "7"
            }
          ],
          "conditions": [
            {
              "lastTransitionTime": "2026-11-30T00:53:20Z",
              "message": "the spec is in force",
              "observedGeneration": 3,
              "reason": "Accepted",
              "status": "True",
              "type": "Accepted"
            },
            {
              "lastTransitionTime": "2026-11-30T00:53:20Z",
              "message": "the publisher of every rank is connected",
              "observedGeneration": 3,
              "reason": "AllConnected",
              "status": "True",
              "type": "Connected"
            },
            {
              "lastTransitionTime": "2026-11-30T00:53:20Z",
              "message": "the events of every rank are applied",
              "observedGeneration": 3,
              "reason": "Ingesting",
              "status": "True",
              "type": "Ingesting"
            },
            {
              "lastTransitionTime": "2026-11-30T00:53:20Z",
              "message": "1 of 2 ranks: serving/b rank 0 (kvindexer-0: gap); batches were lost: with a replay endpoint (spec.ports.replay) they are fetched, else this ends when the engine restarts or clears its cache",
              "observedGeneration": 3,
              "reason": "Gap",
              "status": "False",
              "type": "InSync"
            }
          ]
        }"#]].assert_eq(&status);
}
