//! The table for people: on the terminal, and as a Markdown page.

use super::kinds::Lines;
use super::measure::Cell;
use super::operation::Operation;
use super::report::{JSON, Report, each};
use crate::report::heading;
use comfy_table::{Table, presets};
use std::fmt::Write;

/// What the page says before its tables.
const INTRODUCTION: &str = include_str!("introduction.md");

/// Every table under the name of its operation.
pub fn terminal(report: &Report) -> String {
    let mut text = heading(&report.command, report.commit.as_deref());
    for (operation, cells) in by_operation(report) {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(columns(report));
        table.add_rows(cells.iter().map(|cell| row(cell, report)));
        write!(text, "\n\n{}\n{table}", title(operation)).expect("a string takes it");
    }
    notes(report).iter().for_each(|note| write!(text, "\n\n{note}").expect("a string takes it"));
    text
}

/// The page that stands beside the JSON.
pub fn markdown(report: &Report) -> String {
    let mut text = INTRODUCTION.to_owned();
    write!(text, "\n`{}`", report.command).expect("a string takes it");
    if let Some(commit) = &report.commit {
        write!(text, ", commit {commit}").expect("a string takes it");
    }
    writeln!(text, "; the sums over {} calls: [{JSON}]({JSON}).", report.calls).expect("a string takes it");
    notes(report).iter().for_each(|note| writeln!(text, "\n{note}").expect("a string takes it"));
    for (operation, cells) in by_operation(report) {
        let columns = columns(report);
        writeln!(text, "\n## {}\n\n| {} |", title(operation), columns.join(" | ")).expect("a string takes it");
        writeln!(text, "|{}", "---|".repeat(columns.len())).expect("a string takes it");
        for cell in cells {
            writeln!(text, "| {} |", row(cell, report).join(" | ")).expect("a string takes it");
        }
    }
    text
}

fn title(operation: Operation) -> String {
    let name = operation.name();
    let (first, rest) = name.split_at(1);
    format!("{}{rest} (a {})", first.to_uppercase(), operation.unit())
}

fn by_operation(report: &Report) -> Vec<(Operation, Vec<&Cell>)> {
    let cells_of = |operation: Operation| {
        let name = operation.name();
        (operation, report.cells.iter().filter(|cell| cell.operation == name).collect::<Vec<_>>())
    };
    Operation::all().into_iter().map(cells_of).filter(|(_, cells)| !cells.is_empty()).collect()
}

fn columns(report: &Report) -> Vec<String> {
    let mut columns: Vec<String> =
        ["policy", "index", "fences", "lines written", "lines read", "locked"].map(String::from).to_vec();
    columns.extend(report.instructions_by.is_some().then(|| "instructions".to_owned()));
    columns.extend(profiles(report).iter().map(|profile| format!("ns, {profile}")));
    columns
}

fn profiles(report: &Report) -> Vec<&str> {
    report.cells.first().map_or(Vec::new(), |cell| cell.charged_ns.keys().map(String::as_str).collect())
}

fn row(cell: &Cell, report: &Report) -> Vec<String> {
    let mut row = vec![cell.policy.clone(), cell.index.clone(), each(cell.fences, cell.units)];
    row.extend([&cell.written, &cell.read].map(|lines| lines_by_kind(lines, cell.units)));
    row.push(each(cell.locked, cell.units));
    let whole = |sum: u64| format!("{:.0}", sum as f64 / cell.units as f64);
    if report.instructions_by.is_some() {
        row.push(cell.instructions.map_or("-".into(), whole));
    }
    row.extend(cell.charged_ns.values().map(|ns| whole(*ns)));
    row
}

/// `66.02: 64 data, 1.02 log, 1 inode`.
fn lines_by_kind(lines: &Lines, units: u64) -> String {
    let total = each(lines.values().sum(), units);
    let parts: Vec<String> = lines.iter().map(|(kind, sum)| format!("{} {}", each(*sum, units), kind.name())).collect();
    if parts.is_empty() { total } else { format!("{total}: {}", parts.join(", ")) }
}

fn notes(report: &Report) -> Vec<String> {
    let by = report.instructions_by.iter().map(|tool| format!("Instructions: {tool}."));
    by.chain(report.left_out.iter().map(|why| format!("Left out: {why}."))).collect()
}
