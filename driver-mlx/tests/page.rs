//! "Your first hour with a card" names tests that there are, and all that are about habits of cards.

use std::path::{Path, PathBuf};

/// The file of a test that the page names: in this folder, or the workspace's folder that its name begins with.
fn file_of(module: &str) -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = match module.contains('/') {
        true => crate_folder.join("..").join(module),
        false => crate_folder.join("tests").join(module),
    };
    let file = place.with_extension("rs");
    if file.exists() { file } else { place.join("main.rs") }
}

fn tests_in(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let name = |line: &str| Some(line.strip_prefix("fn ")?.split_once('(')?.0.to_owned());
    lines.windows(2).filter(|pair| pair[0] == "#[test]").filter_map(|pair| name(pair[1])).collect()
}

#[test]
fn every_habit_has_its_test_and_every_test_its_habit() {
    let page = include_str!("../FIRST_HOUR.md");
    let table = page
        .split_once("<!-- habits: begin -->")
        .and_then(|(_, rest)| rest.split_once("<!-- habits: end -->"));
    let rows = table.expect("the table").0.lines().filter(|line| line.starts_with("| ")).skip(1);
    let mut named = Vec::new();
    for row in rows {
        let tests: Vec<&str> = row.split('`').filter(|word| word.contains("::")).collect();
        assert!(!tests.is_empty(), "no test: {row}");
        named.extend(tests);
    }
    for test in &named {
        let (module, name) = test.split_once("::").expect("module and name");
        assert!(tests_in(&file_of(module)).iter().any(|there| there == name), "there is no test {test}");
    }
    for file in ["real_cards", "cards"] {
        for name in tests_in(&file_of(file)) {
            assert!(named.contains(&format!("{file}::{name}").as_str()), "no row names {file}::{name}");
        }
    }
}
