//! Tests of reading query bodies.

use super::*;

fn hashes_of(body: &str) -> Result<Vec<LocalHash>, Error> {
    tokens_json(body.as_bytes())?.local_hashes(BlockSize::new(4).unwrap())
}

fn plain(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

#[test]
fn hashes_are_those_of_the_reference() {
    let want =
        [14_643_705_804_678_351_452, 16_777_012_769_546_811_212, 483_935_686_894_639_516, 135_165_725_823_939_817];
    let tokens: Vec<u32> = (1..=18).collect();
    let body = serde_json::json!({"model_name": "m", "token_ids": tokens}).to_string();
    assert_eq!(hashes_of(&body).unwrap(), want.map(LocalHash));
}

#[test]
fn lora_and_salt_pick_the_namespace() {
    let with = |field: &str| hashes_of(&format!(r#"{{"model_name":"m","token_ids":[1,2,3,4]{field}}}"#)).unwrap()[0];
    let plain = with("");
    for same in [r#","lora_name":"""#, r#","lora_name":null,"cache_salt":null"#, r#","cache_salt":"""#] {
        assert_eq!(with(same), plain, "{same}");
    }
    let different = [
        with(r#","lora_name":"a""#),
        with(r#","lora_name":"b""#),
        with(r#","lora_id":1"#),
        with(r#","cache_salt":"a""#),
        with(r#","lora_name":"a","cache_salt":"a""#),
        plain,
    ];
    for (nth, one) in different.iter().enumerate() {
        assert!(!different[..nth].contains(one), "{nth}");
    }
    assert_eq!(with(r#","lora_name":"a","lora_id":1"#), different[0], "the name decides");
    assert_eq!(with(r#","lora_name":"","lora_id":1"#), different[2], "an empty name counts as absent");
}

#[test]
fn wrong_shapes_are_told_apart_from_malformed_text() {
    for (body, want) in [
        (r#"{"model_name":"m","token_ids":[1],"token_ids":[2]}"#, "invalid_body"),
        (r#"{"model_name":"m","token_ids":[1],"cache_salt":1}"#, "invalid_body"),
        (r#"{"model_name":"m","token_ids":[1],"tenant_id":null}"#, "invalid_body"),
        (r#"{"model_name":"m","token_ids":null}"#, "invalid_body"),
        (r#"{"model_name":"m","token_ids":[1.5]}"#, "invalid_body"),
        (r#"{"model_name":"m","token_ids":[1]} x"#, "invalid_json"),
        (r#"{"model_name":"m","token_ids":[1,]}"#, "invalid_json"),
        (r#"{"model_name":"m","token_ids":[01]}"#, "invalid_json"),
    ] {
        assert_eq!(tokens_json(body.as_bytes()).expect_err(body).status_and_code().1, want, "{body}");
    }
}

#[test]
fn extra_keys_belong_to_their_block() {
    let extras = [ExtraKey { block: 1, value: 9 }, ExtraKey { block: 1, value: 3 }];
    let tokens = plain(&[1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]);
    let found = with_extras(tokens.chunks_exact(16), &extras, Namespace::default());
    let block = &tokens[..16];
    assert_eq!(found[0], hash::local_hash(block, [], 1337));
    assert_eq!(found[1], hash::local_hash(block, [3, 9], 1337));
    assert_eq!(found[2], found[0]);
}

#[test]
fn a_wrong_number_of_extra_keys_is_refused() {
    let body = r#"{"model_name":"m","token_ids":[1,2,3,4,5,6,7,8],"extra_keys":[null]}"#;
    assert!(matches!(hashes_of(body), Err(Error::InvalidBody(_))));
}
