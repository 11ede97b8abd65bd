//! The table in the crate's README against the rows.

use crate::MODULES;
use crate::registry::{FUNCTIONS, Judgement, Row};
use dat_nostd::ReturnType;
use std::collections::BTreeSet;

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
    let rows: Vec<String> = all_rows().iter().map(|(module, row)| line(module, row)).collect();
    harness::readme::judge(
        concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"),
        "errors",
        &["function", "code", "condition", "asserted by"],
        &rows,
    );
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
