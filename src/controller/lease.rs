//! The Lease: one replica of the set writes statuses. The decision is pure; around it little I/O.
//!
//! Clocks of replicas are never compared: a Lease is free once this replica has seen it unchanged for its whole duration.
//! A holder counts from before it asked, so it stops no later than another one begins. A restarted Pod has the name that
//! holds the Lease and goes on at once. Nothing is given back at the end: the next holder waits one duration.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::time::Instant;

use crate::controller::trouble::{Told, kind_of};

/// Between two attempts lies this part of the duration: a holder may miss two.
const ATTEMPTS: u32 = 3;

/// What to do about a Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// There is none.
    Create,
    /// It is ours.
    Renew,
    /// It was another's, who is gone.
    Take,
    /// It is another's; look again after so long.
    Wait(Duration),
}

/// Decides. `unchanged`: for how long this replica has seen the Lease as it is.
#[must_use]
pub(super) fn decide(lease: Option<&LeaseSpec>, me: &str, unchanged: Duration, ours: Duration) -> Step {
    let Some(lease) = lease else {
        return Step::Create;
    };
    match lease.holder_identity.as_deref() {
        Some(holder) if holder == me => Step::Renew,
        None | Some("") => Step::Take,
        Some(_) => {
            let seconds = lease.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
            let duration = seconds.filter(|seconds| *seconds > 0).map_or(ours, Duration::from_secs);
            match duration.checked_sub(unchanged) {
                Some(left) if !left.is_zero() => Step::Wait(left),
                _ => Step::Take,
            }
        }
    }
}

/// What a Lease says after a step.
#[must_use]
pub(super) fn held(before: Option<&LeaseSpec>, step: Step, me: &str, duration: Duration) -> LeaseSpec {
    let now = MicroTime(Timestamp::now());
    let mut spec = before.cloned().unwrap_or_default();
    if step == Step::Take {
        spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
    }
    if step != Step::Renew {
        spec.acquire_time = Some(now.clone());
    }
    spec.lease_transitions.get_or_insert(0);
    spec.holder_identity = Some(me.to_owned());
    spec.lease_duration_seconds = Some(i32::try_from(duration.as_secs().max(1)).unwrap_or(i32::MAX));
    spec.renew_time = Some(now);
    spec
}

/// One candidate.
pub(super) struct Leadership {
    api: Api<Lease>,
    name: String,
    me: String,
    duration: Duration,
    /// As read or written last, and when it was first seen so.
    known: Option<(Lease, Instant)>,
    /// Our hold ends here unless it is renewed.
    until: Instant,
    told: Told,
}

impl Leadership {
    /// A candidate that has not asked.
    pub(super) fn new(api: Api<Lease>, name: &str, me: &str, duration: Duration) -> Self {
        // The API knows whole seconds only.
        let duration = Duration::from_secs(duration.as_secs().max(1));
        let told = Told::new("leases", "get, create and update leases");
        Self { api, name: name.to_owned(), me: me.to_owned(), duration, known: None, until: Instant::now(), told }
    }

    /// Ends when this replica holds the Lease.
    pub(super) async fn acquire(&mut self) {
        loop {
            let started = Instant::now();
            match self.limited(Self::attempt).await {
                Ok(None) => {
                    self.until = started + self.duration;
                    return;
                }
                Ok(Some(wait)) => tokio::time::sleep(wait.min(self.pause())).await,
                Err(()) => tokio::time::sleep(self.pause()).await,
            }
        }
    }

    /// Renews; ends when the Lease is another's, or was not renewed in time.
    pub(super) async fn keep(&mut self) {
        let mut wait = self.pause();
        loop {
            if tokio::time::timeout_at(self.until, tokio::time::sleep(wait)).await.is_err() {
                return;
            }
            let started = Instant::now();
            let until = self.until;
            match tokio::time::timeout_at(until, self.limited(Self::renew)).await {
                Ok(Ok(true)) => {
                    self.until = started + self.duration;
                    wait = self.pause();
                }
                Ok(Ok(false)) => return,
                // Sooner than in good times: what is left is short.
                Ok(Err(())) => wait = self.pause() / 2,
                Err(_) => return,
            }
        }
    }

    fn pause(&self) -> Duration {
        let part = self.duration / ATTEMPTS;
        // Candidates that began together spread.
        part.mul_f64(0.8 + 0.2 * fastrand::f64())
    }

    /// With an end to every wait.
    async fn limited<'a, T, F>(&'a mut self, ask: impl FnOnce(&'a mut Self) -> F) -> Result<T, ()>
    where
        F: Future<Output = Result<T, ()>> + 'a,
    {
        let limit = self.duration / 2;
        tokio::time::timeout(limit, ask(self)).await.unwrap_or(Err(()))
    }

    /// None once it is ours; else how long to wait.
    async fn attempt(&mut self) -> Result<Option<Duration>, ()> {
        let found = self.api.get_opt(&self.name).await;
        let lease = self.answered(found)?;
        self.see(lease);
        let step = match &self.known {
            None => Step::Create,
            Some((lease, since)) => {
                decide(Some(&lease.spec.clone().unwrap_or_default()), &self.me, since.elapsed(), self.duration)
            }
        };
        match step {
            Step::Wait(time) => Ok(Some(time)),
            step if self.write(step).await? => Ok(None),
            // Another was faster.
            _ => Ok(Some(self.duration)),
        }
    }

    async fn renew(&mut self) -> Result<bool, ()> {
        if self.write(Step::Renew).await? {
            return Ok(true);
        }
        // Somebody wrote to it: an edit that leaves it ours does not matter.
        let found = self.api.get_opt(&self.name).await;
        let lease = self.answered(found)?;
        let holder = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
        let ours = lease.as_ref().and_then(holder).is_none_or(|holder| holder == self.me || holder.is_empty());
        self.see(lease);
        if !ours {
            return Ok(false);
        }
        let step = if self.known.is_some() { Step::Renew } else { Step::Create };
        self.write(step).await
    }

    /// False if somebody else wrote meanwhile.
    async fn write(&mut self, step: Step) -> Result<bool, ()> {
        let mut lease = self.known.as_ref().map(|(lease, _)| lease.clone()).unwrap_or_default();
        lease.spec = Some(held(lease.spec.as_ref(), step, &self.me, self.duration));
        let params = PostParams::default();
        let written = if step == Step::Create {
            lease.metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            self.api.create(&params, &lease).await
        } else {
            self.api.replace(&self.name, &params, &lease).await
        };
        match written {
            Ok(lease) => {
                self.told.well();
                self.see(Some(lease));
                Ok(true)
            }
            // Changed, or created by another.
            Err(error) if kind_of(&error) == "conflict" => Ok(false),
            // Deleted. There is nothing to create it in: that is a failure.
            Err(error) if kind_of(&error) == "not_found" && step != Step::Create => Ok(false),
            Err(error) => {
                self.told.failed(&error);
                Err(())
            }
        }
    }

    fn answered<T>(&mut self, answer: kube::Result<T>) -> Result<T, ()> {
        match answer {
            Ok(answer) => {
                self.told.well();
                Ok(answer)
            }
            Err(error) => {
                self.told.failed(&error);
                Err(())
            }
        }
    }

    fn see(&mut self, lease: Option<Lease>) {
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        let same = |known: &(Lease, Instant)| lease.as_ref().is_some_and(|lease| version(lease) == version(&known.0));
        if !self.known.as_ref().is_some_and(same) {
            self.known = lease.map(|lease| (lease, Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: Option<&str>, seconds: Option<i32>) -> LeaseSpec {
        LeaseSpec {
            holder_identity: holder.map(ToOwned::to_owned),
            lease_duration_seconds: seconds,
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_is_taken_only_after_it_was_seen_unchanged_for_its_whole_duration() {
        let ours = Duration::from_secs(15);
        let left = |seconds| Step::Wait(Duration::from_secs(seconds));
        for (name, lease, unchanged, want) in [
            ("none", None, 0, Step::Create),
            ("ours", Some(lease(Some("a"), Some(15))), 0, Step::Renew),
            ("ours for long", Some(lease(Some("a"), Some(15))), 99, Step::Renew),
            ("nobody's", Some(lease(None, Some(15))), 0, Step::Take),
            ("given up", Some(lease(Some(""), Some(15))), 0, Step::Take),
            ("another's", Some(lease(Some("b"), Some(15))), 5, left(10)),
            ("another's, longer than ours", Some(lease(Some("b"), Some(60))), 20, left(40)),
            ("another's, over", Some(lease(Some("b"), Some(15))), 15, Step::Take),
            ("another's without a duration", Some(lease(Some("b"), None)), 14, left(1)),
            ("another's with a wrong duration", Some(lease(Some("b"), Some(-1))), 16, Step::Take),
        ] {
            assert_eq!(decide(lease.as_ref(), "a", Duration::from_secs(unchanged), ours), want, "{name}");
        }
    }

    #[test]
    fn a_take_over_is_counted_and_a_renewal_is_not() {
        let before = LeaseSpec { lease_transitions: Some(4), ..lease(Some("b"), Some(15)) };
        let duration = Duration::from_secs(15);
        let taken = held(Some(&before), Step::Take, "a", duration);
        assert_eq!((taken.holder_identity.as_deref(), taken.lease_transitions), (Some("a"), Some(5)));
        let renewed = held(Some(&taken), Step::Renew, "a", duration);
        assert_eq!((renewed.lease_transitions, &renewed.acquire_time), (Some(5), &taken.acquire_time));
        assert!(renewed.renew_time >= taken.renew_time);
        assert_eq!(held(None, Step::Create, "a", Duration::from_millis(300)).lease_duration_seconds, Some(1));
    }
}
