//! The report as tables: for the terminal, and as a Markdown page.

use super::kinds::Lines;
use super::measure::Cell;
use super::operation::Operation;
use super::report::{JSON, Report, each};
use comfy_table::{Table, presets};
use nvfold_bench::origin::heading;
use std::fmt::Write;

/// The text of the page before its tables.
const INTRODUCTION: &str = "\
# What an operation costs

The command below writes this page and the JSON next to it; do not edit them. A test (`lab/tests/cost.rs`) counts
fences, lines and locked instructions again and compares them with the JSON. A change that adds a flush, a read or a
lock fails the test, which names the cell. Commit such a change together with the new numbers, or not at all.

**How to read it.** There is one table per operation. Policies and indexes with the same figures share a row. Every
figure is the sum over the measured calls divided by their number; a few calls before them are not measured. So work
that an operation does only now and then (a new log page, a new segment) shows as a fraction. For daemons the unit is a
block. Every cell runs one thread, with a fixed clock and fixed content, on a new device in memory.

- **fences**: `sfence` instructions.
- **lines written**: 64-byte lines flushed or streamed, by purpose. *data*: file contents; *log*: log pages; *entry*:
  chunk table, including the lists of the pm index; *index*: heads of the chains of the pm index; *generator*: TX_IDs;
  *inode*: inode slots, including the five log lines in each; *other*: superblocks, journal, segment table.
- **lines read**: 64-byte lines fetched from the media, by the same purposes. A small model of the processor's cache
  decides which lines are fetched (`pmem`, module `cache`). Before the calls it holds none of the operation's own lines.
- **locked**: locked instructions, both of locks and atomics in DRAM and of compare-and-exchanges on the media. Each
  takes about 20 cycles without contention. Reference counts of `Arc` are not counted.
- **instructions**: counted by callgrind on native memory. Valgrind's processor has no AVX-512, no SHA extensions and no
  `clwb`, so these are the instructions of the AVX2 paths. They change with the compiler.
- **ns**: nanoseconds that each emulated device charges for the lines, reads and fences above.

*private* data belongs to one file only, *shared* data to two. *duplicate* data is already stored in one other file.
Policy `denova, immediate` shares nothing while it writes. Its daemon shares later, and has its own tables.
";

/// Returns all tables, each below the name of its operation.
pub(super) fn terminal(report: &Report) -> String {
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
pub(super) fn markdown(report: &Report) -> String {
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
    // First group the indexes of each policy by their figures, then join policies with the same groups.
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
