//! The ratios of a report as Markdown: the tables of docs/benchmarks.md.
//!
//! A table has a line per target and a column per unit and number of threads. Mounted targets are compared with their
//! upper limit: in `write` and `read` that is the FUSE ceiling, written or read in the same way.

use crate::report::{Report, Row};
use std::fmt::Write;

const MOUNTED: &str = "mounted ";
const CEILING: &str = "mounted FUSE ceiling";

/// Returns the tables.
pub(crate) fn markdown(report: &Report) -> String {
    let commit = report.commit.as_ref().map_or("An unknown commit".into(), |commit| format!("Commit {commit}"));
    let mut text = String::new();
    let (mounted, others): (Vec<&Row>, Vec<&Row>) =
        report.rows.iter().partition(|row| row.name.starts_with(MOUNTED) && report.benchmark != "meta");
    write!(text, "{commit}, {}:\n\n", report.ratio_to).expect("a string takes it");
    text.push_str(&table(&others, |row| Some(row.ratio)));
    if !mounted.is_empty() {
        write!(text, "\n{commit}, ratio to the FUSE ceiling:\n\n").expect("a string takes it");
        text.push_str(&table(&mounted, |row| to_ceiling(row, &mounted)));
    }
    report.left_out.iter().for_each(|why| writeln!(text, "\nLeft out: {why}").expect("a string takes it"));
    text
}

/// Returns a table of the rows, in their order; a cell without a ratio has a dash.
fn table(rows: &[&Row], ratio: impl Fn(&Row) -> Option<f64>) -> String {
    let (mut names, mut columns): (Vec<&str>, Vec<String>) = (Vec::new(), Vec::new());
    for row in rows {
        if !names.contains(&&*row.name) {
            names.push(&row.name);
        }
        if !columns.contains(&column(row)) {
            columns.push(column(row));
        }
    }
    let mut text = format!("| | {} |\n|---|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for name in names {
        let cell = |wanted: &String| {
            let row = rows.iter().find(|row| row.name == name && column(row) == *wanted);
            row.and_then(|row| ratio(row)).map_or("-".into(), |ratio| format!("{ratio:.2}"))
        };
        let cells: Vec<String> = columns.iter().map(cell).collect();
        writeln!(text, "| {name} | {} |", cells.join(" | ")).expect("a string takes it");
    }
    text
}

fn column(row: &Row) -> String {
    let plural = if row.threads == 1 { "" } else { "s" };
    format!("{}, {} thread{plural}", row.unit, row.threads)
}

/// Returns the ratio to the ceiling's row of the same access, unit and number of threads, if it was measured.
fn to_ceiling(row: &Row, mounted: &[&Row]) -> Option<f64> {
    let access = row.name.find(", ").map_or("", |at| &row.name[at..]);
    let name = format!("{CEILING}{access}");
    let base = mounted.iter().find(|base| base.name == name && column(base) == column(row))?;
    Some(base.seconds_median / row.seconds_median)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(benchmark: &str, rows: &[(&str, &str, u64, f64)]) -> Report {
        let mut report = Report::new(benchmark, "ratio to the base");
        report.commit = Some("abc".into());
        let row = |(name, unit, threads, seconds): &(&str, &str, u64, f64)| {
            Row::operations(name, unit, *threads, 1.0, &[*seconds], 1.0)
        };
        report.rows = rows.iter().map(row).collect();
        report
    }

    #[test]
    fn mounts_are_compared_with_the_fuse_ceiling() {
        let rows = [
            ("raw limit", "4 KiB", 1, 1.0),
            ("tmpfs", "4 KiB", 1, 2.0),
            ("mounted nvfold off, fsync at the end", "4 KiB", 1, 8.0),
            ("mounted FUSE ceiling, fsync at the end", "4 KiB", 1, 4.0),
            ("mounted nvfold off, O_DIRECT", "4 KiB", 1, 8.0),
            ("mounted FUSE ceiling, fsync at the end", "4 KiB", 2, 3.0),
        ];
        let expected = "\
            Commit abc, ratio to the base:\n\n| | 4 KiB, 1 thread |\n|---|---|\n| raw limit | 1.00 |\n| tmpfs | 0.50 |\n\
            \nCommit abc, ratio to the FUSE ceiling:\n\n| | 4 KiB, 1 thread | 4 KiB, 2 threads |\n|---|---|---|\n\
            | mounted nvfold off, fsync at the end | 0.50 | - |\n\
            | mounted FUSE ceiling, fsync at the end | 1.00 | 1.00 |\n\
            | mounted nvfold off, O_DIRECT | - | - |\n";
        assert_eq!(markdown(&report("write", &rows)), expected);
    }

    #[test]
    fn the_meta_summary_has_one_baseline_and_one_table() {
        let mut report = report("meta", &[("tmpfs", "stat", 1, 1.0), ("mounted xfs", "stat", 1, 4.0)]);
        report.leave_out(&["mounted ext4: no mkfs".into()]);
        let expected = "Commit abc, ratio to the base:\n\n| | stat, 1 thread |\n|---|---|\n| tmpfs | 1.00 |\n\
                        | mounted xfs | 0.25 |\n\nLeft out: mounted ext4: no mkfs\n";
        assert_eq!(markdown(&report), expected);
    }
}
