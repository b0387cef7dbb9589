//! Rules that the API server checks beside types and bounds: CEL over several fields, and the schema of conditions.
//!
//! A port is a number or a name, so every rule asks for its type before it counts with it. Uniqueness is left to list keys:
//! a rule that compares all pairs costs more than the API server allows.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// `tcp://host:port` or `tcp://[ipv6]:port`.
pub(super) const ADDRESS: &str = r"^tcp://(\[[0-9a-fA-F:.%]+\]|[^:/\[\]\s]+):([1-9][0-9]{0,4})$";

/// Ranks of one Pod, and the first of them, also where nobody gives them.
const SIZE: &str = "(has(self.dataParallel) ? self.dataParallel.size : 1)";
const END: &str = "(has(self.dataParallel) ? self.dataParallel.startRank + self.dataParallel.size : 1)";

fn rule(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message})
}

/// Of the whole spec.
pub(super) fn spec() -> Value {
    let replay = "!has(self.ports) || !has(self.ports.replay)";
    json!([
        {
            "rule": "has(self.selector) != has(self.endpoints)",
            "message": "exactly one of spec.selector and spec.endpoints must be set",
            "reason": "FieldValueInvalid",
        },
        rule(
            "!has(self.endpoints) || (!has(self.ports) && !has(self.dataParallel) && !has(self.containerName))",
            "spec.ports, spec.dataParallel and spec.containerName must not be set together with spec.endpoints",
        ),
        rule("!has(self.selector) || has(self.ports)", "spec.ports must be set together with spec.selector"),
        rule(
            &format!("!has(self.ports) || type(self.ports.events) != int || int(self.ports.events) + {END} - 1 <= 65535"),
            "spec.ports.events + last rank must not exceed 65535",
        ),
        rule(
            &format!("{replay} || type(self.ports.replay) != int || int(self.ports.replay) + {END} - 1 <= 65535"),
            "spec.ports.replay + last rank must not exceed 65535",
        ),
        rule(
            &format!(
                "{replay} || type(self.ports.events) != int || type(self.ports.replay) != int || \
                 int(self.ports.events) - int(self.ports.replay) >= {SIZE} || \
                 int(self.ports.replay) - int(self.ports.events) >= {SIZE}"
            ),
            "the event and replay port ranges (base + rank) must not overlap",
        ),
        rule(
            &format!(
                "{replay} || type(self.ports.events) != string || type(self.ports.replay) != string || \
                 self.ports.events != self.ports.replay"
            ),
            "spec.ports.events and spec.ports.replay must not name the same port",
        ),
    ])
}

/// Of a selector.
pub(super) fn selector() -> Value {
    json!([rule(
        "(has(self.matchLabels) && size(self.matchLabels) > 0) || \
         (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
        "spec.selector must not be empty (it would select every Pod of the namespace)",
    )])
}

/// Of one requirement of it.
pub(super) fn requirement() -> Value {
    json!([rule(
        "self.operator in ['In', 'NotIn'] ? (has(self.values) && size(self.values) > 0) \
         : (!has(self.values) || size(self.values) == 0)",
        "values must be set for In and NotIn and must not be set for Exists and DoesNotExist",
    )])
}

/// The value of a label.
pub(super) fn label_value() -> Value {
    json!({"type": "string", "maxLength": 63})
}

/// Of a fixed endpoint.
pub(super) fn endpoint() -> Value {
    json!([rule(
        "!has(self.replayAddress) || self.replayAddress != self.address",
        "replayAddress must differ from address",
    )])
}

/// Of a port.
pub(super) fn port() -> Value {
    json!([rule(
        "type(self) == int ? int(self) >= 1 && int(self) <= 65535 \
         : string(self).matches('^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$') && string(self).matches('[a-z]')",
        "must be a port number from 1 to 65535 or a container port name",
    )])
}

/// Conditions in Kubernetes' own shape, one per type.
pub(super) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 8,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "description": "One condition.",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "type": "string",
                    "maxLength": 316,
                    "description": "Accepted, Connected, Ingesting or InSync.",
                },
                "status": {
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                    "description": "Whether it holds: True, False or Unknown.",
                },
                "observedGeneration": {
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                    "description": "Generation of the spec that the condition is about.",
                },
                "lastTransitionTime": {
                    "type": "string",
                    "format": "date-time",
                    "description": "When the status last changed.",
                },
                "reason": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                    "description": "Why, in one word for programs. Example: PodAlreadyClaimed.",
                },
                "message": {
                    "type": "string",
                    "maxLength": 32768,
                    "description": "Why, for people.",
                },
            },
        },
    })
}
