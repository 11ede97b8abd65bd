//! The tables of the crate's README against the lists in the code.

use hca_model::{Card, DeviceSpec};
use hca_serve::product::control;
use std::collections::BTreeSet;

const README: &str = include_str!("../../README.md");

/// Returns the code spans in the first cells of the table below the line `head`.
fn first_cells(head: &str) -> Vec<&'static str> {
    let lines = README.lines().skip_while(|line| *line != head).skip(2);
    let rows: Vec<&str> = lines.take_while(|line| line.starts_with('|')).collect();
    assert!(!rows.is_empty(), "no table {head}");
    let cells = rows.into_iter().filter_map(|row| row.split('|').nth(1));
    // Every second part between quotes is code.
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn the_page_lists_all_cards() {
    let listed: BTreeSet<&str> = first_cells("| card | differences |").into_iter().collect();
    assert_eq!(listed, Card::ALL.iter().map(|card| card.name).collect());
}

#[test]
fn quirks_of_the_page_are_understood() {
    for quirk in first_cells("| quirk | effect |") {
        let spec = format!("{},{quirk}", DeviceSpec::default());
        if let Err(error) = spec.parse::<DeviceSpec>() {
            panic!("{spec}: {error}");
        }
    }
}

#[test]
fn the_page_lists_all_commands_of_the_control_socket() {
    let name = |command: &'static str| {
        let rest = command.strip_prefix("{\"do\":\"").unwrap_or_else(|| panic!("no command: {command}"));
        rest.split('"').next()
    };
    let listed: BTreeSet<_> = first_cells("| command | effect |").into_iter().map(name).collect();
    assert_eq!(listed, control::HELP.iter().copied().map(name).collect());
}
