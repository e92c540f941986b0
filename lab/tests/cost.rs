//! The costs of operations equal the committed ones: fences, lines written and read, locked instructions.
//!
//! The problem: a timing does not show one more flush. The idea: these counts do not depend on the machine, so any
//! change of them is a change of the code. The test shows it to its author, cell by cell.

use nvfold_lab::cost::{self, Report};
use std::path::Path;

/// The command that writes the numbers and their page again.
const COMMAND: &str = "make cost";

fn committed() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/results/cost/cost.json");
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}; write it: {COMMAND}", file.display()))
}

/// Compares the present costs with those in a text; returns the differences.
fn differences(committed: &str, now: &Report) -> Vec<String> {
    Report::parse(committed).unwrap_or_else(|why| panic!("cost.json: {why}; write it anew: {COMMAND}")).differences(now)
}

#[test]
fn operations_cost_as_much_as_the_committed_table() {
    let found = differences(&committed(), &cost::counts().unwrap());
    assert!(
        found.is_empty(),
        "{} costs are not those of docs/results/cost/cost.json:\n  {}\nIf that is meant, write them anew: {COMMAND}",
        found.len(),
        found.join("\n  ")
    );
}

#[test]
fn a_changed_cost_is_reported() {
    let text = committed();
    let (mut committed, now) = (Report::parse(&text).unwrap(), Report::parse(&text).unwrap());
    assert!(committed.differences(&now).is_empty());
    let cell = &mut committed.cells[0];
    cell.fences += cell.units;
    let name = format!("{} | {} | {}: fences", cell.operation, cell.policy, cell.index);
    let found = committed.differences(&now);
    assert!(found.len() == 1 && found[0].starts_with(&name), "{found:?}");
}
