//! The report in words.

use super::Report;
use super::check::{Check, Confusion};
use std::fmt::Write;

const INTRODUCTION: &str = "\
What each chunker costs and saves, and how often the compressible check is right. Made by `make chunkers`, which fetches\n\
the data: two versions each of Python and Debian packages, as tar files of their contents.\n";

const CONCLUSION: &str = "\
## What follows\n\n\
**Gear is the default**, with a mean length of 8 KiB (`Cutter::default`). `Chunker::lengths` has DeEXT's 16 KiB.\n\n\
- Only Rabin's fingerprint saves more than Gear: a little more, in several times the time. Gear's minimum length is\n  \
three quarters of the mean. Gear reads no byte before it, which makes it fast and costs no savings.\n\
- FastCDC, as published, starts to read earlier, so it is slower, and it saves no more.\n\
- SeqCDC and AE come close to the speed of reading. SeqCDC needs five rising bytes. In data without them (UTF-16, small\n  \
numbers in wide fields) it cuts every 64 KiB and does not find data that moved. Each of AE's cuts depends on the one\n  \
before, so after an insertion it takes long to find its old cuts again. If the chunker is the bottleneck, use SeqCDC.\n\
- Pieces of 8 KiB save more than pieces of 16 KiB, although they have twice as many entries and headers, which are\n  \
counted. Pieces of 4 KiB save more still on this data, but double look-ups and entries again.\n";

/// Formats the page.
pub(super) fn markdown(report: &Report) -> String {
    let command = report.head.marked_heading();
    format!(
        "# Chunkers\n\n{INTRODUCTION}\n![Speed and saving of each chunker](chunkers.svg)\n\n{CONCLUSION}\n{}\n\
         Figures: [chunkers.json](chunkers.json) ({command}).\n",
        tables(report)
    )
}

/// Returns the tables of the page.
pub(super) fn tables(report: &Report) -> String {
    let mut text = String::new();
    speeds(report, &mut text);
    savings(report, &mut text);
    if let Some(check) = &report.check {
        checks(check, report, &mut text);
    }
    text
}

fn speeds(report: &Report, text: &mut String) {
    text.push_str(
        "## Speed\n\nGB of data per second of processor time, and the ratio to reading the same bytes (summing all words) in the same\n\
         run. Figures are medians, with a mean piece of 16 KiB as the target. A chunker does not read the bytes before the\n\
         minimum length, so it may be faster than reading.\n\
         \"4 KiB each\": the data comes in requests of that length. Fixed-size chunkers read no bytes.\n\n| |",
    );
    report.speeds.iter().for_each(|speeds| write!(text, " {} | ratio |", speeds.data).expect("a string takes all"));
    write!(text, "\n|---|{}", "--:|--:|".repeat(report.speeds.len())).expect("a string takes all");
    for (number, first) in report.speeds[0].rows.iter().enumerate() {
        write!(text, "\n| {} |", first.name).expect("a string takes all");
        for row in report.speeds.iter().map(|speeds| &speeds.rows[number]) {
            write!(text, " {:.2} | {:.2} |", row.gigabytes_per_second, row.ratio_to_reading)
                .expect("a string takes all");
        }
    }
    text.push_str("\n\n");
}

fn savings(report: &Report, text: &mut String) {
    text.push_str(
        "## Saving\n\nPercentage of the bytes of both versions that is saved, after deducting 80 bytes (entry and header) for each stored\n\
         piece. In brackets is the mean length of a piece in KiB. Content-defined chunkers have a target mean of 16 KiB, except\n\
         where a row says 4 or 8 KiB.\n\n| | MiB |",
    );
    let chunkers: Vec<&str> = report.savings[0].rows.iter().map(|row| row.chunker).collect();
    chunkers.iter().for_each(|chunker| write!(text, " {chunker} |").expect("a string takes all"));
    write!(text, "\n|---|--:|{}", "--:|".repeat(chunkers.len())).expect("a string takes all");
    for savings in report.savings.iter().chain(&report.savings_by_mean) {
        let mebibytes = savings.bytes as f64 / f64::from(1 << 20);
        write!(text, "\n| {} | {mebibytes:.0} |", savings.data).expect("a string takes all");
        for row in &savings.rows {
            write!(text, " {:.1} ({:.1}) |", row.net_percent, row.mean_bytes / 1024.0).expect("a string takes all");
        }
    }
    text.push_str("\n\n");
}

fn checks(check: &Check, report: &Report, text: &mut String) {
    text.push_str("## Compressible check\n\nNanoseconds per 4 KiB; DeEXT's Table II has 165.\n\n| |");
    report.speeds.iter().for_each(|speeds| write!(text, " {} |", speeds.data).expect("a string takes all"));
    write!(text, "\n|---|{}", "--:|".repeat(report.speeds.len())).expect("a string takes all");
    for (name, row) in [("within a stream", "4 KiB each"), ("at the start of a stream", "a stream each 4 KiB")] {
        write!(text, "\n| {name} |").expect("a string takes all");
        let row = format!("compressible check, {row}");
        for row in report.speeds.iter().flat_map(|speeds| speeds.rows.iter().find(|other| other.name == row)) {
            write!(text, " {:.0} |", 4096.0 / row.gigabytes_per_second).expect("a string takes all");
        }
    }
    write!(
        text,
        "\n\nlz4 itself took {:.0} ns on the files below: up to 20 pieces of 16 KiB from each of {} files. A piece counts as\n\
         compressible if lz4 saves an eighth of it: saving less does not pay for decompressing it at each read.\n\n\
         | | pieces | compressible: right | missed | incompressible: right | false alarms | lz4's savings missed |\n\
         |---|--:|--:|--:|--:|--:|--:|",
        check.lz4_ns_per_4k, check.files
    )
    .expect("a string takes all");
    confusion("each piece alone", &check.alone, text);
    confusion("pieces of a file as one stream", &check.in_stream, text);
    check.kinds.iter().for_each(|(kind, row)| confusion(&format!("alone, {kind}"), row, text));
    text.push('\n');
}

fn confusion(name: &str, row: &Confusion, text: &mut String) {
    let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    let (compressible, incompressible) = (row.compressible + row.missed, row.incompressible + row.false_alarms);
    let cell =
        |part: u64, whole: u64| if whole == 0 { "-".into() } else { format!("{part} ({:.1} %)", share(part, whole)) };
    write!(
        text,
        "\n| {name} | {} | {} | {} | {} | {} | {:.2} % |",
        row.pieces(),
        cell(row.compressible, compressible),
        cell(row.missed, compressible),
        cell(row.incompressible, incompressible),
        cell(row.false_alarms, incompressible),
        share(row.lz4_saves_missed, row.lz4_saves)
    )
    .expect("a string takes all");
}
