//! What is kept of Pods and objects, and which labels a selector takes.

use super::*;
use serde_json::json;

fn pod_of(value: serde_json::Value) -> PodFacts {
    PodFacts::from(&serde_json::from_value::<Pod>(value).unwrap())
}

fn object_of(value: serde_json::Value) -> ObjectFacts {
    object(&serde_json::from_value(value).unwrap())
}
