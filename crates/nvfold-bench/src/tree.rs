//! `bench tree`: copying, reading and removing a real tree with `cp` and `rm`, and creating many files in one
//! directory, on tmpfs and on mounts of nvfold with different options.
//!
//! A mount is used by programs, and most of their time is round trips. Places take turns, and each column is the
//! ratio to tmpfs in the same run. The report also shows how much of the tree the kernel caches after it was read,
//! because that memory is needed in addition to a device in memory.

use crate::mounts::{Mounted, nvfold};
use crate::origin;
use crate::place::{FsType, Place};
use crate::process::{own_program, run as run_program};
use crate::samples::{median, timed};
use crate::scratch::Scratch;
use crate::{Doing, Result};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

const COLUMNS: [&str; 5] = ["cp -a", "read all", "rm -r", "create", "rm of those"];

/// What to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Tree to copy
    #[arg(long, default_value = "/usr/share", value_name = "DIR")]
    tree: PathBuf,
    /// Mount options to compare, one mount for each; an empty value means the defaults
    #[arg(long = "mount", value_name = "OPTIONS", default_values = ["spin=off,cache=full", "", "cache=none"])]
    mounts: Vec<String>,
    /// Number of empty files to make in one directory
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    creates: u64,
    /// Number of passes, after one to warm up; the report gives their median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Folder for the mounts, on tmpfs
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    dir: PathBuf,
    /// Small sizes, to test that the benchmark runs; not for figures
    #[arg(long)]
    smoke: bool,
}

/// The figures of one place.
#[derive(Debug, Serialize)]
struct Row {
    place: String,
    /// Median seconds, by column.
    seconds: [f64; COLUMNS.len()],
    /// The same relative to tmpfs: above 1 is slower.
    ratio: [f64; COLUMNS.len()],
    /// MiB by which the kernel's page cache grew when the tree was copied and read; for tmpfs that is its data.
    cached_mebibytes: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    benchmark: &'static str,
    command: String,
    commit: Option<String>,
    tree_files: u64,
    tree_bytes: u64,
    creates: u64,
    columns: [&'static str; COLUMNS.len()],
    rows: Vec<Row>,
}

/// Seconds by column, and bytes by which the page cache grew.
type Pass = ([f64; COLUMNS.len()], f64);

/// Runs the benchmark and prints the report.
pub(crate) fn run(options: &Options, json: bool) -> Result<()> {
    let mut options = options.clone();
    let parent = options.dir.canonicalize().doing(options.dir.display().to_string())?;
    let scratch = Scratch::new_in(&parent)?;
    if options.smoke {
        (options.creates, options.repeats, options.tree) = (50, 1, small_tree(scratch.path())?);
    }
    let (tree_files, tree_bytes) = read_all(&options.tree)?;
    let tmpfs = Place::inside(&scratch.path().join("tmpfs"), FsType::TMPFS);
    fs::create_dir(&tmpfs.dir).doing("make a folder")?;
    tmpfs.prove(&tmpfs.dir)?;
    let mut places = vec![("tmpfs".to_owned(), tmpfs)];
    let mut mounted: Vec<Mounted> = Vec::new();
    // Space for the tree, for files that are removed and not yet forgotten, and for their names.
    let device_bytes =
        (3 * tree_bytes + 2048 * (tree_files + options.creates)).max(512 << 20).next_multiple_of(2 << 20);
    for (number, given) in options.mounts.iter().enumerate() {
        let dir = scratch.path().join(format!("mount{number}"));
        fs::create_dir(&dir).doing("make a folder")?;
        let name = format!("nvfold {given}").trim_end().to_owned();
        let mount = nvfold(&own_program()?, &name, Path::new("mem:"), &dir, &format!("size={device_bytes},{given}"))?;
        places.push((mount.name.clone(), mount.place.clone()));
        mounted.push(mount);
    }
    let mut passes: Vec<Vec<Pass>> = places.iter().map(|_| Vec::new()).collect();
    for pass in 0..=options.repeats {
        for ((_, place), passes) in places.iter().zip(&mut passes) {
            let measured = one_pass(place, &options)?;
            if pass > 0 {
                passes.push(measured);
            }
        }
    }
    let rows = places.iter().zip(&passes).map(|((place, _), own)| {
        let column = |passes: &[Pass], at: usize| median(&passes.iter().map(|(took, _)| took[at]).collect::<Vec<_>>());
        let seconds = std::array::from_fn(|at| column(own, at));
        let ratio = std::array::from_fn(|at| seconds[at] / column(&passes[0], at));
        let cached = median(&own.iter().map(|(_, cached)| *cached).collect::<Vec<_>>());
        Row { place: place.clone(), seconds, ratio, cached_mebibytes: cached / f64::from(1 << 20) }
    });
    let report = Report {
        version: 1,
        benchmark: "tree",
        command: origin::command("nvfold"),
        commit: origin::commit(),
        tree_files,
        tree_bytes,
        creates: options.creates,
        columns: COLUMNS,
        rows: rows.collect(),
    };
    let text = match json {
        true => serde_json::to_string_pretty(&report).expect("numbers and strings have a JSON form"),
        false => report.table(),
    };
    println!("{text}");
    Ok(())
}

fn one_pass(place: &Place, options: &Options) -> Result<Pass> {
    let (copy, many) = (place.dir.join("copy"), place.dir.join("many"));
    let cached = page_cache_bytes()?;
    let copied = timed(|| run_program(Command::new("cp").arg("-a").arg(&options.tree).arg(&copy)))?;
    place.prove(&copy)?;
    let read = timed(|| read_all(&copy).map(drop))?;
    let grown = page_cache_bytes()? - cached;
    let removed = timed(|| run_program(Command::new("rm").arg("-r").arg(&copy)))?;
    fs::create_dir(&many).doing("make a folder")?;
    let created = timed(|| {
        (0..options.creates)
            .try_for_each(|number| File::create(many.join(format!("file{number}"))).map(drop).doing("create a file"))
    })?;
    place.prove(&many)?;
    let removed_many = timed(|| run_program(Command::new("rm").arg("-r").arg(&many)))?;
    Ok(([copied, read, removed, created, removed_many], grown))
}

/// Reads all files below a directory; returns their number and their bytes.
fn read_all(tree: &Path) -> Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    let mut buffer = vec![0; 128 << 10];
    let mut dirs = vec![tree.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).doing(format!("list {}", dir.display()))? {
            let entry = entry.doing("list")?;
            let kind = entry.file_type().doing("look at a file")?;
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() {
                files += 1;
                let mut file = File::open(entry.path()).doing(format!("open {}", entry.path().display()))?;
                loop {
                    match file.read(&mut buffer).doing("read")? {
                        0 => break,
                        read => bytes += read as u64,
                    }
                }
            }
        }
    }
    Ok((files, bytes))
}

/// Returns the bytes of files that the kernel caches, without those of tmpfs, which holds the devices.
fn page_cache_bytes() -> Result<f64> {
    let about = fs::read_to_string("/proc/meminfo").doing("read /proc/meminfo")?;
    let kib = |key: &str| {
        let line = about.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0)
    };
    Ok((kib("Cached:") - kib("Shmem:")) * 1024.0)
}

fn small_tree(scratch: &Path) -> Result<PathBuf> {
    let tree = scratch.join("tree");
    fs::create_dir(&tree).doing("make a folder")?;
    for number in 0..20 {
        fs::write(tree.join(format!("file{number}")), vec![number; 5000]).doing("write")?;
    }
    Ok(tree)
}

impl Report {
    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        let columns = self.columns.iter().map(|column| (*column).to_owned());
        table.set_header(["".to_owned()].into_iter().chain(columns).chain(["page cache".to_owned()]));
        for row in &self.rows {
            let times = row.seconds.iter().zip(row.ratio).map(|(seconds, ratio)| format!("{seconds:.2} s {ratio:.2}x"));
            let cached = format!("{:.0} MiB", row.cached_mebibytes);
            table.add_row([row.place.clone()].into_iter().chain(times).chain([cached]));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let Report { tree_files, tree_bytes, creates, .. } = self;
        format!(
            "{}\na tree of {tree_files} files, {} MiB; {creates} files in one directory; x: times the seconds of tmpfs\n{table}",
            origin::heading(&self.command, self.commit.as_deref()),
            tree_bytes >> 20
        )
    }
}
