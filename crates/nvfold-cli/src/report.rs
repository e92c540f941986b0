//! Output of a command on stdout: a table, or JSON with a version.

use crate::failure::{Doing, Outcome};
use crate::text::escaped;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Returns the version of a command's JSON report. It changes if a field is removed or changes its meaning, but not
/// if a field is added.
pub(crate) fn version_of(command: &str) -> u32 {
    match command {
        // Version 2 has one baseline for all policies.
        "estimate" => 2,
        // Version 2 subtracts dead bytes from what is saved, and what is reserved from the metadata.
        "df" | "stats" | "dedup-stats" | "top" => 2,
        _ => 1,
    }
}

#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u32,
    command: &'a str,
    #[serde(flatten)]
    body: &'a T,
}

/// Formats a report as JSON.
pub(crate) fn json(command: &str, body: &impl Serialize) -> Outcome<String> {
    serde_json::to_string_pretty(&Versioned { version: version_of(command), command, body }).doing("write the report")
}

/// Formats a report as JSON in one line, for a stream of reports.
pub(crate) fn json_line(command: &str, body: &impl Serialize) -> Outcome<String> {
    serde_json::to_string(&Versioned { version: version_of(command), command, body }).doing("write the report")
}

/// Prints a report: as JSON if `as_json`, else as `text`.
pub(crate) fn emit(as_json: bool, command: &str, body: &impl Serialize, text: impl FnOnce() -> String) -> Outcome<()> {
    let report = if as_json { json(command, body)? } else { text() };
    print(&report)
}

/// Prints text and a newline. A closed pipe (`| head`) ends the output, but not the command.
pub(crate) fn print(text: &str) -> Outcome<()> {
    print_to_reader(text).map(|_| ())
}

/// As `print`; returns false if the pipe was closed.
pub(crate) fn print_to_reader(text: &str) -> Outcome<bool> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).doing("write to stdout"),
    }
}

/// Formats a table without lines. The first column is aligned left, all others right.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    for row in rows {
        table.add_row(row.iter().map(|cell| escaped(cell)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    trim_lines(&table.to_string())
}

/// Formats facts, one in a line: its name, then its value.
pub(crate) fn facts(rows: &[(&str, String)]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for (name, value) in rows {
        table.add_row([*name, &escaped(value)]);
    }
    trim_lines(&table.to_string())
}

fn trim_lines(text: &str) -> String {
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Formats a part as a percentage of `whole`, such as `12.3 %`; 0 if `whole` is 0.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    format!("{share:.1} %")
}
