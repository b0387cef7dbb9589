//! Follows the API server, one watch per kind and namespace: a complete list, then changes from its version on.
//!
//! The loop is our own because two things must be known that `kube::runtime::watcher` keeps to itself: at which moment
//! changes cease to be heard, and that every single wait has a limit.
//! * A list is read from the API server's newest state, never from a cache that may be older, in pages.
//! * A watch that the server ends in order is taken up where it stopped; nothing is missed by that. After anything else
//!   (an error, 410, a refusal, silence) only another complete list counts.
//! * Silence: the server is asked to end each watch after [`Times::watch`]. A connection on which neither that nor anything
//!   else comes is given up [`SILENCE_MARGIN`] later, and a request without an answer after [`Times::answer`]; so a
//!   connection that dies without a word is noticed 70 s after its last one.
//! * Failures are repeated with a wait that doubles, with jitter; it begins anew only after a watch has lived for the longest
//!   wait, so a server that lists and then refuses to be watched is not hammered either.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStream};
use kube::Client;
use kube::core::params::{ListParams, WatchParams};
use kube::core::{Request, WatchEvent};
use tokio::time::{Instant, timeout};
use tracing::{error, info, warn};

use crate::controller::Times;
use crate::controller::cut::{self, Cut, Page, Raw};
use crate::controller::seen::Seen;
use crate::controller::store::{Kind, Scope, Shelf};
use crate::metrics::ControllerMetrics;

mod failure;
use failure::{Backoff, Failure, Reason};

/// Objects per page of a list.
const PAGE: u32 = 500;

/// A watch that says nothing for longer than it should live is dead.
const SILENCE_MARGIN: Duration = Duration::from_secs(10);

/// A watch that ends sooner did not end in order: taking it up at once, again and again, would hammer the API server.
const LIFE_MIN: Duration = Duration::from_secs(1);

/// A kind that is missing is looked for at least as often.
const MISSING_WAIT_MAX: Duration = Duration::from_secs(8);

/// One watch.
pub(super) struct Watch {
    pub(super) client: Client,
    pub(super) scope: Scope,
    pub(super) times: Times,
    pub(super) seen: Arc<Seen>,
    pub(super) metrics: Arc<ControllerMetrics>,
}

/// What was said last about a watch, so that each state is said once.
#[derive(Default)]
struct Said {
    reason: Option<Reason>,
    /// Since when the API server says without a break that it does not know the kind.
    absent: Option<Instant>,
}

impl Watch {
    /// Ends only by being dropped.
    pub(super) async fn follow<F: Raw>(self) {
        let mut backoff = Backoff::new(self.times.retry_min, self.times.retry_max);
        let mut said = Said::default();
        loop {
            let mut current_since = None;
            let failure = match self.session::<F>(&mut said, &mut current_since).await {
                Ok(never) => match never {},
                Err(failure) => failure,
            };
            if current_since.is_some_and(|since| since.elapsed() >= self.times.retry_max) {
                backoff.begin_anew();
            }
            let wait = self.fail::<F>(&mut said, failure, &mut backoff);
            tokio::time::sleep(wait).await;
        }
    }

    /// Lists, and follows changes until that fails.
    async fn session<F: Raw>(
        &self,
        said: &mut Said,
        current_since: &mut Option<Instant>,
    ) -> Result<std::convert::Infallible, Failure> {
        let mut version = self.list::<F>().await?;
        loop {
            let asked = Instant::now();
            let events = self.open::<F>(&version).await?;
            if current_since.is_none() {
                *current_since = Some(Instant::now());
                if said.reason.take().is_some() {
                    info!(kind = F::KIND.as_str(), namespace = self.scope, "changes are heard again");
                }
                said.absent = None;
            }
            self.seen.update(&self.scope, Shelf::<F>::current);
            self.drain::<F>(events, &mut version).await?;
            if asked.elapsed() < LIFE_MIN {
                return Err(Failure::new(Reason::Unreachable, "watch ended as soon as it began"));
            }
        }
    }

    /// A complete list; its version.
    async fn list<F: Raw>(&self) -> Result<String, Failure> {
        let path = Request::new(F::path(self.scope.as_deref()));
        let mut params = ListParams::default().limit(PAGE);
        self.seen.fold(&self.scope, |shelf: &mut Shelf<F>| {
            shelf.begin();
            false
        });
        loop {
            let request = path.list(&params).map_err(|error| Failure::new(Reason::Other, error))?;
            let page = timeout(self.times.answer, self.client.request::<Page<F>>(request));
            let page =
                page.await.map_err(|_| self.no_answer("list"))?.map_err(|error| self.failed::<F>("list", error))?;
            self.seen.fold(&self.scope, |shelf: &mut Shelf<F>| {
                page.items.into_iter().for_each(|cut| self.collect(shelf, cut));
                false
            });
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                let version = page.metadata.resource_version.filter(|version| !version.is_empty());
                let version = version.ok_or_else(|| Failure::new(Reason::Other, "list has no resourceVersion"))?;
                self.metrics.lists.with_label_values(&[F::KIND.as_str()]).inc();
                self.seen.fold(&self.scope, Shelf::<F>::complete);
                return Ok(version);
            }
        }
    }

    fn collect<F: Raw>(&self, shelf: &mut Shelf<F>, cut: Cut<F>) {
        match cut.facts {
            Ok(facts) => shelf.collect(facts),
            Err(why) => {
                self.unreadable::<F>(&cut.key.namespace, &cut.key.name, &why);
                shelf.collect_unreadable(&cut.key, &cut.uid);
            }
        }
    }

    async fn open<F: Raw>(
        &self,
        version: &str,
    ) -> Result<impl TryStream<Item = kube::Result<WatchEvent<Cut<F>>>> + use<F>, Failure> {
        let seconds = u32::try_from(self.times.watch.as_secs().max(1)).unwrap_or(u32::MAX);
        let params = WatchParams { timeout: Some(seconds), bookmarks: true, ..WatchParams::default() };
        let request = Request::new(F::path(self.scope.as_deref())).watch(&params, version);
        let request = request.map_err(|error| Failure::new(Reason::Other, error))?;
        let events = timeout(self.times.answer, self.client.request_events::<Cut<F>>(request));
        events.await.map_err(|_| self.no_answer("watch"))?.map_err(|error| self.failed::<F>("watch", error))
    }

    /// Takes in changes until the server ends the watch in order.
    async fn drain<F: Raw>(
        &self,
        events: impl TryStream<Item = kube::Result<WatchEvent<Cut<F>>>>,
        version: &mut String,
    ) -> Result<(), Failure> {
        let mut events = std::pin::pin!(events);
        let silence = self.times.watch + SILENCE_MARGIN;
        loop {
            let event = timeout(silence, events.next()).await;
            let event = event.map_err(|_| Failure::new(Reason::Unreachable, "watch is silent"))?;
            let Some(event) = event else {
                return Ok(());
            };
            let seen = match event.map_err(|error| self.failed::<F>("watch", error))? {
                WatchEvent::Added(cut) | WatchEvent::Modified(cut) => self.apply(cut),
                WatchEvent::Deleted(cut) => {
                    self.seen.fold(&self.scope, |shelf: &mut Shelf<F>| shelf.delete(&cut.key, &cut.uid));
                    cut.version
                }
                WatchEvent::Bookmark(mark) => mark.metadata.resource_version,
                WatchEvent::Error(status) => {
                    return Err(self.failed::<F>("watch", kube::Error::Api(status)));
                }
            };
            if seen.is_empty() {
                return Err(Failure::new(Reason::Other, "watch event has no resourceVersion"));
            }
            *version = seen;
        }
    }

    fn apply<F: Raw>(&self, cut: Cut<F>) -> String {
        match cut.facts {
            Ok(facts) => self.seen.fold(&self.scope, |shelf: &mut Shelf<F>| shelf.apply(facts)),
            // What is known of it stays.
            Err(why) => self.unreadable::<F>(&cut.key.namespace, &cut.key.name, &why),
        }
        cut.version
    }

    fn unreadable<F: Raw>(&self, namespace: &str, name: &str, why: &str) {
        self.metrics.watch_errors.with_label_values(&[F::KIND.as_str(), Reason::Unreadable.as_str()]).inc();
        warn!(kind = F::KIND.as_str(), namespace, name, why, "object cannot be read");
    }

    fn no_answer(&self, verb: &str) -> Failure {
        Failure::new(Reason::Unreachable, format!("no answer to {verb} within {:?}", self.times.answer))
    }

    fn failed<F: Raw>(&self, verb: &'static str, error: kube::Error) -> Failure {
        let mut failure = Failure::from(error);
        if failure.reason == Reason::Forbidden {
            let right = cut::right(F::KIND, verb, self.scope.as_deref());
            failure.message = format!("role lacks {right}: {}", failure.message);
        }
        failure
    }

    /// Says what failed, once per state, and how long to wait.
    fn fail<F: Raw>(&self, said: &mut Said, failure: Failure, backoff: &mut Backoff) -> Duration {
        let Failure { reason, message, retry_after } = failure;
        let kind = F::KIND.as_str();
        self.metrics.watch_errors.with_label_values(&[kind, reason.as_str()]).inc();
        let missing = F::KIND == Kind::Objects && reason == Reason::NotFound;
        let since = *said.absent.get_or_insert_with(Instant::now);
        if !missing {
            said.absent = None;
        }
        let first = said.reason.replace(reason) != Some(reason);
        let namespace = self.scope.as_deref();
        match reason {
            _ if !first => {}
            Reason::Forbidden => error!(kind, namespace, why = message, "the API server refuses"),
            Reason::NotFound if missing => {
                warn!(why = message, "the IndexerWorker CRD is not installed; annotated Pods go on")
            }
            Reason::Gone => info!(kind, namespace, why = message, "the API server has forgotten; listing anew"),
            _ => warn!(kind, namespace, why = message, "changes are not heard"),
        }
        if missing {
            let why = "indexerworkers: the CRD is not installed".to_owned();
            let long = since.elapsed() >= self.times.missing_kind;
            self.seen.update(&self.scope, |shelf: &mut Shelf<F>| shelf.absent(long, why));
            return backoff.next(None).min(MISSING_WAIT_MAX);
        }
        let place = namespace.map_or_else(|| kind.to_owned(), |namespace| format!("{kind} in {namespace}"));
        let why = match reason {
            Reason::Unreachable => format!("{place}: unreachable: {message}"),
            _ => format!("{place}: {message}"),
        };
        self.seen.update(&self.scope, |shelf: &mut Shelf<F>| {
            shelf.lose(why);
            false
        });
        backoff.next(retry_after)
    }
}
