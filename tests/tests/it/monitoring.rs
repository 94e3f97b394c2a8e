//! Files that an operator loads elsewhere: alert rules, Grafana dashboards, and the documents that explain them.

use std::{collections::BTreeSet, fs};

use serde_json::Value;
use tests::{grafana, promtool::run, repository::root};

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Names of metrics in a text, as their series are called but for the parts of a histogram.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let names = text.match_indices("evenkeel_").map(|(at, _)| {
        let name: String = text[at..].chars().take_while(|c| is_part(*c)).collect();
        let whole = ["_bucket", "_sum", "_count"].into_iter().find_map(|part| name.strip_suffix(part));
        whole.map_or(name.clone(), String::from)
    });
    names.filter(|name| name.len() > "evenkeel_".len()).collect()
}

/// Those of the table in the documentation; a test of the running server compares it with what is there.
pub(crate) fn documented() -> BTreeSet<String> {
    let document = text("docs/monitoring.md");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    rows.filter(|name| name.starts_with("evenkeel_")).map(String::from).collect()
}

/// Scenario: the alert rules and their unit tests.
/// Guarantees: Prometheus takes the rules, and each alert fires where it should and only there.
#[test]
fn prometheus_takes_the_rules_and_their_tests_pass() {
    let folder = root().join("dashboards/prometheus");
    for arguments in [["check", "rules", "evenkeel.rules.yml"], ["test", "rules", "evenkeel.rules_test.yml"]] {
        if let Some(Err(said)) = run(&folder, &arguments, "") {
            panic!("promtool {}: {said}", arguments.join(" "));
        }
    }
}

/// Scenario: every alert. Guarantees: it is tested, links its place in the runbook, and is there; the runbook has no other.
#[test]
fn every_alert_is_tested_and_in_the_runbook() {
    let (rules, tests) =
        (text("dashboards/prometheus/evenkeel.rules.yml"), text("dashboards/prometheus/evenkeel.rules_test.yml"));
    let alerts: BTreeSet<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 15, "{alerts:?}");
    let runbook = text("docs/alerts.md");
    let sections: BTreeSet<&str> = runbook.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    assert_eq!(alerts, sections, "docs/alerts.md has a section `### NAME` for each alert, and no other");
    for alert in alerts {
        let link = format!("runbook: docs/alerts.md#{}", alert.to_lowercase());
        assert!(rules.contains(&link), "{alert}: add `{link}`");
        assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert}: add a test to evenkeel.rules_test.yml");
    }
}

/// Scenario: the dashboards as they are made now.
/// Guarantees: the files checked in are these; `UPDATE=1` writes them.
#[test]
fn dashboards_are_as_they_are_made() {
    let folder = root().join("dashboards/grafana");
    let made = grafana::files(&saved());
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (name, board) in &made {
            fs::write(folder.join(name), serde_json::to_string_pretty(board).unwrap() + "\n").unwrap();
        }
    }
    for (name, board) in &made {
        let path = format!("dashboards/grafana/{name}");
        let kept: Value = serde_json::from_str(&text(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(
            kept, *board,
            "{path} is not as it is made: run UPDATE=1 cargo nextest run --workspace -E 'test(dashboards_are)'"
        );
    }
    let known: BTreeSet<&str> = made.iter().map(|(name, _)| name.as_str()).collect();
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        assert!(known.contains(name.as_str()), "dashboards/grafana/{name} is made by nothing: remove it");
    }
}

/// Scenario: every metric that rules, dashboards and documents name.
/// Guarantees: it is in the table of docs/monitoring.md, which another test compares with a running server.
#[test]
fn every_metric_named_exists() {
    let known = documented();
    assert!(known.len() > 40, "{known:?}");
    let boards = grafana::files(&[]).into_iter().map(|(name, board)| (name, board.to_string()));
    let files =
        ["dashboards/prometheus/evenkeel.rules.yml", "docs/alerts.md", "docs/operations.md", "docs/monitoring.md"];
    for (path, text) in files.map(|path| (path.to_string(), text(path))).into_iter().chain(boards) {
        // `evenkeel_…` alone, and names of a group such as `evenkeel_engine_`, are prose.
        let missing: Vec<String> =
            metrics_in(&text).into_iter().filter(|name| !name.ends_with('_') && !known.contains(name)).collect();
        assert!(missing.is_empty(), "{path} names metrics that docs/monitoring.md does not: {missing:?}");
    }
}

/// Scenario: every panel. Guarantees: it says what it shows, and no two of a dashboard share a place or an id.
#[test]
fn panels_have_places_of_their_own() {
    for (name, board) in grafana::files(&saved()) {
        let panels = board["panels"].as_array().unwrap();
        let places: BTreeSet<String> = panels.iter().map(|panel| panel["gridPos"].to_string()).collect();
        let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!((places.len(), ids.len()), (panels.len(), panels.len()), "{name}");
        let silent = panels
            .iter()
            .any(|panel| panel["type"] != "row" && panel["description"].as_str().is_none_or(str::is_empty));
        assert!(!silent, "{name}: a panel has no description");
    }
}

/// The saved queries that need nothing of who looks, with their defaults.
fn saved() -> Vec<grafana::TableQuery> {
    let general = queries::saved::all()
        .iter()
        .filter(|query| query.parameters.iter().all(|parameter| parameter.default.is_some()));
    let panel = |query: &queries::saved::SavedQuery| grafana::TableQuery {
        name: query.name.clone(),
        question: query.question.clone(),
        units: query.units.clone(),
        statement: query.render(&queries::saved::Values::new()).unwrap(),
    };
    let panels: Vec<_> = general.map(panel).collect();
    assert!(panels.len() >= 20, "{} saved queries", panels.len());
    panels
}
