//! House rules that a reader would otherwise have to check (STYLE).

use tests::repository::{root, rust_files};

/// Scenario: every Rust file of ours.
/// Guarantees: it opens with `//!`, so a stranger knows in a minute what it is for.
#[test]
fn every_file_opens_with_its_purpose() {
    let bare: Vec<String> =
        rust_files().into_iter().filter(|(_, text)| !text.starts_with("//!")).map(|(path, _)| path).collect();
    assert!(bare.is_empty(), "open these files with `//!` and say what the file is for: {bare:#?}");
}

/// Scenario: files whose header is a map of files, and the modules that they declare, test modules aside.
/// Guarantees: every module is in the header, and every file of the map is declared, so that the map is that of the land.
#[test]
fn header_maps_name_every_file() {
    let words = |text: &str| -> Vec<String> {
        let quoted = text.split('`').skip(1).step_by(2).flat_map(|word| word.split(['/', ',', ' ']));
        quoted.filter(|word| !word.is_empty()).map(String::from).collect()
    };
    let (mut maps, mut wrong) = (0, Vec::new());
    for (path, text) in rust_files() {
        let header: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
        let Some(top) = header.iter().position(|line| line.starts_with("//! | file |")) else { continue };
        maps += 1;
        let rows = header[top + 2..].iter().take_while(|line| line.starts_with("//! |"));
        let mapped: Vec<String> = rows.flat_map(|row| words(row.split('|').nth(1).unwrap_or_default())).collect();
        let module = |line: &str| line.strip_suffix(';')?.rsplit_once("mod ").map(|(_, name)| name.to_string());
        let declared: Vec<String> = text.lines().filter(|line| !line.starts_with(' ')).filter_map(module).collect();
        let named = words(&header.join("\n"));
        let unnamed = declared.iter().filter(|name| !name.ends_with("tests") && !named.contains(name));
        wrong.extend(unnamed.map(|name| format!("{path}: say in the header what `{name}` is for")));
        let gone = mapped.iter().filter(|name| !declared.contains(name));
        wrong.extend(gone.map(|name| format!("{path}: the header names `{name}`, which is no module of it")));
    }
    assert!(maps > 10, "only {maps} headers have a map");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Scenario: every Rust file of ours.
/// Guarantees: no file outgrows 600 lines, where it holds more than one idea.
#[test]
fn no_file_outgrows_one_idea() {
    let long: Vec<(String, usize)> =
        rust_files().into_iter().map(|(path, text)| (path, text.lines().count())).filter(|(_, n)| *n > 600).collect();
    assert!(long.is_empty(), "split these files by idea (more than 600 lines): {long:#?}");
}

/// Scenario: source files, tests excepted.
/// Guarantees: nothing unfinished lands.
#[test]
fn nothing_unfinished() {
    let marks = ["TODO", "FIXME", "todo!(", "unimplemented!("].map(String::from);
    for (path, text) in rust_files().into_iter().filter(|(path, _)| !path.starts_with("tests/")) {
        for (number, line) in text.lines().enumerate() {
            assert!(
                !marks.iter().any(|mark| line.contains(mark.as_str())),
                "{path}:{}: finish it, or write down in the closing note what falls short: {line}",
                number + 1
            );
        }
    }
}

/// Scenario: `unsafe` in our crates.
/// Guarantees: it stays in the rooms where hardware or the operating system is spoken to.
#[test]
fn unsafe_stays_in_its_rooms() {
    const ROOMS: [&str; 6] = [
        "kernels/src/cpu",
        "kernels/src/device/pool",
        "kernels/benches/",
        "engine/src/model/gguf",
        "pipeline/src/app/query_worker/slice",
        "tests/",
    ];
    for (path, text) in rust_files() {
        let uses = text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or_default();
            code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl")
        });
        assert!(
            !uses || ROOMS.iter().any(|room| path.starts_with(room)),
            "{path}: `unsafe` belongs into one of {ROOMS:?}; offer a safe function there"
        );
    }
}

/// Scenario: the lower crates' sources.
/// Guarantees: no wall clock, environment or randomness below `pipeline`, so that replay and simulation are exact.
#[test]
fn no_clock_environment_or_randomness_below_pipeline() {
    const IMPURE: [&str; 6] = ["SystemTime", "Instant::now", "std::env", "env::var", "thread_rng", "rand::rng()"];
    let lower = rust_files().into_iter().filter(|(path, _)| {
        ["kernels/src", "engine/src", "operators/src", "queries/src"].iter().any(|folder| path.starts_with(folder))
    });
    for (path, text) in lower {
        let tests_start = text.find("#[cfg(test)]").unwrap_or(text.len());
        for word in IMPURE {
            assert!(
                !text[..tests_start].contains(word),
                "{path} uses {word}: take it as an argument from `pipeline` (DESIGN §1)"
            );
        }
    }
}

/// Scenario: the top level of the checkout.
/// Guarantees: it stays the one DESIGN fixes, plus what a repository needs.
#[test]
fn the_top_level_is_fixed() {
    const KNOWN: &[&str] = &[
        ".cargo",
        ".ci",
        ".git",
        ".gitignore",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE",
        "Makefile",
        "README.md",
        "clippy.toml",
        "dashboards",
        "docs",
        "engine",
        "kernels",
        "operators",
        "pipeline",
        "queries",
        "rustfmt.toml",
        "target",
        "tests",
    ];
    for entry in std::fs::read_dir(root()).expect("the checkout") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        assert!(
            KNOWN.contains(&name.as_str()),
            "`{name}` is new at the top level; put it below one of the crates or docs/"
        );
    }
}

/// Scenario: pipeline's main.
/// Guarantees: the binary's entry stays a thin door to the library.
#[test]
fn main_is_thin() {
    let main = std::fs::read_to_string(root().join("pipeline/src/main.rs")).expect("pipeline/src/main.rs");
    assert!(main.lines().count() < 60, "move code from main.rs into pipeline/src/app");
}
