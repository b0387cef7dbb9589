//! What engines say of themselves: it fills in what nobody gave, and never costs a registration.

use super::*;

fn question() -> Probe {
    Probe { pod_uid: "uid-of-s/p".to_owned(), container_id: "c-0".to_owned(), authority: "10.0.0.1:8000".to_owned() }
}

fn rank(events: u16, replay: u16, topic: &str) -> DescribedRank {
    DescribedRank { events_port: Some(events), replay_port: Some(replay), topic: Some(topic.to_owned()) }
}

/// With this answer to the question; the question must have been asked.
#[track_caller]
fn told(object: ObjectFacts, said: Description, want: &[&str]) {
    let view = observed([engine("s/p", "10.0.0.1")], [object]);
    let answered = desired(&view, &Described::from([(question(), said)]), &LastGood::new(), &config());
    assert_eq!(answered.probes, [question()]);
    assert_eq!(show(&answered).lines().collect::<Vec<_>>(), want);
}

#[test]
fn engines_are_asked_where_an_object_says_so() {
    let asks = |pod: PodFacts, object: ObjectFacts| decide(&observed([pod], [object])).probes;
    let auto = || object("s/o").discovery(8000);
    let named = || object("s/o").discovery("http");
    assert_eq!(asks(engine("s/p", "10.0.0.1"), auto()), [question()]);
    assert_eq!(asks(engine("s/p", "10.0.0.1").port("http", 8000), named()), [question()]);
    assert_eq!(asks(engine("s/p", "fd00::1"), auto())[0].authority, "[fd00::1]:8000");
    assert_eq!(asks(engine("s/p", "10.0.0.1"), object("s/o")), []);
    assert_eq!(
        asks(engine("s/p", "10.0.0.1"), auto().with(|spec| spec.discovery = crate::controller::Discovery::Off)),
        []
    );
    // One that is down is kept in mind: what it said holds until its next life speaks.
    assert_eq!(asks(engine("s/p", "10.0.0.1").down(), auto()), [question()]);
    assert_eq!(asks(pod("s/p").label("app", "vllm").running("c-0", 0), auto()), []);
    check(
        &observed([engine("s/p", "10.0.0.1")], [named()]),
        &[
            "m:default s/p/0 16 tcp://10.0.0.1:5557 life c-0:0",
            "s/o s/p PortNotFound: no container of the Pod declares the http port `http`",
        ],
    );
}

#[test]
fn a_silent_engine_is_registered_as_its_object_says() {
    check(
        &observed([engine("s/p", "10.0.0.1")], [object("s/o").discovery(8000).replay(6557)]),
        &["m:default s/p/0 16 tcp://10.0.0.1:5557 replay tcp://10.0.0.1:6557 life c-0:0"],
    );
}

#[test]
fn a_description_fills_in_ranks_replay_and_topic() {
    let ranks = BTreeMap::from([(8, rank(1, 6565, "kv")), (9, rank(2, 6566, ""))]);
    let said = Description { block_size: Some(16), ranks };
    told(
        object("s/o").discovery(8000),
        said.clone(),
        &[
            "m:default s/p/8 16 tcp://10.0.0.1:5565 replay tcp://10.0.0.1:6565 topic kv life c-0:0",
            "m:default s/p/9 16 tcp://10.0.0.1:5566 replay tcp://10.0.0.1:6566 life c-0:0",
        ],
    );
    // What the object says wins.
    told(
        object("s/o").discovery(8000).replay(7000).ranks(1, 8, StartRankFrom::Fixed),
        said.clone(),
        &["m:default s/p/8 16 tcp://10.0.0.1:5565 replay tcp://10.0.0.1:7008 topic kv life c-0:0"],
    );
    // The event port only where its name is declared by nobody.
    told(
        object("s/o").discovery(8000).events("kv-events"),
        said,
        &[
            "m:default s/p/8 16 tcp://10.0.0.1:1 replay tcp://10.0.0.1:6565 topic kv life c-0:0",
            "m:default s/p/9 16 tcp://10.0.0.1:2 replay tcp://10.0.0.1:6566 life c-0:0",
        ],
    );
}

#[test]
fn another_block_size_is_shown_and_what_was_said_is_registered() {
    told(
        object("s/o").discovery(8000),
        Description { block_size: Some(32), ranks: BTreeMap::new() },
        &[
            "m:default s/p/0 16 tcp://10.0.0.1:5557 life c-0:0",
            "s/o s/p BlockSizeMismatch: the engine says 32 tokens per block, registered are 16",
        ],
    );
}

#[test]
fn a_description_that_makes_no_sense_costs_the_description_only() {
    let plain = ["m:default s/p/0 16 tcp://10.0.0.1:5557 life c-0:0"];
    for ranks in [
        // Events and replay at one port; a rank, and a port, beyond what there is.
        BTreeMap::from([(0, rank(5557, 5557, ""))]),
        BTreeMap::from([(70_000, rank(5557, 5558, ""))]),
        BTreeMap::from([(60_000, rank(5557, 5558, ""))]),
    ] {
        told(object("s/o").discovery(8000), Description { block_size: None, ranks }, &plain);
    }
    let many = (0..5000).map(|number| (number, DescribedRank::default())).collect();
    let view = observed([engine("s/p", "10.0.0.1")], [object("s/o").discovery(8000)]);
    let said = Described::from([(question(), Description { block_size: None, ranks: many })]);
    assert_eq!(desired(&view, &said, &LastGood::new(), &config()).workers.len(), 1);
}

#[test]
fn what_an_earlier_life_said_holds_until_the_next_one_speaks() {
    let view = observed([engine("s/p", "10.0.0.1")], [object("s/o").discovery(8000)]);
    let said = |number| Description { block_size: None, ranks: BTreeMap::from([(number, rank(1, 7000, "t"))]) };
    let show = |said: Described| show(&desired(&view, &said, &LastGood::new(), &config()));
    let earlier = Probe { container_id: "b-9".to_owned(), ..question() };
    let three = "m:default s/p/3 16 tcp://10.0.0.1:5560 replay tcp://10.0.0.1:7000 topic t life c-0:0\n";
    assert_eq!(show(Described::from([(earlier.clone(), said(3))])), three);
    assert_eq!(show(Described::from([(earlier.clone(), said(4)), (question(), said(3))])), three);
    // Another Pod, and another address, have said nothing about this one.
    for other in [
        Probe { pod_uid: "another".to_owned(), ..earlier.clone() },
        Probe { authority: "10.0.0.1:8001".to_owned(), ..earlier },
    ] {
        let plain = "m:default s/p/0 16 tcp://10.0.0.1:5557 life c-0:0\n";
        assert_eq!(show(Described::from([(other, said(3))])), plain);
    }
}
