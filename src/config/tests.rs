//! Tables of options and what becomes of them.

use clap::{CommandFactory, Parser};

use super::*;
use crate::ids::{InstanceId, Owner};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    serve: ServeArgs,
}

fn config(options: &[&str]) -> Result<Config, Error> {
    let line = Line::try_parse_from(std::iter::once(&"kvindexer").chain(options)).unwrap();
    line.serve.try_into()
}

fn workers(list: &str) -> Result<Vec<WorkerEntry>, Error> {
    config(&["--block-size", "16", "--workers", list]).map(|config| config.workers.map_or(vec![], |w| w.entries))
}

#[test]
fn defaults_are_those_of_the_contract() {
    let config = config(&[]).unwrap();
    assert_eq!((config.host.to_string().as_str(), config.port, config.threads), ("0.0.0.0", 8090, 4));
    assert_eq!((config.workers, config.min_initial_workers), (None, 0));
    let Replicas { peers, peer_service, forward_registrations, compare_interval, recovered_grace, disk } =
        config.replicas.clone();
    assert_eq!((peers, peer_service, forward_registrations, disk), (vec![], None, false, None));
    assert_eq!((compare_interval.as_secs(), recovered_grace.as_secs()), (30, 60));
    assert!(!config.replicas.may_recover());
    assert_eq!(config.limits.query_body_bytes_max, 64 << 20);
    assert_eq!(config.limits.memory, MemoryLimit::Auto);
    assert!(!config.test_endpoints);
}

#[test]
fn every_option_has_an_environment_variable() {
    for arg in Line::command().get_arguments().filter(|arg| !["help", "version"].contains(&arg.get_id().as_str())) {
        let env = arg.get_env().map(|env| env.to_string_lossy().into_owned());
        let known = env.as_deref().is_some_and(|env| env.starts_with("KVINDEXER_") || env.starts_with("DYN_"));
        assert!(known, "--{} has {env:?}", arg.get_id());
    }
}

#[test]
fn worker_entries() {
    let entry = |owner: Owner, endpoint: &str, replay: Option<&str>| WorkerEntry {
        owner,
        endpoint: endpoint.to_owned(),
        replay_endpoint: replay.map(str::to_owned),
    };
    for (list, want) in [
        ("", vec![]),
        (" , ,", vec![]),
        ("7=tcp://h:1", vec![entry(Owner::new(7, 0), "tcp://h:1", None)]),
        (" 7 : 3 = tcp://h:1 ,", vec![entry(Owner::new(7, 3), "tcp://h:1", None)]),
        ("7=tcp://h:1|tcp://h:2", vec![entry(Owner::new(7, 0), "tcp://h:1", Some("tcp://h:2"))]),
        ("7=tcp://[::1]:1 | tcp://[::1]:2", vec![entry(Owner::new(7, 0), "tcp://[::1]:1", Some("tcp://[::1]:2"))]),
        (
            "007=ipc:///a=b,serving/llama-0:1=tcp://h:2",
            vec![
                entry(Owner::new(InstanceId::Text("007".into()), 0), "ipc:///a=b", None),
                entry(Owner::new(InstanceId::Text("serving/llama-0".into()), 1), "tcp://h:2", None),
            ],
        ),
    ] {
        assert_eq!(workers(list), Ok(want), "{list}");
    }
}

#[test]
fn bad_worker_entries_say_what_is_wrong() {
    for (list, want) in [
        ("7", "must be id[:rank]=endpoint"),
        ("=tcp://h:1", "must not be empty"),
        (":1=tcp://h:1", "must not be empty"),
        ("7:x=tcp://h:1", "rank must be a number"),
        ("7:=tcp://h:1", "rank must be a number"),
        ("7:-1=tcp://h:1", "rank must be a number"),
        ("7:4294967296=tcp://h:1", "rank must be a number"),
        ("7=tcp://h:1|", "nothing stands behind"),
        ("7=tcp://h:1,7:0=tcp://h:2", "names 7/0 twice"),
    ] {
        let error = workers(list).expect_err(list).to_string();
        assert!(error.contains(want), "{list}: {error}");
    }
}

#[test]
fn bad_values_are_errors() {
    for (options, want) in [
        (&["--workers", "7=tcp://h:1"][..], Error::BlockSizeMissing),
        (&["--block-size", "0"], Error::BlockSizeZero),
        (&["--min-initial-workers", "-1"], Error::MinInitialWorkers("-1".into())),
        (&["--min-initial-workers", "two"], Error::MinInitialWorkers("two".into())),
        (&["--host", "nowhere"], Error::Host("nowhere".into())),
        (&["--host", "[127.0.0.1]"], Error::Host("[127.0.0.1]".into())),
        (&["--memory-limit", "4 apples"], Error::MemoryLimit("4 apples".into())),
        (&["--memory-limit", "99999999999GiB"], Error::MemoryLimit("99999999999GiB".into())),
        (&["--body-bytes-max", "0"], Error::LimitZero("--body-bytes-max")),
        (&["--drain-seconds", "9"], Error::DrainTooLong),
        (&["--trace-id-header", "a b"], Error::TraceIdHeader("a b".into())),
        (&["--peer-service", "peers"], Error::PeerService("peers".into())),
        (&["--peer-service", "http://peers:8090"], Error::PeerService("http://peers:8090".into())),
        (&["--peer-service", "peers:0"], Error::PeerService("peers:0".into())),
        (&["--peer-service", ":8090"], Error::PeerService(":8090".into())),
        (&["--peer-service", "::1:8090"], Error::PeerService("::1:8090".into())),
        (
            &["--forward-registrations", "maybe"],
            Error::Switch { name: "--forward-registrations", value: "maybe".into() },
        ),
        (&["--kubernetes", "perhaps"], Error::Switch { name: "--kubernetes", value: "perhaps".into() }),
        (&["--compare-interval-s", "0"], Error::LimitZero("--compare-interval-s")),
        (&["--snapshot-interval-s", "0"], Error::LimitZero("--snapshot-interval-s")),
        (&["--snapshot-age-max-s", "0"], Error::LimitZero("--snapshot-age-max-s")),
    ] {
        let options: Vec<&str> = options.iter().map(|option| option.trim()).collect();
        let joined = match options[..] {
            [name, value] if value.starts_with('-') => vec![format!("{name}={value}")],
            _ => options.iter().map(ToString::to_string).collect(),
        };
        let options: Vec<&str> = joined.iter().map(String::as_str).collect();
        assert_eq!(config(&options).map(|_| ()), Err(want), "{options:?}");
    }
}

#[test]
fn values_with_several_forms() {
    for (text, want) in [("", 0), ("0", 0), ("3", 3), (" 2 ", 2)] {
        assert_eq!(config(&["--min-initial-workers", text]).unwrap().min_initial_workers, want, "{text:?}");
    }
    for (text, want) in [("0.0.0.0", "0.0.0.0"), ("[::]", "::"), ("::1", "::1")] {
        assert_eq!(config(&["--host", text]).unwrap().host.to_string(), want);
    }
    for (text, want) in [
        ("auto", MemoryLimit::Auto),
        ("off", MemoryLimit::Off),
        ("0", MemoryLimit::Off),
        ("1000", MemoryLimit::Bytes(1000)),
        ("4GiB", MemoryLimit::Bytes(4 << 30)),
        ("512 Mi", MemoryLimit::Bytes(512 << 20)),
    ] {
        assert_eq!(config(&["--memory-limit", text]).unwrap().limits.memory, want, "{text}");
    }
    let peers = config(&["--peers", " http://a:1 ,, not a url"]).unwrap().replicas;
    assert_eq!(peers.peers, ["http://a:1", "not a url"]);
    assert!(peers.may_recover());
    assert_eq!(config(&["--threads", "0"]).unwrap().threads, 1);
    assert_eq!(
        config(&["--routing-group", "g", "--block-size", "1", "--workers", "1=tcp://h:1"])
            .unwrap()
            .workers
            .unwrap()
            .key
            .tenant
            .as_str(),
        "g"
    );
}

#[test]
fn registrations_are_forwarded_in_a_replica_set_unless_told_otherwise() {
    for (options, want) in [
        (&[][..], false),
        (&["--peers", "http://a:1"], false),
        (&["--peer-service", "peers:8090"], true),
        (&["--peer-service", "[::1]:8090"], true),
        (&["--peer-service", "peers:8090", "--forward-registrations", "off"], false),
        (&["--peer-service", "peers:8090", "--forward-registrations", ""], true),
        (&["--forward-registrations"], true),
        (&["--forward-registrations=True"], true),
        (&["--forward-registrations", "0"], false),
    ] {
        assert_eq!(config(options).unwrap().replicas.forward_registrations, want, "{options:?}");
    }
}

#[test]
fn an_empty_variable_is_as_good_as_none() {
    // As a ConfigMap with every option in it has them.
    let options =
        ["--peers=", "--peer-service=", "--snapshot-dir=", "--access-log=", "--trace-id-header=", "--workers="];
    let config = config(&options).unwrap();
    assert_eq!((config.log.access_log, config.log.trace_id_header, config.workers), (None, None, None));
    assert!(!config.replicas.may_recover());
}

#[test]
fn a_snapshot_is_written_only_where_a_directory_is_named() {
    let disk = |options: &[&str]| config(options).unwrap().replicas.disk;
    assert_eq!(disk(&["--snapshot-interval-s", "7"]), None);
    assert_eq!(disk(&["--snapshot-dir="]), None);
    let want = |interval, age| {
        let (interval, age_max) = (Duration::from_secs(interval), Duration::from_secs(age));
        Some(DiskSnapshot { dir: "/var/kv".into(), interval, age_max })
    };
    assert_eq!(disk(&["--snapshot-dir", "/var/kv"]), want(300, 3600));
    let options = ["--snapshot-dir", "/var/kv", "--snapshot-interval-s", "7", "--snapshot-age-max-s", "8"];
    assert_eq!(disk(&options), want(7, 8));
    assert!(config(&options).unwrap().replicas.may_recover());
}
