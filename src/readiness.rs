//! Whether this replica may be asked: components hold readiness back until they are done, and `/ready` lists who still does.
//!
//! A leaf: it knows no other room. Two questions are kept apart. [`Readiness::is_serving`] is latched: once every hold was
//! released it stays true, so that queries are answered while a stop is under way. [`Readiness::reasons`] is what
//! `/ready` shows: it is empty while serving, and names the stop from the first signal on.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Reason shown from the first stop signal on.
const STOPPING: &str = "stopping";

/// Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Readiness {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    serving: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    /// By number, so that reasons come in the order in which they were raised.
    holds: BTreeMap<u64, String>,
    next: u64,
    stopping: bool,
    /// What people should know although it keeps nobody from serving, by subject.
    notes: BTreeMap<&'static str, String>,
}

/// Holds readiness back until it is dropped. A hold taken after serving began has no effect.
#[derive(Debug)]
pub struct Hold {
    shared: Arc<Shared>,
    number: u64,
}

impl Readiness {
    /// Not ready until the returned hold, and all that are taken before it is dropped, are dropped.
    #[must_use]
    pub fn starting(reason: &str) -> (Self, Hold) {
        let shared = Shared { state: Mutex::default(), serving: watch::Sender::new(false) };
        let readiness = Self { shared: Arc::new(shared) };
        let hold = readiness.hold(reason);
        (readiness, hold)
    }

    /// Ready from the start: for servers without any start-up of their own, and for tests.
    #[must_use]
    pub fn ready() -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::default(), serving: watch::Sender::new(true) }) }
    }

    /// Another hold, shown as `reason`.
    #[must_use]
    pub fn hold(&self, reason: &str) -> Hold {
        let mut state = self.shared.state.lock();
        let number = state.next;
        state.next += 1;
        state.holds.insert(number, reason.to_owned());
        Hold { shared: Arc::clone(&self.shared), number }
    }

    /// Why `/ready` must say 503, in the order of the holds; empty = ready.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let state = self.shared.state.lock();
        let mut reasons = Vec::new();
        if state.stopping {
            reasons.push(STOPPING.to_owned());
        }
        if !*self.shared.serving.borrow() {
            reasons.extend(state.holds.values().cloned());
        }
        reasons
    }

    /// Says what people should know about a subject although it keeps nobody from serving; none: nothing any more.
    pub fn note(&self, subject: &'static str, text: Option<String>) {
        let notes = &mut self.shared.state.lock().notes;
        match text {
            Some(text) => drop(notes.insert(subject, text)),
            None => drop(notes.remove(subject)),
        }
    }

    /// All notes, by subject.
    #[must_use]
    pub fn notes(&self) -> BTreeMap<&'static str, String> {
        self.shared.state.lock().notes.clone()
    }

    /// True once every hold was released, for ever: queries are answered, also during a stop.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        *self.shared.serving.borrow()
    }

    /// Waits for [`Self::is_serving`]. Cancel-safe.
    pub async fn serving(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.shared.serving.subscribe().wait_for(|serving| *serving).await;
    }

    /// From now on `/ready` is 503; queries go on.
    pub fn stop(&self) {
        self.shared.state.lock().stopping = true;
    }

    /// True after [`Self::stop`].
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.shared.state.lock().stopping
    }
}

impl Hold {
    /// Changes the text of the reason, for example to tell how far a component has come.
    pub fn set_reason(&self, reason: &str) {
        if let Some(text) = self.shared.state.lock().holds.get_mut(&self.number) {
            reason.clone_into(text);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.holds.remove(&self.number);
        if state.holds.is_empty() {
            self.shared.serving.send_replace(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_once_every_hold_is_released_and_then_for_ever() {
        let (readiness, start) = Readiness::starting("starting");
        let gate = readiness.hold("workers: 0 of 2");
        drop(start);
        assert!(!readiness.is_serving());
        gate.set_reason("workers: 1 of 2");
        assert_eq!(readiness.reasons(), ["workers: 1 of 2"]);
        drop(gate);
        assert!(readiness.is_serving());
        let late = readiness.hold("too late");
        assert!(readiness.is_serving());
        assert_eq!(readiness.reasons(), [""; 0]);
        drop(late);
    }

    #[test]
    fn a_stop_shows_in_ready_and_leaves_queries_alone() {
        let readiness = Readiness::ready();
        readiness.stop();
        assert_eq!(readiness.reasons(), ["stopping"]);
        assert!(readiness.is_serving() && readiness.is_stopping());
    }

    #[test]
    fn notes_keep_nobody_from_serving() {
        let readiness = Readiness::ready();
        readiness.note("kubernetes", Some("unreachable".to_owned()));
        assert!(readiness.reasons().is_empty());
        assert_eq!(readiness.notes().into_iter().collect::<Vec<_>>(), [("kubernetes", "unreachable".to_owned())]);
        readiness.note("kubernetes", None);
        assert!(readiness.notes().is_empty());
    }

    #[tokio::test]
    async fn waiting_ends_when_the_last_hold_goes() {
        let (readiness, hold) = Readiness::starting("starting");
        let waiter = tokio::spawn({
            let readiness = readiness.clone();
            async move { readiness.serving().await }
        });
        drop(hold);
        waiter.await.unwrap();
    }
}
