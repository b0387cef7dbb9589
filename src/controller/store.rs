//! The last complete lists of both kinds, while newer ones come in. Pure.
//!
//! One shelf per kind and namespace. A list is collected beside the one that is in force, and takes its place when it is
//! complete: what vanished meanwhile is gone then, and not before. Between lists single changes are followed. Nothing is
//! shown before every shelf has had a complete list.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::controller::desired::Observed;
use crate::controller::facts::{ObjectFacts, ObjectKey, PodFacts};

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    Pods,
    Objects,
}

impl Kind {
    /// Plural of the resource, and its label in metrics.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Objects => "indexerworkers",
        }
    }
}

/// One namespace; none: all of them.
pub(super) type Scope = Option<String>;

/// What is kept of an object.
pub(super) trait Facts: Clone + PartialEq + Send + Sync + 'static {
    const KIND: Kind;

    fn key(&self) -> &ObjectKey;
    fn uid(&self) -> &str;
    fn shelf<'a>(store: &'a mut Store, scope: &Scope) -> Option<&'a mut Shelf<Self>>;
}

impl Facts for PodFacts {
    const KIND: Kind = Kind::Pods;

    fn key(&self) -> &ObjectKey {
        &self.key
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn shelf<'a>(store: &'a mut Store, scope: &Scope) -> Option<&'a mut Shelf<Self>> {
        store.pods.get_mut(scope)
    }
}

impl Facts for ObjectFacts {
    const KIND: Kind = Kind::Objects;

    fn key(&self) -> &ObjectKey {
        &self.key
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn shelf<'a>(store: &'a mut Store, scope: &Scope) -> Option<&'a mut Shelf<Self>> {
        store.objects.get_mut(scope)
    }
}

type Entries<F> = BTreeMap<ObjectKey, Arc<F>>;

/// Whether changes of a shelf are heard.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hearing {
    /// They are.
    Current,
    /// The kind does not exist, and that is all there is to hear.
    Absent(String),
    /// They are not, and why.
    Lost(String),
}

/// One kind in one scope.
#[derive(Debug)]
pub(super) struct Shelf<F> {
    /// The last complete list, with what has changed since.
    listed: Option<Entries<F>>,
    /// A list that is coming in.
    collecting: Entries<F>,
    hearing: Hearing,
}

impl<F> Default for Shelf<F> {
    fn default() -> Self {
        let hearing = Hearing::Lost(String::new());
        Self { listed: None, collecting: BTreeMap::new(), hearing }
    }
}

impl<F: Facts> Shelf<F> {
    /// A list begins. Whatever came in of an earlier one that was not completed is dropped.
    pub(super) fn begin(&mut self) {
        self.collecting = BTreeMap::new();
    }

    /// One object of the list.
    pub(super) fn collect(&mut self, facts: F) {
        // What did not change is shared with the list in force.
        let known = self.listed.as_ref().and_then(|listed| listed.get(facts.key()));
        let entry = known.filter(|known| ***known == facts).cloned();
        self.collecting.insert(facts.key().clone(), entry.unwrap_or_else(|| Arc::new(facts)));
    }

    /// One object of the list cannot be read: what was known of this very object stays, else it is left out.
    pub(super) fn collect_unreadable(&mut self, key: &ObjectKey, uid: &str) {
        let known = self.listed.as_ref().and_then(|listed| listed.get(key));
        if let Some(known) = known.filter(|known| known.uid() == uid).cloned() {
            self.collecting.insert(key.clone(), known);
        }
    }

    /// The list is complete and in force. True if it says something else than the one before.
    pub(super) fn complete(&mut self) -> bool {
        let list = std::mem::take(&mut self.collecting);
        let changed = self.listed.as_ref() != Some(&list);
        self.listed = Some(list);
        changed
    }

    /// An object is there, or is another. True if what is kept of it changed.
    pub(super) fn apply(&mut self, facts: F) -> bool {
        let Some(listed) = &mut self.listed else {
            return false;
        };
        if listed.get(facts.key()).is_some_and(|known| **known == facts) {
            return false;
        }
        listed.insert(facts.key().clone(), Arc::new(facts));
        true
    }

    /// An object is gone. The end of an earlier object of the same name removes nothing. True if something went.
    pub(super) fn delete(&mut self, key: &ObjectKey, uid: &str) -> bool {
        let Some(listed) = &mut self.listed else {
            return false;
        };
        let is_it = listed.get(key).is_some_and(|known| uid.is_empty() || known.uid() == uid);
        is_it && listed.remove(key).is_some()
    }

    /// Changes are heard from the complete list on. True if they were not before.
    pub(super) fn current(&mut self) -> bool {
        std::mem::replace(&mut self.hearing, Hearing::Current) != Hearing::Current
    }

    /// Changes are not heard any more; what was listed stays in force.
    pub(super) fn lose(&mut self, why: String) {
        self.hearing = Hearing::Lost(why);
        self.collecting = BTreeMap::new();
    }

    /// The API server does not know the kind. If it has been so for `long`, or nothing was ever listed, there are no such
    /// objects. True if that changes what is in force.
    pub(super) fn absent(&mut self, long: bool, why: String) -> bool {
        if self.listed.is_some() && !long && !matches!(self.hearing, Hearing::Absent(_)) {
            self.lose(why);
            return false;
        }
        self.hearing = Hearing::Absent(why);
        self.collecting = BTreeMap::new();
        self.complete()
    }

    fn is_current(&self) -> bool {
        !matches!(self.hearing, Hearing::Lost(_))
    }

    fn trouble(&self) -> Option<&str> {
        match &self.hearing {
            Hearing::Current => None,
            Hearing::Absent(why) | Hearing::Lost(why) => Some(why),
        }
    }
}

/// All shelves.
#[derive(Debug, Default)]
pub(super) struct Store {
    pods: BTreeMap<Scope, Shelf<PodFacts>>,
    objects: BTreeMap<Scope, Shelf<ObjectFacts>>,
}

impl Store {
    /// Empty shelves for both kinds in every scope.
    pub(super) fn new(scopes: &[Scope]) -> Self {
        Self {
            pods: scopes.iter().map(|scope| (scope.clone(), Shelf::default())).collect(),
            objects: scopes.iter().map(|scope| (scope.clone(), Shelf::default())).collect(),
        }
    }

    /// Everything; none before each shelf has had a complete list.
    pub(super) fn observed(&self) -> Option<Observed> {
        Some(Observed { pods: merged(&self.pods)?, objects: merged(&self.objects)? })
    }

    /// Changes of a kind are heard in every scope.
    pub(super) fn is_current(&self, kind: Kind) -> bool {
        match kind {
            Kind::Pods => self.pods.values().all(Shelf::is_current),
            Kind::Objects => self.objects.values().all(Shelf::is_current),
        }
    }

    /// What is not as it should be, for people; bounded.
    pub(super) fn trouble(&self) -> Option<String> {
        /// Scopes that fail for one reason each would fill the answer of `/ready`.
        const SHOWN_MAX: usize = 3;
        let pods = self.pods.values().filter_map(Shelf::trouble);
        let mut troubles: Vec<&str> = pods.chain(self.objects.values().filter_map(Shelf::trouble)).collect();
        troubles.retain(|why| !why.is_empty());
        let more = troubles.len().saturating_sub(SHOWN_MAX);
        troubles.truncate(SHOWN_MAX);
        match (troubles.is_empty(), more) {
            (true, _) => None,
            (false, 0) => Some(troubles.join("; ")),
            (false, more) => Some(format!("{}; and {more} more", troubles.join("; "))),
        }
    }
}

fn merged<F>(shelves: &BTreeMap<Scope, Shelf<F>>) -> Option<Entries<F>> {
    let mut all = BTreeMap::new();
    for shelf in shelves.values() {
        all.extend(shelf.listed.as_ref()?.iter().map(|(key, facts)| (key.clone(), Arc::clone(facts))));
    }
    Some(all)
}

#[cfg(test)]
mod tests;
