//! Mooncake's dialect of the queries: other words in the body, rolling hashes, another shape of the answer.
//!
//! A body without `model_name` that has one of Mooncake's words is in this dialect. Its tiers are not cumulative: each
//! medium counts its own prefix from the root; `longest_matched` is what all media cover together.

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::AppState;
use super::body::{self, present};
use super::error::Error;
use super::names;
use super::query::{Hashes, Separation, TokenBytes, refuse_salt};
use super::reply::{by_instance, key, number, ranks_and, rows};
use crate::ids::{BlockSize, IndexKey, InstanceId, ModelName, TenantId};
use crate::index::{Answer, OwnerAnswer};

#[derive(Deserialize)]
struct Words {
    model: Option<IgnoredAny>,
    modelname: Option<IgnoredAny>,
    #[serde(rename = "type")]
    kind: Option<IgnoredAny>,
    seq_hashes: Option<IgnoredAny>,
}

/// True for an object with at least one of Mooncake's words. The caller has seen that `model_name` is absent.
pub(crate) fn is_dialect(body: &[u8]) -> bool {
    body::json::<Words>(body)
        .is_ok_and(|words| [words.model, words.modelname, words.kind, words.seq_hashes].iter().any(Option::is_some))
}

/// The model by Mooncake's two words, which must agree.
pub(crate) fn model(model: Option<String>, modelname: Option<String>) -> Result<ModelName, Error> {
    match (model, modelname) {
        (Some(a), Some(b)) if a != b => Err(Error::ModelConflict),
        (a, b) => a.or(b).map(ModelName::from).ok_or_else(|| Error::field("model_name", "missing field")),
    }
}

#[derive(Deserialize)]
struct QueryBody {
    #[serde(default, deserialize_with = "present")]
    model: Option<String>,
    #[serde(default, deserialize_with = "present")]
    modelname: Option<String>,
    #[serde(default, deserialize_with = "present")]
    tenant_id: Option<String>,
    #[serde(default, deserialize_with = "present")]
    routing_group: Option<String>,
    instance_id: Option<InstanceId>,
    block_size: Option<u64>,
    token_ids: Option<TokenBytes>,
    #[serde(alias = "block_hash")]
    seq_hashes: Option<Hashes>,
    lora_name: Option<String>,
    lora_id: Option<i64>,
    cache_salt: Option<String>,
}

/// Answers a query by tokens or by rolling hashes.
pub(crate) fn query(state: &AppState, bytes: &[u8]) -> Result<Bytes, Error> {
    let body: QueryBody = body::json(bytes)?;
    let tenant = names::tenant(body.tenant_id, body.routing_group)?.unwrap_or_default();
    let key = IndexKey { model: model(body.model, body.modelname)?, tenant };
    let index = state.index(&key)?;
    let block_size = index.block_size();
    if let Some(requested) = body.block_size.filter(|requested| *requested != u64::from(block_size.tokens())) {
        return Err(Error::QueryBlockSize { key, existing: block_size, requested });
    }
    let answer = if let Some(tokens) = &body.token_ids {
        let separation = Separation {
            lora_name: body.lora_name.as_deref(),
            lora_id: body.lora_id,
            cache_salt: body.cache_salt.as_deref(),
            extra_keys: None,
        };
        let prompt = separation.local_hashes(&tokens.0, block_size)?;
        index.read().find(&prompt)
    } else if let Some(Hashes(hashes)) = &body.seq_hashes {
        refuse_salt(body.cache_salt.as_deref())?;
        let rolling: Vec<u64> = hashes.iter().map(|hash| hash.0).collect();
        index.read().find_rolling(&rolling)
    } else {
        return Err(Error::field("token_ids", "neither token_ids nor seq_hashes"));
    };
    Ok(reply(&answer, body.instance_id.as_ref(), (&key.tenant, block_size)))
}

/// `{tenant: {instance: {longest_matched, GPU, DP, CPU, DISK, XPU}}}`, in tokens.
fn reply(answer: &Answer, wanted: Option<&InstanceId>, (tenant, block_size): (&TenantId, BlockSize)) -> Bytes {
    let tokens = u64::from(block_size.tokens());
    let mut rows = rows(answer, false);
    rows.retain(|row| wanted.is_none_or(|wanted| row.owner.instance == *wanted));
    let mut out = Vec::with_capacity(64 + rows.len() * 96);
    out.push(b'{');
    serde_json::to_writer(&mut out, tenant.as_str()).expect("writing a text into memory cannot fail");
    out.extend_from_slice(b":{");
    for (nth, ranks) in by_instance(&rows).enumerate() {
        let most = |blocks: &dyn Fn(&OwnerAnswer<'_>) -> u32| {
            ranks.iter().map(|row| u64::from(blocks(row)) * tokens).max().unwrap_or(0)
        };
        let device = most(&|row| row.own_prefix[0]);
        key(&mut out, nth, &ranks[0].owner.instance);
        out.extend_from_slice(b"{\"longest_matched\":");
        number(&mut out, most(&|row| row.disk));
        out.extend_from_slice(b",\"GPU\":");
        number(&mut out, device);
        out.extend_from_slice(b",\"DP\":{");
        ranks_and(&mut out, ranks, |row| u64::from(row.disk) * tokens);
        out.extend_from_slice(b"},\"CPU\":");
        number(&mut out, most(&|row| row.own_prefix[1]));
        out.extend_from_slice(b",\"DISK\":");
        number(&mut out, most(&|row| row.own_prefix[2]));
        out.extend_from_slice(b",\"XPU\":");
        number(&mut out, device);
        out.push(b'}');
    }
    out.extend_from_slice(b"}}");
    Bytes::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Owner;
    use crate::trust::Trust;

    #[test]
    fn the_dialect_is_known_by_its_words() {
        for (body, want) in [
            (r#"{"model":"m","token_ids":[1]}"#, true),
            (r#"{"modelname":"m"}"#, true),
            (r#"{"type":"vLLM"}"#, true),
            (r#"{"seq_hashes":[1]}"#, true),
            (r#"{"token_ids":[1]}"#, false),
            (r#"{"model":"#, false),
        ] {
            assert_eq!(is_dialect(body.as_bytes()), want, "{body}");
        }
    }

    #[test]
    fn two_words_for_the_model_must_agree() {
        assert_eq!(model(Some("m".into()), Some("m".into())).unwrap(), "m".into());
        assert!(matches!(model(Some("m".into()), Some("n".into())), Err(Error::ModelConflict)));
        assert!(model(None, None).is_err());
    }

    #[test]
    fn media_are_counted_apart_and_ranks_by_all_media() {
        let owners = [Owner::new(7, 0), Owner::new(7, 1), Owner::new(8, 0)];
        let row = |at: usize, disk, own_prefix: [u32; 3]| OwnerAnswer {
            owner: &owners[at],
            registered: true,
            device: own_prefix[0],
            host_pinned: disk,
            disk,
            own_prefix,
            trust: Trust::default(),
        };
        let rows = [row(0, 2, [2, 0, 0]), row(1, 4, [1, 4, 0]), row(2, 1, [1, 0, 0])];
        let wanted = &owners[0].instance;
        let text = reply(&Answer::of(&rows, &[3, 1]), Some(wanted), (&"default".into(), BlockSize::new(64).unwrap()));
        assert_eq!(
            text,
            r#"{"default":{"7":{"longest_matched":256,"GPU":128,"DP":{"0":128,"1":256},"CPU":256,"DISK":0,"XPU":128}}}"#
        );
    }
}
