//! The HTTP of the API server double.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::store::{self, meta};
use super::{Asked, Inner, Kind, Shared, Verb, What};

/// Bytes of a request.
const BODY_MAX: usize = 4 << 20;

/// Serves at `address` on a thread of its own.
pub(super) fn begin(shared: &Arc<Shared>, address: SocketAddr) -> (Runtime, SocketAddr) {
    let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let listener = std::net::TcpListener::bind(address).expect("the port is free");
    listener.set_nonblocking(true).expect("loopback sockets can");
    let address = listener.local_addr().expect("bound");
    let routes = axum::Router::new().fallback(answer).with_state(Arc::clone(shared));
    server.spawn(async move {
        let listener = TcpListener::from_std(listener).expect("a listening socket");
        axum::serve(listener, routes).await.expect("it never ends by itself");
    });
    (server, address)
}

/// What a path names.
struct Target {
    kind: Kind,
    namespace: Option<String>,
    name: Option<String>,
    status_only: bool,
}

impl Target {
    fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
            rest => (None, rest),
        };
        let (resource, name, status_only) = match rest {
            [resource] => (*resource, None, false),
            [resource, name] => (*resource, Some((*name).to_owned()), false),
            [resource, name, "status"] => (*resource, Some((*name).to_owned()), true),
            _ => return None,
        };
        let kind = Kind::ALL.into_iter().find(|kind| {
            let names = kind.names();
            (names.0, names.1, names.2) == (group, version, resource)
        })?;
        Some(Self { kind, namespace, name, status_only })
    }
}

/// Values of a query.
fn queried(query: &str, name: &str) -> Option<String> {
    query.split('&').find_map(|part| {
        let value = part.strip_prefix(name)?.strip_prefix('=')?;
        Some(value.replace("%2C", ",").replace("%3A", ":").replace("%2F", "/"))
    })
}

fn verb(method: &str, content_type: &str, query: &str, target: &Target) -> Option<Verb> {
    Some(match method {
        "GET" if target.name.is_some() => Verb::Get,
        "GET" if queried(query, "watch").as_deref() == Some("true") => Verb::Watch,
        "GET" => Verb::List,
        "POST" => Verb::Create,
        "PUT" => Verb::Replace,
        "PATCH" if content_type.starts_with("application/apply-patch") => Verb::Apply,
        "PATCH" if content_type.starts_with("application/merge-patch") => Verb::Merge,
        "DELETE" => Verb::Delete,
        _ => return None,
    })
}

/// The body of a failure.
pub(super) fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
           "message": message, "reason": reason, "code": code})
}

fn reason(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    }
}

fn reply(code: u16, body: &Value) -> Response {
    let code = StatusCode::from_u16(code).expect("a status code");
    (code, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// A failure about one object, with the details that a real server gives.
fn refusal(code: u16, word: &str, message: &str, target: &Target) -> (u16, Value) {
    let (group, _, resource, _) = target.kind.names();
    let mut body = failure(code, word, message);
    body["details"] = json!({"kind": resource});
    if !group.is_empty() {
        body["details"]["group"] = json!(group);
    }
    if let Some(name) = &target.name {
        body["details"]["name"] = json!(name);
    }
    (code, body)
}

/// `indexerworkers.kvindexer.io "llama"`.
fn called(target: &Target, name: &str) -> String {
    let (group, _, resource, _) = target.kind.names();
    let dot = if group.is_empty() { "" } else { "." };
    format!("{resource}{dot}{group} \"{name}\"")
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let unknown = || (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
    let Some(target) = Target::parse(head.uri.path()) else {
        return unknown();
    };
    let query = head.uri.query().unwrap_or_default().to_owned();
    let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let Some(verb) = verb(head.method.as_str(), content_type, &query, &target) else {
        return reply(400, &failure(400, "BadRequest", "the double does not know this request"));
    };
    let bytes = axum::body::to_bytes(body, BODY_MAX).await.unwrap_or_default();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let number = note(&shared, (verb, &target), &query, &body);
    let trouble = take_trouble(&mut shared.lock(), verb, target.kind);
    match trouble {
        Some(What::Delay(time)) => tokio::time::sleep(time).await,
        Some(What::Drop) => {
            let broken = futures::stream::iter([Err::<Bytes, _>(std::io::Error::other("dropped by the test"))]);
            return Body::from_stream(broken).into_response();
        }
        Some(What::Status(code)) => {
            shared.lock().asked[number].answer = code;
            let (code, body) = refusal(code, reason(code), "made by the test", &target);
            return reply(code, &body);
        }
        None => {}
    }
    if shared.lock().missing.contains(&target.kind) {
        shared.lock().asked[number].answer = 404;
        return unknown();
    }
    if verb == Verb::Watch {
        shared.lock().asked[number].answer = 200;
        return watch(&shared, &target, &query);
    }
    let (code, body) = perform(&shared, (verb, &target), &query, body);
    shared.lock().asked[number].answer = code;
    reply(code, &body)
}

/// Records a request; returns its place.
fn note(shared: &Shared, (verb, target): (Verb, &Target), query: &str, body: &Value) -> usize {
    let mut inner = shared.lock();
    inner.asked.push(Asked {
        at: Instant::now(),
        verb,
        kind: target.kind,
        namespace: target.namespace.clone(),
        name: target.name.clone(),
        status_only: target.status_only,
        query: query.to_owned(),
        body: body.clone(),
        answer: 0,
    });
    inner.asked.len() - 1
}

fn take_trouble(inner: &mut Inner, verb: Verb, kind: Kind) -> Option<What> {
    let fits = |trouble: &super::Trouble| {
        trouble.kind.is_none_or(|known| known == kind) && trouble.verb.is_none_or(|known| known == verb)
    };
    let at = inner.troubles.iter().position(fits)?;
    let what = inner.troubles[at].what;
    if let Some(times) = &mut inner.troubles[at].times {
        *times = times.saturating_sub(1);
        if *times == 0 {
            inner.troubles.remove(at);
        }
    }
    Some(what)
}

fn perform(shared: &Shared, (verb, target): (Verb, &Target), query: &str, body: Value) -> (u16, Value) {
    if verb == Verb::List {
        return list(&shared.lock(), target, query);
    }
    let namespace = target.namespace.clone().unwrap_or_default();
    let name = target.name.clone().unwrap_or_else(|| meta(&body, "name").to_owned());
    let target = &Target { name: Some(name.clone()), namespace: Some(namespace.clone()), ..*target };
    let old = shared.lock().store.get(target.kind, &namespace, &name).cloned();
    match (verb, old) {
        (Verb::Get, Some(old)) => (200, old),
        (Verb::Create, None) => (201, store(shared, target.kind, &namespace, body)),
        (Verb::Create, Some(_)) => {
            refusal(409, "AlreadyExists", &format!("{} already exists", called(target, &name)), target)
        }
        (Verb::Apply, old) if old.is_some() || !target.status_only => apply(shared, target, query, (old, body)),
        (Verb::Replace, Some(old)) => replace(shared, target, &old, body),
        (Verb::Merge, Some(mut object)) => {
            store::merge(&mut object, &body);
            (200, store(shared, target.kind, &namespace, object))
        }
        (Verb::Delete, Some(old)) => {
            shared.change(|inner| inner.store.delete(target.kind, &namespace, &name));
            (
                200,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                         "details": {"name": name, "uid": meta(&old, "uid")}}),
            )
        }
        _ => refusal(404, "NotFound", &format!("{} not found", called(target, &name)), target),
    }
}

fn store(shared: &Shared, kind: Kind, namespace: &str, mut object: Value) -> Value {
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    object["metadata"]["namespace"] = json!(namespace);
    shared.change(|inner| inner.store.put(kind, object))
}

fn replace(shared: &Shared, target: &Target, old: &Value, mut body: Value) -> (u16, Value) {
    let name = meta(old, "name");
    let version = meta(&body, "resourceVersion");
    if !version.is_empty() && version != meta(old, "resourceVersion") {
        let message = format!(
            "Operation cannot be fulfilled on {}: the object has been modified; please apply your changes to the latest version and try again",
            called(target, name)
        );
        return refusal(409, "Conflict", &message, target);
    }
    body["metadata"]["uid"] = old["metadata"]["uid"].clone();
    (200, store(shared, target.kind, meta(old, "namespace"), body))
}

fn apply(shared: &Shared, target: &Target, query: &str, (old, body): (Option<Value>, Value)) -> (u16, Value) {
    let Some(manager) = queried(query, "fieldManager") else {
        return refusal(400, "BadRequest", "fieldManager is required for apply patch", target);
    };
    let namespace = target.namespace.clone().unwrap_or_default();
    let Some(old) = old else {
        return (201, store(shared, target.kind, &namespace, body));
    };
    let force = queried(query, "force").as_deref() == Some("true");
    let applied = shared.change(|inner| inner.store.apply(old, body, target.status_only, (&manager, force)));
    match applied {
        Ok(object) => (200, object),
        Err(other) => {
            let mut body =
                failure(409, "Conflict", &format!("Apply failed with 1 conflict: conflict with \"{other}\""));
            body["details"] = json!({"causes": [{"reason": "FieldManagerConflict"}]});
            (409, body)
        }
    }
}

fn list(inner: &Inner, target: &Target, query: &str) -> (u16, Value) {
    let all: Vec<&Value> = inner.store.all(target.kind, target.namespace.as_deref()).collect();
    let place = |object: &Value| format!("{}:{}", meta(object, "namespace"), meta(object, "name"));
    let (version, after) = match queried(query, "continue").filter(|token| !token.is_empty()) {
        None => (inner.store.version(), String::new()),
        Some(token) => match token.split_once(':').map(|(version, after)| (version.parse(), after.to_owned())) {
            Some((Ok(version), after)) if inner.store.knows(version) => (version, after),
            _ => {
                return (
                    410,
                    failure(
                        410,
                        "Expired",
                        "The provided continue parameter is too old to display a consistent list result.",
                    ),
                );
            }
        },
    };
    let limit = queried(query, "limit").and_then(|limit| limit.parse().ok()).filter(|limit| *limit > 0);
    let rest: Vec<&Value> = all.into_iter().filter(|object| after.is_empty() || place(object) > after).collect();
    let page = limit.unwrap_or(usize::MAX).min(rest.len());
    let (.., word) = target.kind.names();
    let mut meta = json!({"resourceVersion": version.to_string()});
    if page < rest.len() {
        meta["continue"] = json!(format!("{version}:{}", place(rest[page - 1])));
        meta["remainingItemCount"] = json!(rest.len() - page);
    }
    let items: Vec<Value> = rest[..page].iter().map(|object| item(target.kind, object)).collect();
    (
        200,
        json!({"kind": format!("{word}List"), "apiVersion": target.kind.api_version(), "metadata": meta, "items": items}),
    )
}

/// Items of the kinds that are built in do not say what they are.
fn item(kind: Kind, object: &Value) -> Value {
    let mut object = object.clone();
    if kind != Kind::IndexerWorkers {
        let fields = object.as_object_mut().expect("an object");
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    object
}

/// Takes one off `open` when the answer's body is dropped.
struct Open {
    shared: Arc<Shared>,
    kind: Kind,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Ok(mut inner) = self.shared.inner.lock()
            && let Some(at) = inner.open.iter().position(|open| *open == self.kind)
        {
            inner.open.swap_remove(at);
        }
    }
}

struct Watching<S> {
    lines: S,
    _open: Open,
}

impl<S: Stream + Unpin> Stream for Watching<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        self.lines.poll_next_unpin(context)
    }
}

fn line(word: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": word, "object": object}))
}

/// Where a watch stands.
struct Place {
    version: u64,
    bookmarks: u64,
    epoch: u64,
    wants_bookmarks: bool,
    namespace: Option<String>,
    ended: bool,
}

fn watch(shared: &Arc<Shared>, target: &Target, query: &str) -> Response {
    let kind = target.kind;
    let mut inner = shared.lock();
    let mut place = Place {
        version: queried(query, "resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0),
        bookmarks: inner.bookmarks,
        epoch: inner.watch_epoch,
        wants_bookmarks: queried(query, "allowWatchBookmarks").as_deref() == Some("true"),
        namespace: target.namespace.clone(),
        ended: false,
    };
    let mut first = String::new();
    if place.version == 0 {
        for object in inner.store.all(kind, target.namespace.as_deref()) {
            first.push_str(&line("ADDED", object));
        }
        place.version = inner.store.version();
    }
    inner.open.push(kind);
    drop(inner);
    let limit = queried(query, "timeoutSeconds").and_then(|seconds| seconds.parse().ok()).unwrap_or(290);
    let end = tokio::time::Instant::now() + Duration::from_secs(limit);
    let open = Open { shared: Arc::clone(shared), kind };
    let (tick, shared) = (shared.tick.subscribe(), Arc::clone(shared));
    let lines = futures::stream::unfold((place, tick, first), move |(mut place, mut tick, mut ready)| {
        let shared = Arc::clone(&shared);
        async move {
            loop {
                tick.mark_unchanged();
                let text = std::mem::take(&mut ready) + &news(&shared.lock(), kind, &mut place);
                if !text.is_empty() {
                    return Some((Ok::<_, std::io::Error>(Bytes::from(text)), (place, tick, ready)));
                }
                if place.ended || tokio::time::timeout_at(end, tick.changed()).await.is_err() {
                    return None;
                }
            }
        }
    });
    let body = Body::from_stream(Watching { lines: Box::pin(lines), _open: open });
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// What a watch hears next.
fn news(inner: &Inner, kind: Kind, place: &mut Place) -> String {
    if place.ended || inner.watch_epoch != place.epoch {
        place.ended = true;
        return String::new();
    }
    if !inner.store.knows(place.version) {
        place.ended = true;
        let message = format!("too old resource version: {} ({})", place.version, inner.store.oldest());
        return line("ERROR", &failure(410, "Expired", &message));
    }
    let mut text = String::new();
    for change in inner.store.changes_since(place.version, kind) {
        if place.namespace.as_deref().is_none_or(|wanted| wanted == meta(&change.object, "namespace")) {
            text.push_str(&line(change.word, &change.object));
        }
    }
    place.version = inner.store.version();
    if place.bookmarks != inner.bookmarks {
        place.bookmarks = inner.bookmarks;
        if place.wants_bookmarks {
            text.push_str(&line("BOOKMARK", &bookmark(kind, place.version)));
        }
    }
    text
}

/// An object of the kind with nothing but a version; a Pod's has the fields that Go cannot leave out.
pub(super) fn bookmark(kind: Kind, version: u64) -> Value {
    let (.., word) = kind.names();
    let meta = json!({"resourceVersion": version.to_string()});
    match kind {
        Kind::Pods => {
            json!({"kind": word, "apiVersion": "v1", "metadata": meta, "spec": {"containers": null}, "status": {}})
        }
        _ => json!({"kind": word, "apiVersion": kind.api_version(), "metadata": meta}),
    }
}
