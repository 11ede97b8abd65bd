//! The table in the crate's README against the rows.

use crate::MODULES;
use crate::registry::{FUNCTIONS, Judgement, Row};
use dat_nostd::ReturnType;
use std::collections::BTreeSet;
use std::path::PathBuf;

const BEGIN: &str = "<!-- errors: begin -->";
const END: &str = "<!-- errors: end -->";
/// The variable that makes the test write the table instead of comparing it.
const WRITE: &str = "DAT_README_WRITE";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("README.md")
}

fn all_rows() -> Vec<(&'static str, &'static Row)> {
    let of = |(module, rows, _): &(&'static str, &'static [Row], &'static [&'static str])| {
        let module = *module;
        rows.iter().map(move |row| (module, row)).collect::<Vec<_>>()
    };
    let mut rows: Vec<_> = MODULES.iter().flat_map(of).collect();
    let place = |row: &Row| FUNCTIONS.iter().position(|function| *function == row.function);
    rows.sort_by_key(|(_, row)| place(row));
    rows
}

fn code(error: ReturnType) -> &'static str {
    error.name().trim_start_matches("DAT_")
}

/// The line that stands for a row.
fn line(module: &str, row: &Row) -> String {
    let function = row.function;
    match &row.judgement {
        Judgement::Refused(error, subtype, _) => {
            let subtype = subtype
                .map_or(String::new(), |subtype| format!(" ({})", subtype.name().trim_start_matches("DAT_")));
            format!(
                "| `{function}` | {}{subtype} | {} | `{module}::{function}` |",
                code(*error),
                row.condition
            )
        }
        Judgement::Impossible(error, why) => {
            format!("| `{function}` | {} | {} | cannot occur: {why} |", code(*error), row.condition)
        }
        Judgement::Succeeds(_) => {
            format!("| `{function}` | SUCCESS | {} | `{module}::{function}` |", row.condition)
        }
    }
}

#[test]
fn the_table_says_what_is_tested() {
    let text = std::fs::read_to_string(path()).expect("the README");
    let begin = text.find(BEGIN).expect("the table's beginning") + BEGIN.len();
    let end = text.find(END).expect("the table's end");
    let expected: Vec<String> = all_rows().iter().map(|(module, row)| line(module, row)).collect();
    if std::env::var_os(WRITE).is_some() {
        let table = format!(
            "\n| function | code | condition | asserted by |\n|---|---|---|---|\n{}\n",
            expected.join("\n")
        );
        std::fs::write(path(), format!("{}{table}{}", &text[..begin], &text[end..])).expect("written");
        return;
    }
    let found: Vec<&str> =
        text[begin..end].lines().filter(|line| line.starts_with("| `")).map(str::trim_end).collect();
    for line in &found {
        assert!(expected.iter().any(|row| row == line), "the README's row has no test: {line}");
    }
    for row in &expected {
        assert!(
            found.contains(&row.as_str()),
            "a tested row is not in the README ({WRITE}=1 writes it): {row}"
        );
    }
    assert_eq!(found, expected, "the order of the functions");
}

#[test]
fn every_function_has_rows_and_a_success() {
    let rows = all_rows();
    for function in FUNCTIONS {
        let of: Vec<&Row> = rows.iter().map(|(_, row)| *row).filter(|row| row.function == function).collect();
        assert!(
            of.iter().any(|row| matches!(row.judgement, Judgement::Succeeds(_))),
            "{function} has no success"
        );
        // What takes a handle or an argument refuses something.
        assert!(
            of.iter().any(|row| matches!(row.judgement, Judgement::Refused(..))),
            "{function} has no error"
        );
        let tests = MODULES.iter().flat_map(|(_, _, tests)| *tests).filter(|test| **test == function);
        assert_eq!(tests.count(), 1, "{function} has one test");
    }
}

#[test]
fn no_row_is_without_test_or_twice() {
    let mut seen = BTreeSet::new();
    for (module, rows, tests) in MODULES {
        for row in rows {
            assert!(FUNCTIONS.contains(&row.function), "{} is no function of DAT 1.2", row.function);
            assert!(tests.contains(&row.function), "{module}: no test judges {}", row.function);
            assert!(seen.insert(line(module, row)), "{} stands twice", line(module, row));
        }
    }
}
