//! Reads what the API server sends, and keeps of each object only its facts. Pure.
//!
//! Every object is cut while its page is read, so that a page of whole Pods is never held. One that cannot be read is
//! known by its name at least, and harms no other.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Resource as _;
use kube::core::DynamicObject;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::controller::crd::IndexerWorker;
use crate::controller::facts::{self, ObjectFacts, ObjectKey, PodFacts};
use crate::controller::store::{Facts, Kind};

/// An object, cut.
#[derive(Debug, Clone)]
pub(super) struct Cut<F> {
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    /// Its resourceVersion.
    pub(super) version: String,
    /// What is kept of it, or why it cannot be read.
    pub(super) facts: Result<F, String>,
}

/// One answer to a list.
#[derive(Debug, Deserialize)]
#[serde(bound = "F: Raw")]
pub(super) struct Page<F> {
    #[serde(default)]
    pub(super) metadata: ListMeta,
    #[serde(default = "none", deserialize_with = "null_is_none")]
    pub(super) items: Vec<Cut<F>>,
}

fn none<F>() -> Vec<Cut<F>> {
    Vec::new()
}

/// A server written in Go may say `null` for an empty list.
fn null_is_none<'de, D: Deserializer<'de>, F: Raw>(deserializer: D) -> Result<Vec<Cut<F>>, D::Error> {
    Option::<Vec<Cut<F>>>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Facts that can be read from what the API server sends.
pub(super) trait Raw: Facts {
    /// Reads one object.
    fn read(object: Value) -> Result<Self, String>;

    /// Path of the list.
    fn path(namespace: Option<&str>) -> String;
}

impl Raw for PodFacts {
    fn read(object: Value) -> Result<Self, String> {
        let pod: Pod = serde_json::from_value(object).map_err(|error| error.to_string())?;
        Ok(Self::from(&pod))
    }

    fn path(namespace: Option<&str>) -> String {
        Pod::url_path(&(), namespace)
    }
}

impl Raw for ObjectFacts {
    fn read(object: Value) -> Result<Self, String> {
        let object: DynamicObject = serde_json::from_value(object).map_err(|error| error.to_string())?;
        Ok(facts::object(&object))
    }

    fn path(namespace: Option<&str>) -> String {
        IndexerWorker::url_path(&(), namespace)
    }
}

impl<'de, F: Raw> Deserialize<'de> for Cut<F> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        let text = |name: &str| {
            let field = object.get("metadata").and_then(|metadata| metadata.get(name));
            field.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let key = ObjectKey { namespace: text("namespace"), name: text("name") };
        let (uid, version) = (text("uid"), text("resourceVersion"));
        let facts = if key.name.is_empty() { Err("it has no name".to_owned()) } else { F::read(object) };
        Ok(Self { key, uid, version, facts })
    }
}

/// What a role must allow, for people.
pub(super) fn right(kind: Kind, verb: &str, namespace: Option<&str>) -> String {
    let group = match kind {
        Kind::Pods => "",
        Kind::Objects => ".kvindexer.io",
    };
    let place = namespace.map_or_else(|| "in all namespaces".to_owned(), |name| format!("in namespace {name}"));
    format!("`{verb}` on {}{group} {place}", kind.as_str())
}
