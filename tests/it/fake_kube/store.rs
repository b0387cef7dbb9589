//! The objects, and the changes that led to them. Values only.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value, json};

use super::Kind;

/// Changes that a watch can go back to.
const CHANGES_MAX: usize = 20_000;

/// A change of one object.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) kind: Kind,
    /// ADDED, MODIFIED, DELETED.
    pub(super) word: &'static str,
    pub(super) object: Value,
}

/// Everything, in one sequence of versions.
#[derive(Debug, Default)]
pub(super) struct Store {
    objects: BTreeMap<(Kind, String, String), Value>,
    version: u64,
    /// Versions before this one are forgotten.
    oldest: u64,
    changes: VecDeque<Change>,
    uids: u64,
}

/// A part of `metadata` as text; empty if it is not there.
pub(super) fn meta<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"][name].as_str().unwrap_or_default()
}

impl Store {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Whether what follows this version is still known.
    pub(super) fn knows(&self, version: u64) -> bool {
        version >= self.oldest
    }

    pub(super) fn oldest(&self) -> u64 {
        self.oldest
    }

    pub(super) fn expire(&mut self) {
        self.oldest = self.next_version();
        self.changes.clear();
    }

    pub(super) fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, namespace.to_owned(), name.to_owned()))
    }

    /// By namespace and name.
    pub(super) fn all(&self, kind: Kind, namespace: Option<&str>) -> impl Iterator<Item = &Value> {
        let within = move |name: &str| namespace.is_none_or(|wanted| wanted == name);
        self.objects.iter().filter(move |((of, ns, _), _)| *of == kind && within(ns)).map(|(_, object)| object)
    }

    pub(super) fn changes_since(&self, version: u64, kind: Kind) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(move |change| change.version > version && change.kind == kind)
    }

    pub(super) fn put(&mut self, kind: Kind, mut object: Value) -> Value {
        let key = (kind, meta(&object, "namespace").to_owned(), meta(&object, "name").to_owned());
        let old = self.objects.get(&key);
        let (.., word) = kind.names();
        object["apiVersion"] = json!(kind.api_version());
        object["kind"] = json!(word);
        let given = object["metadata"].as_object_mut().expect("an object has metadata");
        self.uids += 1;
        let same = |name: &str| old.map(|old| old["metadata"][name].clone()).filter(|value| !value.is_null());
        let made = format!("00000000-0000-0000-0000-{:012}", self.uids);
        given.entry("uid").or_insert_with(|| same("uid").unwrap_or_else(|| json!(made)));
        given
            .entry("creationTimestamp")
            .or_insert_with(|| same("creationTimestamp").unwrap_or_else(|| json!("2026-11-30T12:00:00Z")));
        let spec = &object["spec"];
        let generation = match old {
            Some(old) if old["spec"] == *spec => old["metadata"]["generation"].as_i64().unwrap_or(1),
            Some(old) => old["metadata"]["generation"].as_i64().unwrap_or(1) + 1,
            None => object["metadata"]["generation"].as_i64().unwrap_or(1),
        };
        let word = if old.is_some() { "MODIFIED" } else { "ADDED" };
        let version = self.next_version();
        object["metadata"]["generation"] = json!(generation);
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        self.note(Change { version, kind, word, object: object.clone() });
        self.objects.insert(key, object.clone());
        object
    }

    pub(super) fn delete(&mut self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        let mut object = self.objects.remove(&(kind, namespace.to_owned(), name.to_owned()))?;
        let version = self.next_version();
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        self.note(Change { version, kind, word: "DELETED", object: object.clone() });
        Some(object)
    }

    fn note(&mut self, change: Change) {
        if self.changes.len() == CHANGES_MAX
            && let Some(forgotten) = self.changes.pop_front()
        {
            self.oldest = forgotten.version;
        }
        self.changes.push_back(change);
    }

    /// Applies the parts of `applied` to an object that is there: its status, or all but that. The error is the manager
    /// in the way. An apply that changes nothing moves no version.
    pub(super) fn apply(
        &mut self,
        old: Value,
        mut applied: Value,
        status_only: bool,
        by: (&str, bool),
    ) -> Result<Value, String> {
        let kind = Kind::of(&old);
        let (manager, force) = by;
        let part = |object: &Value| match status_only {
            true => object["status"].clone(),
            false => object["spec"].clone(),
        };
        let entry =
            json!({"manager": manager, "operation": "Apply", "subresource": if status_only { "status" } else { "" }});
        let mut managers = old["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let other = managers
            .iter()
            .find(|known| known["subresource"] == entry["subresource"] && known["manager"] != entry["manager"]);
        if let Some(other) = other
            && !force
            && part(&old) != part(&applied)
        {
            return Err(other["manager"].as_str().unwrap_or_default().to_owned());
        }
        if !managers.contains(&entry) {
            managers.push(entry);
        }
        let mut next = old.clone();
        if status_only {
            next["status"] = applied["status"].take();
        } else {
            merge(&mut next["metadata"], &applied["metadata"]);
            for (name, value) in applied.as_object().into_iter().flatten().filter(|(name, _)| *name != "metadata") {
                next[name.as_str()] = value.clone();
            }
        }
        next["metadata"]["managedFields"] = json!(managers);
        Ok(if next == old { old } else { self.put(kind, next) })
    }
}

/// RFC 7386.
pub(super) fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    for (name, value) in patch {
        if value.is_null() {
            into.as_object_mut().expect("made above").remove(name);
        } else {
            merge(&mut into[name.as_str()], value);
        }
    }
}
