//! House rules that the compiler does not know: who may import whom, how files begin, how long they are.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Longest file, in lines.
const LINES_MAX: usize = 600;

/// Outside crates that make a room impure.
const IO: &[&str] = &["tokio", "tokio_util", "axum", "hyper", "reqwest", "prometheus", "zeromq", "socket2", "kube"];

/// Outside crates that the deciding parts of the controller must not see: they read Kubernetes' types, and ask nobody.
const PURE_CONTROLLER: &[&str] =
    &["tokio", "tokio_util", "axum", "hyper", "reqwest", "prometheus", "zeromq", "socket2"];

/// One row: what the files of a room may import from others, and which outside crates they must never see.
struct Rule {
    /// Path below `src` without `.rs`, `/mod` removed; the longest prefix wins.
    place: &'static str,
    rooms: &'static [&'static str],
    never: &'static [&'static [&'static str]],
}

/// Arrows point to what may be imported; anything else is a fault. A room may always import itself.
const RULES: &[Rule] = &[
    Rule { place: "ids", rooms: &[], never: &[IO] },
    Rule { place: "event", rooms: &["ids"], never: &[IO, &["serde"]] },
    // The words of an enum are made by a macro that lives in `event`.
    Rule { place: "trust", rooms: &["event"], never: &[IO, &["serde"]] },
    Rule { place: "image", rooms: &["ids", "trust"], never: &[IO] },
    Rule { place: "hash", rooms: &["ids"], never: &[IO, &["serde"]] },
    Rule { place: "readiness", rooms: &[], never: &[&["axum", "hyper", "kube"]] },
    Rule { place: "config", rooms: &["ids"], never: &[IO] },
    Rule { place: "metrics", rooms: &["ids"], never: &[&["tokio", "axum", "hyper", "kube"]] },
    Rule {
        place: "index",
        rooms: &["ids", "event", "trust", "hash", "image"],
        never: &[IO, &["serde", "serde_json", "std::time"]],
    },
    Rule { place: "wire", rooms: &["ids", "event", "hash", "trust", "image"], never: &[IO] },
    Rule { place: "zmtp/codec", rooms: &[], never: &[IO] },
    Rule { place: "zmtp", rooms: &[], never: &[&["axum", "prometheus", "zeromq"]] },
    Rule { place: "ingest/cursor", rooms: &["ids", "event", "trust", "wire"], never: &[IO] },
    Rule { place: "ingest/stream", rooms: &["ids", "event", "trust", "wire", "image"], never: &[IO] },
    Rule {
        place: "ingest",
        rooms: &["ids", "event", "trust", "hash", "wire", "image", "index", "zmtp", "metrics"],
        never: &[&["axum", "kube", "zeromq"]],
    },
    Rule {
        place: "registry",
        rooms: &["ids", "event", "trust", "hash", "image", "index", "ingest", "zmtp", "metrics"],
        never: &[&["axum", "kube", "zeromq"]],
    },
    Rule { place: "recovery/plan", rooms: &["ids", "trust", "image", "wire"], never: &[IO] },
    Rule {
        place: "recovery",
        rooms: &["ids", "event", "trust", "hash", "image", "wire", "index", "registry", "readiness", "metrics"],
        never: &[&["axum", "kube", "zeromq"]],
    },
    Rule { place: "controller/facts", rooms: &[], never: &[PURE_CONTROLLER] },
    Rule { place: "controller/desired", rooms: &["ids", "registry"], never: &[PURE_CONTROLLER] },
    Rule {
        place: "controller/conditions",
        rooms: &["ids", "trust", "registry", "recovery"],
        never: &[PURE_CONTROLLER],
    },
    Rule { place: "controller/store", rooms: &[], never: &[PURE_CONTROLLER] },
    Rule {
        place: "controller",
        rooms: &["ids", "trust", "registry", "recovery", "readiness", "metrics"],
        never: &[&["axum", "hyper", "zeromq"]],
    },
    Rule { place: "http/page", rooms: &[], never: &[&["kube", "zeromq"]] },
    Rule {
        place: "http",
        rooms: &[
            "ids",
            "event",
            "trust",
            "hash",
            "image",
            "index",
            "wire",
            "registry",
            "recovery",
            "readiness",
            "metrics",
        ],
        never: &[&["kube", "zeromq"]],
    },
    Rule { place: "cli/sim/control", rooms: &[], never: &[&["kube", "zeromq"]] },
    Rule { place: "cli/sim", rooms: &["ids", "hash", "wire", "config"], never: &[&["axum", "kube"]] },
    Rule { place: "cli/demo", rooms: &["ids", "hash", "wire", "config", "app"], never: &[&["axum", "kube", "zeromq"]] },
    Rule {
        place: "cli",
        rooms: &["ids", "hash", "trust", "image", "wire", "config", "controller"],
        never: &[&["axum", "kube", "zeromq"]],
    },
    Rule {
        place: "app",
        rooms: &[
            "ids",
            "event",
            "trust",
            "hash",
            "index",
            "wire",
            "zmtp",
            "ingest",
            "registry",
            "recovery",
            "controller",
            "http",
            "readiness",
            "metrics",
            "config",
        ],
        never: &[&["zeromq"]],
    },
    Rule { place: "main", rooms: &[], never: &[&["zeromq", "tokio", "axum"]] },
    Rule { place: "lib", rooms: &[], never: &[IO] },
];

#[test]
fn rooms_import_only_what_the_table_allows() {
    let mut faults = vec![];
    for file in sources("src") {
        let place = place(&file);
        let Some(rule) = rule(&place) else {
            faults.push(format!("{}: the table has no row for `{place}`", file.display()));
            continue;
        };
        let text = product_code(&fs::read_to_string(&file).unwrap());
        let own = place.split('/').next().unwrap();
        for (line, room) in imported_rooms(&text) {
            if room != own && !rule.rooms.contains(&room.as_str()) {
                faults.push(format!("{}:{line}: `{}` must not import `{room}`", file.display(), rule.place));
            }
        }
        for name in rule.never.iter().copied().flatten() {
            for line in mentions(&text, name) {
                faults.push(format!("{}:{line}: `{}` must never see `{name}`", file.display(), rule.place));
            }
        }
        if place == own && own != "lib" && own != "main" {
            for line in mentions(&text, "super") {
                faults.push(format!("{}:{line}: `super` leads out of the room", file.display()));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn special_crates_stay_in_their_places() {
    let mut faults = vec![];
    for file in sources("src") {
        let place = place(&file);
        let text = product_code(&fs::read_to_string(&file).unwrap());
        for (name, places) in [("zeromq", &["cli/sim"][..]), ("anyhow", &["app", "main", "cli/demo"])] {
            if !places.iter().any(|allowed| is_below(&place, allowed)) {
                for line in mentions(&text, name) {
                    faults.push(format!("{}:{line}: `{name}` belongs into {places:?}", file.display()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn files_begin_with_their_purpose_and_are_short_and_finished() {
    let mut faults = vec![];
    let unfinished = concat!("todo", "!(");
    for file in sources("src").into_iter().chain(sources("tests/it")).chain(sources("benches")) {
        let text = fs::read_to_string(&file).unwrap();
        if !text.starts_with("//!") {
            faults.push(format!("{}:1: must begin with `//!`", file.display()));
        }
        let lines = text.lines().count();
        if lines > LINES_MAX {
            faults.push(format!("{}:{LINES_MAX}: has {lines} lines, at most {LINES_MAX} are allowed", file.display()));
        }
        for (number, line) in text.lines().enumerate() {
            if line.contains(unfinished) {
                faults.push(format!("{}:{}: unfinished", file.display(), number + 1));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn the_checks_find_what_they_look_for() {
    let text = "use crate::ids::{A, b};\n// crate::http\nuse crate::{\n    wire,\n    index::{X, crate_y},\n};\n\
                fn f() { crate::zmtp::g(\"crate::app\"); $crate::x }\npub(crate) fn g() { tokio::spawn() }\n\
                #[cfg(test)]\nmod tests { use crate::http; }\n";
    let code = product_code(text);
    let rooms: Vec<_> = imported_rooms(&code).into_iter().map(|(line, room)| format!("{line} {room}")).collect();
    assert_eq!(rooms, ["1 ids", "4 wire", "5 index", "7 zmtp"]);
    assert_eq!(mentions(&code, "tokio"), [8]);
    assert_eq!(mentions("use serde::X;\nserde_json::y();\nmy_serde::z()", "serde"), [1]);
    assert_eq!(rule("zmtp/codec/frame").map(|rule| rule.place), Some("zmtp/codec"));
    assert_eq!(rule("zmtp/codecs").map(|rule| rule.place), Some("zmtp"));
    assert!(rule("utils").is_none());
}

/// All Rust files below a folder of the project; none if there is no such folder.
fn sources(folder: &str) -> Vec<PathBuf> {
    let mut files = vec![];
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("the folder can be read")) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Path below `src` without `.rs`; the file `mod.rs` of a folder is the folder.
fn place(file: &Path) -> String {
    let below = file.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).expect("a file of the project");
    let text = below.with_extension("").to_str().expect("names are UTF-8").replace('\\', "/");
    text.strip_suffix("/mod").unwrap_or(&text).to_owned()
}

fn rule(place: &str) -> Option<&'static Rule> {
    RULES.iter().filter(|rule| is_below(place, rule.place)).max_by_key(|rule| rule.place.len())
}

fn is_below(place: &str, folder: &str) -> bool {
    place.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The code of a file without comments, texts and tests; lines keep their numbers. Files of tests are empty: tests may
/// bring rooms together.
fn product_code(text: &str) -> String {
    let test_module = text.lines().position(|line| line.starts_with("#[cfg(test)]"));
    // A test module in a file of its own is one line, and code may follow.
    let inline = |at: usize| text.lines().skip(at).take(3).any(|line| line.starts_with("mod ") && line.contains('{'));
    let end = test_module.filter(|at| inline(*at)).unwrap_or(usize::MAX);
    let strip = |line: &str| {
        let line = line.split_once("//").map_or(line, |(code, _)| code);
        let mut code = String::new();
        for (number, part) in line.split('"').enumerate() {
            if number % 2 == 0 {
                code.push_str(part);
            }
        }
        code
    };
    text.lines().take(end).map(strip).collect::<Vec<_>>().join("\n")
}

/// Line and name of each room that code reaches by `crate::`.
fn imported_rooms(code: &str) -> BTreeSet<(usize, String)> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c == '$' || c == '_' || c.is_alphanumeric()) {
            continue;
        }
        let start = at + "crate::".len();
        let line = |offset: usize| code[..offset].lines().count().max(1);
        if code[start..].starts_with('{') {
            found.extend(group(code, start).into_iter().map(|(offset, name)| (line(offset), name)));
        } else {
            found.insert((line(at + 1), identifier(&code[start..])));
        }
    }
    found
}

/// The first name of each item of a group in braces that begins at `start`, with the place behind it.
fn group(code: &str, start: usize) -> Vec<(usize, String)> {
    let mut names = vec![];
    let (mut depth, mut wants_name) = (0, false);
    for (offset, c) in code[start..].char_indices() {
        match c {
            '{' => {
                depth += 1;
                wants_name = depth == 1;
            }
            '}' => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            ',' if depth == 1 => wants_name = true,
            c if wants_name && (c.is_alphabetic() || c == '_') => {
                names.push((start + offset + 1, identifier(&code[start + offset..])));
                wants_name = false;
            }
            _ => {}
        }
    }
    names
}

fn identifier(code: &str) -> String {
    code.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// Lines in which a path begins with `name`.
fn mentions(code: &str, name: &str) -> Vec<usize> {
    let path = format!("{name}::");
    let begins = |line: &str, at: usize| {
        !line[..at].chars().next_back().is_some_and(|c| c == '_' || c == ':' || c.is_alphanumeric())
    };
    let lines = code.lines().enumerate();
    let hits = lines.filter(|(_, line)| line.match_indices(&path).any(|(at, _)| begins(line, at)));
    hits.map(|(number, _)| number + 1).collect()
}
