//! The report: a table for people, JSON with a version.

use crate::origin::{command, commit, heading};
use crate::samples::median;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// One line of the report.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// Name of the target.
    pub name: String,
    /// Bytes per call, or the operation's name in `meta`.
    pub unit: String,
    /// Threads.
    pub threads: u64,
    /// Share of duplicate blocks in the data, percent.
    pub duplicates_percent: u64,
    /// Calls per second, median.
    pub operations_per_second: f64,
    /// Bytes per second, median (0 for `meta`).
    pub bytes_per_second: f64,
    /// Fastest pass, seconds.
    pub seconds_min: f64,
    /// Median pass, seconds.
    pub seconds_median: f64,
    /// Slowest pass, seconds.
    pub seconds_max: f64,
    /// Ratio to the base row of the same group.
    pub ratio: f64,
}

impl Row {
    /// Makes a throughput row; `base` is the raw limit's median in seconds.
    pub(crate) fn new(
        name: &str,
        block: u64,
        threads: u64,
        percent: u64,
        bytes: f64,
        seconds: &[f64],
        base: f64,
    ) -> Row {
        let calls = bytes / block as f64;
        let row = Row::operations(name, &format!("{} KiB", block / 1024), threads, calls, seconds, base);
        Row { duplicates_percent: percent, bytes_per_second: bytes / row.seconds_median, ..row }
    }

    /// Makes a row of operations per second.
    pub(crate) fn operations(name: &str, unit: &str, threads: u64, operations: f64, seconds: &[f64], base: f64) -> Row {
        let middle = median(seconds);
        Row {
            name: name.into(),
            unit: unit.into(),
            threads,
            duplicates_percent: 0,
            operations_per_second: operations / middle,
            bytes_per_second: 0.0,
            seconds_min: seconds.iter().copied().fold(f64::INFINITY, f64::min),
            seconds_median: middle,
            seconds_max: seconds.iter().copied().fold(0.0, f64::max),
            ratio: base / middle,
        }
    }
}

/// All rows of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Version of this schema.
    pub version: u32,
    /// Name of the benchmark.
    pub benchmark: String,
    /// The command that makes these figures.
    pub command: String,
    /// The commit, if it is known.
    pub commit: Option<String>,
    /// The base of `ratio`.
    pub ratio_to: String,
    /// What could not be measured here, and why.
    pub left_out: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Report {
    /// Makes an empty report.
    pub(crate) fn new(benchmark: &str, ratio_to: &str) -> Report {
        Report {
            version: 1,
            benchmark: benchmark.into(),
            command: command("nvfold"),
            commit: commit(),
            ratio_to: ratio_to.into(),
            left_out: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Records what is left out, each reason once.
    pub(crate) fn leave_out(&mut self, reasons: &[String]) {
        for why in reasons {
            if !self.left_out.contains(why) {
                self.left_out.push(why.clone());
            }
        }
    }

    /// Formats it as JSON.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings have a JSON form")
    }

    /// Formats it as a table.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["", "unit", "threads", "op/s", "MB/s", "min ms", "median ms", "max ms", "ratio"]);
        for row in &self.rows {
            let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
            let rate =
                if row.bytes_per_second > 0.0 { format!("{:.0}", row.bytes_per_second / 1e6) } else { "-".into() };
            table.add_row([
                row.name.clone(),
                row.unit.clone(),
                row.threads.to_string(),
                format!("{:.0}", row.operations_per_second),
                rate,
                ms(row.seconds_min),
                ms(row.seconds_median),
                ms(row.seconds_max),
                format!("{:.2}", row.ratio),
            ]);
        }
        for column in 2..9 {
            table.column_mut(column).expect("nine columns").set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!("{} ({})\n{table}", heading(&self.command, self.commit.as_deref()), self.ratio_to);
        self.left_out.iter().for_each(|why| text.push_str(&format!("\nleft out: {why}")));
        text
    }
}
