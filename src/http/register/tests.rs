//! Tests of reading registrations.

use super::*;

fn spec(body: &str) -> Result<WorkerSpec, Error> {
    body::json::<RegisterBody>(body.as_bytes())?.into_spec()
}

fn code(body: &str) -> &'static str {
    spec(body).map_or_else(|error| error.status_and_code().1, |_| "ok")
}

/// A good body with `fields` added.
fn with(fields: &str) -> String {
    format!(r#"{{"instance_id":1,"endpoint":"tcp://127.0.0.1:5557","model_name":"m","block_size":16{fields}}}"#)
}

#[test]
fn fields_reach_the_registration() {
    let spec = spec(&with(
        r#","dp_rank":3,"replay_endpoint":"tcp://127.0.0.1:5558","routing_group":"t","additionalsalt":"x","topic":"kv@","duplicate_policy":"copies","role":"store","lower_tier_ttl_s":60,"lora_name":"l""#,
    ))
    .unwrap();
    assert_eq!(spec.key, IndexKey::new("m", "t"));
    assert_eq!(spec.owner, Owner::new(1, 3));
    assert_eq!(spec.block_size.tokens(), 16);
    assert_eq!(spec.replay_endpoint.unwrap().as_str(), "tcp://127.0.0.1:5558");
    assert_eq!((spec.topic.as_deref(), spec.additional_salt.as_deref()), (Some("kv@"), Some("x")));
    assert_eq!(spec.default_lora, None, "lora_name acts in Mooncake's dialect only");
    let want = OwnerSpec { policy: DuplicatePolicy::Copies, role: Role::Store, lower_tier_ttl_ms: Some(60_000) };
    assert_eq!(spec.owner_spec, want);
}

#[test]
fn wrong_registrations_get_their_word() {
    for (fields, want) in [
        ("", "ok"),
        (r#","dp_rank":null,"replay_endpoint":null,"additional_salt":null"#, "ok"),
        (r#","type":5,"medium_endpoints":5,"lora_name":5"#, "ok"),
        (r#","model":"m""#, "ok"),
        (r#","model":"n""#, "model_conflict"),
        (r#","dp_rank":-1"#, "invalid_body"),
        (r#","tenant_id":5"#, "invalid_body"),
        (r#","tenant_id":null"#, "invalid_body"),
        (r#","tenant_id":"a","routing_group":"b""#, "tenant_conflict"),
        (r#","additional_salt":"x","additionalsalt":"y""#, "invalid_body"),
        (r#","duplicate_policy":"most""#, "invalid_body"),
        (r#","role":"Store""#, "invalid_body"),
        (r#","lower_tier_ttl_s":-1"#, "invalid_body"),
        (r#","replay_endpoint":"nonsense""#, "invalid_replay_endpoint"),
    ] {
        assert_eq!(code(&with(fields)), want, "{fields}");
    }
    let good = with("");
    for (from, to, want) in [
        ("\"block_size\":16", "\"block_size\":0", "invalid_block_size"),
        ("\"block_size\":16", "\"block_size\":4294967296", "invalid_body"),
        ("\"block_size\":16", "\"x\":1", "invalid_body"),
        ("tcp://127.0.0.1:5557", "udp://h:1", "invalid_endpoint"),
        ("\"instance_id\":1", "\"instance_id\":1.0", "invalid_body"),
        ("\"instance_id\":1", "\"instance_id\":\"\"", "invalid_body"),
        ("\"instance_id\":1", "\"instance_id\":null", "invalid_body"),
        ("\"instance_id\":1", "\"instance_id\":18446744073709551616", "invalid_body"),
        ("\"model_name\":\"m\",", "", "invalid_body"),
    ] {
        let body = good.replacen(from, to, 1);
        assert_ne!(body, good);
        assert_eq!(code(&body), want, "{body}");
    }
}

#[test]
fn addresses_fail_with_the_reference_texts() {
    let text = |body: &str| spec(body).unwrap_err().to_string();
    let body = with("").replace("tcp://127.0.0.1:5557", "udp://h:1");
    assert_eq!(text(&body), "invalid ZMQ endpoint `udp://h:1`: unsupported scheme `udp`");
    let body = with(r#","replay_endpoint":"nonsense""#);
    assert_eq!(text(&body), "invalid replay endpoint `nonsense`: invalid ZMQ endpoint `nonsense`: missing scheme");
}

#[test]
fn mooncakes_words_are_understood() {
    let body = r#"{"type":"vLLM","modelname":"deepseek","instance_id":"vllm-prefill-node1","block_size":128,"dp_rank":0,"additionalsalt":"w8a8","lora_name":"sql","endpoint":"tcp://1.1.1.1:5557"}"#;
    let found = spec(body).unwrap();
    assert_eq!(found.key, IndexKey::new("deepseek", "default"));
    assert_eq!((found.default_lora.as_deref(), found.additional_salt.as_deref()), (Some("sql"), Some("w8a8")));
    assert_eq!(found.owner_spec.role, Role::Worker);
    let pool = body.replace("\"vLLM\"", "\"Mooncake\"");
    assert_eq!(spec(&pool).unwrap().owner_spec.role, Role::Store);
    let media = body.replace(
        r#""endpoint":"tcp://1.1.1.1:5557""#,
        r#""medium_endpoints":{"xpu":"tcp://h:1","cpu":"tcp://h:1","disk":null}"#,
    );
    assert_eq!(spec(&media).unwrap().endpoint.as_str(), "tcp://h:1");
    assert_eq!(code(&media.replacen("tcp://h:1", "tcp://h:2", 1)), "invalid_body");
    assert_eq!(
        code(&body.replace("\"modelname\":\"deepseek\"", "\"modelname\":\"a\",\"model\":\"b\"")),
        "model_conflict"
    );
}

#[test]
fn unregister_without_tenant_means_all_tenants_in_the_documented_words_only() {
    let request =
        |body: &str, mooncake| body::json::<UnregisterBody>(body.as_bytes()).unwrap().into_request(mooncake).unwrap();
    let all = request(r#"{"instance_id":"7","model_name":"m","dp_rank":2}"#, false);
    assert_eq!((all.tenant, all.instance, all.rank), (None, 7.into(), Some(DpRank(2))));
    let one = request(r#"{"instance_id":7,"modelname":"m","type":"vLLM"}"#, true);
    assert_eq!((one.tenant, one.model), (Some("default".into()), "m".into()));
}
