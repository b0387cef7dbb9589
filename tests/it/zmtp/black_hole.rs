//! A network that swallows packets: only here do the system's own nets (keep-alive, TCP_USER_TIMEOUT) show.
//!
//! Needs root, and a network namespace for itself, so that nothing of the machine is touched:
//! `KVINDEXER_NETNS=1 unshare -n cargo test --test it zmtp::black_hole -- --test-threads=1`. Skipped elsewhere.

use std::process::Command;
use std::time::{Duration, Instant};

use kvindexer::zmtp::{SubEvent, Subscriber, Timing};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{libzmq, peer, publish, quick, subscriber};

const HERE: &str = "10.213.7.1";
const THERE: &str = "10.213.7.2";
const CHILD: &str = "KVINDEXER_ZMTP_BLACK_HOLE_CHILD";

fn sh(script: &str) {
    let done = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(done.success(), "{script}");
}

/// A peer process in a namespace of its own behind a cable. Ends with its owner, and the cable with it.
struct Far(std::process::Child);

impl Far {
    fn start(kind: &str) -> Self {
        let exe = std::env::current_exe().unwrap();
        let script = format!(
            "until ip link show far >/dev/null 2>&1; do sleep 0.02; done
            ip addr add {THERE}/24 dev far; ip link set far up; ip link set lo up
            exec {} zmtp::black_hole::child_is_the_far_peer --exact --test-threads=1 >/dev/null 2>&1",
            exe.display()
        );
        let child = Command::new("unshare").args(["-n", "sh", "-ec", &script]).env(CHILD, kind).spawn().unwrap();
        let far = Self(child);
        // The cable can be handed over once the child has left our namespace.
        sh(&format!(
            "until [ \"$(readlink /proc/{0}/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do sleep 0.02; done
            ip link add near type veth peer name far netns {0}
            ip addr add {HERE}/24 dev near; ip link set near up; ip link set lo up",
            far.0.id()
        ));
        far
    }

    /// Both sides send to a hardware address that nobody has; the links stay up.
    fn swallow(&self) {
        let pid = self.0.id();
        sh(&format!(
            "ip neigh replace {THERE} lladdr 02:00:00:00:00:99 dev near nud permanent
            nsenter -t {pid} -n ip neigh replace {HERE} lladdr 02:00:00:00:00:98 dev far nud permanent"
        ));
    }

    fn heal(&self) {
        let pid = self.0.id();
        sh(&format!("ip neigh del {THERE} dev near; nsenter -t {pid} -n ip neigh del {HERE} dev far"));
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = Command::new("ip").args(["link", "del", "near"]).status();
    }
}

/// Only as a child: a libzmq publisher (it announces 3.1), or a peer of ZMTP 3.0 that says one message.
#[tokio::test]
async fn child_is_the_far_peer() {
    match std::env::var(CHILD).as_deref() {
        Ok("libzmq") => {
            let (socket, _) = libzmq(zmq::PUB, &format!("tcp://{THERE}:5557")).await;
            for n in 0..6000 {
                publish(&socket, "", n);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok("3.0") => {
            let listener = TcpListener::bind((THERE, 5557)).await.unwrap();
            let mut open = tokio::task::JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                open.spawn(async move {
                    let mut hello = peer::handshake("PUB");
                    hello[11] = 0;
                    stream.write_all(&hello).await.unwrap();
                    // With the subscription read nothing is under way any more: the connection is idle.
                    stream.read_exact(&mut [0; 64 + 27 + 3]).await.unwrap();
                    stream.write_all(&peer::message(&[b"hello"])).await.unwrap();
                    let mut sink = [0; 256];
                    while !matches!(stream.read(&mut sink).await, Ok(0) | Err(_)) {}
                });
            }
        }
        _ => {}
    }
}

async fn heard(subscriber: &mut Subscriber, limit: Duration) {
    let listen = async { while !matches!(subscriber.next().await, SubEvent::Message(_)) {} };
    tokio::time::timeout(limit, listen).await.expect("a message");
}

async fn check(kind: &str, says: &str, noticed_within: Duration) {
    if std::env::var_os("KVINDEXER_NETNS").is_none() || std::env::var_os(CHILD).is_some() {
        return;
    }
    let far = Far::start(kind);
    let timing = Timing {
        connect: Duration::from_millis(500),
        ping_interval: Duration::from_millis(200),
        dead_after: Duration::from_millis(1000),
        ..quick()
    };
    let mut subscriber = subscriber(&format!("tcp://{THERE}:5557"), timing);
    heard(&mut subscriber, Duration::from_secs(10)).await;
    far.swallow();
    let began = Instant::now();
    let error = loop {
        match tokio::time::timeout(noticed_within, subscriber.next()).await.expect("the loss is noticed") {
            SubEvent::Disconnected { error } => break error,
            SubEvent::Message(_) | SubEvent::Connected => {}
        }
    };
    assert!(error.starts_with(says), "{error}");
    eprintln!("{kind}: noticed after {:?}: {error}", began.elapsed());
    let next = super::loss(&mut subscriber).await;
    assert_eq!(next, format!("failed to connect to {THERE}:5557: no answer within 500ms"));
    far.heal();
    heard(&mut subscriber, Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_black_hole_before_a_3_1_peer_is_noticed_by_ping() {
    check("libzmq", "peer is silent: no byte and no answer to PING for ", Duration::from_secs(5)).await;
}

/// Keep-alive asks after 15 s; TCP_USER_TIMEOUT (1 s here) ends it at the next probe.
#[tokio::test]
async fn a_black_hole_before_a_3_0_peer_is_noticed_by_the_system() {
    check("3.0", "connection lost: ", Duration::from_secs(40)).await;
}
