//! `bench clone`: a copy of a tree that shares its data, beside what other file systems offer: time, memory, and how long
//! a writer waits meanwhile.
//!
//! The problem: a clone is made once and in milliseconds. What it costs later is memory, and what it costs others is
//! waiting; none of that shows in its time.
//!
//! The idea: all file systems hold the same tree. First two copies are made, one after the other, and what each of them
//! holds is counted. Then all make copies in turn, several times, timed; and several times more beside a writer, which
//! also runs alone for as long. Every copy is proven to be whole and to share its data. Trees with short and with long
//! files tell what an entry costs and what a block costs.

use crate::copies::{Copier, Held, Kind, copier};
use crate::made::MadeTree;
use crate::origin;
use crate::samples::{largest, median, smallest, timed};
use crate::scratch::Scratch;
use crate::waits::{BOUNDS_US, Waits, as_long_as, columns, waits_during};
use crate::{BenchError, Doing, Result};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Directories and files of the tree, one directory for each 19 files
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(20..=4_000_000))]
    entries: u64,
    /// Sizes of the files: a tree for each; from the first and the last follows what a block costs
    #[arg(long, value_delimiter = ',', default_values_t = [4096, 40_960], value_name = "BYTES",
          value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    file_bytes: Vec<u64>,
    /// Number of timed copies, after two to warm up; the report gives their median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// What makes copies; all but embedded needs root
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [Kind::Embedded, Kind::Nvfold, Kind::Tmpfs, Kind::Xfs, Kind::Btrfs, Kind::Overlayfs])]
    only: Vec<Kind>,
    /// Folder for the mounts, on tmpfs
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    dir: PathBuf,
    /// Small sizes, to test that the benchmark runs; not for figures
    #[arg(long)]
    smoke: bool,
}

/// What one copier did with one tree.
#[derive(Debug, Serialize)]
struct Row {
    copier: String,
    file_bytes: u64,
    blocks: u64,
    /// Seconds of the first copy: it also makes a chunk entry for each block that has none.
    seconds_first: f64,
    seconds_min: f64,
    seconds_median: f64,
    seconds_max: f64,
    /// Median relative to that of `cp -a` on tmpfs, if it was measured: below 1 is faster.
    ratio: Option<f64>,
    /// Median microseconds for each entry.
    us_per_entry: f64,
    /// Bytes that the first copy and the next one hold, for each entry.
    first_bytes_per_entry: f64,
    next_bytes_per_entry: f64,
    /// By how much the server, or for embedded this process, grew for each entry of the second copy.
    process_bytes_per_entry: f64,
    /// Median seconds until a copy has left the name space.
    remove_seconds: f64,
    /// Waits of a writer alone, and while copies are made.
    writer_alone: Option<Waits>,
    writer_meanwhile: Option<Waits>,
}

/// What follows from the trees with the shortest and the longest files.
#[derive(Debug, Serialize)]
struct Slope {
    copier: String,
    us_per_entry: f64,
    us_per_block: f64,
    first_bytes_per_block: f64,
    next_bytes_per_block: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    benchmark: &'static str,
    command: String,
    commit: Option<String>,
    entries: u64,
    writer_bounds_us: [u64; BOUNDS_US.len()],
    left_out: Vec<String>,
    rows: Vec<Row>,
    slopes: Vec<Slope>,
}

/// A copier and what it did so far.
struct Measured {
    copier: Box<dyn Copier>,
    first_seconds: f64,
    first: Held,
    next: Held,
    seconds: Vec<f64>,
    remove_seconds: Vec<f64>,
    waits: Option<(Waits, Waits)>,
}

/// Runs the benchmark and prints the report.
pub(crate) fn run(options: &Options, json: bool) -> Result<()> {
    let mut options = options.clone();
    if options.smoke {
        (options.entries, options.repeats, options.file_bytes) = (200, 1, vec![4096, 12_288]);
    }
    let mut report = Report {
        version: 1,
        benchmark: "clone",
        command: origin::command("nvfold"),
        commit: origin::commit(),
        entries: options.entries,
        writer_bounds_us: BOUNDS_US,
        left_out: Vec::new(),
        rows: Vec::new(),
        slopes: Vec::new(),
    };
    let parent = options.dir.canonicalize().doing(options.dir.display().to_string())?;
    for file_bytes in &options.file_bytes {
        let tree = MadeTree { entries: options.entries, file_bytes: *file_bytes as usize };
        check_room(&parent, &tree, &options.only)?;
        measure(&options, &parent, &Arc::new(tree), &mut report)?;
    }
    report.slopes = slopes(&report.rows, options.entries);
    let text = match json {
        true => serde_json::to_string_pretty(&report).expect("numbers and strings have a JSON form"),
        false => report.table(),
    };
    println!("{text}");
    Ok(())
}

/// Refuses a run for which the host has no memory.
fn check_room(dir: &Path, tree: &MadeTree, only: &[Kind]) -> Result<()> {
    let data = tree.blocks() * 4096;
    let of = |kind: &Kind| match kind {
        // Two copies with data of their own, and the tree.
        Kind::Tmpfs => 3 * (data + 2048 * tree.entries),
        Kind::Embedded => 2 * (data + 4096 * tree.entries),
        _ => data + data / 8 + 4096 * tree.entries,
    };
    let needed: u64 = only.iter().map(of).sum();
    let status = rustix::fs::statvfs(dir).map_err(std::io::Error::from).doing(format!("look at {}", dir.display()))?;
    let about = std::fs::read_to_string("/proc/meminfo").doing("read /proc/meminfo")?;
    let kib =
        about.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse().ok());
    let free = (status.f_bavail * status.f_frsize).min(kib.unwrap_or(u64::MAX >> 10) << 10);
    match needed <= free {
        true => Ok(()),
        false => Err(BenchError::NoRoom { dir: dir.display().to_string(), needed: needed >> 20, free: free >> 20 }),
    }
}

/// Measures all copiers with one tree, and adds their rows.
fn measure(options: &Options, parent: &Path, tree: &Arc<MadeTree>, report: &mut Report) -> Result<()> {
    let scratch = Scratch::new_in(parent)?;
    let mut all = Vec::new();
    for kind in &options.only {
        match copier(*kind, scratch.path(), tree) {
            Ok(copiers) => all.extend(copiers),
            Err(error @ BenchError::Elsewhere { .. }) => return Err(error),
            Err(error) => {
                let why = format!("{kind:?}: {error}").to_lowercase();
                report.left_out.extend((!report.left_out.contains(&why)).then_some(why));
            }
        }
    }
    let mut all: Vec<Measured> = all.into_iter().map(|copier| two_copies(copier, tree)).collect::<Result<_>>()?;
    for number in 2..2 + options.repeats {
        all.iter_mut().try_for_each(|measured| measured.time_one(number))?;
    }
    for number in 2 + options.repeats..2 + 2 * options.repeats {
        all.iter_mut().try_for_each(|measured| measured.beside_writer(number))?;
    }
    let base = all.iter().find(|measured| !measured.copier.shares()).map(|measured| median(&measured.seconds));
    report.rows.extend(all.iter().map(|measured| measured.row(tree, base)));
    Ok(())
}

/// Makes the first two copies, and counts what they hold.
fn two_copies(copier: Box<dyn Copier>, tree: &MadeTree) -> Result<Measured> {
    let held = copier.held()?;
    let first_seconds = timed(|| copier.copy(0))?;
    let with_first = copier.held()?;
    copier.copy(1)?;
    let with_next = copier.held()?;
    let first = with_first.since(held);
    let next = with_next.since(with_first);
    check_sharing(&*copier, next, tree)?;
    for number in [0, 1] {
        copier.check(number)?;
        copier.remove(number)?;
    }
    copier.settle()?;
    Ok(Measured { copier, first_seconds, first, next, seconds: Vec::new(), remove_seconds: Vec::new(), waits: None })
}

/// Refuses a copy that shares data and takes as much as its data, and one that does not and takes less.
fn check_sharing(copier: &dyn Copier, next: Held, tree: &MadeTree) -> Result<()> {
    let data = tree.files() * tree.file_bytes as u64;
    // An entry may take more than a short file.
    let copied = next.stored > data && next.stored > 4096 * tree.entries;
    match copier.shares() {
        true if copied => Err(BenchError::Impossible(format!("{}: a copy took as much as its data", copier.name()))),
        false if next.stored < data => {
            Err(BenchError::Impossible(format!("{}: a copy took less than its data", copier.name())))
        }
        _ => Ok(()),
    }
}

impl Held {
    fn since(self, before: Held) -> Held {
        Held { stored: self.stored.saturating_sub(before.stored), process: self.process.saturating_sub(before.process) }
    }
}

impl Measured {
    fn time_one(&mut self, number: u32) -> Result<()> {
        self.seconds.push(timed(|| self.copier.copy(number))?);
        self.copier.check(number)?;
        self.remove_seconds.push(timed(|| self.copier.remove(number))?);
        self.copier.settle()
    }

    fn beside_writer(&mut self, number: u32) -> Result<()> {
        let Some(mut writer) = self.copier.writer(number)? else { return Ok(()) };
        let seconds = median(&self.seconds);
        let alone = waits_during(&mut *writer, || as_long_as(seconds))?;
        let meanwhile = waits_during(&mut *writer, || self.copier.copy(number))?;
        let waits = self.waits.get_or_insert_default();
        waits.0.merge(&alone);
        waits.1.merge(&meanwhile);
        self.copier.check_count(number)?;
        self.copier.remove(number)?;
        self.copier.settle()
    }

    fn row(&self, tree: &MadeTree, base: Option<f64>) -> Row {
        let entries = tree.entries as f64;
        let middle = median(&self.seconds);
        let (writer_alone, writer_meanwhile) = self.waits.clone().unzip();
        Row {
            copier: self.copier.name().to_owned(),
            file_bytes: tree.file_bytes as u64,
            blocks: tree.blocks(),
            seconds_first: self.first_seconds,
            seconds_min: smallest(&self.seconds),
            seconds_median: middle,
            seconds_max: largest(&self.seconds),
            ratio: base.map(|base| middle / base),
            us_per_entry: middle * 1e6 / entries,
            first_bytes_per_entry: self.first.stored as f64 / entries,
            next_bytes_per_entry: self.next.stored as f64 / entries,
            process_bytes_per_entry: self.next.process as f64 / entries,
            remove_seconds: median(&self.remove_seconds),
            writer_alone,
            writer_meanwhile,
        }
    }
}

/// Returns what an entry and a block cost each copier of which trees with different files were measured.
fn slopes(rows: &[Row], entries: u64) -> Vec<Slope> {
    let mut slopes = Vec::new();
    let short = rows.iter().min_by_key(|row| row.blocks).map_or(0, |row| row.blocks);
    for row in rows.iter().filter(|row| row.blocks == short) {
        let same = rows.iter().filter(|other| other.copier == row.copier);
        let Some(long) = same.max_by_key(|other| other.blocks).filter(|long| long.blocks > short) else { continue };
        let per_block = |of: fn(&Row) -> f64| (of(long) - of(row)) / (long.blocks - row.blocks) as f64;
        let us_per_block = per_block(|row| row.seconds_median * 1e6);
        slopes.push(Slope {
            copier: row.copier.clone(),
            us_per_entry: (row.seconds_median * 1e6 - us_per_block * row.blocks as f64) / entries as f64,
            us_per_block,
            first_bytes_per_block: per_block(|row| row.first_bytes_per_entry) * entries as f64,
            next_bytes_per_block: per_block(|row| row.next_bytes_per_entry) * entries as f64,
        });
    }
    slopes
}

impl Report {
    fn table(&self) -> String {
        let head = origin::heading(&self.command, self.commit.as_deref());
        let parts = [self.copies_table(), self.slopes_table(), self.waits_table()];
        let mut text = format!("{head}\nCopies of a tree of {} entries\n\n{}", self.entries, parts.join("\n\n"));
        self.left_out.iter().for_each(|why| text.push_str(&format!("\nleft out: {why}")));
        text
    }

    fn copies_table(&self) -> String {
        let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
        let rows = self.rows.iter().map(|row| {
            vec![
                row.copier.clone(),
                row.file_bytes.to_string(),
                ms(row.seconds_first),
                ms(row.seconds_min),
                ms(row.seconds_median),
                ms(row.seconds_max),
                row.ratio.map_or("-".into(), |ratio| format!("{ratio:.3}")),
                format!("{:.2}", row.us_per_entry),
                format!("{:.0}", row.first_bytes_per_entry),
                format!("{:.0}", row.next_bytes_per_entry),
                format!("{:.0}", row.process_bytes_per_entry),
                ms(row.remove_seconds),
            ]
        });
        let about = "ms of the first copy, and of timed ones; x: of cp -a on tmpfs; us an entry; bytes an entry that the \
                     first\nand the next copy hold, and by which the process grew; ms until one is out of sight";
        let head =
            ["", "file B", "first", "min", "median", "max", "x", "us", "B first", "B next", "B process", "remove"];
        format!("{about}\n{}", table(&head, rows))
    }

    fn slopes_table(&self) -> String {
        let rows = self.slopes.iter().map(|slope| {
            let numbers = [slope.us_per_entry, slope.us_per_block];
            let bytes = [slope.first_bytes_per_block, slope.next_bytes_per_block];
            let numbers = numbers.map(|us| format!("{us:.3}")).into_iter();
            [slope.copier.clone()].into_iter().chain(numbers).chain(bytes.map(|bytes| format!("{bytes:.1}"))).collect()
        });
        let head = ["", "us an entry", "us a block", "B a block, first", "B a block, next"];
        format!("From trees with short and with long files\n{}", table(&head, rows))
    }

    fn waits_table(&self) -> String {
        let both = |row: &Row| {
            let waits = [("alone", &row.writer_alone), ("meanwhile", &row.writer_meanwhile)];
            let rows = waits.map(|(when, waits)| {
                let waits = waits.as_ref()?;
                let longest = format!("{:.2} ms", waits.longest_us / 1e3);
                let first = [row.copier.clone(), row.file_bytes.to_string(), when.into(), longest];
                Some(first.into_iter().chain(waits.counts().map(|count| count.to_string())).collect())
            });
            rows.into_iter().flatten().collect::<Vec<Vec<String>>>()
        };
        let columns: Vec<String> = columns().collect();
        let head: Vec<&str> =
            ["", "file B", "writer", "longest"].into_iter().chain(columns.iter().map(|name| &**name)).collect();
        let about = "A writer alone, and while copies are made: its longest operation, and how many took up to so long. \
                     What\nthe scheduler took from the writer is not counted";
        format!("{about}\n{}", table(&head, self.rows.iter().flat_map(both)))
    }
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(head.iter().copied());
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(copier: &str, blocks: u64, seconds: f64, first: f64) -> Row {
        Row {
            copier: copier.into(),
            file_bytes: 0,
            blocks,
            seconds_first: 0.0,
            seconds_min: 0.0,
            seconds_median: seconds,
            seconds_max: 0.0,
            ratio: None,
            us_per_entry: 0.0,
            first_bytes_per_entry: first,
            next_bytes_per_entry: 500.0,
            process_bytes_per_entry: 0.0,
            remove_seconds: 0.0,
            writer_alone: None,
            writer_meanwhile: None,
        }
    }

    #[test]
    fn the_cost_of_an_entry_and_of_a_block_follow_from_two_trees() {
        // 100 entries: 2 us each, 0.5 us for each block, 500 bytes each and 64 for each block.
        let rows = [row("a", 100, 250e-6, 564.0), row("b", 100, 1.0, 0.0), row("a", 1000, 700e-6, 1140.0)];
        let slopes = slopes(&rows, 100);
        assert_eq!(slopes.len(), 1, "of b there is one tree only");
        let Slope { us_per_entry, us_per_block, first_bytes_per_block, next_bytes_per_block, .. } = slopes[0];
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(us_per_entry, 2.0) && close(us_per_block, 0.5), "{us_per_entry} {us_per_block}");
        assert!(close(first_bytes_per_block, 64.0) && close(next_bytes_per_block, 0.0));
    }
}
