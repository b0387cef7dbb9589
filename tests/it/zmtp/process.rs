//! A publisher in a process of its own (this test binary again), stopped, continued and killed by signals.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvindexer::zmtp::{Message, SubEvent, Timing};
use tokio::time::timeout;

use super::{DEADLINE, libzmq, loss, message, publish, quick, subscriber};

const CHILD: &str = "KVINDEXER_ZMTP_PUBLISHER_CHILD";

/// Ends with its owner.
struct Publisher(Child);

impl Publisher {
    fn start(address: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["zmtp::process::child_publishes_numbers", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, address)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn signal(&self, name: &str) {
        let done = Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Only as a child: its id as topic and numbers from 0, one every millisecond, until killed, or until a minute has passed.
#[tokio::test]
async fn child_publishes_numbers() {
    let Ok(address) = std::env::var(CHILD) else { return };
    let (socket, _) = libzmq(zmq::PUB, &address).await;
    let began = Instant::now();
    let life = std::process::id().to_string();
    for n in 0.. {
        publish(&socket, &life, n);
        tokio::time::sleep(Duration::from_millis(1)).await;
        if began.elapsed() > Duration::from_secs(60) {
            return;
        }
    }
}

#[tokio::test]
async fn a_stopped_publisher_goes_on_without_loss_and_a_killed_one_is_followed_by_the_next() {
    let address = "tcp://127.41.0.10:5557";
    let timing = Timing { ping_interval: Duration::from_millis(100), dead_after: Duration::from_secs(10), ..quick() };
    let mut subscriber = subscriber(address, timing);
    let publisher = Publisher::start(address);
    let number = |message: &Message| u64::from_be_bytes(message.frames[1][..].try_into().unwrap());
    let life = |publisher: &Publisher| publisher.0.id().to_string().into_bytes();

    let began = Instant::now();
    let mut last = loop {
        assert!(began.elapsed() < DEADLINE, "the publisher is not heard");
        if let SubEvent::Message(first) = subscriber.next().await {
            assert_eq!(first.frames[0][..], life(&publisher));
            break number(&first);
        }
    };
    publisher.signal("-STOP");
    while let Ok(event) = timeout(Duration::from_millis(500), subscriber.next()).await {
        let SubEvent::Message(next) = event else { panic!("cut: {event:?}") };
        assert_eq!(number(&next), last + 1);
        last += 1;
    }
    publisher.signal("-CONT");
    for _ in 0..200 {
        assert_eq!(number(&message(&mut subscriber).await), last + 1);
        last += 1;
    }

    publisher.signal("-KILL");
    let error = loss(&mut subscriber).await;
    assert!(error.starts_with("peer closed the connection") || error.starts_with("connection lost"), "{error}");
    let next = Publisher::start(address);
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < Duration::from_secs(5), "the next publisher is not heard");
        if let SubEvent::Message(first) = subscriber.next().await {
            assert_eq!(first.frames[0][..], life(&next));
            break;
        }
    }
}
