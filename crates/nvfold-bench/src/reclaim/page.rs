//! The report as a table and as Markdown.

use super::load::{BACKGROUND_EVERY_BYTES, LARGE_BYTES, SMALL_BYTES};
use super::{Latency, Report, Run};
use crate::origin::heading;
use comfy_table::{Table, presets};
use std::fmt::Write;

const HEAD: [&str; 10] = [
    "live",
    "background",
    "MB/s",
    "slowest part",
    "64 KiB, p50 / p99 / max us",
    "16 KiB, p50 / p99 / max us",
    "moved a byte written",
    "by theory",
    "dead at the end, MB",
    "ENOSPC",
];

fn cells(run: &Run) -> [String; 10] {
    [
        format!("{} %", run.live_percent),
        if run.has_background { "yes" } else { "no" }.into(),
        format!("{:.0} +- {:.0}", run.megabytes_per_second, run.megabytes_per_second_middle_half / 2.0),
        format!("{:.0}", run.megabytes_per_second_slowest),
        latency(&run.large_write),
        latency(&run.small_write),
        format!("{:.2}", run.moved_per_written),
        format!("{:.2}", run.moved_per_written_by_theory),
        format!("{:.1}", run.dead_bytes as f64 / 1e6),
        run.no_space.to_string(),
    ]
}

fn latency(of: &Latency) -> String {
    format!("{:.0} / {:.0} / {:.0}", of.p50_us, of.p99_us, of.max_us)
}

/// Formats it for a terminal.
pub fn table(report: &Report) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(HEAD);
    report.runs.iter().for_each(|run| {
        table.add_row(cells(run));
    });
    let text = format!("{}\n{table}", heading(&report.command, report.commit.as_deref()));
    text.lines().map(str::trim_end).collect::<Vec<&str>>().join("\n")
}

/// Formats the page for docs/results/reclaim.
pub fn markdown(report: &Report) -> String {
    let Report { device_bytes, fulls, parts, .. } = report;
    let (device, large, small) = (device_bytes >> 20, LARGE_BYTES >> 10, SMALL_BYTES >> 10);
    let mut text = format!(
        "# Reclamation\n\nMade by `{}`{}.\n\n\
         A device of {device} MiB in memory, policy `deext`, one thread. Large files (1 MiB) and small ones ({small} KiB),\n\
         four fifths of the bytes in large ones, half of each kind compressible, are written until so much of the usable\n\
         space lives: of what they take and what `df` says is available. Then pieces - {large} KiB of a large file, or a\n\
         whole small file - are drawn at random and overwritten: until the device's bytes were written once, before\n\
         anything is measured, and {fulls} times more. No content is written twice. In the end every file was read back\n\
         and compared, and fsck found nothing.\n\n\
         *Background*: after every {} MiB, between writes, the thread does a round of what the threads of a mount do every\n\
         second, until nothing is worth doing: seams are cut anew, and segments are emptied of which a quarter lives, or\n\
         half if nothing of them died since the last round, or three quarters where the device is nearly full. Its time\n\
         counts in MB/s, not in the latency of writes. Without it space is only made by a write that finds none.\n\n\
         All times are the processor's, of the one thread there is: what a write takes on a machine with nothing else to\n\
         do. By the clock, below, a write also takes what other programs got meanwhile. MB/s: median of {parts} equal\n\
         parts of the run, plus or minus half of the width of their middle half. *Moved*: bytes of chunks that\n\
         reclamation copied, for each byte written; *by theory*: the same for a log whose oldest segment is always\n\
         emptied next. ENOSPC: writes that were refused. What lives always fits, so none may be, or the command fails.\n\n",
        report.command,
        report.commit.as_ref().map_or(String::new(), |commit| format!(", commit {commit}")),
        BACKGROUND_EVERY_BYTES >> 20,
    );
    let mut line = |line: String| writeln!(text, "{line}").expect("a string takes it");
    line(format!("| {} |\n|{}", HEAD.join(" | "), "---|".repeat(HEAD.len())));
    report.runs.iter().for_each(|run| line(format!("| {} |", cells(run).join(" | "))));
    line("\nWhat else was counted:\n".into());
    line(
        "| live | background | live, MB | available, MB | dead after two rounds of rest, MB | MB/s, writes alone | \
         last part / first | segments emptied | lines written a byte | in blocks at most, MB |"
            .into(),
    );
    line(format!("|{}", "---|".repeat(10)));
    for run in &report.runs {
        let [live, background, ..] = cells(run);
        let mb = |bytes: u64| bytes as f64 / 1e6;
        line(format!(
            "| {live} | {background} | {:.1} | {:.1} | {:.1} | {:.0} | {:.2} | {} | {:.2} | {:.1} |",
            mb(run.live_bytes),
            mb(run.available_bytes),
            mb(run.dead_after_rest_bytes),
            run.writes_megabytes_per_second,
            run.last_to_first,
            run.segments_emptied,
            run.media_per_written,
            mb(run.in_blocks_max_bytes),
        ));
    }
    line("\nBy the clock:\n".into());
    line("| live | background | MB/s | 64 KiB, p50 / p99 / max us | 16 KiB, p50 / p99 / max us |".into());
    line(format!("|{}", "---|".repeat(5)));
    for run in &report.runs {
        let [live, background, ..] = cells(run);
        let (large, small) = (latency(&run.large_write_wall), latency(&run.small_write_wall));
        line(format!("| {live} | {background} | {:.0} | {large} | {small} |", run.megabytes_per_second_wall));
    }
    text
}
