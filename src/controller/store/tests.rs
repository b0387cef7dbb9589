//! The store in a small notation: `a@1` is the Pod `a` with the UID `1`; facts that differ have different addresses.

use super::*;
use crate::controller::cut::Raw as _;

const ALL: Scope = None;

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "ns".to_owned(), name: name.to_owned() }
}

/// `name@uid`, or `name@uid=last part of its address`.
fn pod(text: &str) -> PodFacts {
    let (name, rest) = text.split_once('@').unwrap();
    let (uid, ip) = rest.split_once('=').unwrap_or((rest, "1"));
    let raw = serde_json::json!({
        "metadata": {"namespace": "ns", "name": name, "uid": uid}, "spec": {"containers": []},
        "status": {"podIP": format!("10.0.0.{ip}")},
    });
    PodFacts::read(raw).unwrap()
}

fn object(name: &str) -> ObjectFacts {
    let raw = serde_json::json!({
        "apiVersion": "kvindexer.io/v1alpha1", "kind": "IndexerWorker", "spec": {},
        "metadata": {"namespace": "ns", "name": name, "uid": name},
    });
    ObjectFacts::read(raw).unwrap()
}

/// Applies words to a store of one scope: `[` begins a list of Pods, `a@1` is one of it, `]` completes it; `+a@1` and
/// `-a@1` are single changes; `!` loses the watch, `ok` opens it; `{x}` is a complete list of objects.
fn play(store: &mut Store, words: &str) {
    let mut collecting = false;
    for word in words.split_whitespace() {
        let pods = store.pods.get_mut(&ALL).unwrap();
        match word {
            "[" => {
                pods.begin();
                collecting = true;
            }
            "]" => {
                pods.complete();
                collecting = false;
            }
            "!" => pods.lose("lost".to_owned()),
            "ok" => drop(pods.current()),
            _ if word.starts_with('{') => list_objects(store, &word[1..word.len() - 1]),
            _ if word.starts_with('+') => drop(pods.apply(pod(&word[1..]))),
            _ if word.starts_with('-') => {
                let gone = pod(&word[1..]);
                pods.delete(&gone.key, &gone.uid);
            }
            _ => {
                assert!(collecting, "{word} outside a list");
                pods.collect(pod(word));
            }
        }
    }
}

fn list_objects(store: &mut Store, name: &str) {
    let objects = store.objects.get_mut(&ALL).unwrap();
    objects.begin();
    if !name.is_empty() {
        objects.collect(object(name));
    }
    objects.complete();
    objects.current();
}

fn shown(store: &Store) -> String {
    let Some(observed) = store.observed() else {
        return "nothing".to_owned();
    };
    let pods = observed.pods.values().map(|pod| {
        let ip = pod.ip.map(|ip| ip.to_string()).unwrap_or_default();
        let last = ip.rsplit('.').next().unwrap_or_default();
        if last == "1" {
            format!("{}@{}", pod.key.name, pod.uid)
        } else {
            format!("{}@{}={last}", pod.key.name, pod.uid)
        }
    });
    pods.chain(observed.objects.keys().map(|key| format!("{{{}}}", key.name))).collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn check(words: &str, want: &str) {
    let mut store = Store::new(&[ALL]);
    play(&mut store, words);
    assert_eq!(shown(&store), want, "{words}");
}

#[test]
fn nothing_is_shown_before_both_kinds_were_listed_completely() {
    check("", "nothing");
    check("[ a@1 ] ok", "nothing");
    check("{x}", "nothing");
    check("{x} [ a@1", "nothing");
    check("{x} [ a@1 ]", "a@1 {x}");
    check("[ ] {}", "");
}

#[test]
fn a_list_takes_the_place_of_the_one_before_when_it_is_complete() {
    check("{} [ a@1 b@2 ] ok", "a@1 b@2");
    check("{} [ a@1 b@2 ] ok ! [ b@2", "a@1 b@2");
    check("{} [ a@1 b@2 ] ok ! [ b@2 ]", "b@2");
    check("{} [ a@1 ] ok ! [ b@2 ! [ c@3 ]", "c@3");
}

#[test]
fn single_changes_are_followed_between_lists() {
    check("{} [ a@1 ] ok +b@2 +a@1=5", "a@1=5 b@2");
    check("{} [ a@1 b@2 ] ok -a@1", "b@2");
    check("{} [ ] ok -a@1", "");
    // Before the first list there is nothing that could change.
    check("{} +a@1", "nothing");
}

#[test]
fn the_end_of_an_earlier_object_never_removes_the_later_of_the_same_name() {
    check("{} [ a@1 ] ok +a@2=7 -a@1", "a@2=7");
    check("{} [ a@2 ] ok -a@1 -a@2", "");
}

#[test]
fn a_change_is_one_only_if_something_that_is_kept_differs() {
    let mut store = Store::new(&[ALL]);
    play(&mut store, "{} [ a@1 ] ok");
    let pods = store.pods.get_mut(&ALL).unwrap();
    assert!(!pods.apply(pod("a@1")) && pods.apply(pod("a@1=2")));
    assert!(!pods.delete(&key("a"), "other") && pods.delete(&key("a"), "1"));
    pods.begin();
    assert!(!pods.complete(), "an empty list after the last Pod went");
    assert!(!pods.current());
}

#[test]
fn an_object_that_cannot_be_read_keeps_what_was_known_of_it_and_harms_no_other() {
    let mut store = Store::new(&[ALL]);
    play(&mut store, "{} [ a@1 b@2 ] ok ! [ c@3");
    let pods = store.pods.get_mut(&ALL).unwrap();
    pods.collect_unreadable(&key("a"), "1");
    pods.collect_unreadable(&key("b"), "another");
    pods.complete();
    assert_eq!(shown(&store), "a@1 c@3");
}

#[test]
fn a_kind_that_is_missing_means_no_objects_at_once_at_the_start_and_later_only_after_long() {
    let mut store = Store::new(&[ALL]);
    play(&mut store, "[ a@1 ] ok");
    let missing = || "no CRD".to_owned();
    store.objects.get_mut(&ALL).unwrap().absent(false, missing());
    assert_eq!(shown(&store), "a@1");
    assert!(store.is_current(Kind::Objects), "there is nothing to hear");
    assert_eq!(store.trouble().as_deref(), Some("no CRD"));

    list_objects(&mut store, "x");
    assert_eq!((shown(&store).as_str(), store.trouble()), ("a@1 {x}", None));
    assert!(!store.objects.get_mut(&ALL).unwrap().absent(false, missing()));
    assert_eq!(shown(&store), "a@1 {x}");
    assert!(!store.is_current(Kind::Objects));
    assert!(store.objects.get_mut(&ALL).unwrap().absent(true, missing()));
    assert_eq!(shown(&store), "a@1");
    assert!(store.is_current(Kind::Objects));
    // Once it counts as missing it goes on so.
    assert!(!store.objects.get_mut(&ALL).unwrap().absent(false, missing()));
    assert!(store.is_current(Kind::Objects));
}

#[test]
fn several_scopes_are_one_view_once_all_are_listed() {
    let scopes = ["left", "right"].map(|name| Some(name.to_owned()));
    let mut store = Store::new(&scopes);
    for (at, scope) in scopes.iter().enumerate() {
        assert!(store.observed().is_none());
        store.objects.get_mut(scope).unwrap().complete();
        let pods = store.pods.get_mut(scope).unwrap();
        let name = if at == 0 { "a@1" } else { "b@2" };
        pods.begin();
        pods.collect(pod(name));
        pods.complete();
        pods.current();
    }
    assert_eq!(shown(&store), "a@1 b@2");
    assert!(store.is_current(Kind::Pods));
    store.pods.get_mut(&scopes[1]).unwrap().lose("refused".to_owned());
    assert!(!store.is_current(Kind::Pods));
}

#[test]
fn troubles_are_a_text_of_bounded_length() {
    let scopes: Vec<Scope> = (0..100).map(|number| Some(number.to_string())).collect();
    let mut store = Store::new(&scopes);
    assert_eq!(store.trouble(), None, "nothing was tried yet");
    for (at, scope) in scopes.iter().enumerate() {
        store.pods.get_mut(scope).unwrap().lose(format!("no {at}"));
    }
    let trouble = store.trouble().unwrap();
    assert!(trouble.starts_with("no 0; no 1; ") && trouble.ends_with("; and 97 more"), "{trouble}");
}

#[test]
fn a_relist_shares_what_did_not_change() {
    let mut store = Store::new(&[ALL]);
    play(&mut store, "{} [ a@1 ] ok");
    let before = Arc::clone(&store.observed().unwrap().pods[&key("a")]);
    play(&mut store, "[ a@1 ]");
    assert!(Arc::ptr_eq(&before, &store.observed().unwrap().pods[&key("a")]));
}

/// What the API server says of an ordinary Pod: about 10 KB.
fn large(number: usize) -> serde_json::Value {
    let env: Vec<_> =
        (0..60).map(|at| serde_json::json!({"name": format!("VARIABLE_{at}"), "value": "v".repeat(40)})).collect();
    serde_json::json!({
        "metadata": {
            "namespace": "production", "name": format!("web-{number:05}-7c9d8b6f5d-x2x4z"),
            "uid": format!("6d3f1f0a-6f5e-4c55-9d0b-{number:012}"), "creationTimestamp": "2026-11-30T08:00:00Z",
            "labels": {
                "app.kubernetes.io/name": "web", "app.kubernetes.io/instance": format!("web-{number}"),
                "pod-template-hash": "7c9d8b6f5d",
            },
            "annotations": {"example.com/notes": "n".repeat(1_000)},
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:x": "y".repeat(3_000)}}],
        },
        "spec": {"containers": [{
            "name": "web", "env": env,
            "ports": [{"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 9090}],
        }]},
        "status": {
            "phase": "Running", "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}], "message": "m".repeat(500),
            "containerStatuses": [{
                "name": "web", "restartCount": 0, "ready": true, "image": "example.com/web:1", "imageID": "",
                "containerID": format!("containerd://{number:064}"),
                "state": {"running": {"startedAt": "2026-11-30T08:00:00Z"}},
            }],
        },
    })
}

#[test]
fn a_pod_costs_little_memory() {
    const PODS: usize = 1_000;
    let pods: Vec<_> = (0..PODS).map(large).collect();
    let mut shelf = Shelf::<PodFacts>::default();
    let allocated = allocation_counter::measure(|| {
        shelf.begin();
        pods.iter().for_each(|pod| shelf.collect(PodFacts::read(pod.clone()).unwrap()));
        shelf.complete();
    });
    let each = allocated.bytes_current / PODS as i64;
    assert!(each > 0 && each <= 1_024, "{each} B per Pod");
}
