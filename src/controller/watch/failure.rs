//! Why a watch failed, and how long to wait before the next attempt.

use std::time::Duration;

/// Longest text of the API server that is shown.
const MESSAGE_BYTES_MAX: usize = 300;

/// The word of a failure: a label in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// 401 or 403.
    Forbidden,
    /// 404: the API server does not know the kind.
    NotFound,
    /// 410: what should be taken up is too old.
    Gone,
    /// No connection, no answer, a broken one, or a server that cannot serve.
    Unreachable,
    /// An object that cannot be read.
    Unreadable,
    /// Anything else.
    Other,
}

impl Reason {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::Gone => "gone",
            Self::Unreachable => "unreachable",
            Self::Unreadable => "unreadable",
            Self::Other => "other",
        }
    }
}

/// Why a watch failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) reason: Reason,
    /// For people.
    pub(super) message: String,
    /// The API server asks for this wait.
    pub(super) retry_after: Option<Duration>,
}

impl Failure {
    pub(super) fn new(reason: Reason, message: impl ToString) -> Self {
        Self { reason, message: message.to_string(), retry_after: None }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(status) = &error else {
            let reason = match &error {
                kube::Error::SerdeError(_) => Reason::Other,
                _ => Reason::Unreachable,
            };
            return Self::new(reason, bounded(innermost(&error)));
        };
        let reason = match status.code {
            401 | 403 => Reason::Forbidden,
            404 => Reason::NotFound,
            410 => Reason::Gone,
            // What a server says while it starts, ends or is overloaded, and a proxy whose server is away.
            429 | 502..=504 => Reason::Unreachable,
            _ => Reason::Other,
        };
        let message = match status.message.trim() {
            "" => format!("the API server answers {}", status.code),
            message => format!("the API server answers {}: {message}", status.code),
        };
        let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        Self { reason, message: bounded(message), retry_after }
    }
}

/// The innermost reason: the outer ones only say that something failed.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn bounded(mut message: String) -> String {
    if let Some(end) = (0..=MESSAGE_BYTES_MAX.min(message.len())).rev().find(|at| message.is_char_boundary(*at)) {
        message.truncate(end);
    }
    message
}

/// Waits that double, with jitter.
pub(super) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min }
    }

    /// The next wait: between half of what is due and all of it, so that replicas that fail together do not come back
    /// together. A longer wait that the other side asks for is kept, up to the longest.
    pub(super) fn next(&mut self, asked: Option<Duration>) -> Duration {
        let due = self.next;
        self.next = (due * 2).min(self.max);
        let jittered = due.mul_f64(0.5 + fastrand::f64() / 2.0);
        asked.map_or(jittered, |asked| jittered.max(asked.min(self.max)))
    }

    /// It went well for long enough.
    pub(super) fn begin_anew(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirty_seconds_of_failures_are_few_attempts() {
        for _ in 0..100 {
            let mut backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(30));
            let mut waited = Duration::ZERO;
            let mut attempts = 1;
            while waited < Duration::from_secs(30) {
                waited += backoff.next(None);
                attempts += 1;
            }
            assert!(attempts < 12, "{attempts}");
        }
    }

    #[test]
    fn waits_double_up_to_the_longest_and_begin_anew() {
        let (min, max) = (Duration::from_millis(100), Duration::from_millis(350));
        let mut backoff = Backoff::new(min, max);
        for due in [100, 200, 350, 350].map(Duration::from_millis) {
            let wait = backoff.next(None);
            assert!(wait >= due / 2 && wait <= due, "{wait:?} of {due:?}");
        }
        backoff.begin_anew();
        assert!(backoff.next(None) <= min);
    }

    #[test]
    fn a_wait_that_is_asked_for_is_kept_up_to_the_longest() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        assert_eq!(backoff.next(Some(Duration::from_secs(2))), Duration::from_secs(2));
        assert_eq!(backoff.next(Some(Duration::from_secs(60))), Duration::from_secs(5));
    }

    #[test]
    fn statuses_are_put_into_words() {
        let status = |code, message: &str| {
            let mut status = kube::core::Status::default();
            (status.code, status.message) = (code, message.to_owned());
            Failure::from(kube::Error::Api(status.boxed()))
        };
        for (code, want) in [
            (401, Reason::Forbidden),
            (403, Reason::Forbidden),
            (404, Reason::NotFound),
            (410, Reason::Gone),
            (429, Reason::Unreachable),
            (500, Reason::Other),
            (503, Reason::Unreachable),
        ] {
            assert_eq!(status(code, "why").reason, want, "{code}");
        }
        assert_eq!(status(403, "pods is forbidden").message, "the API server answers 403: pods is forbidden");
        assert_eq!(status(500, &"é".repeat(1000)).message.len(), MESSAGE_BYTES_MAX);
    }
}
