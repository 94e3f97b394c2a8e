//! The layers of DESIGN §1, held over `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};
use tests::repository::root;

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
