//! Public faults of comparable systems: tiers, identity and isolation. Each test is one row.

use serde_json::{Value, json};

use crate::harness::msgpack::{self, removed, stored, stored_on};
use crate::harness::worker::tokens;
use crate::harness::{Publisher, Service, Worker, wait_for};

#[test]
fn f10_an_unknown_medium_is_no_device() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f10");
    for (hash, medium, want) in [(1, "FS", [0, 0, 4]), (2, "OBJ", [0, 0, 4]), (3, "NEWTIER", [0, 0, 0])] {
        let prompt = tokens(10 * hash as u32, 4);
        worker.publish(json!([stored_on(medium, &[hash], None, &prompt)]));
        assert_eq!(worker.tiers(&prompt), want, "{medium}");
    }
    assert_eq!(worker.skipped("unknown_medium"), 1.0);
    worker.assert_says("degraded", "skipped");
}

#[test]
fn f11_every_spelling_of_a_medium_is_its_tier() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f11");
    let device: [Value; 9] = ["GPU", "gpu", "DEVICE", "XPU", "NPU", "HBM", "Hbm", ""]
        .map(Value::from)
        .into_iter()
        .chain([Value::Null])
        .collect::<Vec<_>>()
        .try_into()
        .expect("nine");
    let host = ["CPU", "cpu", "CPU_PINNED", "CPU_TIER1", "HOST"].map(Value::from);
    let disk = ["CPU_TIER2", "DISK", "NVME", "SSD", "STORAGE", "storage", "FS", "OBJ"].map(Value::from);
    let external = ["EXTERNAL", "NETWORK", "REMOTE", "SHARED", "shared"].map(Value::from);
    let table = [(&device[..], [4, 4, 4]), (&host, [0, 4, 4]), (&disk, [0, 0, 4]), (&external, [0, 0, 4])];
    let mut hash = 0;
    for (medium, want) in table.into_iter().flat_map(|(media, want)| media.iter().map(move |medium| (medium, want))) {
        hash += 1;
        let prompt = tokens(10 * hash, 4);
        worker.publish(json!([["BlockStored", [hash], null, prompt, 4, null, medium]]));
        assert_eq!(worker.tiers(&prompt), want, "{medium}");
    }
    let bare = tokens(5000, 4);
    worker.publish(json!([["BlockStored", [5000], null, bare, 4]]));
    assert_eq!(worker.tiers(&bare), [4, 4, 4], "no medium at all");
    worker.assert_exact();
}

#[test]
fn f12_an_unknown_hash_does_not_stop_a_removal() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f12");
    worker.publish(json!([stored_on("CPU", &[1], None, &tokens(1, 4)), stored_on("CPU", &[2], None, &tokens(5, 4))]));
    assert_eq!(worker.tiers(&tokens(1, 4)), [0, 4, 4]);
    worker.publish(json!([removed(&[77, 1, 2], "CPU")]));
    assert_eq!(worker.tiers(&tokens(1, 4)), [0, 0, 0]);
    assert_eq!(worker.tiers(&tokens(5, 4)), [0, 0, 0]);
    worker.assert_exact();
}

#[test]
fn f13_a_removal_from_the_host_leaves_the_device() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f13");
    worker.publish(json!([stored(&[1, 2], None, &tokens(1, 8)), stored_on("CPU", &[1, 2], None, &tokens(1, 8))]));
    worker.publish(json!([removed(&[1], "CPU")]));
    assert_eq!(worker.tiers(&tokens(1, 8)), [8, 8, 8]);
    worker.publish(json!([removed(&[1], "GPU")]));
    assert_eq!(worker.tiers(&tokens(1, 8)), [0, 0, 0], "the second block hangs below the first");
}

#[test]
fn f14_lora_adapters_do_not_share_blocks() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f14");
    let prompt = tokens(1, 8);
    worker.publish(json!([["BlockStored", [1, 2], null, prompt, 4, 7, "GPU", "A"]]));
    let with = |lora: Value| worker.tiers_of(json!({"token_ids": prompt, "lora_name": lora}))[0];
    assert_eq!((with(Value::Null), with(json!("A")), with(json!("B"))), (0, 8, 0));
}

#[test]
fn f15_images_are_part_of_a_block() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f15");
    let prompt = tokens(1, 8);
    let keys = |image: char| json!([[[image.to_string().repeat(64), 0]], null]);
    let store =
        |hash: u64, image| json!([["BlockStored", [hash, hash + 1], null, prompt, 4, null, "GPU", null, keys(image)]]);
    worker.publish(store(1, 'a'));
    let ask = |extra: Value| worker.tiers_of(json!({"token_ids": prompt, "extra_keys": extra}))[0];
    assert_eq!(worker.gpu(&prompt), 0, "a plain query");
    assert_eq!((ask(keys('a')), ask(keys('b'))), (8, 0));
    worker.publish(store(11, 'b'));
    let ask = |extra: Value| worker.tiers_of(json!({"token_ids": prompt, "extra_keys": extra}))[0];
    assert_eq!((ask(keys('a')), ask(keys('b')), worker.gpu(&prompt)), (8, 8, 0));
    worker.publish(json!([removed(&[1, 2], "GPU")]));
    let ask = |extra: Value| worker.tiers_of(json!({"token_ids": prompt, "extra_keys": extra}))[0];
    assert_eq!((ask(keys('a')), ask(keys('b'))), (0, 8), "the second picture did not merge with the first");
}

#[test]
fn f16_tenants_are_apart_under_both_names() {
    let service = Service::start();
    let publisher = Publisher::bind();
    let body = json!({"instance_id": 1, "endpoint": publisher.endpoint, "model_name": "f16", "block_size": 4, "tenant_id": "t1"});
    assert_eq!(service.post("/register", &body).status, 201);
    publisher.wait_subscribed();
    publisher.batch(0, json!([stored(&[1], None, &tokens(1, 4))]));
    let ask = |extra: Value| {
        let mut request = json!({"model_name": "f16", "token_ids": tokens(1, 4)});
        extra.as_object().into_iter().flatten().for_each(|(key, value)| request[key] = value.clone());
        service.post("/query", &request)
    };
    for name in ["tenant_id", "routing_group"] {
        wait_for("the block of t1", || {
            let answer = ask(json!({name: "t1"})).json();
            if answer["instances"]["1"]["gpu"] == 4 { Ok(()) } else { Err(answer.to_string()) }
        });
    }
    let default = ask(json!({}));
    assert_eq!((default.status, default.code().as_str()), (404, "unknown_index"));
    let both = ask(json!({"tenant_id": "t1", "routing_group": "t2"}));
    assert_eq!((both.status, both.code().as_str()), (422, "tenant_conflict"));
}

#[test]
fn f17_numbers_of_64_bits_keep_all_digits() {
    let service = Service::start();
    let mut worker = Worker::new(&service, "f17");
    // Engine hashes travel through /dump and back through a removal.
    let hashes = [9_007_199_254_740_993, u64::MAX];
    worker.publish(json!([stored(&hashes[..1], None, &tokens(1, 4)), stored(&hashes[1..], None, &tokens(5, 4))]));
    assert_eq!(worker.held(), hashes);
    let text = service.get("/dump").text();
    assert!(hashes.iter().all(|hash| text.contains(&hash.to_string())), "{text}");
    // The local hash of tokens 1..4 is above 2^63; its neighbours are other hashes.
    let local: u64 = 14_643_705_804_678_351_452;
    let ask =
        |hash: Value| worker.service.post("/query_by_hash", &json!({"model_name": "f17", "block_hashes": [hash]}));
    let gpu = |hash: Value| ask(hash).json()["instances"]["1"]["gpu"].clone();
    for form in [json!(local), json!(local.to_string()), json!(local as i64), json!((local as i64).to_string())] {
        assert_eq!(gpu(form.clone()), 4, "{form}");
    }
    for other in [
        json!(local + 1),
        json!((local - 1).to_string()),
        json!(9_007_199_254_740_993_u64),
        json!(u64::MAX),
        json!(u64::MAX.to_string()),
    ] {
        assert_eq!(gpu(other.clone()), 0, "{other}");
    }
    for float in ["1.8e19", "14643705804678351452.0", "1e3"] {
        let body = format!("{{\"model_name\": \"f17\", \"block_hashes\": [{float}]}}");
        let reply = service.post_raw("/query_by_hash", "application/json", body.as_bytes());
        assert_eq!((reply.status, reply.code().as_str()), (422, "invalid_body"), "{float}: {}", reply.text());
    }
}

#[test]
fn f18_ranks_are_those_that_were_registered() {
    let service = Service::start();
    let publishers: Vec<Publisher> = (8..16)
        .map(|rank| {
            let publisher = Publisher::bind();
            let body = json!({
                "instance_id": 5, "dp_rank": rank, "endpoint": publisher.endpoint, "model_name": "f18", "block_size": 4,
            });
            let reply = service.post("/register", &body);
            assert_eq!(reply.status, 201, "{}", reply.text());
            publisher.wait_subscribed();
            publisher
        })
        .collect();
    for (i, publisher) in publishers.iter().enumerate() {
        let events = json!([stored(&[1], None, &tokens(1, 4))]);
        // Half of the batches name the rank themselves.
        let payload = if i % 2 == 0 { msgpack::batch(events) } else { msgpack::batch_of_rank(events, 8 + i as u32) };
        publisher.send("", 0, &payload);
    }
    let want: serde_json::Map<String, Value> = (8..16).map(|rank| (rank.to_string(), json!(4))).collect();
    wait_for("all ranks to match", || {
        let answer = service.query(&json!({"model_name": "f18", "token_ids": tokens(1, 4)}));
        if answer["instances"]["5"]["dp"] == json!(want) { Ok(()) } else { Err(answer.to_string()) }
    });
}
