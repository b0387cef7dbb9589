//! An API server for tests, in-process: Pods, IndexerWorkers, Leases and Events over plain HTTP on a free loopback port.
//!
//! It lists in pages, watches with bookmarks and 410, creates, replaces with conflicts, applies, merges and deletes, and
//! does on command what a real server does only on a bad day. Its shapes are held equal to recorded ones (`tests`).
//! What it does not do: no schemas, defaults, validation or admission; no RBAC (a test says what is forbidden); no field
//! ownership beyond the names of managers: an apply replaces what it carries as a whole; no garbage collection, no graceful
//! deletion, no label or field selectors; pages of one list are not one snapshot; streaming lists are unknown to it.

mod serve;
mod store;
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use store::Store;

/// What it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Pods,
    IndexerWorkers,
    Leases,
    Events,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Pods, Self::IndexerWorkers, Self::Leases, Self::Events];

    /// Group, version, resource, kind.
    fn names(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Self::Pods => ("", "v1", "pods", "Pod"),
            Self::IndexerWorkers => ("kvindexer.io", "v1alpha1", "indexerworkers", "IndexerWorker"),
            Self::Leases => ("coordination.k8s.io", "v1", "leases", "Lease"),
            Self::Events => ("events.k8s.io", "v1", "events", "Event"),
        }
    }

    fn api_version(self) -> String {
        let (group, version, ..) = self.names();
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
    }

    fn of(object: &Value) -> Self {
        let word = object["kind"].as_str().expect("an object has a kind");
        Self::ALL.into_iter().find(|kind| kind.names().3 == word).unwrap_or_else(|| panic!("no kind `{word}` here"))
    }
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Verb {
    List,
    Watch,
    Get,
    Create,
    Replace,
    /// Server-side apply.
    Apply,
    /// A merge patch.
    Merge,
    Delete,
}

/// One request, and what was answered.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) at: Instant,
    pub(crate) verb: Verb,
    pub(crate) kind: Kind,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    /// Of `/status`.
    pub(crate) status_only: bool,
    /// As in the URL.
    pub(crate) query: String,
    pub(crate) body: Value,
    /// Status code; 0 for a connection that was dropped.
    pub(crate) answer: u16,
}

/// Trouble that a test made.
struct Trouble {
    kind: Option<Kind>,
    verb: Option<Verb>,
    what: What,
    /// None: until [`FakeKube::heal`].
    times: Option<usize>,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// This status code.
    Status(u16),
    /// The connection ends without an answer.
    Drop,
    /// The answer comes so much later.
    Delay(Duration),
}

struct Shared {
    inner: Mutex<Inner>,
    /// Watches look again when this changes.
    tick: watch::Sender<u64>,
}

struct Inner {
    store: Store,
    troubles: Vec<Trouble>,
    asked: Vec<Asked>,
    /// Watches of an older number end.
    watch_epoch: u64,
    /// Each adds one bookmark to every watch that wants them.
    bookmarks: u64,
    missing: Vec<Kind>,
    /// Watches that are open, by kind.
    open: Vec<Kind>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder panics")
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let changed = change(&mut self.lock());
        self.tick.send_modify(|tick| *tick += 1);
        changed
    }
}

/// A running API server; ends when dropped.
pub(crate) struct FakeKube {
    shared: Arc<Shared>,
    pub(crate) address: SocketAddr,
    server: Option<Runtime>,
}

impl FakeKube {
    /// Without any object.
    pub(crate) fn start() -> Self {
        let inner = Inner {
            store: Store::default(),
            troubles: Vec::new(),
            asked: Vec::new(),
            watch_epoch: 0,
            bookmarks: 0,
            missing: Vec::new(),
            open: Vec::new(),
        };
        let shared = Arc::new(Shared { inner: Mutex::new(inner), tick: watch::Sender::new(0) });
        let (server, address) = serve::begin(&shared, (Ipv4Addr::LOCALHOST, 0).into());
        Self { shared, address, server: Some(server) }
    }

    /// Nobody listens at its port any more, all connections end; what it holds stays.
    pub(crate) fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            // The address must be free when this returns; a test may be asynchronous itself.
            std::thread::spawn(move || server.shutdown_timeout(Duration::from_secs(5))).join().expect("it ends");
            self.shared.lock().open.clear();
        }
    }

    /// After [`Self::stop`]: at the same address.
    pub(crate) fn start_again(&mut self) {
        assert!(self.server.is_none(), "it runs");
        self.server = Some(serve::begin(&self.shared, self.address).0);
    }

    /// A client; needs a tokio runtime.
    pub(crate) fn client(&self) -> kube::Client {
        // A second call changes nothing.
        let _there = rustls::crypto::ring::default_provider().install_default();
        let url = format!("http://{}", self.address).parse().expect("a URL");
        let mut config = kube::Config::new(url);
        // As in the service: a request that fails is not repeated behind the controller's back.
        config.default_retry = false;
        kube::Client::try_from(config).expect("a client without TLS")
    }

    /// Writes a kubeconfig for the built binary, and returns its path.
    pub(crate) fn kubeconfig(&self, folder: &Path) -> PathBuf {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake", "users": [{"name": "fake", "user": {}}],
            "clusters": [{"name": "fake", "cluster": {"server": format!("http://{}", self.address)}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": "kvindexer"}}],
        });
        let path = folder.join(format!("kubeconfig-{}", self.address.port()));
        std::fs::write(&path, config.to_string()).expect("the folder can be written");
        path
    }

    /// Creates or replaces an object by its kind, namespace and name; what is not given of uid, resourceVersion,
    /// generation and creationTimestamp is made. Returns the object as stored.
    pub(crate) fn put(&self, object: Value) -> Value {
        self.shared.change(|inner| inner.store.put(Kind::of(&object), object))
    }

    /// Creates many objects, heard of at once.
    pub(crate) fn put_all(&self, objects: impl IntoIterator<Item = Value>) {
        self.shared.change(|inner| {
            for object in objects {
                inner.store.put(Kind::of(&object), object);
            }
        });
    }

    /// Changes an object that is there.
    pub(crate) fn edit(&self, kind: Kind, namespace: &str, name: &str, edit: impl FnOnce(&mut Value)) -> Value {
        self.shared.change(|inner| {
            let mut object = inner.store.get(kind, namespace, name).expect("it is there").clone();
            edit(&mut object);
            inner.store.put(kind, object)
        })
    }

    /// Removes an object; false if there was none.
    pub(crate) fn delete(&self, kind: Kind, namespace: &str, name: &str) -> bool {
        self.shared.change(|inner| inner.store.delete(kind, namespace, name).is_some())
    }

    /// The object as stored.
    pub(crate) fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        self.shared.lock().store.get(kind, namespace, name).cloned()
    }

    /// All objects of a kind.
    pub(crate) fn all(&self, kind: Kind) -> Vec<Value> {
        self.shared.lock().store.all(kind, None).cloned().collect()
    }

    /// Makes trouble for the next `times` requests of a kind and verb (None: any), or until [`Self::heal`].
    pub(crate) fn trouble(
        &self,
        kind: impl Into<Option<Kind>>,
        verb: impl Into<Option<Verb>>,
        what: What,
        times: Option<usize>,
    ) {
        let trouble = Trouble { kind: kind.into(), verb: verb.into(), what, times };
        self.shared.lock().troubles.push(trouble);
    }

    /// Ends all trouble.
    pub(crate) fn heal(&self) {
        self.shared.lock().troubles.clear();
    }

    /// The kind is unknown (no CRD), or known again. Its objects stay.
    pub(crate) fn set_missing(&self, kind: Kind, missing: bool) {
        self.shared.change(|inner| {
            inner.missing.retain(|known| *known != kind);
            if missing {
                inner.missing.push(kind);
                inner.watch_epoch += 1;
            }
        });
    }

    /// Ends all watches in good order, as a server does at the end of its time.
    pub(crate) fn close_watches(&self) {
        self.shared.change(|inner| inner.watch_epoch += 1);
    }

    /// Forgets how it came here: a watch or page from before gets 410.
    pub(crate) fn expire(&self) {
        self.shared.change(|inner| inner.store.expire());
    }

    /// Sends a bookmark to every watch that wants them.
    pub(crate) fn bookmark(&self) {
        self.shared.change(|inner| {
            // Other kinds have moved the version on meanwhile.
            inner.store.next_version();
            inner.bookmarks += 1;
        });
    }

    /// Watches of a kind that are open.
    pub(crate) fn open_watches(&self, kind: Kind) -> usize {
        self.shared.lock().open.iter().filter(|open| **open == kind).count()
    }

    /// All requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.shared.lock().asked.clone()
    }

    /// Requests of a verb and kind so far.
    pub(crate) fn count(&self, verb: Verb, kind: Kind) -> usize {
        self.shared.lock().asked.iter().filter(|asked| asked.verb == verb && asked.kind == kind).count()
    }
}

impl Drop for FakeKube {
    fn drop(&mut self) {
        self.stop();
    }
}
