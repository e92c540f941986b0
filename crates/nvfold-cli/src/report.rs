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

/// Prints that work is done, as [`emit`] does, but nothing if the command is to be quiet.
pub(crate) fn emit_done(
    as_json: bool,
    quiet: bool,
    command: &str,
    body: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Outcome<()> {
    if quiet && !as_json { Ok(()) } else { emit(as_json, command, body, text) }
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

/// Formats a table without lines. The first column is aligned left, all others right. On a terminal that is too narrow for
/// the table, each row becomes a paragraph with a line for each column.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let escape = |row: Vec<String>| -> Vec<String> { row.iter().map(|cell| escaped(cell)).collect() };
    let rows: Vec<Vec<String>> = rows.into_iter().map(escape).collect();
    let wide = wide_table(header, &rows);
    match terminal_columns() {
        Some(columns) if !fits(&wide, columns) => {
            let paragraph = |row: &Vec<String>| {
                lines_of(header.iter().zip(row).map(|(name, cell)| (*name, cell.as_str())), columns)
            };
            rows.iter().map(paragraph).collect::<Vec<_>>().join("\n\n")
        }
        _ => wide,
    }
}

fn wide_table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    trim_lines(&table.to_string())
}

/// Formats facts, one in a line: its name, then its value. On a terminal that is too narrow, a long value has lines of its
/// own.
pub(crate) fn facts(rows: &[(&str, String)]) -> String {
    let rows: Vec<(&str, String)> = rows.iter().map(|(name, value)| (*name, escaped(value))).collect();
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for (name, value) in &rows {
        table.add_row([*name, value]);
    }
    let wide = trim_lines(&table.to_string());
    match terminal_columns() {
        Some(columns) if !fits(&wide, columns) => {
            lines_of(rows.iter().map(|(name, value)| (*name, value.as_str())), columns)
        }
        _ => wide,
    }
}

/// Returns the columns of the terminal to which stdout leads; `None` if it leads elsewhere.
fn terminal_columns() -> Option<usize> {
    terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| usize::from(width.0)).filter(|width| *width > 0)
}

fn fits(text: &str, columns: usize) -> bool {
    text.lines().all(|line| line.chars().count() <= columns)
}

/// Formats names and values for few columns: the values below each other if they have room, those that do not in lines of
/// their own.
fn lines_of<'r>(rows: impl Iterator<Item = (&'r str, &'r str)>, columns: usize) -> String {
    const INDENT: usize = 2;
    let rows: Vec<_> = rows.collect();
    // Names take half of the columns at most: a longer one stands alone.
    let names = rows.iter().map(|(name, _)| name.chars().count()).filter(|length| *length <= columns / 2).max();
    let names = names.unwrap_or(0);
    let mut lines = Vec::new();
    for (name, value) in rows {
        if name.chars().count() <= names && names + INDENT + value.chars().count() <= columns {
            lines.push(format!("{name:names$}{:INDENT$}{value}", ""));
        } else {
            lines.extend(wrapped(name, columns));
            lines.extend(wrapped(value, columns.saturating_sub(INDENT)).iter().map(|line| format!("  {line}")));
        }
    }
    trim_lines(&lines.join("\n"))
}

/// Breaks text into lines of so many characters: between words, and within those that are too long.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut rest: Vec<char> = word.chars().collect();
        let line = lines.last_mut().expect("there is one");
        let used = line.chars().count();
        if used > 0 && used + 1 + rest.len() <= columns {
            line.push(' ');
            line.extend(rest);
            continue;
        }
        if used > 0 {
            lines.push(String::new());
        }
        while rest.len() > columns {
            let after = rest.split_off(columns);
            lines.last_mut().expect("there is one").extend(rest);
            lines.push(String::new());
            rest = after;
        }
        lines.last_mut().expect("there is one").extend(rest);
    }
    lines
}

fn trim_lines(text: &str) -> String {
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Formats a part as a percentage of `whole`, such as `12.3 %`; 0 if `whole` is 0.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    format!("{share:.1} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_columns_hold_every_word_of_names_and_values() {
        let rows = [("size", "8.0 GiB"), ("a name of many words", "1"), ("mounted on", "/a/very/long/path/of/a/mount")];
        assert_eq!(
            lines_of(rows.into_iter(), 20),
            "size        8.0 GiB\na name of many words\n  1\nmounted on\n  /a/very/long/path/\n  of/a/mount"
        );
        for columns in 1..60 {
            let text = lines_of(rows.into_iter(), columns);
            assert!(columns < 3 || fits(&text, columns), "{columns}:\n{text}");
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            let all: String = rows.iter().map(|(name, value)| format!("{name}{value}")).collect();
            assert_eq!(letters(&text), letters(&all), "{columns}");
        }
    }
}
