//! What holds for every view.

use super::*;
use proptest::prelude::*;

/// Few names, labels, models and times, so that they meet.
fn any_pod(namespace: &'static str) -> impl Strategy<Value = PodFacts> {
    let names = proptest::sample::select(vec!["p-0", "p-1", "q", "r"]);
    let lives = (any::<bool>(), any::<bool>(), proptest::bool::weighted(0.1), proptest::bool::weighted(0.9));
    let wishes = (0..4_u8, 0..3_u8, proptest::option::weighted(0.2, 0..3_u8));
    (names, lives, wishes, 0..4_i64, 1..5_u8).prop_map(
        move |(name, (runs, annotated, deleting, addressed), (app, model, instance), created, host)| {
            let mut made = pod(&format!("{namespace}/{name}")).created(created);
            made = made.label("app", ["vllm", "sglang", "x", "y"][usize::from(app)]);
            if annotated {
                made = made.annotated(["m", "n", ""][usize::from(model)]);
            }
            if let Some(instance) = instance {
                made = made.annotation("instance-id", &instance.to_string());
            }
            if addressed {
                made = made.ip(&format!("10.0.0.{host}"));
            }
            if runs {
                made = made.running(&format!("c-{host}"), u32::from(host));
            }
            made.deleting = deleting;
            made
        },
    )
}

fn any_object(namespace: &'static str) -> impl Strategy<Value = ObjectFacts> {
    let names = proptest::sample::select(vec!["a", "b", "c", "d"]);
    let wishes = (0..4_u8, 0..2_u8, prop_oneof![4 => Just(16), 1 => Just(32), 1 => Just(0)]);
    let ports = (prop_oneof![Just(5557), Just(5558), Just(65_535)], proptest::option::of(5558..5560_i32), 1..4_i32);
    let kinds = (proptest::bool::weighted(0.2), proptest::bool::weighted(0.1), any::<bool>());
    (names, wishes, ports, kinds, 0..4_i64).prop_map(
        move |(name, (app, model, block_size), (events, replay, size), (fixed, unreadable, asks), created)| {
            let mut made =
                object(&format!("{namespace}/{name}")).created(created).model(["m", "n"][usize::from(model)]);
            made = made.with(|spec| spec.block_size = block_size);
            if fixed {
                made =
                    made.endpoints(&[endpoint("1", 0, "tcp://10.9.9.9:5557"), endpoint("x", 0, "tcp://10.9.9.9:5558")]);
            } else {
                made = made.selects("app", ["vllm", "sglang", "x", "y"][usize::from(app)]).events(events);
                made = made.ranks(size, 0, StartRankFrom::Fixed);
                made = match replay {
                    Some(replay) => made.replay(replay),
                    None => made,
                };
                if asks {
                    made = made.discovery(8000);
                }
            }
            if unreadable {
                made.spec = Err("no".to_owned());
            }
            made
        },
    )
}

type View = (Vec<PodFacts>, Vec<ObjectFacts>);

fn any_view(namespaces: &'static [&'static str]) -> impl Strategy<Value = View> {
    let pods = proptest::sample::select(namespaces).prop_flat_map(any_pod);
    let objects = proptest::sample::select(namespaces).prop_flat_map(any_object);
    (proptest::collection::vec(pods, 0..8), proptest::collection::vec(objects, 0..6))
}

/// Also what [`show`] leaves out.
fn all(desired: &Desired) -> String {
    format!("{}{:#?}", show(desired), (&desired.objects, &desired.pods, &desired.probes, &desired.last_good))
}

fn tenants() -> ControllerConfig {
    ControllerConfig { tenant_from_namespace: true, ..config() }
}

proptest! {
    #[test]
    fn running_it_twice_changes_nothing((pods, objects) in any_view(&["s", "t"])) {
        let view = observed(pods, objects);
        let first = decide(&view);
        let second = desired(&view, &Described::new(), &first.last_good, &config());
        prop_assert_eq!(all(&first), all(&second));
    }

    #[test]
    fn the_order_in_which_things_became_known_changes_nothing(
        (pods, objects) in any_view(&["s", "t"]),
        seed in any::<u64>(),
    ) {
        // The last of one name counts, so names must not meet here.
        let view = observed(pods, objects);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pods: Vec<_> = view.pods.values().map(|pod| (**pod).clone()).collect();
        let mut objects: Vec<_> = view.objects.values().map(|object| (**object).clone()).collect();
        random.shuffle(&mut pods);
        random.shuffle(&mut objects);
        // One after the other, deciding each time, with what was kept: the last decision must be that of the whole. Only an
        // object that was good before may keep more, and none changes here.
        let mut kept = LastGood::new();
        let (mut seen_pods, mut seen_objects) = (Vec::new(), Vec::new());
        for step in 0..pods.len().max(objects.len()) {
            seen_pods.extend(pods.get(step).cloned());
            seen_objects.extend(objects.get(step).cloned());
            let so_far = observed(seen_pods.clone(), seen_objects.clone());
            kept = desired(&so_far, &Described::new(), &kept, &config()).last_good;
        }
        let last = desired(&view, &Described::new(), &kept, &config());
        prop_assert_eq!(all(&last), all(&decide(&view)));
    }

    #[test]
    fn what_another_namespace_does_changes_nothing_where_namespaces_are_tenants(
        (pods, objects) in any_view(&["s"]),
        (more_pods, more_objects) in any_view(&["t"]),
    ) {
        let alone = observed(pods.clone(), objects.clone());
        let together = observed(pods.into_iter().chain(more_pods), objects.into_iter().chain(more_objects));
        let alone = desired(&alone, &Described::new(), &LastGood::new(), &tenants());
        let mut together = desired(&together, &Described::new(), &LastGood::new(), &tenants());
        together.workers.retain(|(index, _), _| index.tenant.as_str() == "s");
        together.objects.retain(|key, _| key.namespace == "s");
        together.pods.retain(|key, _| key.namespace == "s");
        let of_s = |uid: &str| uid.starts_with("uid-of-s/");
        together.probes.retain(|probe| of_s(&probe.pod_uid));
        together.last_good.retain(|uid, _| of_s(uid));
        prop_assert_eq!(all(&alone), all(&together));
    }

    #[test]
    fn what_is_younger_in_another_namespace_takes_nothing_away(
        (pods, objects) in any_view(&["s"]),
        (more_pods, more_objects) in any_view(&["t"]),
    ) {
        let alone = decide(&observed(pods.clone(), objects.clone()));
        let pods = pods.into_iter().chain(more_pods.into_iter().map(|pod| { let at = pod.created_us + 10; pod.created(at) }));
        let objects = objects.into_iter().chain(more_objects.into_iter().map(|object| { let at = object.created_us + 10; object.created(at) }));
        let together = decide(&observed(pods, objects));
        for (name, worker) in &alone.workers {
            prop_assert_eq!(Some(worker), together.workers.get(name));
        }
        for (name, finding) in &alone.objects {
            prop_assert_eq!(Some(finding), together.objects.get(name));
        }
    }

    #[test]
    fn every_worker_is_one_that_the_registry_takes((pods, objects) in any_view(&["s", "t"])) {
        let desired = decide(&observed(pods, objects));
        let mut sizes = BTreeMap::new();
        for ((index, owner), worker) in &desired.workers {
            let spec = &worker.spec;
            prop_assert_eq!((index, owner), (&spec.key, &spec.owner));
            prop_assert_eq!(*sizes.entry(index).or_insert(spec.block_size), spec.block_size);
            prop_assert!(spec.endpoint.hopeless().is_none());
            prop_assert!(spec.replay_endpoint.as_ref() != Some(&spec.endpoint));
        }
        let members: usize = desired.objects.values().map(|finding| finding.members.len()).sum();
        prop_assert!(members <= desired.workers.len());
    }
}
