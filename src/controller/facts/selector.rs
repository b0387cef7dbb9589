//! Label selectors: as the command line writes them, and as objects do. Both say the same and are read into one form.

use std::str::FromStr;

use crate::controller::facts::TextMap;
use crate::controller::{LabelSelector, SelectorOperator, SelectorRequirement};

/// A label selector in the form of the command line: `app=vllm,tier in (a,b),!canary`. The empty one matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

/// One part of a [`Selector`].
#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

/// What a label must be.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    /// Or absent.
    NotIn(Vec<String>),
    Exists,
    Absent,
}

impl Selector {
    /// Whether these labels meet every requirement.
    pub(in crate::controller) fn matches(&self, labels: &TextMap) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn new(key: &str, test: Test) -> Result<Self, String> {
        check_key(key)?;
        if let Test::In(values) | Test::NotIn(values) = &test {
            values.iter().try_for_each(|value| check_value(value))?;
        }
        Ok(Self { key: key.to_owned(), test })
    }

    fn matches(&self, labels: &TextMap) -> bool {
        let value = labels.get(&self.key);
        match &self.test {
            Test::In(values) => value.is_some_and(|value| values.contains(value)),
            Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
        }
    }
}

impl FromStr for Selector {
    type Err = String;

    /// Kubernetes' equality- and set-based syntax: `a=b`, `a==b`, `a!=b`, `a in (x,y)`, `a notin (x)`, `a`, `!a`, joined by
    /// commas.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        parts(text)?.into_iter().map(requirement).collect::<Result<_, _>>().map(Self)
    }
}

impl TryFrom<&LabelSelector> for Selector {
    type Error = String;

    fn try_from(selector: &LabelSelector) -> Result<Self, String> {
        let labels = selector.match_labels.iter().flatten();
        let labels = labels.map(|(key, value)| Requirement::new(key, Test::In(vec![value.clone()])));
        let expressions = selector.match_expressions.iter().flatten().map(expression);
        let all = labels.chain(expressions).collect::<Result<Vec<_>, _>>()?;
        if all.is_empty() {
            return Err("spec.selector must not be empty (it would select every Pod of the namespace)".to_owned());
        }
        Ok(Self(all))
    }
}

fn expression(requirement: &SelectorRequirement) -> Result<Requirement, String> {
    let values = requirement.values.clone().unwrap_or_default();
    let test = match requirement.operator {
        SelectorOperator::In if !values.is_empty() => Test::In(values),
        SelectorOperator::NotIn if !values.is_empty() => Test::NotIn(values),
        SelectorOperator::Exists if values.is_empty() => Test::Exists,
        SelectorOperator::DoesNotExist if values.is_empty() => Test::Absent,
        _ => {
            let rule = "values must be set for In and NotIn and must not be set for Exists and DoesNotExist";
            return Err(rule.to_owned());
        }
    };
    Requirement::new(&requirement.key, test)
}

/// Splits at the commas outside of parentheses.
fn parts(text: &str) -> Result<Vec<&str>, String> {
    let (mut found, mut begin, mut inside) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '(' if inside => return Err("`(` must not stand inside parentheses".to_owned()),
            '(' => inside = true,
            ')' if !inside => return Err("`)` without `(`".to_owned()),
            ')' => inside = false,
            ',' if !inside => {
                found.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err("`(` without `)`".to_owned());
    }
    found.push(text[begin..].trim());
    Ok(found)
}

fn requirement(part: &str) -> Result<Requirement, String> {
    if let Some(key) = part.strip_prefix('!') {
        return Requirement::new(key.trim(), Test::Absent);
    }
    if let Some((left, list)) = part.split_once('(') {
        let list = list.strip_suffix(')').ok_or_else(|| format!("`{part}` must end with `)`"))?;
        let values = list.split(',').map(|value| value.trim().to_owned()).collect();
        let mut words = left.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(key), Some("in"), None) => Requirement::new(key, Test::In(values)),
            (Some(key), Some("notin"), None) => Requirement::new(key, Test::NotIn(values)),
            _ => Err(format!("`{part}` must read `key in (..)` or `key notin (..)`")),
        };
    }
    let one = |value: &str| vec![value.trim().to_owned()];
    if let Some((key, value)) = part.split_once("!=") {
        return Requirement::new(key.trim(), Test::NotIn(one(value)));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Requirement::new(key.trim(), Test::In(one(value)));
    }
    Requirement::new(part, Test::Exists)
}

fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let subdomain = |text: &str| text.len() <= 253 && text.split('.').all(|part| is_word(part, |c| c == '-', true));
    if is_name(name) && prefix.is_none_or(subdomain) { Ok(()) } else { Err(format!("`{key}` is no label key")) }
}

fn check_value(value: &str) -> Result<(), String> {
    if value.is_empty() || is_name(value) { Ok(()) } else { Err(format!("`{value}` is no label value")) }
}

fn is_name(text: &str) -> bool {
    text.len() <= 63 && is_word(text, |c| matches!(c, '-' | '_' | '.'), false)
}

/// Begins and ends with a letter or digit, and has only these and what `inner` allows.
fn is_word(text: &str, inner: fn(char) -> bool, lower: bool) -> bool {
    let plain = |c: char| if lower { c.is_ascii_lowercase() || c.is_ascii_digit() } else { c.is_ascii_alphanumeric() };
    text.starts_with(plain) && text.ends_with(plain) && text.chars().all(|c| plain(c) || inner(c))
}
