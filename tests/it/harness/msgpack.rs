//! Batches as JSON texts: `{"$hex": ".."}` stands for bytes, everything else for itself.

use serde_json::{Value, json};

/// MessagePack of a JSON value.
pub(crate) fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write(value, &mut out);
    out
}

/// A batch `[1.0, events, nil]`.
pub(crate) fn batch(events: Value) -> Vec<u8> {
    encode(&json!([1.0, events, null]))
}

/// A batch of one rank.
pub(crate) fn batch_of_rank(events: Value, rank: u32) -> Vec<u8> {
    encode(&json!([1.0, events, rank]))
}

/// `BlockStored` in array form on the device, with as many tokens per block as fit.
pub(crate) fn stored(hashes: &[u64], parent: Option<u64>, tokens: &[u32]) -> Value {
    stored_on("GPU", hashes, parent, tokens)
}

/// [`stored`] on a medium.
pub(crate) fn stored_on(medium: &str, hashes: &[u64], parent: Option<u64>, tokens: &[u32]) -> Value {
    let block_size = tokens.len() / hashes.len();
    json!(["BlockStored", hashes, parent, tokens, block_size, null, medium, null])
}

/// `BlockRemoved` in array form.
pub(crate) fn removed(hashes: &[u64], medium: &str) -> Value {
    json!(["BlockRemoved", hashes, medium])
}

fn write(value: &Value, out: &mut Vec<u8>) {
    const WRITES: &str = "a vector takes all bytes";
    match value {
        Value::Null => rmp::encode::write_nil(out).expect(WRITES),
        Value::Bool(yes) => rmp::encode::write_bool(out, *yes).expect(WRITES),
        Value::Number(number) => {
            if let Some(unsigned) = number.as_u64() {
                rmp::encode::write_uint(out, unsigned).map(drop).expect(WRITES);
            } else if let Some(signed) = number.as_i64() {
                rmp::encode::write_sint(out, signed).map(drop).expect(WRITES);
            } else {
                rmp::encode::write_f64(out, number.as_f64().expect("a float")).expect(WRITES);
            }
        }
        Value::String(text) => rmp::encode::write_str(out, text).expect(WRITES),
        Value::Array(items) => {
            rmp::encode::write_array_len(out, items.len() as u32).map(drop).expect(WRITES);
            items.iter().for_each(|item| write(item, out));
        }
        Value::Object(fields) => {
            if let Some(hex) = fields.get("$hex").and_then(Value::as_str) {
                rmp::encode::write_bin(out, &super::from_hex(hex)).expect(WRITES);
                return;
            }
            rmp::encode::write_map_len(out, fields.len() as u32).map(drop).expect(WRITES);
            for (key, field) in fields {
                rmp::encode::write_str(out, key).expect(WRITES);
                write(field, out);
            }
        }
    }
}
