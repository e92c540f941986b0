//! The table as data: its JSON, and the differences between two of them.

use super::measure::{CALLS, Cell};
use crate::experiment;
use crate::{Doing, LabError, Result};
use nvfold_bench::origin;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Version of the JSON; a new field does not change it.
pub(super) const VERSION: u32 = 1;
/// Its file name in a folder of results.
pub(super) const JSON: &str = "cost.json";

/// The table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this schema.
    pub version: u32,
    /// The command that makes the table.
    pub command: String,
    /// The commit, if it is known.
    pub commit: Option<String>,
    /// Number of calls summed in each cell.
    pub calls: u64,
    /// The tool that counted the instructions.
    pub instructions_by: Option<String>,
    /// What could not be measured here, and why.
    pub left_out: Vec<String>,
    /// The cells.
    pub cells: Vec<Cell>,
}

impl Report {
    /// Makes a report of these cells.
    pub fn new(cells: Vec<Cell>) -> Report {
        Report {
            version: VERSION,
            command: experiment::command(),
            commit: origin::commit(),
            calls: CALLS as u64,
            instructions_by: None,
            left_out: Vec::new(),
            cells,
        }
    }

    /// Returns the report in a file.
    pub fn load(file: &Path) -> Result<Report> {
        let text = std::fs::read_to_string(file).doing(format!("read {}", file.display()))?;
        Report::parse(&text).map_err(|why| LabError::Stale { file: file.display().to_string(), why })
    }

    /// Returns the report in a text.
    pub fn parse(text: &str) -> std::result::Result<Report, String> {
        let report: Report = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if report.version != VERSION {
            return Err(format!("format version {}, this nvfold reads {VERSION}", report.version));
        }
        Ok(report)
    }

    /// Formats it as JSON, one cell per line, so that a review shows each change.
    pub fn json(&self) -> String {
        let head = Report { cells: Vec::new(), ..self.clone() };
        let head = serde_json::to_string_pretty(&head).expect("numbers and strings have a JSON form");
        let cell = |cell: &Cell| "    ".to_owned() + &serde_json::to_string(cell).expect("a cell has one");
        let cells: Vec<String> = self.cells.iter().map(cell).collect();
        let cells = if cells.is_empty() { "[]".into() } else { format!("[\n{}\n  ]", cells.join(",\n")) };
        head.replace("\"cells\": []", &format!("\"cells\": {cells}")) + "\n"
    }

    /// Returns the differences to `now`, cell by cell: in fences, lines and locked instructions, which do not depend
    /// on the machine.
    pub fn differences(&self, now: &Report) -> Vec<String> {
        let (old, new) = (by_name(&self.cells), by_name(&now.cells));
        let mut told = Vec::new();
        for (name, cell) in &old {
            match new.get(name) {
                Some(new) => told.extend(changes(cell, new).into_iter().map(|change| format!("{name}: {change}"))),
                None => told.push(format!("{name}: is no longer measured")),
            }
        }
        told.extend(new.keys().filter(|name| !old.contains_key(*name)).map(|name| format!("{name}: is new")));
        told
    }
}

fn by_name(cells: &[Cell]) -> BTreeMap<String, &Cell> {
    let name = |cell: &Cell| format!("{} | {} | {}", cell.operation, cell.policy, cell.index);
    cells.iter().map(|cell| (name(cell), cell)).collect()
}

/// Returns the changes from one cell to the same one of another run.
fn changes(old: &Cell, new: &Cell) -> Vec<String> {
    let (old_values, new_values) = (values(old), values(new));
    let names: std::collections::BTreeSet<&String> = old_values.keys().chain(new_values.keys()).collect();
    let of = |values: &BTreeMap<String, u64>, name| values.get(name).copied().unwrap_or(0);
    let pairs = names.into_iter().map(|name| (name, of(&old_values, name), of(&new_values, name)));
    let changed = pairs.filter(|(_, old, new)| old != new);
    changed.map(|(name, was, is)| format!("{name} {} -> {}", each(was, old.units), each(is, new.units))).collect()
}

/// Returns the compared values of a cell, by name.
fn values(cell: &Cell) -> BTreeMap<String, u64> {
    let written = cell.written.iter().map(|(kind, lines)| (format!("lines written, {}", kind.name()), *lines));
    let read = cell.read.iter().map(|(kind, lines)| (format!("lines read, {}", kind.name()), *lines));
    let rest = [("calls or blocks", cell.units), ("fences", cell.fences), ("locked", cell.locked)];
    written.chain(read).chain(rest.map(|(name, value)| (name.to_owned(), value))).collect()
}

/// Returns a sum per call or block, with up to two decimals and without trailing zeros.
pub(super) fn each(sum: u64, units: u64) -> String {
    let text = format!("{:.2}", sum as f64 / units as f64);
    text.trim_end_matches('0').trim_end_matches('.').into()
}

#[cfg(test)]
mod tests {
    use super::super::kinds::Kind;
    use super::*;

    fn cell(fences: u64, log: u64) -> Cell {
        Cell {
            operation: "create".into(),
            policy: "off".into(),
            index: "dram".into(),
            units: 64,
            fences,
            written: [(Kind::Log, log), (Kind::Inode, 64)].into(),
            read: [(Kind::Inode, 32)].into(),
            locked: 640,
            instructions: Some(7),
            charged_ns: BTreeMap::new(),
        }
    }

    #[test]
    fn a_changed_cost_is_reported_for_each_cell() {
        let old = Report::new(vec![cell(128, 66)]);
        assert_eq!(old.differences(&old), Vec::<String>::new());
        let slower = Report::new(vec![Cell { instructions: Some(8), ..cell(192, 64) }]);
        let told = old.differences(&slower);
        assert_eq!(told, ["create | off | dram: fences 2 -> 3", "create | off | dram: lines written, log 1.03 -> 1"]);
        let other = Report::new(vec![Cell { policy: "inline".into(), ..cell(128, 66) }]);
        assert_eq!(old.differences(&other).len(), 2);
    }

    #[test]
    fn a_cost_report_survives_a_round_trip_through_json() {
        let report = Report::new(vec![cell(128, 66)]);
        assert_eq!(Report::parse(&report.json()), Ok(report.clone()));
        let newer = Report { version: VERSION + 1, ..report };
        assert!(Report::parse(&newer.json()).unwrap_err().contains("version"));
    }

    #[test]
    fn cost_figures_have_at_most_two_decimals() {
        assert_eq!(
            (each(0, 64), each(640, 64), each(65, 64), each(96, 64)),
            ("0".into(), "10".into(), "1.02".into(), "1.5".into())
        );
    }
}
