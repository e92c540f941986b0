//! The report as a table and as Markdown.

use super::load::{BACKGROUND_EVERY_BYTES, LARGE_BYTES, SMALL_BYTES};
use super::{Latency, Report, Run};
use comfy_table::{Table, presets};
use std::fmt::Write;

const HEAD: [&str; 10] = [
    "live",
    "background",
    "MB/s",
    "slowest part",
    "64 KiB, p50 / p99 / max us",
    "16 KiB, p50 / p99 / max us",
    "moved per byte written",
    "theory",
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
pub(super) fn table(report: &Report) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(HEAD);
    report.runs.iter().for_each(|run| {
        table.add_row(cells(run));
    });
    let text = format!("{}\n{table}", report.head.heading());
    text.lines().map(str::trim_end).collect::<Vec<&str>>().join("\n")
}

/// Formats the page for docs/results/reclaim.
pub(super) fn markdown(report: &Report) -> String {
    let Report { device_bytes, fulls, parts, .. } = report;
    let (device, large, small) = (device_bytes >> 20, LARGE_BYTES >> 10, SMALL_BYTES >> 10);
    let mut text = format!(
        "# Reclamation\n\nMade by {}.\n\n\
         The device is {device} MiB of memory; policy `deext`, one thread. It is filled with large files (1 MiB) and small files\n\
         ({small} KiB). Four fifths of the bytes are in large files, and half of each kind is compressible. Filling stops when\n\
         live data takes the given share of the usable space (the live bytes plus what `df` reports as available). Then\n\
         pieces are drawn at random and overwritten: {large} KiB of a large file, or a whole small file. The device's size is\n\
         written once before anything is measured, and {fulls} times after that. No content is written twice. At the end every\n\
         file is read back and compared, and fsck finds nothing.\n\n\
         *Background*: after every {} MiB, between writes, the thread does what a mount's threads do every second, until\n\
         nothing worthwhile is left. Seams are cut again. Segments are emptied if at most a quarter of their bytes is live.\n\
         The limit is half if nothing in the segment died since the last round, and three quarters on a nearly full device.\n\
         This time counts in MB/s, not in the latency of writes. Without the background, only a write that finds no space\n\
         makes space.\n\n\
         All times are processor time of the one thread, so other programs on the machine do not count. The wall-clock\n\
         table below includes them. MB/s: median of {parts} equal parts of the run, plus or minus half of their interquartile\n\
         range. *Moved per byte written*: bytes of chunks that reclamation copied, for each byte written. *Theory*: the same\n\
         for a log that always empties its oldest segment next. ENOSPC: refused writes. Live data always fits, so the\n\
         command fails if a write is refused.\n\n",
        report.head.marked_heading(),
        BACKGROUND_EVERY_BYTES >> 20,
    );
    let mut line = |line: String| writeln!(text, "{line}").expect("a string takes it");
    line(format!("| {} |\n|{}", HEAD.join(" | "), "---|".repeat(HEAD.len())));
    report.runs.iter().for_each(|run| line(format!("| {} |", cells(run).join(" | "))));
    line("\nOther figures:\n".into());
    line(
        "| live | background | live, MB | available, MB | dead after two idle rounds, MB | MB/s, writes alone | \
         last / first part | segments emptied | media bytes per byte written | max in blocks, MB |"
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
    line("\nBy the wall clock:\n".into());
    line("| live | background | MB/s | 64 KiB, p50 / p99 / max us | 16 KiB, p50 / p99 / max us |".into());
    line(format!("|{}", "---|".repeat(5)));
    for run in &report.runs {
        let [live, background, ..] = cells(run);
        let (large, small) = (latency(&run.large_write_wall), latency(&run.small_write_wall));
        line(format!("| {live} | {background} | {:.0} | {large} | {small} |", run.megabytes_per_second_wall));
    }
    text
}
