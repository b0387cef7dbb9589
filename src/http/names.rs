//! The names by which a request picks an index: model and tenant with their aliases.

use serde_json::Value;

use super::body::Params;
use super::error::Error;
use crate::ids::{IndexKey, ModelName, TenantId};

/// Tenant of a request: `tenant_id`, or its alias `routing_group`.
pub(crate) fn tenant(tenant_id: Option<String>, routing_group: Option<String>) -> Result<Option<TenantId>, Error> {
    match (tenant_id, routing_group) {
        (Some(tenant), Some(group)) if tenant != group => Err(Error::TenantConflict),
        (tenant, group) => Ok(tenant.or(group).map(TenantId::from)),
    }
}

/// Model of a request in the documented words. Mooncake's words beside it must not contradict.
pub(crate) fn model(model_name: Option<String>, aliases: [&Option<Value>; 2]) -> Result<ModelName, Error> {
    let Some(name) = model_name else {
        return Err(Error::field("model_name", "missing field"));
    };
    if aliases.into_iter().flatten().filter_map(Value::as_str).any(|alias| alias != name) {
        return Err(Error::ModelConflict);
    }
    Ok(name.into())
}

/// Filters of `/workers` and `/dump`, and the index that a binary body is for.
pub(crate) fn from_params(params: &Params) -> Result<(Option<ModelName>, Option<TenantId>), Error> {
    let owned = |name| params.get(name).map(str::to_owned);
    let tenant = tenant(owned("tenant_id"), owned("routing_group"))?;
    Ok((params.get("model_name").map(ModelName::from), tenant))
}

/// The index named by query parameters; the model is required.
pub(crate) fn key_from_params(params: &Params) -> Result<IndexKey, Error> {
    let (model, tenant) = from_params(params)?;
    let model = model.ok_or_else(|| Error::field("model_name", "missing query parameter"))?;
    Ok(IndexKey { model, tenant: tenant.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tenant_names_may_stand_if_they_agree() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(tenant(None, None).unwrap(), None);
        assert_eq!(tenant(some("t"), None).unwrap(), Some("t".into()));
        assert_eq!(tenant(None, some("t")).unwrap(), Some("t".into()));
        assert_eq!(tenant(some("t"), some("t")).unwrap(), Some("t".into()));
        assert!(matches!(tenant(some("t"), some("u")), Err(Error::TenantConflict)));
    }

    #[test]
    fn a_model_alias_must_not_contradict() {
        let alias = Some(Value::from("m"));
        assert_eq!(model(Some("m".into()), [&alias, &None]).unwrap(), "m".into());
        assert!(matches!(model(Some("n".into()), [&None, &alias]), Err(Error::ModelConflict)));
        assert!(matches!(model(None, [&None, &None]), Err(Error::InvalidBody(_))));
    }
}
