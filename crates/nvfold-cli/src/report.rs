//! What a command prints on stdout: a table for people, or JSON with a version for programs.

use crate::failure::{Doing, Outcome};
use crate::text::escaped;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Returns the version of the JSON report of a command. It changes when a field changes its meaning or goes away, not with a new one.
pub fn version_of(command: &str) -> u32 {
    match command {
        // 2: one baseline for all policies.
        "estimate" => 2,
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

/// Returns the JSON of a report.
pub fn json(command: &str, body: &impl Serialize) -> Outcome<String> {
    serde_json::to_string_pretty(&Versioned { version: version_of(command), command, body }).doing("write the report")
}

/// The same in one line, for a stream of reports.
pub fn json_line(command: &str, body: &impl Serialize) -> Outcome<String> {
    serde_json::to_string(&Versioned { version: version_of(command), command, body }).doing("write the report")
}

/// Prints a report: JSON when asked for, else `text`.
pub fn emit(as_json: bool, command: &str, body: &impl Serialize, text: impl FnOnce() -> String) -> Outcome<()> {
    let report = if as_json { json(command, body)? } else { text() };
    print(&report)
}

/// Prints text and a newline. A reader that went away (`| head`) ends the output, not the command.
pub fn print(text: &str) -> Outcome<()> {
    print_to_reader(text).map(|_| ())
}

/// Does as `print`; false when the reader went away.
pub fn print_to_reader(text: &str) -> Outcome<bool> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).doing("write to stdout"),
    }
}

/// A table without lines: the first column to the left, numbers to the right.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
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

/// Facts, one a line: name, then value.
pub fn facts(rows: &[(&str, String)]) -> String {
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

/// `12.3 %` of `whole`; 0 of nothing is 0.
pub fn percent(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    format!("{share:.1} %")
}
