//! What has been seen of the API server, shared between those who watch and the one who acts on it.
//!
//! A change is folded in at once, whatever the acting side is doing, so nothing queues up; it is told that there is something
//! to look at, and looks at all of it. Invariant: from the moment at which changes of Pods are not heard, the registry
//! doubts workers that reconnect; it stops doing so only after a complete list that nothing has interrupted since.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch as channel};

use crate::controller::View;
use crate::controller::desired::Observed;
use crate::controller::store::{Facts, Kind, Scope, Shelf, Store};
use crate::metrics::ControllerMetrics;
use crate::readiness::Readiness;
use crate::registry::Registry;

/// Subject of the note beside `/ready`.
const SUBJECT: &str = "kubernetes";

/// Where what is seen goes.
pub(super) struct Audience {
    pub(super) registry: Arc<Registry>,
    pub(super) readiness: Readiness,
    pub(super) metrics: Arc<ControllerMetrics>,
    pub(super) view: channel::Sender<View>,
}

/// The store, and who is to hear of it.
pub(super) struct Seen {
    state: Mutex<State>,
    changed: Notify,
    audience: Audience,
}

struct State {
    store: Store,
    /// How often changes of Pods have ceased to be heard.
    losses: u64,
    /// The registry was told of a complete view.
    told: bool,
}

/// Everything at one moment.
pub(super) struct Look {
    pub(super) observed: Observed,
    /// Changes of Pods are heard since the lists that this is made of; with this number it can be asked whether they
    /// still are.
    pub(super) heard: Option<u64>,
}

impl Seen {
    /// Nothing seen yet.
    pub(super) fn new(scopes: &[Scope], audience: Audience) -> Self {
        audience.registry.set_unwatched(true);
        let state = State { store: Store::new(scopes), losses: 0, told: false };
        let seen = Self { state: Mutex::new(state), changed: Notify::new(), audience };
        seen.publish(&seen.state.lock());
        seen
    }

    /// Changes a shelf. If `act` says that this changed what is in force, whoever waits for [`Self::changed`] is woken.
    pub(super) fn update<F: Facts>(&self, scope: &Scope, act: impl FnOnce(&mut Shelf<F>) -> bool) {
        let mut state = self.state.lock();
        let was_heard = state.store.is_current(Kind::Pods);
        let Some(shelf) = F::shelf(&mut state.store, scope) else {
            debug_assert!(false, "only scopes with a shelf are watched");
            return;
        };
        let changed = act(shelf);
        if was_heard && !state.store.is_current(Kind::Pods) {
            state.losses += 1;
            self.audience.registry.set_unwatched(true);
        }
        self.publish(&state);
        drop(state);
        if changed {
            self.changed.notify_one();
        }
    }

    /// Folds in what changes nothing about who is heard: the pages of a list, and single objects.
    pub(super) fn fold<F: Facts>(&self, scope: &Scope, act: impl FnOnce(&mut Shelf<F>) -> bool) {
        let changed = F::shelf(&mut self.state.lock().store, scope).is_some_and(act);
        if changed {
            self.changed.notify_one();
        }
    }

    /// Waits until something has changed since the last wait. Cancel-safe.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Everything; none before the first complete lists of both kinds.
    pub(super) fn look(&self) -> Option<Look> {
        let state = self.state.lock();
        let observed = state.store.observed()?;
        let heard = state.store.is_current(Kind::Pods).then_some(state.losses);
        Some(Look { observed, heard })
    }

    /// The registry was told of a complete view.
    pub(super) fn told(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.told, true) {
            self.publish(&state);
        }
    }

    /// If nothing has interrupted the watches since a [`Look`], workers that reconnect are believed from here on.
    pub(super) fn believe(&self, heard: u64) -> bool {
        let state = self.state.lock();
        let still = state.losses == heard && state.store.is_current(Kind::Pods);
        if still {
            self.audience.registry.set_unwatched(false);
        }
        still
    }

    fn publish(&self, state: &State) {
        let Audience { readiness, metrics, view, .. } = &self.audience;
        for kind in [Kind::Pods, Kind::Objects] {
            let current = i64::from(state.store.is_current(kind));
            metrics.watch_current.with_label_values(&[kind.as_str()]).set(current);
        }
        let seen = View {
            complete: state.told,
            current: state.store.is_current(Kind::Pods) && state.store.is_current(Kind::Objects),
            trouble: state.store.trouble(),
        };
        view.send_if_modified(|shown| {
            if shown.trouble != seen.trouble {
                readiness.note(SUBJECT, seen.trouble.clone());
            }
            let differs = *shown != seen;
            *shown = seen;
            differs
        });
    }
}
