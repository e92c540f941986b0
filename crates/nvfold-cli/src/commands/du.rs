//! `nvfold du`: logical bytes below each directory, with every file counted once.
//!
//! The figures are logical: a shared block counts in each file that references it, as du(1) expects.

use crate::dedup_options::DedupOptions;
use crate::device::{DeviceOptions, mount_embedded};
use crate::failure::{Doing, Failure, Outcome};
use crate::mount::requests;
use crate::mounts;
use crate::output::Output;
use crate::report;
use crate::size;
use clap::Args;
use nvfold::host::entries;
use nvfold::{Attr, FileKind, FileSystem, MappedExtent, Policy};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Show the logical size of each directory; a shared block counts in each file that references it
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold du /tmp/fold --depth 2 --extents")]
pub struct Du {
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

#[derive(Clone, Serialize)]
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
    /// True if extents are read.
    extents: bool,
    seen: HashSet<(u64, u64)>,
    rows: Vec<Row>,
}

/// The contribution of one file.
struct Found {
    identity: (u64, u64),
    links: u64,
    allocated_bytes: u64,
    size_bytes: u64,
    parts: Option<Parts>,
}

/// Runs the command.
pub fn run(du: &Du, output: &Output) -> Outcome<u8> {
    let mut sums = Sums { depth: du.depth, extents: du.extents, seen: HashSet::new(), rows: Vec::new() };
    let metadata = std::fs::metadata(&du.target).doing(mounts::show(&du.target))?;
    if metadata.is_dir() {
        sums.host_directory(&du.target, 0)?;
    } else {
        let fs = mount_embedded(&du.target, &du.device_options, &DedupOptions::of(Policy::Off), true, 1)?;
        let what = format!("{}: {}", mounts::show(&du.target), mounts::show(&du.at));
        let attr = fs.resolve(du.at.as_os_str().as_bytes()).doing(&what)?;
        if attr.kind != FileKind::Directory {
            return Err(Failure::new(what, "it is not a directory"));
        }
        sums.directory(&fs, attr, &du.at, 0).doing(what)?;
    }
    let report = Report { directories: sums.rows };
    report::emit(output.json, "du", &report, || describe(&report))?;
    Ok(0)
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
    fn add_file(&mut self, row: &mut Row, found: &Found) {
        if found.links > 1 && !self.seen.insert(found.identity) {
            return;
        }
        row.files += 1;
        row.logical_bytes += found.allocated_bytes;
        row.apparent_bytes += found.size_bytes;
        add_parts(row, found.parts);
    }

    fn finish(&mut self, row: &Row, level: usize) {
        if level <= self.depth {
            self.rows.push(row.clone());
        }
    }

    fn host_directory(&mut self, dir: &Path, level: usize) -> Outcome<Row> {
        let mut row = empty(dir);
        for entry in std::fs::read_dir(dir).doing(mounts::show(dir))? {
            let path = entry.doing(mounts::show(dir))?.path();
            let metadata = std::fs::symlink_metadata(&path).doing(mounts::show(&path))?;
            if metadata.is_dir() {
                add(&mut row, &self.host_directory(&path, level + 1)?);
            } else {
                let (identity, allocated_bytes) = ((metadata.dev(), metadata.ino()), metadata.blocks() * 512);
                let (links, size_bytes) = (metadata.nlink(), metadata.len());
                let is_read = self.extents && metadata.is_file();
                let parts = is_read.then(|| Parts::of(|from| requests::extents(&path, from)));
                let parts = parts.transpose().doing(mounts::show(&path))?;
                self.add_file(&mut row, &Found { identity, links, allocated_bytes, size_bytes, parts });
            }
        }
        self.finish(&row, level);
        Ok(row)
    }

    fn directory(&mut self, fs: &FileSystem, dir: Attr, path: &Path, level: usize) -> nvfold::Result<Row> {
        let mut row = empty(path);
        for entry in entries(fs, dir.ino)? {
            let attr = fs.getattr(entry.ino)?;
            if attr.kind == FileKind::Directory {
                let below = path.join(OsStr::from_bytes(&entry.name));
                add(&mut row, &self.directory(fs, attr, &below, level + 1)?);
            } else {
                let (identity, links) = ((0, attr.ino.0), u64::from(attr.nlink));
                let (allocated_bytes, size_bytes) = (attr.blocks * 512, attr.size);
                let is_read = self.extents && attr.kind == FileKind::Regular;
                let file = is_read.then(|| fs.open(attr.ino)).transpose()?;
                let parts = file.map(|file| Parts::of(|from| file.extents(from, requests::EXTENTS_MAX))).transpose()?;
                self.add_file(&mut row, &Found { identity, links, allocated_bytes, size_bytes, parts });
            }
        }
        self.finish(&row, level);
        Ok(row)
    }
}

fn empty(dir: &Path) -> Row {
    Row {
        path: mounts::show(dir),
        path_hex: mounts::hex(dir),
        logical_bytes: 0,
        apparent_bytes: 0,
        files: 0,
        extents: None,
    }
}

fn add(row: &mut Row, below: &Row) {
    row.logical_bytes += below.logical_bytes;
    row.apparent_bytes += below.apparent_bytes;
    row.files += below.files;
    add_parts(row, below.extents);
}

fn add_parts(row: &mut Row, parts: Option<Parts>) {
    let Some(parts) = parts else { return };
    let sum = row.extents.get_or_insert_default();
    sum.shared_bytes += parts.shared_bytes;
    sum.compressed_away_bytes += parts.compressed_away_bytes;
}
