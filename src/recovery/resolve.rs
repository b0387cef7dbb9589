//! The name of the peer service, looked up: addresses of all replicas, our own among them.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::{Instant, sleep, timeout};

/// Between two look-ups while the answer does not count.
const AGAIN: Duration = Duration::from_millis(250);

/// One look-up may take so long; the resolver's own limits are longer.
const LOOKUP: Duration = Duration::from_secs(4);

/// One replica as the name gives it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address {
    /// Where it answers.
    pub(super) url: String,
    /// The address is one of this machine's.
    pub(super) own: bool,
}

/// All addresses behind `host:port`. An error, an empty answer, or one without an address of our own is asked for again
/// for up to `limit`; the last answer counts then.
pub(super) async fn resolve(service: &str, limit: Duration) -> BTreeSet<Address> {
    let began = Instant::now();
    loop {
        let left = limit.saturating_sub(began.elapsed());
        let answer = match timeout(left.clamp(AGAIN, LOOKUP), lookup_host(service)).await {
            Ok(Ok(found)) => found.map(address).collect(),
            Ok(Err(error)) => {
                tracing::debug!(service, %error, "peer service is not resolved");
                BTreeSet::new()
            }
            Err(_) => BTreeSet::new(),
        };
        if answer.iter().any(|address| address.own) {
            return answer;
        }
        if began.elapsed() + AGAIN >= limit {
            if !limit.is_zero() {
                tracing::warn!(service, addresses = answer.len(), "peer service does not name this replica");
            }
            return answer;
        }
        sleep(AGAIN).await;
    }
}

fn address(found: SocketAddr) -> Address {
    Address { url: format!("http://{found}"), own: is_own(found.ip()) }
}

/// An address is ours if and only if a socket can be bound to it.
fn is_own(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_those_that_can_be_bound() {
        assert!(is_own([127, 0, 0, 1].into()));
        // Of the range that is kept for documentation.
        assert!(!is_own([192, 0, 2, 1].into()));
    }

    #[tokio::test]
    async fn an_answer_with_an_own_address_counts_at_once() {
        let found = resolve("127.0.0.1:8090", Duration::from_secs(60)).await;
        let want = Address { url: "http://127.0.0.1:8090".to_owned(), own: true };
        assert_eq!(found, BTreeSet::from([want]));
    }

    #[tokio::test]
    async fn an_answer_without_one_is_asked_for_again_until_the_limit() {
        let began = Instant::now();
        let found = resolve("192.0.2.1:8090", Duration::from_millis(600)).await;
        assert!(found.iter().all(|address| !address.own) && found.len() == 1);
        assert!(began.elapsed() >= Duration::from_millis(300) && began.elapsed() < Duration::from_secs(5));
    }
}
