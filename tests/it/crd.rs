//! The CustomResourceDefinition: the files equal what the program prints, the schema is structural and bounded (F45), and
//! it says the same as the one written by hand that a real API server took.

use std::path::PathBuf;

use kvindexer::controller;
use serde_json::{Value, json};

fn below_project(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn printed() -> Value {
    serde_saphyr::from_str(&controller::yaml()).unwrap()
}

fn by_hand() -> Value {
    let path = below_project("tests/data/crd/handwritten.yaml");
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn schema(definition: &Value) -> &Value {
    &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

/// `UPDATE=1 cargo test --test it crd` writes them.
#[test]
fn the_files_are_what_the_program_prints() {
    let want = controller::yaml();
    for path in ["crds/indexerworkers.yaml", "deploy/05-crd.yaml"] {
        let path = below_project(path);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &want).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == want, "{} is stale: run with UPDATE=1", path.display());
    }
}

#[test]
fn the_command_prints_it() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_kvindexer")).arg("crd").output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), controller::yaml());
}

/// Calls `look` with each schema below one, and where it is.
fn walk(schema: &Value, path: &str, look: &mut impl FnMut(&str, &Value)) {
    look(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(property, &format!("{path}.{name}"), look);
    }
    for (word, below) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[word].is_object() {
            walk(&schema[word], &format!("{path}{below}"), look);
        }
    }
}

/// What makes an API server, or a reader, stumble.
fn structural_faults(root: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    walk(root, "", &mut |path, schema| {
        let mut fault = |text: &str| faults.push(format!("{path}: {text}"));
        let has = |word: &str| schema.get(word).is_some_and(|value| !value.is_null());
        for word in ["anyOf", "oneOf", "allOf", "not", "nullable", "$ref", "title", "uniqueItems"] {
            if has(word) {
                fault(&format!("has {word}"));
            }
        }
        let kind = schema["type"].as_str().unwrap_or_default();
        let either = schema["x-kubernetes-int-or-string"] == json!(true);
        if either != kind.is_empty() {
            fault("must have a type, or be int-or-string");
        }
        let words = schema["enum"].as_array().into_iter().flatten();
        if words.into_iter().any(|word| !word.is_string()) {
            fault("an enum has a word that is no text");
        }
        let bounded = match kind {
            "array" => has("maxItems") && has("items"),
            "string" => has("maxLength") || has("enum") || schema["format"] == "date-time",
            "object" => has("properties") != has("additionalProperties") && (has("properties") || has("maxProperties")),
            "integer" => matches!(schema["format"].as_str(), Some("int32" | "int64")),
            "" | "boolean" => true,
            _ => false,
        };
        if !bounded {
            fault("has no bound");
        }
        if kind == "integer" && path.starts_with(".spec") && !(has("minimum") && has("maximum")) {
            fault("a number of the spec must have a minimum and a maximum");
        }
        if schema["default"] == json!({}) {
            fault("an object must not be there by default: rules ask whether it is");
        }
        // Items and values are described by the list or map that they are in, unless they have fields.
        let described = has("description") || ((path.ends_with("[]") || path.ends_with("{}")) && kind == "string");
        if !described || schema["description"].as_str().is_some_and(|text| text.contains('\n')) {
            fault("must have a description of one paragraph");
        }
    });
    faults
}

#[test]
fn f45_the_schema_is_structural_bounded_and_described() {
    let printed = printed();
    assert_eq!(structural_faults(schema(&printed)), Vec::<String>::new());
    let mut fields = 0;
    walk(schema(&printed), "", &mut |_, _| fields += 1);
    assert!(fields > 50, "{fields} fields were looked at");
}

#[test]
fn the_structural_check_finds_what_it_looks_for() {
    for (fault, change) in [
        ("has nullable", json!({"type": "integer", "format": "int32", "nullable": true})),
        ("has anyOf", json!({"type": "integer", "format": "int32", "anyOf": [{"type": "string"}]})),
        ("no bound", json!({"type": "string"})),
        ("no bound", json!({"type": "array", "items": {"type": "string", "maxLength": 1}})),
        ("no bound", json!({"type": "integer", "format": "uint32"})),
        ("no text", json!({"type": "string", "enum": ["A", null]})),
        ("must have a type", json!({"description": "x"})),
        ("description", json!({"type": "boolean"})),
    ] {
        let root = json!({"type": "object", "description": "root", "properties": {"x": change}});
        let faults = structural_faults(&root);
        assert!(faults.iter().any(|found| found.contains(fault)), "{fault}: {faults:?}");
    }
}

/// Leaves what must be equal: of a rule what it says to people, of texts nothing.
fn essence(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(name, value)| !(*name == "description" && value.is_string()));
            let kept = kept.filter(|(name, _)| *name != "rule").map(|(name, value)| match name.as_str() {
                "required" => {
                    let mut names: Vec<_> = value.as_array().unwrap().clone();
                    names.sort_by_key(ToString::to_string);
                    (name.clone(), names.into())
                }
                _ => (name.clone(), essence(value)),
            });
            kept.collect()
        }
        Value::Array(list) => list.iter().map(essence).collect(),
        other => other.clone(),
    }
}

#[test]
fn it_says_the_same_as_the_one_written_by_hand() {
    let (mut ours, theirs) = (essence(&printed()), essence(&by_hand()));
    ours["metadata"].as_object_mut().unwrap().remove("labels").expect("labels are ours");
    let status = &mut ours["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"];
    status.as_object_mut().unwrap().remove("observedBy").expect("design.md names it in addition");
    let mut differences = Vec::new();
    compare("", &ours, &theirs, &mut differences);
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
}

fn compare(path: &str, ours: &Value, theirs: &Value, differences: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(one), Value::Object(other)) => {
            let names: std::collections::BTreeSet<_> = one.keys().chain(other.keys()).collect();
            for name in names {
                compare(&format!("{path}.{name}"), &ours[name.as_str()], &theirs[name.as_str()], differences);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (at, (one, other)) in one.iter().zip(other).enumerate() {
                compare(&format!("{path}[{at}]"), one, other, differences);
            }
        }
        _ if ours == theirs => {}
        _ => differences.push(format!("{path}: {ours} here, {theirs} by hand")),
    }
}

#[test]
fn the_definition_carries_the_version_of_the_program() {
    assert_eq!(printed()["metadata"]["labels"]["app.kubernetes.io/version"], env!("CARGO_PKG_VERSION"));
}
