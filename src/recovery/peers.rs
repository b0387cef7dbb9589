//! Addresses of other replicas. The list only: it asks nobody.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

/// Most peers that may be registered: a replica set has few, and the list is open to every client.
pub const PEERS_MAX: usize = 1024;

/// URLs of other replicas as they were given, unchecked; cheap to clone, all clones are one.
#[derive(Debug, Clone, Default)]
pub struct PeerList(Arc<Mutex<BTreeSet<String>>>);

impl PeerList {
    /// A list with these URLs.
    pub fn new(urls: impl IntoIterator<Item = String>) -> Self {
        Self(Arc::new(Mutex::new(urls.into_iter().collect())))
    }

    /// Adds a URL; false if the list is full. Repeating it changes nothing.
    pub fn add(&self, url: &str) -> bool {
        let mut urls = self.0.lock();
        if urls.len() >= PEERS_MAX && !urls.contains(url) {
            return false;
        }
        urls.insert(url.to_owned());
        true
    }

    /// Removes exactly this URL; false if it is not there.
    pub fn remove(&self, url: &str) -> bool {
        self.0.lock().remove(url)
    }

    /// All URLs.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.0.lock().iter().cloned().collect()
    }
}

/// An address in the form in which paths are put behind it: with a scheme, without a slash at its end. None if there is
/// nothing left of it.
pub(super) fn base_url(text: &str) -> Option<String> {
    let text = text.trim().trim_end_matches('/');
    match text {
        "" => None,
        text if text.contains("://") => Some(text.to_owned()),
        text => Some(format!("http://{text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_place_have_one_form() {
        for (text, want) in [
            ("http://a:1", Some("http://a:1")),
            (" http://a:1// ", Some("http://a:1")),
            ("a:1", Some("http://a:1")),
            ("[::1]:1/", Some("http://[::1]:1")),
            ("https://a/x/", Some("https://a/x")),
            ("", None),
            (" / ", None),
        ] {
            assert_eq!(base_url(text).as_deref(), want, "{text:?}");
        }
    }

    #[test]
    fn any_text_is_kept_once_and_removed_exactly() {
        let peers = PeerList::new(["http://a".to_owned()]);
        assert!(peers.add("http://a") && peers.add("") && peers.add("http://a/"));
        assert_eq!(peers.clone().urls(), ["", "http://a", "http://a/"]);
        assert!(peers.remove("http://a") && !peers.remove("http://a"));
    }

    #[test]
    fn the_list_is_bounded() {
        let peers = PeerList::new((0..PEERS_MAX).map(|n| n.to_string()));
        assert!(!peers.add("one more") && peers.add("0"));
    }
}
