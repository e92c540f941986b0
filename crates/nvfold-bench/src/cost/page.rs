//! The report as tables: for the terminal, and as a Markdown page.

use super::kinds::Lines;
use super::measure::Cell;
use super::operation::Operation;
use super::report::{JSON, Report, each};
use crate::origin::heading;
use comfy_table::{Table, presets};
use std::fmt::Write;

/// The text of the page before its tables.
const INTRODUCTION: &str = "\
# What an operation costs

This page and the JSON beside it are written by the command below; do not edit them. A test (`tests/tests/cost.rs`)
measures fences, lines and locked instructions anew and compares them with the JSON: a change that adds a flush, a read
or a lock fails it, names the cell, and is committed together with the new numbers or not at all.

**How to read it.** One table an operation; policies and indexes with the same figures share a row. Every figure is the
sum over the measured calls divided by their number, after a few calls that are not measured, so what an operation does
only now and then (a new log page, a new segment) shows as a fraction. Daemons are measured by the block. One thread, a
fixed clock, fixed content; every cell has a fresh device in memory.

- **fences**: `sfence` instructions.
- **lines written**: 64-byte lines flushed or streamed, and what for. *data*: bytes of files; *log*: log pages; *entry*:
  chunk table, with the lists of the pm index; *index*: heads of the chains of the pm index; *generator*: TX_IDs;
  *inode*: inode slots, with the five log lines that each has; *other*: superblocks, journal, segment table.
- **lines read**: likewise, those that are fetched from the media. A small model of the processor's cache decides which
  are (`pmem`, module `cache`); nothing of the operation's own lines is in it before the calls.
- **locked**: locked instructions of locks and atomics in DRAM and of compare-and-exchanges on media, about 20 cycles
  each without contention. Reference counts of `Arc` are not counted.
- **instructions**: counted by callgrind on the memory as it is. Valgrind's processor has neither AVX-512 nor SHA
  extensions nor `clwb`, so these are the instructions of the AVX2 paths. They move with the compiler.
- **ns**: what each emulated device charges for the lines, reads and fences above, in nanoseconds.

*private* data is named by one file only, *shared* data by two. *duplicate* data is stored in one other file. Policy
`denova, immediate` shares nothing while it writes; its daemon does, and has tables of its own.
";

/// Returns every table under the name of its operation.
pub fn terminal(report: &Report) -> String {
    let mut text = heading(&report.command, report.commit.as_deref());
    for (operation, cells) in by_operation(report) {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(columns(report));
        table.add_rows(rows(&cells, report));
        write!(text, "\n\n{}\n{table}", title(operation)).expect("a string takes it");
    }
    notes(report).iter().for_each(|note| write!(text, "\n\n{note}").expect("a string takes it"));
    text
}

/// Returns the page that accompanies the JSON.
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
        for row in rows(&cells, report) {
            writeln!(text, "| {} |", row.join(" | ")).expect("a string takes it");
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

/// Returns the rows of an operation. Cells with the same figures share a row, at the place of the first of them.
fn rows(cells: &[&Cell], report: &Report) -> Vec<Vec<String>> {
    // Figures and indexes of each policy, then the policies with the same.
    let mut policies: Vec<(&str, Vec<(Vec<String>, Vec<&str>)>)> = Vec::new();
    for cell in cells {
        let figures = figures(cell, report);
        let at = policies.iter().position(|(policy, _)| *policy == cell.policy).unwrap_or(policies.len());
        if at == policies.len() {
            policies.push((&cell.policy, Vec::new()));
        }
        let of_policy = &mut policies[at].1;
        match of_policy.iter_mut().find(|(known, _)| *known == figures) {
            Some((_, indexes)) => indexes.push(&cell.index),
            None => of_policy.push((figures, vec![&cell.index])),
        }
    }
    let mut rows: Vec<(Vec<&str>, Vec<&str>, Vec<String>)> = Vec::new();
    for (policy, of_policy) in policies {
        for (figures, indexes) in of_policy {
            let same = rows.iter_mut().find(|(_, known, of_row)| *known == indexes && *of_row == figures);
            match same {
                Some((names, ..)) => names.push(policy),
                None => rows.push((vec![policy], indexes, figures)),
            }
        }
    }
    let row = |(policies, indexes, figures): (Vec<&str>, Vec<&str>, Vec<String>)| {
        [vec![policies.join("; "), indexes.join(", ")], figures].concat()
    };
    rows.into_iter().map(row).collect()
}

fn figures(cell: &Cell, report: &Report) -> Vec<String> {
    let mut row = vec![each(cell.fences, cell.units)];
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
