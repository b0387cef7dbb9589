//! How a refused or failed request is counted and told: once per state, loud where a right is missing.

/// The word of a failure: `forbidden`, `not_found`, `conflict`, `gone`, `unreachable`, `other`.
#[must_use]
pub(super) fn kind_of(error: &kube::Error) -> &'static str {
    match error {
        kube::Error::Api(status) => match status.code {
            401 | 403 => "forbidden",
            404 => "not_found",
            409 => "conflict",
            410 => "gone",
            _ => "other",
        },
        _ => "unreachable",
    }
}

/// Tells of failures of one kind of request: the first of each word in a row.
#[derive(Debug)]
pub(super) struct Told {
    what: &'static str,
    /// Rights that the requests need.
    rights: &'static str,
    last: Option<&'static str>,
}

impl Told {
    /// Nothing was told.
    pub(super) fn new(what: &'static str, rights: &'static str) -> Self {
        Self { what, rights, last: None }
    }

    /// A request failed.
    pub(super) fn failed(&mut self, error: &kube::Error) {
        let word = kind_of(error);
        if self.last.replace(word) == Some(word) {
            return;
        }
        let (what, rights) = (self.what, self.rights);
        if word == "forbidden" {
            tracing::error!(what, rights, %error, "a right is missing at the API server; asking again");
        } else {
            tracing::warn!(what, %error, "the API server failed; asking again");
        }
    }

    /// A request succeeded.
    pub(super) fn well(&mut self) {
        if self.last.take().is_some() {
            tracing::info!(what = self.what, "the API server answers again");
        }
    }
}
