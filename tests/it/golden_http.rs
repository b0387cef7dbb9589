//! Golden HTTP conversation: every step in file order with one fresh service.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::harness::http::Request;
use crate::harness::service::plain;
use crate::harness::{Service, compare, data, from_hex};

#[test]
fn golden_http_conversation_is_answered_as_recorded() {
    let steps: Vec<Value> = serde_json::from_str(&data("golden/http.json")).expect("an array of steps");
    let service = Service::start();
    let mut failures = String::new();
    for (number, step) in steps.iter().enumerate() {
        if let Err(error) = check(&service, step) {
            failures.push_str(&format!("* {number} {}: {} {}: {error}\n", step["name"], step["method"], step["path"]));
        }
    }
    assert!(failures.is_empty(), "{} of {} steps failed:\n{failures}", failures.lines().count(), steps.len());
    assert_eq!(steps.len(), 181, "steps in the file");
}

fn check(service: &Service, step: &Value) -> Result<(), String> {
    let body = body_of(step);
    let reply = service.send(&Request {
        method: step["method"].as_str().expect("a method"),
        path: step["path"].as_str().expect("a path"),
        content_type: step["content_type"].as_str(),
        body: body.as_deref(),
    });
    let want = &step["ours"];
    let mut problems = Vec::new();
    if want["status"] != reply.status {
        problems.push(format!("status: got {} {}, want {}", reply.status, reply.text(), want["status"]));
    }
    if let Some(content_type) = want["content_type"].as_str() {
        let first = |text: &str| text.split(';').next().unwrap_or_default().trim().to_owned();
        let got = reply.header("content-type").unwrap_or_default();
        if first(got) != first(content_type) {
            problems.push(format!("content type: got {got}, want {content_type}"));
        }
    }
    if let Some(allow) = want["allow"].as_str() {
        let set = |text: &str| text.split(',').map(|word| word.trim().to_owned()).collect::<BTreeSet<_>>();
        let got = reply.header("allow").unwrap_or_default();
        if set(got) != set(allow) {
            problems.push(format!("allow: got {got}, want {allow}"));
        }
    }
    if let Some(json) = want.get("json") {
        let got = shown(&reply.json(), step["response_shown_as"].as_str(), reply.status);
        problems.extend(compare_json(&got, json, step, reply.status).err());
    }
    if want["status"].is_null() {
        problems.push("a check without an expectation".to_owned());
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

fn compare_json(got: &Value, want: &Value, step: &Value, status: u16) -> Result<(), String> {
    if status >= 400 {
        return if got["code"] == want["code"] {
            Ok(())
        } else {
            Err(format!("code: got {got}, want {}", want["code"]))
        };
    }
    if want.get("scores").is_some() {
        return compare::query_answer(got, want);
    }
    match (got, want) {
        _ if step["response_shown_as"].is_string() => {
            if got == want {
                Ok(())
            } else {
                Err(format!("got {got}, want {want}"))
            }
        }
        (Value::Array(got), Value::Array(want)) => compare::includes_in_any_order(got, want, "answer"),
        _ => compare::includes(got, want, "answer"),
    }
}

/// The answer in the form that the file shows.
fn shown(json: &Value, form: Option<&str>, status: u16) -> Value {
    let array = || json.as_array().cloned().unwrap_or_default();
    match form {
        _ if status >= 400 => json.clone(),
        None => json.clone(),
        Some("ids") => {
            let mut ids: Vec<Value> = array().iter().map(|worker| worker["instance_id"].clone()).collect();
            ids.sort_by_key(|id| (id.as_u64().is_none(), id.as_u64(), plain(id)));
            ids.into()
        }
        Some("sorted") => {
            let mut items = array();
            items.sort_by_key(plain);
            items.into()
        }
        Some("dumpkeys") => {
            let entries = json.as_object().into_iter().flatten();
            entries.map(|(key, entry)| (key.clone(), entry["block_size"].clone())).collect::<Map<_, _>>().into()
        }
        Some(other) => json!({"unknown form": other}),
    }
}

fn body_of(step: &Value) -> Option<Vec<u8>> {
    if let Some(hex) = step["body_hex"].as_str() {
        return Some(from_hex(hex));
    }
    match &step["body"] {
        Value::Null => None,
        Value::String(text) => Some(text.chars().map(|c| u8::try_from(u32::from(c)).expect("Latin-1")).collect()),
        body => {
            let mut body = body.clone();
            if let Some(letters) = step["body_padding"].as_u64() {
                body["pad"] = "x".repeat(letters as usize).into();
            }
            Some(write(&body).into_bytes())
        }
    }
}

/// JSON text in which a whole number above the range of u64 stays a whole number.
fn write(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(write).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(key, field)| format!("{}:{}", json!(key), write(field))).collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) if float.fract() == 0.0 && float.abs() > u64::MAX as f64 / 2.0 => format!("{float:.0}"),
            _ => number.to_string(),
        },
        _ => value.to_string(),
    }
}
