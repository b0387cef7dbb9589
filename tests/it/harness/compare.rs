//! How answers are compared with the recorded ones: see `tests/data/golden/README.md`.

use serde_json::Value;

use super::service::plain;

/// Every shown key must be there with that value; more keys are allowed. Arrays are compared in order.
pub(crate) fn includes(got: &Value, want: &Value, at: &str) -> Result<(), String> {
    match (got, want) {
        (Value::Object(got), Value::Object(want)) => {
            for (key, value) in want {
                let at = format!("{at}.{key}");
                if key == "error" {
                    continue;
                }
                let Some(mine) = got.get(key) else { return Err(format!("{at}: absent, want {value}")) };
                if key == "instance_id" {
                    equal_text(mine, value, &at)?;
                } else {
                    includes(mine, value, &at)?;
                }
            }
            Ok(())
        }
        (Value::Array(got), Value::Array(want)) if got.len() == want.len() => {
            got.iter().zip(want).enumerate().try_for_each(|(i, (got, want))| includes(got, want, &format!("{at}[{i}]")))
        }
        _ if got == want => Ok(()),
        _ => Err(format!("{at}: got {got}, want {want}")),
    }
}

fn equal_text(got: &Value, want: &Value, at: &str) -> Result<(), String> {
    if plain(got) == plain(want) { Ok(()) } else { Err(format!("{at}: got {got}, want {want}")) }
}

/// Exactly these instances, ranks and numbers; keys of an instance that are not shown are ignored.
pub(crate) fn query_answer(got: &Value, want: &Value) -> Result<(), String> {
    for key in ["scores", "frequencies"] {
        if got[key] != want[key] {
            return Err(format!("{key}: got {}, want {}", got[key], want[key]));
        }
    }
    let (Some(mine), Some(shown)) = (got["instances"].as_object(), want["instances"].as_object()) else {
        return Err(format!("instances: got {}, want {}", got["instances"], want["instances"]));
    };
    if !mine.keys().eq(shown.keys()) {
        return Err(format!("instances: got {:?}, want {:?}", mine.keys(), shown.keys()));
    }
    for (id, want) in shown {
        if mine[id]["dp"] != want["dp"] {
            return Err(format!("instances.{id}.dp: got {}, want {}", mine[id]["dp"], want["dp"]));
        }
        includes(&mine[id], want, &format!("instances.{id}"))?;
    }
    Ok(())
}

/// An array of objects in any order: each wanted one is included by one of its own.
pub(crate) fn includes_in_any_order(got: &[Value], want: &[Value], at: &str) -> Result<(), String> {
    let mut left: Vec<&Value> = got.iter().collect();
    for wanted in want {
        let found = left.iter().position(|mine| includes(mine, wanted, at).is_ok());
        let Some(found) = found else { return Err(format!("{at}: no element is {wanted}; left {left:?}")) };
        left.swap_remove(found);
    }
    if left.is_empty() { Ok(()) } else { Err(format!("{at}: not wanted: {left:?}")) }
}

/// State and reasons of a listener against `{"state": .., "reasons_include": [..]}` or a bare state.
pub(crate) fn trust(listener: &Value, want: &Value) -> Result<(), String> {
    let said = &listener["trust"];
    let state = if said.is_object() { &said["state"] } else { said };
    let wanted_state = if want.is_object() { &want["state"] } else { want };
    if state != wanted_state {
        return Err(format!("trust: got {said}, want {want}"));
    }
    let reasons = if said["reasons"].is_array() { &said["reasons"] } else { &listener["reasons"] };
    for reason in want["reasons_include"].as_array().into_iter().flatten() {
        if !reasons.as_array().is_some_and(|all| all.contains(reason)) {
            return Err(format!("reasons: got {reasons}, want {reason} among them"));
        }
    }
    Ok(())
}
