//! Texts of endpoints, and look-ups with a resolver of our own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

#[track_caller]
fn check(text: &str, want: &str) {
    let got = match Endpoint::parse(text) {
        Ok(endpoint) => {
            assert_eq!(endpoint.as_str(), text);
            let target = match endpoint.target() {
                Target::Tcp { host, port } => format!("tcp {host} {port}"),
                Target::Ipc { path } => format!("ipc {path}"),
                Target::Inproc => "inproc".to_owned(),
            };
            if endpoint.hopeless().is_some() { format!("{target} hopeless") } else { target }
        }
        Err(error) => error.to_string(),
    };
    assert_eq!(got, want, "{text}");
}

#[test]
fn endpoints_parse_or_say_why_not() {
    check("tcp://10.0.0.7:5557", "tcp 10.0.0.7 5557");
    check("tcp://engine-0.engines.default.svc:65535", "tcp engine-0.engines.default.svc 65535");
    check("tcp://[fd00::5]:5557", "tcp fd00::5 5557");
    check("tcp://0.0.0.0:5557", "tcp 0.0.0.0 5557");
    check("ipc:///run/kv.sock", "ipc /run/kv.sock");
    check("ipc://@kv", "ipc @kv");
    check("tcp://*:5557", "tcp * 5557 hopeless");
    check("tcp://host:0", "tcp host 0 hopeless");
    check("ipc://*", "ipc * hopeless");
    check("inproc://x", "inproc hopeless");
    check("", "missing scheme");
    check("127.0.0.1:5557", "missing scheme");
    check("://x", "missing scheme");
    check("tcp://", "missing address");
    check("ipc://", "missing address");
    check("tcp://host", "missing TCP port");
    check("tcp://host:", "missing TCP port");
    check("tcp://[::1]", "missing TCP port");
    check("tcp://[::1]5557", "missing TCP port");
    check("tcp://:5557", "missing TCP host");
    check("tcp://[]:5557", "missing TCP host");
    check("tcp://fd00::5:5557", "IPv6 address must be in brackets");
    check("tcp://[fd00::5:5557", "IPv6 address must be in brackets");
    check("tcp://host:65536", "invalid TCP port: number too large to fit in target type");
    check("tcp://host:*", "invalid TCP port: invalid digit found in string");
    check("tcp://host:+1", "invalid TCP port: invalid digit found in string");
    check("tcp://host:-1", "invalid TCP port: invalid digit found in string");
    check("udp://h:1", "unsupported scheme `udp`");
    check(" tcp://127.0.0.1:20950", "unsupported scheme ` tcp`");
    check("TCP://h:1", "unsupported scheme `TCP`");
}

fn localhost(port: u16) -> Vec<SocketAddr> {
    vec![SocketAddr::from(([127, 0, 0, 1], port))]
}

const SOON: Duration = Duration::from_millis(50);
const LATE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn an_address_is_not_looked_up() {
    let context = Context::with_resolver(1, |_, _| panic!("asked for an address"));
    let mut lookup = Lookup::new(context);
    assert_eq!(lookup.addresses("127.0.0.1", 7, LATE).await.unwrap(), localhost(7));
    assert_eq!(lookup.addresses("::1", 7, LATE).await.unwrap(), ["[::1]:7".parse().unwrap()]);
}

#[tokio::test]
async fn a_name_is_asked_again_each_time() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let context = Context::with_resolver(1, move |_, port| match counter.fetch_add(1, Ordering::SeqCst) {
        0 => Err(io::Error::other("unknown name")),
        1 => Ok(vec![]),
        _ => Ok(localhost(port)),
    });
    let mut lookup = Lookup::new(context);
    let error = lookup.addresses("pod", 7, LATE).await.unwrap_err();
    assert_eq!(error.to_string(), "failed to resolve host `pod`: unknown name");
    let error = lookup.addresses("pod", 7, LATE).await.unwrap_err();
    assert_eq!(error.to_string(), "failed to resolve host `pod`: no addresses");
    assert_eq!(lookup.addresses("pod", 7, LATE).await.unwrap(), localhost(7));
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_stuck_name_holds_one_place_and_others_are_told() {
    let (release, gate) = mpsc::channel::<()>();
    let gate = parking_lot::Mutex::new(gate);
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let context = Context::with_resolver(1, move |_, port| {
        counter.fetch_add(1, Ordering::SeqCst);
        gate.lock().recv().unwrap();
        Ok(localhost(port))
    });
    let (mut stuck, mut other) = (Lookup::new(context.clone()), Lookup::new(context));
    for _ in 0..2 {
        let error = stuck.addresses("stuck", 7, SOON).await.unwrap_err();
        assert_eq!(error.to_string(), "failed to resolve host `stuck`: no answer within 50ms");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1, "the second attempt waits for the look-up of the first");
    let error = other.addresses("other", 7, SOON).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to resolve host `other`: too many slow name look-ups, none ended within 50ms"
    );
    release.send(()).unwrap();
    release.send(()).unwrap();
    release.send(()).unwrap();
    assert_eq!(stuck.addresses("stuck", 7, LATE).await.unwrap(), localhost(7));
    assert_eq!(other.addresses("other", 7, LATE).await.unwrap(), localhost(7));
}
