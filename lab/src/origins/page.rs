//! The report as tables for a terminal and as Markdown.

use super::compaction::{INPUTS, PAPER_EXTENT_BYTES, VARIANTS};
use super::merge::{OUTPUT_BYTES, WRITE_BUFFER_BYTES};
use super::write::Lane;
use super::{Report, compaction, compare, write};
use comfy_table::{Table as TerminalTable, presets};
use std::fmt::Write;

/// A table: its title, an explanation, and its cells.
struct Table {
    title: &'static str,
    text: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Formats it for a terminal.
pub(super) fn terminal(report: &Report) -> String {
    let mut text = report.head.heading();
    for Table { title, head, rows, .. } in tables(report) {
        let mut table = TerminalTable::new();
        table.load_preset(presets::NOTHING).set_header(head);
        rows.into_iter().for_each(|row| _ = table.add_row(row));
        let lines = table.to_string();
        let lines: Vec<&str> = lines.lines().map(str::trim_end).collect();
        write!(text, "\n\n{title}\n{}", lines.join("\n")).expect("a string takes it");
    }
    text
}

/// Formats the page for docs/results/origins.
pub(super) fn markdown(report: &Report) -> String {
    let mut text = format!(
        "# Following copies\n\nMade by {}. Figures: [origins.json](origins.json).\n\n{INTRODUCTION}",
        report.head.marked_heading(),
    );
    for Table { title, text: said, head, rows } in tables(report) {
        let mut line = |line: String| writeln!(text, "{line}").expect("a string takes it");
        line(format!("\n## {title}\n\n{said}\n"));
        line(format!("| {} |\n|---|{}", head.join(" | "), "--:|".repeat(head.len() - 1)));
        rows.iter().for_each(|row| line(format!("| {} |", row.join(" | "))));
    }
    text
}

const INTRODUCTION: &str = "\
Policy `icid`, used through the core's own interface. A program reports what it copies\n\
([`RecTree`](../../../crates/nvfold-causality/src/rec_tree/mod.rs)), asks for the origins of a buffer before it writes it, and\n\
passes them to `File::append_from`. All devices are in memory, and there is one thread. In every row the written data\n\
is read back and compared, and fsck finds nothing on any device of a compaction.
";

fn tables(report: &Report) -> Vec<Table> {
    let mut tables = vec![aims(report), shares(report), metadata(report), on_media(report), space(report)];
    tables.extend([where_it_pays(report), charged(report), wall(report), counts(report), compares(report)]);
    tables
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).into()).collect()
}

fn kib(bytes: usize) -> String {
    if bytes < 1024 { bytes.to_string() } else { format!("{} KiB", bytes >> 10) }
}

fn mb(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / 1e6)
}

fn aims(report: &Report) -> Table {
    let row = |aim: &super::Aim| {
        let sign = if aim.is_least { "at least" } else { "at most" };
        let found = aim.found.map_or("-".into(), |found| format!("{found:.2}"));
        let (aimed, floor) = (format!("{sign} {}", aim.aim), aim.floor.to_string());
        vec![aim.what.to_owned(), aimed, floor, found, aim.verdict().into()]
    };
    Table {
        title: "Aims",
        text: "The aims were set before the first measurement. Where several sizes are measured, the worst one counts."
            .into(),
        head: owned(&["what", "aim", "floor", "found", ""]),
        rows: report.aims.iter().map(row).collect(),
    }
}

/// Returns the rows of ICID, one for each size of values.
fn of_icid(report: &Report) -> impl Iterator<Item = &compaction::Row> {
    report.compactions.iter().filter(|row| row.variant == VARIANTS[0].1)
}

fn shares(report: &Report) -> Table {
    let row = |row: &compaction::Row| {
        let of = |variant: &str| {
            let is_it = |other: &&compaction::Row| other.variant == variant && other.value_bytes == row.value_bytes;
            report.compactions.iter().find(is_it).expect("all variants are measured")
        };
        let mut cells = vec![row.value_bytes.to_string(), row.records.to_string(), mb(row.written_bytes)];
        cells.extend(VARIANTS.map(|(_, name)| format!("{:.2} %", of(name).shared_of_written_percent)));
        cells.extend(VARIANTS.map(|(_, name)| format!("{:.2} %", of(name).shared_of_records_percent)));
        cells
    };
    let names = VARIANTS.map(|(_, name)| name);
    let mut head = owned(&["value, bytes", "live records", "written, MB"]);
    head.extend(names.map(|name| format!("{name}, of all")));
    head.extend(names.map(|name| format!("{name}, of records")));
    Table {
        title: "A compaction: what is shared",
        text: format!(
            "{INPUTS} sorted tables with {} MiB of records in total are merged. Data blocks have 4 KiB and a checksum, keys have 16\n\
             bytes. A newer table overwrites a tenth of the records, half of them by deletion. Records are copied from block to\n\
             block, and blocks to a write buffer of {} KiB, which is appended to a table of at most {} MiB. *Of all*: bytes shared,\n\
             relative to all bytes written. *Of records*: relative to the keys and values that were copied. This may exceed 100 %:\n\
             the 4 bytes before a key are written anew, but they are shared too if the same bytes precede the record in its\n\
             source. ICID_KA keeps the records of what the buffers held before. They cover exactly these 4 bytes, and are wrong\n\
             there. The paper reports 81.36 % for LevelDB as a whole, which also writes data from outside that is in no file yet.",
            report.mebibytes,
            WRITE_BUFFER_BYTES >> 10,
            OUTPUT_BYTES >> 20
        ),
        head,
        rows: of_icid(report).map(row).collect(),
    }
}

fn metadata(report: &Report) -> Table {
    let row = |row: &compaction::Row| {
        vec![
            row.value_bytes.to_string(),
            row.extents.to_string(),
            format!("{:.2}", row.extents_a_record),
            format!("{:.2} %", row.metadata_percent),
            format!("{:.1} %", row.paper_metadata_percent),
            format!("{:.2} %", row.media_metadata_percent),
        ]
    };
    Table {
        title: "A compaction: metadata beside the paper's Table 6",
        text: format!(
            "Metadata in percent of the shared data, variant ICID. *As the paper counts*: {PAPER_EXTENT_BYTES} bytes for each\n\
             extent of the new tables, the size of an extent in a B-tree (the paper does not give the size of its extents).\n\
             *On our media*: what the compaction added to logs, chunk entries and headers. The next table lists it by kind."
        ),
        head: owned(&["value, bytes", "extents", "extents per record", "as the paper counts", "paper", "on our media"]),
        rows: of_icid(report).map(row).collect(),
    }
}

fn on_media(report: &Report) -> Table {
    let row = |row: &compaction::Row| {
        let (before, after) = (&row.before, &row.compacted);
        let each = |now: u64, was: u64| format!("{:.1}", (now - was) as f64 / row.records as f64);
        vec![
            row.value_bytes.to_string(),
            each(after.log_bytes, before.log_bytes),
            each(after.log_room_bytes, before.log_room_bytes),
            each(after.block_entry_bytes, before.block_entry_bytes),
            each(after.packed_entry_bytes, before.packed_entry_bytes),
            each(after.header_bytes, before.header_bytes),
            each(after.stored_bytes, before.stored_bytes),
        ]
    };
    Table {
        title: "A compaction: what it adds to the media",
        text: "Bytes per live record, variant ICID. *Log*: lines of vector records, which take 12 bytes per extent and one line\n\
               per request. *Pages*: the log pages that hold these lines. *Entries of blocks*: 64 bytes for each block with more\n\
               than one reference, in a table that exists anyway. *Entries* and *headers* of packed chunks: 64 and 16 bytes for the\n\
               new data of a request. *New data*: bytes stored."
            .into(),
        head: owned(&["value, bytes", "log", "pages", "entries of blocks", "entries", "headers", "new data"]),
        rows: of_icid(report).map(row).collect(),
    }
}

fn space(report: &Report) -> Table {
    let row = |row: &compaction::Row| {
        let of = |media: &compaction::Media| {
            let ratio = media.stored_bytes as f64 / row.live_bytes as f64;
            format!("{} ({ratio:.3}), {}", mb(media.stored_bytes), media.data_segments)
        };
        let needed = row.live_bytes.div_ceil(nvfold::internals::media::SEGMENT_BYTES);
        let extents = row.collected.extents;
        let live = format!("{}, {needed}", mb(row.live_bytes));
        vec![
            row.value_bytes.to_string(),
            live,
            of(&row.compacted),
            of(&row.removed),
            of(&row.collected),
            extents.to_string(),
        ]
    };
    Table {
        title: "A compaction: space, before and after collection",
        text: "MB stored, its ratio to the bytes of the new tables, and the number of 2 MiB segments with data; variant ICID.\n\
               *Live*: the bytes of the new tables, and the fewest segments that can hold them. The old tables are removed. Then\n\
               everything that frees any space is collected (`reclaim_step` with all victims), until nothing more is gained. One\n\
               segment is kept as a spare. Segments of blocks also hold log pages, and an open segment of each kind counts."
            .into(),
        head: owned(&[
            "value, bytes",
            "live",
            "with the old tables",
            "without them",
            "after collection",
            "extents after collection",
        ]),
        rows: of_icid(report).map(row).collect(),
    }
}

fn where_it_pays(report: &Report) -> Table {
    let lanes = [Lane::Aligned, Lane::Unaligned, Lane::Cold];
    let sizes: Vec<usize> =
        report.writes.iter().filter(|row| row.lane == lanes[0].name()).map(|row| row.bytes).collect();
    let row = |profile: &pmem::Profile| {
        let of = |lane: Lane| {
            let found = report.pays.iter().find(|pays| pays.lane == lane.name() && pays.profile == profile.name());
            found.map_or("-".into(), |pays| ranges(&sizes, &pays.bytes))
        };
        [vec![profile.name().to_owned()], lanes.map(of).into()].concat()
    };
    Table {
        title: "Writes: where an origin pays",
        text: "Sizes for which a write whose bytes all have an origin costs less than a plain write under policy `off`. The cost\n\
               is charged time on emulated devices, and wall-clock time on `native`. *Aligned*: the bytes have the same offset\n\
               within a block in source and target, and continue those of the previous write. *Unaligned*: they have any offset,\n\
               and each write is an extent of its own. The source was read just before, as a copying program does. *Cold*: the\n\
               source is in no cache. The modelled cache holds 64 KiB, so a source of 128 KiB is not in it either."
            .into(),
        head: std::iter::once("device".to_owned()).chain(lanes.map(|lane| lane.name().to_owned())).collect(),
        rows: pmem::Profile::all().iter().map(row).collect(),
    }
}

/// Returns some of these sizes as ranges: `128 to 2 KiB, 8 KiB`.
fn ranges(sizes: &[usize], some: &[usize]) -> String {
    let runs = sizes.chunk_by(|size, next| some.contains(size) && some.contains(next));
    let text = |run: &[usize]| match run {
        [one] => kib(*one),
        run => format!("{} to {}", kib(run[0]), kib(run[run.len() - 1])),
    };
    let texts: Vec<String> = runs.filter(|run| some.contains(&run[0])).map(text).collect();
    if texts.is_empty() { "none".into() } else { texts.join(", ") }
}

/// Returns a row for each size and lane.
fn by_write(report: &Report, cells: impl Fn(&write::Row) -> Vec<String>) -> Vec<Vec<String>> {
    let row = |row: &write::Row| [vec![kib(row.bytes), row.lane.to_owned()], cells(row)].concat();
    report.writes.iter().map(row).collect()
}

fn charged(report: &Report) -> Table {
    let profiles: Vec<&str> = report.writes.first().map_or(Vec::new(), |row| row.charged_ns.keys().copied().collect());
    let mut head = owned(&["bytes", "write"]);
    head.extend(profiles.iter().map(|profile| format!("{profile}, ns")));
    Table {
        title: "Writes: what emulated devices charge",
        text: "Appends to one file: mean per call, over 64 calls after 8 that warm up. Processor time is not included. A plain\n\
               append that ends inside a block stores the whole block again, so it writes 64 lines even for 128 bytes. An append\n\
               with an origin writes its log line, a chunk entry, the TX_ID generator and the commit word."
            .into(),
        head,
        rows: by_write(report, |row| row.charged_ns.values().map(|ns| format!("{ns:.0}")).collect()),
    }
}

fn wall(report: &Report) -> Table {
    let cells = |row: &write::Row| {
        let spread = |value: Option<f64>, half: Option<f64>, digits: usize| match (value, half) {
            (Some(value), Some(half)) => format!("{value:.digits$} +- {:.digits$}", half / 2.0),
            _ => "-".into(),
        };
        vec![spread(row.wall_ns, row.wall_middle_half_ns, 0), spread(row.wall_ratio, row.wall_ratio_middle_half, 2)]
    };
    Table {
        title: "Writes: wall clock",
        text: format!(
            "Measured on this machine's memory, with flush instructions as on a DAX device. The kinds of writes take turns in {}\n\
             passes, and a pass counts with the median of its calls. The table gives the median of the passes, plus or minus half\n\
             of their interquartile range. Ratios are to `plain, off` in the same pass. Only the append is timed, including two\n\
             reads of the clock. The machine is shared, and its memory is faster to write than any persistent memory.",
            report.repeats
        ),
        head: owned(&["bytes", "write", "ns", "to plain, off"]),
        rows: by_write(report, cells),
    }
}

fn counts(report: &Report) -> Table {
    let cells = |row: &write::Row| {
        let kinds = row.written_of_all_calls.iter().map(|(kind, lines)| {
            let each = *lines as f64 / 64.0;
            format!("{each:.2} {}", kind.name())
        });
        let kinds: Vec<String> = kinds.collect();
        vec![
            format!("{:.2}", row.fences),
            format!("{:.2}: {}", row.lines_written, kinds.join(", ")),
            format!("{:.2}", row.lines_read),
            format!("{:.1}", row.locked),
        ]
    };
    Table {
        title: "Writes: counted",
        text: "Per call. Lines read are those that the modelled cache of 64 KiB does not hold. *Locked*: locked instructions."
            .into(),
        head: owned(&["bytes", "write", "fences", "lines written", "lines read", "locked"]),
        rows: by_write(report, cells),
    }
}

fn compares(report: &Report) -> Table {
    let row = |row: &compare::Row| {
        let [write, one_by_one, avx2] = row.paper_ns;
        let spread = |value: f64, half: f64| format!("{value:.1} +- {:.1}", half / 2.0);
        vec![
            row.bytes.to_string(),
            format!("{:.0}", row.write_optane_ns),
            format!("{:.0}", row.write_native_ns),
            spread(row.one_by_one_ns, row.one_by_one_middle_half_ns),
            spread(row.vectors_ns, row.vectors_middle_half_ns),
            format!("{:.0}", row.faster),
            format!("{write:.0} / {one_by_one:.0} / {avx2:.0}"),
            format!("{:.0}", row.paper_faster),
        ]
    };
    Table {
        title: "The compare alone: the paper's Table 3",
        text: "Nanoseconds to write bytes, to compare them one by one, and to compare them by vectors (`pmem::equal_runs`). Both\n\
               buffers are in the processor's cache, as when the source was just read. The write is a streaming store and a fence:\n\
               as charged by an emulated Optane, and on this machine's memory. The paper's write seems to be a write to a file. The\n\
               paper's loop takes 3.8 ns per byte, as unoptimised code does, which explains its large factor."
            .into(),
        head: owned(&[
            "bytes",
            "write, optane",
            "write, here",
            "one by one",
            "vectors",
            "times faster",
            "paper: write / one by one / AVX2",
            "paper: times faster",
        ]),
        rows: report.compares.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_record_sizes_are_printed_as_a_range() {
        let sizes = [128, 256, 512, 1024, 2048];
        assert_eq!(ranges(&sizes, &sizes), "128 to 2 KiB");
        assert_eq!(ranges(&sizes, &[128, 256, 1024]), "128 to 256, 1 KiB");
        assert_eq!(ranges(&sizes, &[]), "none");
    }
}
