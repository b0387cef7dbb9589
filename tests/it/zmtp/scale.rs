//! Many connections, and many one after the other: descriptors, threads and memory stay small.
//!
//! The figures belong to a whole process, so the work runs in a child: this test binary again, one test of it.

use std::process::Command;
use std::time::Duration;

use kvindexer::zmtp::{Context, Dealer, Options, SubEvent, Subscriber};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{endpoint, options, peer, quick, within};

const CHILD: &str = "KVINDEXER_ZMTP_SCALE_CHILD";

fn run_child(test: &str) {
    let name = format!("zmtp::scale::{test}");
    let output = Command::new(std::env::current_exe().unwrap())
        .args([&name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Descriptors, threads and resident kB of this process.
fn figures() -> (usize, usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
    };
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), field("Threads:"), field("VmRSS:"))
}

/// Accepts for ever; says `script` to each connection and keeps it open.
async fn serve(listener: TcpListener, script: Vec<u8>) {
    let mut open = JoinSet::new();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let script = script.clone();
        open.spawn(async move {
            let _ = stream.write_all(&script).await;
            let mut sink = [0; 256];
            while !matches!(stream.read(&mut sink).await, Ok(0) | Err(_)) {}
        });
        while open.try_join_next().is_some() {}
    }
}

async fn server(socket_type: &str) -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    (address, tokio::spawn(serve(listener, peer::handshake(socket_type))))
}

#[test]
fn a_thousand_idle_endpoints_are_cheap() {
    if !is_child() {
        return run_child("a_thousand_idle_endpoints_are_cheap");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (address, server) = server("PUB").await;
        let mut idle: Vec<Subscriber> = Vec::with_capacity(1000);
        let before = figures();
        let context = Context::new(4);
        for _ in 0..1000 {
            let mut subscriber = Subscriber::new(endpoint(&address), options(quick(), &[]), context.clone());
            assert!(matches!(within("a handshake", subscriber.next()).await, SubEvent::Connected));
            idle.push(subscriber);
        }
        let after = figures();
        let kb_each = (after.2 - before.2) as f64 / 1000.0;
        eprintln!(
            "before {before:?}, after {after:?} (descriptors, threads, kB); {kb_each} kB each, the peers' side included"
        );
        assert!(after.0 - before.0 <= 2010, "two descriptors per connection, ours and the peer's");
        assert_eq!(after.1, before.1, "no thread per connection");
        assert!(kb_each < 32.0, "{kb_each}");
        drop(idle);
        descriptors_return_to(before.0).await;
        server.abort();
    });
}

#[test]
fn opening_and_closing_dealers_leaks_nothing() {
    if !is_child() {
        return run_child("opening_and_closing_dealers_leaks_nothing");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (address, server) = server("ROUTER").await;
        let context = Context::new(4);
        let target = endpoint(&address);
        let cycle = async |n: usize| {
            for _ in 0..n {
                let mut dealer =
                    within("a dealer", Dealer::connect(&target, &Options::default(), &context)).await.unwrap();
                within("a request", dealer.send(&[b"", &[0; 8]])).await.unwrap();
            }
        };
        cycle(200).await;
        let before = figures();
        cycle(2000).await;
        let after = figures();
        eprintln!("before {before:?}, after {after:?} (descriptors, threads, kB)");
        assert!(after.2 < before.2 + 4096, "memory grew from {} to {} kB", before.2, after.2);
        assert_eq!(after.1, before.1);
        descriptors_return_to(before.0).await;
        server.abort();
    });
}

/// The peer's ends close a moment after ours.
async fn descriptors_return_to(count: usize) {
    within("all descriptors closed", async {
        while figures().0 > count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}
