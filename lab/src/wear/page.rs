//! The report as a table and as Markdown.

use super::load::STEPS_EVERY;
use super::{Report, Run};
use comfy_table::{Table, presets};
use std::fmt::Write;

/// Aim for the ratio of the maximum to the mean of data segments.
const AIM: f64 = 1.3;

const HEAD: [&str; 8] = [
    "overwrites",
    "wear levelling",
    "segments, max / mean",
    "hottest data line",
    "hottest line of all",
    "its structure",
    "lifetime, data lines",
    "lifetime, all lines",
];

fn cells(run: &Run) -> [String; 8] {
    let fulls = |fulls: Option<f64>| fulls.map_or("-".into(), |fulls| format!("{fulls:.1e} fulls"));
    let times = |writes: u32| format!("{writes} ({:.1} x mean)", f64::from(writes) / run.pools.mean);
    let hottest = run.kinds.iter().max_by_key(|kind| kind.hottest).expect("there are kinds");
    [
        run.pattern.name().into(),
        levelling(run).into(),
        format!("{:.3}", run.pools.most_to_mean),
        times(run.pools.hottest_line),
        times(hottest.hottest),
        hottest.name.into(),
        fulls(run.lifetime_fulls_data),
        fulls(run.lifetime_fulls),
    ]
}

fn levelling(run: &Run) -> &'static str {
    if run.levelled { "with" } else { "without" }
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

/// Formats the page for docs/results/wear.
pub(super) fn markdown(report: &Report) -> String {
    let Report { device_bytes, files, file_bytes, fulls, profile, .. } = report;
    let (device, file) = (device_bytes >> 20, file_bytes >> 10);
    let share = *files as u64 * file_bytes * 100 / device_bytes;
    let met = report.runs.iter().filter(|run| run.levelled && run.pools.most_to_mean <= AIM).count();
    let levelled = report.runs.iter().filter(|run| run.levelled).count();
    let mut text = format!(
        "# Wear\n\nMade by {}.\n\n\
         The device is {device} MiB of memory with profile {profile} and policy `deext`. It holds {files} files of {file} KiB,\n\
         which take {share} % of it; every other file is compressible. Whole files are overwritten until {fulls} times the\n\
         size of the device has been written. No content is written twice. After every {STEPS_EVERY} overwrites, segments are\n\
         emptied, as a mount does in the background. Every line of the device has a write counter. *Without* wear levelling,\n\
         the first free segment becomes the next pool. Lifetime: how many times the device can be overwritten (*fulls*)\n\
         before the hottest line reaches the endurance that the profile gives a cell.\n\n\
         Aim: no data segment is worn more than {AIM} times the mean. Met in {met} of {levelled} rows with wear levelling.\n\n",
        report.head.marked_heading(),
    );
    writeln!(text, "| {} |\n|{}", HEAD.join(" | "), "---|".repeat(HEAD.len())).expect("a string takes it");
    report.runs.iter().for_each(|run| writeln!(text, "| {} |", cells(run).join(" | ")).expect("a string takes it"));
    text.push_str(WHY_HOTTER);
    report.runs.iter().for_each(|run| section(&mut text, run));
    text
}

const WHY_HOTTER: &str = "
Lines of metadata may be written more often than lines of data. How each structure is written:

- *TX_ID generators*: each transaction ends with a write to one of 16 lines. The lines take turns, 4,096 transactions
  each, so they wear evenly. A device of any size has 16 of them. Filling a device once with writes of 64 KiB
  writes each generator once per MiB of the device. More generators would need a new format.
- *journal*: switching to a rewritten log uses one of 128 slots of two lines each. The slots take turns.
- *inode table*: each change of a file writes its commit word, which never moves. With Zipf's law, one file gets an
  eighth of all writes.
- *segment table*: four segments share a line. Each is marked when it is opened, and again when it is free.
- *headers of packed chunks*: four headers share a line. Each is made durable together with its chunk.
- *packed entries*: an entry is written when its chunk is stored and when it is dropped. Entries take turns.

Before they took turns, the hottest TX_ID generator had 2,846 times the writes of a mean line of data. The hottest line
of the journal had 112 times, and the hottest packed entry 39 times (uniform overwrites of files that took 5 % of the
device).
";

fn section(text: &mut String, run: &Run) {
    let energy = run.joules.map_or(String::new(), |joules| format!(", {joules:.1} J"));
    write!(
        text,
        "\n## {}, {} wear levelling\n\n\
         {} data segments. Their lines were written {:.1} times on average. Segments were opened at most {} times,\n\
         {:.1} times on average. Writing {:.1} GB to files wrote {:.1} GB of lines ({:.1} s charged{energy}).\n\
         At most {:.1} MB of file data was in blocks because no segment was free.\n\n\
         | structure | fixed place | lines | mean writes per line | hottest line | hottest / mean of data |\n\
         |---|---|---|---|---|---|\n",
        run.pattern.name(),
        levelling(run),
        run.pools.segments,
        run.pools.mean,
        run.opened_max,
        run.opened_mean,
        run.written_bytes as f64 / 1e9,
        (run.lines_written * pmem::LINE_BYTES) as f64 / 1e9,
        run.charged_seconds,
        run.in_blocks_max_bytes as f64 / 1e6,
    )
    .expect("a string takes it");
    for kind in &run.kinds {
        let mean = kind.writes as f64 / kind.lines.max(1) as f64;
        let fixed = if kind.is_fixed { "yes" } else { "no" };
        let (name, lines, hottest) = (kind.name, kind.lines, kind.hottest);
        writeln!(text, "| {name} | {fixed} | {lines} | {mean:.1} | {hottest} | {:.1} |", kind.hottest_to_mean)
            .expect("a string takes it");
    }
}
