//! What operators look at: workers, metrics, the page, the description of the API, peers, and the test routes.

use kvindexer::http::{HttpConfig, PATHS, ServerLimits};
use kvindexer::ids::{IndexKey, Owner, Tier};
use kvindexer::readiness::Readiness;
use serde_json::json;

use super::{Server, tokens};
use crate::harness::http::Request;

fn metrics(server: &Server) -> String {
    let reply = server.get("/metrics");
    assert_eq!(reply.status, 200);
    assert!(reply.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    reply.text()
}

#[test]
fn workers_show_what_was_registered_and_what_was_observed() {
    let server = Server::start();
    let more = json!({"tenant_id": "t", "dp_rank": 3, "additional_salt": "x", "replay_endpoint": "tcp://127.0.0.1:11",
        "duplicate_policy": "copies", "lower_tier_ttl_s": 60, "topic": "kv@"});
    server.register(7, "m", &more);
    server.store(&IndexKey::new("m", "t"), &Owner::new(7, 3), Tier::Device, &tokens(8));
    let workers = server.get("/workers?model_name=m&routing_group=t").json();
    let worker = &workers[0];
    assert_eq!(
        (&worker["instance_id"], &worker["source"], &worker["status"]),
        (&json!(7), &json!("zmq"), &json!("pending"))
    );
    assert_eq!((&worker["block_size"], &worker["additional_salt"]), (&json!(4), &json!("x")));
    assert_eq!(worker["endpoints"], json!({"3": "tcp://127.0.0.1:9"}));
    let listener = &worker["listeners"]["3"];
    for (key, want) in [
        ("endpoint", json!("tcp://127.0.0.1:9")),
        ("status", json!("pending")),
        ("replay_endpoint", json!("tcp://127.0.0.1:11")),
        ("last_seq", json!(null)),
        ("last_event_ms", json!(null)),
        ("duplicate_policy", json!("copies")),
        ("role", json!("worker")),
        ("lower_tier_ttl_s", json!(60)),
        ("topic", json!("kv@")),
        ("blocks", json!({"device": 2, "host_pinned": 0, "disk": 0, "external": 0})),
    ] {
        assert_eq!(listener[key], want, "{key}: {listener}");
    }
    assert_eq!(listener["trust"]["state"], "stale");
    assert!(listener["trust"]["reasons"].as_array().unwrap().contains(&json!("not_connected")), "{listener}");
    assert_eq!(server.get("/workers?model_name=").json(), json!([]));
    assert_eq!(server.get("/workers?tenant_id=a&routing_group=b").code(), "tenant_conflict");
    assert_eq!(server.get("/workers?model_name=a&model_name=b").code(), "invalid_query");
}

#[test]
fn series_of_an_owner_vanish_with_it() {
    let server = Server::start();
    server.register("serving/a", "m", &json!({}));
    server.register(8, "m", &json!({}));
    server.store(&IndexKey::new("m", "default"), &Owner::new(8, 0), Tier::HostPinned, &tokens(12));
    let text = metrics(&server);
    for line in [
        r#"kvindexer_blocks{model="m",tenant="default",instance_id="8",dp_rank="0",tier="host_pinned"} 3"#,
        r#"kvindexer_trust{model="m",tenant="default",instance_id="serving/a",dp_rank="0",state="stale"} 1"#,
        r#"kvindexer_trust{model="m",tenant="default",instance_id="serving/a",dp_rank="0",state="exact"} 0"#,
        r#"kvindexer_replays_total{model="m",tenant="default",instance_id="8",dp_rank="0",outcome="failed"} 0"#,
        r#"kvindexer_gaps_total{model="m",tenant="default",instance_id="8",dp_rank="0"} 0"#,
        r#"dynamo_kvindexer_listeners{status="pending"} 2"#,
        r#"dynamo_kvindexer_listeners{status="failed"} 0"#,
        "dynamo_kvindexer_models 1",
        "dynamo_kvindexer_workers 2",
        r#"dynamo_kvindexer_requests_total{endpoint="/register",method="POST"} 2"#,
        r#"kvindexer_index_held_blocks{model="m",tenant="default"} 3"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert_eq!(server.post("/unregister", &json!({"instance_id": 8, "model_name": "m"})).status, 200);
    let text = metrics(&server);
    assert!(!text.contains(r#"instance_id="8""#) && text.contains(r#"instance_id="serving/a""#), "{text}");
    assert_eq!(server.post("/unregister", &json!({"instance_id": "serving/a", "model_name": "m"})).status, 200);
    assert!(!metrics(&server).contains(r#"model="m""#), "the index went with its last worker");
}

#[test]
fn requests_are_counted_by_route_and_unknown_paths_are_not() {
    let server = Server::start();
    server.get("/health");
    server.get("/nope");
    server.get("/test/pause_listener");
    server.send(&Request { method: "DELETE", path: "/query", ..Request::default() });
    server.post("/query", &json!({"model_name": "m", "token_ids": []}));
    let text = metrics(&server);
    for line in [
        r#"dynamo_kvindexer_requests_total{endpoint="/health",method="GET"} 1"#,
        r#"dynamo_kvindexer_requests_total{endpoint="/query",method="DELETE"} 1"#,
        r#"dynamo_kvindexer_requests_total{endpoint="/query",method="POST"} 1"#,
        r#"dynamo_kvindexer_errors_total{endpoint="/query",status_class="4xx"} 2"#,
        r#"dynamo_kvindexer_request_duration_seconds_count{endpoint="/query"} 2"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    for path in ["/nope", "/metrics", "/test/pause_listener"] {
        assert!(!text.contains(path), "{path}");
    }
}

#[test]
fn every_documented_path_is_served_and_every_error_is_json() {
    let config = HttpConfig { test_endpoints: true, ..HttpConfig::default() };
    let server = Server::with(config, ServerLimits::default(), Readiness::ready());
    let document = server.get("/openapi.json").json();
    for path in PATHS {
        let methods: Vec<_> = document["paths"][path].as_object().expect(path).keys().cloned().collect();
        assert_eq!(methods.len(), 1, "{path}");
        let method = methods[0].to_uppercase();
        let reply = server.send(&Request { method: &method, path, ..Request::default() });
        assert!(reply.status != 404 && reply.status != 405, "{path}: {}", reply.status);
        let refused = server.send(&Request { method: "DELETE", path, ..Request::default() });
        assert_eq!((refused.status, refused.code().as_str()), (405, "method_not_allowed"), "{path}");
        let allow = if method == "GET" { "GET,HEAD" } else { "POST" };
        assert_eq!(refused.header("allow"), Some(allow), "{path}");
    }
    for path in ["/nope", "/query/", "/health/", "/snapshot/"] {
        assert_eq!(server.get(path).code(), "not_found", "{path}");
    }
}

#[test]
fn the_page_shows_workers_with_escaped_texts() {
    let server = Server::start();
    server.register("<b>\"a'", "m&m", &json!({}));
    let reply = server.get("/");
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let html = reply.text();
    assert!(html.contains("&lt;b&gt;&quot;a&#39;") && html.contains("m&amp;m") && !html.contains("<b>"), "{html}");
    assert!(html.contains("href=\"/workers\"") && html.contains("not_connected"), "{html}");
}

#[test]
fn peers_are_a_list_of_texts() {
    let server = Server::start();
    for (path, url, status) in [
        ("/register_peer", "http://a", 201),
        ("/register_peer", "http://a", 201),
        ("/register_peer", "", 201),
        ("/deregister_peer", "http://b", 404),
    ] {
        assert_eq!(server.post(path, &json!({"url": url})).status, status, "{path} {url}");
    }
    assert_eq!(server.get("/peers").json(), json!(["", "http://a"]));
    assert_eq!(server.post("/register_peer", &json!({"url": null})).code(), "invalid_body");
}

#[test]
fn test_routes_pause_and_resume_a_listener() {
    let config = HttpConfig { test_endpoints: true, ..HttpConfig::default() };
    let server = Server::with(config, ServerLimits::default(), Readiness::ready());
    server.register(1, "m", &json!({}));
    let post = |path: &str, body: serde_json::Value| {
        let reply = server.post(path, &body);
        if reply.status == 200 { "ok".to_owned() } else { reply.code() }
    };
    assert_eq!(post("/test/resume_listener", json!({"instance_id": 1})), "listener_state");
    assert_eq!(post("/test/pause_listener", json!({"instance_id": 1, "dp_rank": 0})), "ok");
    assert_eq!(server.get("/workers").json()[0]["status"], "paused");
    assert_eq!(post("/test/pause_listener", json!({"instance_id": 1})), "listener_state");
    assert_eq!(post("/test/resume_listener", json!({"instance_id": 1})), "ok");
    assert_eq!(post("/test/pause_listener", json!({"instance_id": 2})), "unknown_instance");
    assert_eq!(post("/test/pause_listener", json!({"instance_id": 1, "dp_rank": 4})), "unknown_rank");
}
