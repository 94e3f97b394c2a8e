//! The layers of DESIGN §1, held over `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};
use tests::repository::{root, rust_files};

/// Every allowed edge between our crates.
const ALLOWED: [(&str, &[&str]); 6] = [
    ("kernels", &[]),
    ("engine", &["kernels"]),
    ("operators", &[]),
    ("queries", &[]),
    ("pipeline", &["engine", "operators", "queries"]),
    ("tests", &["kernels", "engine", "operators", "queries", "pipeline"]),
];

/// Crates that only the named ones of ours may reach directly.
const KEPT_BEHIND: [(&str, &[&str]); 8] = [
    ("datafusion", &["queries"]),
    ("arrow-flight", &["pipeline"]),
    ("axum", &["pipeline", "tests"]),
    ("tokio", &["queries", "pipeline", "tests"]),
    ("tonic", &["pipeline"]),
    ("timely", &["operators", "pipeline"]),
    ("differential-dataflow", &["operators"]),
    ("arrow", &["queries", "pipeline", "tests"]),
];

fn direct_dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .other_options(vec!["--offline".to_string()])
        .exec()
        .expect("cargo metadata");
    metadata
        .packages
        .iter()
        .map(|package| {
            let names =
                package.dependencies.iter().filter(|d| d.kind == DependencyKind::Normal).map(|d| d.name.clone());
            (package.name.to_string(), names.collect())
        })
        .collect()
}

/// Scenario: the dependency lists of all crates as cargo sees them.
/// Guarantees: no edge between our crates but the allowed ones, and none that the table has and the code does not.
#[test]
fn only_the_allowed_edges() {
    let found = direct_dependencies();
    let ours: BTreeSet<&str> = ALLOWED.iter().map(|(name, _)| *name).collect();
    assert_eq!(found.keys().map(String::as_str).collect::<BTreeSet<_>>(), ours, "the crates of the workspace");
    for (name, allowed) in ALLOWED {
        for used in found[name].iter().filter(|used| ours.contains(used.as_str())) {
            assert!(
                allowed.contains(&used.as_str()),
                "{name} must not depend on {used} (DESIGN §1): move what is shared to the lower crate, or pass it in from `pipeline`"
            );
        }
    }
}

/// Scenario: the same lists, looking at heavy and impure libraries.
/// Guarantees: DataFusion, HTTP, async runtimes and timely stay in their layer, so the lower crates build in seconds.
#[test]
fn heavy_and_impure_libraries_stay_in_their_layer() {
    for (name, used) in direct_dependencies() {
        for (library, allowed) in KEPT_BEHIND {
            assert!(
                !used.contains(library) || allowed.contains(&name.as_str()),
                "{name} must not depend on {library}; only {allowed:?} may (DESIGN §1)"
            );
        }
    }
}

/// Modules of `pipeline`, each after all that it may use.
const MODULES: [&str; 12] =
    ["ids", "rows", "config", "bus", "policy", "dataflow", "gateway", "worker", "replay", "models", "load", "app"];
/// The one edge back: the configuration's tree holds the settings that each policy declares and checks.
const BACK: (&str, &str) = ("config", "policy");

/// The modules that a text names after `crate::`.
fn modules_named(text: &str) -> BTreeSet<&str> {
    let word = |text: &str| text.bytes().take_while(|byte| byte.is_ascii_lowercase() || *byte == b'_').count();
    let mut named = BTreeSet::new();
    for rest in text.split("crate::").skip(1) {
        let Some(list) = rest.strip_prefix('{') else {
            named.insert(&rest[..word(rest)]);
            continue;
        };
        let mut depth = 0;
        for (at, byte) in list.bytes().enumerate() {
            match byte {
                b'{' => depth += 1,
                b'}' if depth == 0 => break,
                b'}' => depth -= 1,
                _ if depth == 0 && (at == 0 || b"{ ,\n".contains(&list.as_bytes()[at - 1])) => {
                    named.insert(&list[at..at + word(&list[at..])]);
                }
                _ => {}
            }
        }
    }
    named
}

/// Scenario: what each file of `pipeline` names after `crate::`, test files aside.
/// Guarantees: a module uses only those before it, so that a reader can start at any and go one way.
#[test]
fn modules_use_only_those_before_them() {
    let place = |module: &str| MODULES.iter().position(|known| *known == module);
    let mut seen = BTreeSet::new();
    for (path, text) in rust_files() {
        let Some(inner) = path.strip_prefix("pipeline/src/").filter(|inner| !inner.contains("tests")) else { continue };
        let module = inner.split(['/', '.']).next().unwrap_or_default();
        let Some(own) = place(module) else { continue };
        seen.insert(module.to_string());
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for used in modules_named(text).into_iter().filter(|used| (module, *used) != BACK) {
            assert!(
                place(used).is_none_or(|used| used <= own),
                "{path} uses {used}, which comes after {module} (pipeline/src/lib.rs): pass it in, or move what is shared down"
            );
        }
    }
    assert_eq!(seen, MODULES.iter().map(ToString::to_string).collect(), "the modules of pipeline");
}
