//! `nvfold du`: logical bytes below each directory, with every file counted once.
//!
//! The figures are logical: a shared block counts in each file that references it, as du(1) expects.

use crate::dedup_options::DedupOptions;
use crate::descent::{Descent, OnDevice, OnHost, Step, Tree};
use crate::device::{DeviceOptions, mount_embedded};
use crate::failure::{Doing, Failure, Outcome};
use crate::mount::requests;
use crate::mounts;
use crate::output::Output;
use crate::problems::Problems;
use crate::report;
use crate::size;
use clap::Args;
use nvfold::{Attr, FileKind, FileSystem, MappedExtent, Policy};
use serde::Serialize;
use std::collections::HashSet;
use std::fmt::Display;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Show the logical size of each directory; a shared block counts in each file that references it
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold du /tmp/fold --depth 2 --extents")]
pub(crate) struct Du {
    /// Directory on a mount, or an unmounted device
    #[arg(value_name = "DIR|DEVICE")]
    target: PathBuf,
    /// On a device: the directory to show
    #[arg(long, value_name = "PATH", default_value = "/")]
    at: PathBuf,
    /// Levels of directories to show
    #[arg(short, long, default_value_t = 1, value_name = "LEVELS")]
    depth: usize,
    /// Also read the extents of each file: how much is shared with other files, and how much compression saves (for
    /// your own files, or as root)
    #[arg(short, long)]
    extents: bool,
    #[command(flatten)]
    device_options: DeviceOptions,
}

#[derive(Serialize)]
struct Report {
    directories: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    path: String,
    /// The bytes of the path in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    /// Bytes that extents reference.
    logical_bytes: u64,
    /// The sum of the file sizes, with holes.
    apparent_bytes: u64,
    files: u64,
    /// The part of the logical bytes that other extents reference too, and the bytes saved by compression.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    extents: Option<Parts>,
}

/// Sums over the extents of files.
#[derive(Clone, Copy, Default, Serialize)]
struct Parts {
    shared_bytes: u64,
    compressed_away_bytes: u64,
}

impl Parts {
    fn add(&mut self, extents: &[MappedExtent]) {
        for extent in extents.iter().filter(|extent| !extent.unwritten) {
            self.shared_bytes += if extent.references > 1 { extent.length } else { 0 };
            self.compressed_away_bytes += extent.length - extent.stored_bytes.min(extent.length);
        }
    }

    /// Sums the extents of one file. `next` returns extents from an offset on, and none at the end.
    fn of<E>(mut next: impl FnMut(u64) -> Result<Vec<MappedExtent>, E>) -> Result<Parts, E> {
        let (mut parts, mut from) = (Parts::default(), 0);
        loop {
            let extents = next(from)?;
            let Some(last) = extents.last() else { return Ok(parts) };
            from = last.offset + last.length;
            parts.add(&extents);
        }
    }
}

/// Sums up directories. A directory's row comes after the rows of everything below it.
struct Sums {
    depth: usize,
    seen: HashSet<(u64, u64)>,
    rows: Vec<Row>,
    /// The sums of the directories on the way to where the walk is, the outermost first.
    open: Vec<Sum>,
    problems: Problems,
}

/// The sums of a directory so far.
#[derive(Clone, Copy, Default)]
struct Sum {
    logical_bytes: u64,
    apparent_bytes: u64,
    files: u64,
    extents: Option<Parts>,
}

/// The contribution of one file.
struct Found {
    identity: (u64, u64),
    links: u64,
    allocated_bytes: u64,
    size_bytes: u64,
    parts: Option<Parts>,
}

/// Runs the command. The exit code is 1 if something could not be read.
pub(crate) fn run(du: &Du, output: &Output) -> Outcome<u8> {
    let Du { target, at, extents, .. } = du;
    let mut sums = Sums::new(du.depth);
    let metadata = std::fs::metadata(target).doing(mounts::show(target))?;
    if metadata.is_dir() {
        std::fs::read_dir(target).doing(mounts::show(target))?;
        sums.walk(OnHost { number: None }, target, &metadata, |path, found| on_host(path, found, *extents));
    } else {
        let fs = mount_embedded(target, &du.device_options, &DedupOptions::of(Policy::Off), true, 1)?;
        let what = format!("{}: {}", mounts::show(target), mounts::show(at));
        let attr = fs.resolve(at.as_os_str().as_bytes()).doing(&what)?;
        if attr.kind != FileKind::Directory {
            return Err(Failure::new(what, "it is not a directory"));
        }
        sums.walk(OnDevice(&fs), at, &attr, |_, found| on_device(&fs, found, *extents));
    }
    let report = Report { directories: sums.rows };
    report::emit(output.json, "du", &report, || describe(&report))?;
    let (problem_count, _) = sums.problems.told();
    Ok(u8::from(problem_count > 0))
}

fn describe(report: &Report) -> String {
    let row = |row: &Row| {
        let mut cells = vec![
            row.path.clone(),
            size::show(row.logical_bytes),
            size::show(row.apparent_bytes),
            row.files.to_string(),
        ];
        cells.extend(
            row.extents.iter().flat_map(|parts| [parts.shared_bytes, parts.compressed_away_bytes].map(size::show)),
        );
        cells
    };
    let with_extents = report.directories.iter().any(|row| row.extents.is_some());
    let header = ["directory", "logical", "apparent", "files", "shared", "compressed"];
    let header = if with_extents { &header[..] } else { &header[..4] };
    report::table(header, report.directories.iter().map(row))
}

impl Sums {
    fn new(depth: usize) -> Sums {
        let problems = Problems::default();
        Sums { depth, seen: HashSet::new(), rows: Vec::new(), open: Vec::new(), problems }
    }

    /// Sums up a directory and all below it. `read` says what a file adds.
    fn walk<T: Tree>(
        &mut self,
        tree: T,
        path: &Path,
        top: &T::Node,
        read: impl Fn(&Path, &T::Node) -> Result<Found, T::Why>,
    ) where
        T::Identity: Clone,
        T::Why: Display,
    {
        self.open.push(Sum::default());
        let mut descent = Descent::new(tree, path, top);
        while let Some(step) = descent.next() {
            match step {
                Step::Found(node) if descent.is_directory(&node) => self.open.push(Sum::default()),
                Step::Found(node) => match read(descent.path(), &node) {
                    Ok(found) => self.add_file(&found),
                    Err(why) => self.problems.note(descent.path(), why),
                },
                Step::Left => self.leave(descent.path()),
                Step::Problem(why) => self.problems.note(descent.path(), why),
            }
        }
    }

    fn add_file(&mut self, found: &Found) {
        if found.links > 1 && !self.seen.insert(found.identity) {
            return;
        }
        let Found { allocated_bytes, size_bytes, parts, .. } = *found;
        let file = Sum { logical_bytes: allocated_bytes, apparent_bytes: size_bytes, files: 1, extents: parts };
        self.open.last_mut().expect("the walk is in a directory").add(file);
    }

    /// Makes the row of the innermost directory, and adds its sums to those of the one above.
    fn leave(&mut self, path: &Path) {
        let sum = self.open.pop().expect("the walk was in a directory");
        if self.open.len() <= self.depth {
            self.rows.push(sum.row(path));
        }
        if let Some(above) = self.open.last_mut() {
            above.add(sum);
        }
    }
}

fn on_host(path: &Path, metadata: &Metadata, reads_extents: bool) -> std::io::Result<Found> {
    let is_read = reads_extents && metadata.is_file();
    let parts = is_read.then(|| Parts::of(|from| requests::extents(path, from))).transpose()?;
    Ok(Found {
        identity: (metadata.dev(), metadata.ino()),
        links: metadata.nlink(),
        allocated_bytes: metadata.blocks() * 512,
        size_bytes: metadata.len(),
        parts,
    })
}

fn on_device(fs: &FileSystem, attr: &Attr, reads_extents: bool) -> nvfold::Result<Found> {
    let is_read = reads_extents && attr.kind == FileKind::Regular;
    let file = is_read.then(|| fs.open(attr.ino)).transpose()?;
    let parts = file.map(|file| Parts::of(|from| file.extents(from, requests::EXTENTS_MAX))).transpose()?;
    Ok(Found {
        identity: (0, attr.ino.0),
        links: u64::from(attr.nlink),
        allocated_bytes: attr.blocks * 512,
        size_bytes: attr.size,
        parts,
    })
}

impl Sum {
    /// Adds another sum. The size of a single file may be 2^63 - 1, so a sum stops at the largest number.
    fn add(&mut self, other: Sum) {
        self.logical_bytes = self.logical_bytes.saturating_add(other.logical_bytes);
        self.apparent_bytes = self.apparent_bytes.saturating_add(other.apparent_bytes);
        self.files += other.files;
        if let Some(Parts { shared_bytes, compressed_away_bytes }) = other.extents {
            let sum = self.extents.get_or_insert_default();
            sum.shared_bytes = sum.shared_bytes.saturating_add(shared_bytes);
            sum.compressed_away_bytes = sum.compressed_away_bytes.saturating_add(compressed_away_bytes);
        }
    }

    fn row(self, path: &Path) -> Row {
        let Sum { logical_bytes, apparent_bytes, files, extents } = self;
        Row { path: mounts::show(path), path_hex: mounts::hex(path), logical_bytes, apparent_bytes, files, extents }
    }
}
