//! Section 6: reading what was shared, before and after a collection.
//!
//! The paper states that fragmentation "is no longer a critical problem". Here the tables of a LevelDB are read and compared
//! with the same bytes in files that lie whole. They are shared as in the paper, any run of 64 bytes or more; and once
//! more as nvfold chooses, by what the device costs.

use super::Run;
use super::lab::{FILL, Load, Wishes};
use crate::paper::chart::{Chart, Kind};
use crate::paper::figure::{Aim, Figure, Measure, Row};
use crate::paper::number::number;
use crate::{Doing, LabError, Result};
use nvfold::{FileSystem, InodeNumber, MkfsOptions, MountOptions, NewInode, Policy, Victims};
use nvfold_bench::samples::median;
use pmem::{DeviceSpec, OpenOptions, Region};
use std::path::Path;

/// Bytes of the pairs whose tables are read; and their largest number.
const READ_SET: (u64, u64) = (128 << 20, 1_000_000);
/// Bytes of a read.
const READ_BYTES: usize = 128 << 10;

/// Ratios for each size of values.
#[derive(Default)]
struct Ratios {
    /// Times to read the tables to that of whole files: as in the paper before and after a collection, as nvfold chooses.
    before: Vec<f64>,
    after: Vec<f64>,
    chosen: Vec<f64>,
    /// Stored to logical bytes: as in the paper after a collection, as nvfold chooses.
    stored: Vec<f64>,
    stored_chosen: Vec<f64>,
}

/// Returns the nanoseconds per byte of reading all tables.
fn read_all(fs: &FileSystem, files: &[InodeNumber]) -> Result<f64> {
    let mut buffer = vec![0; READ_BYTES];
    let mut pass = || {
        let (start, mut bytes) = (pmem::clock::cost_ns(), 0);
        for ino in files {
            let (file, mut at) = (fs.open(*ino).doing("open a table")?, 0);
            loop {
                let read = file.read_at(at, &mut buffer).doing("read a table")?;
                if read == 0 {
                    break;
                }
                at += read as u64;
            }
            bytes += at;
        }
        Ok((pmem::clock::cost_ns() - start) / bytes.max(1) as f64)
    };
    // The first pass loads the file system's own tables.
    let passes = (0..6).map(|_| pass()).collect::<Result<Vec<f64>>>()?;
    Ok(median(&passes[1..]))
}

fn tables(fs: &FileSystem) -> Result<Vec<InodeNumber>> {
    let folder = fs.lookup(InodeNumber::ROOT, b"db").doing("find the store")?.ino;
    let mut tables = Vec::new();
    let mut note = |entry: nvfold::DirEntry| {
        if entry.name.ends_with(b".ldb") {
            tables.push(entry.ino);
        }
        true
    };
    fs.readdir(folder, 0, &mut note).doing("list the store")?;
    Ok(tables)
}

fn mounted(device: &Path, policy: Policy) -> Result<FileSystem> {
    let region = Region::open(&DeviceSpec::Path(device.into()), &OpenOptions::default());
    let region = region.map_err(nvfold::Error::from).doing(format!("open {}", device.display()))?;
    FileSystem::mount(region, MountOptions { policy, ..MountOptions::default() }).doing("mount")
}

fn read_set_bytes(run: &Run) -> u64 {
    if run.turn.smoke { 8 << 20 } else { READ_SET.0 }
}

/// Makes the figure of section 6.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let mut figure = run.turn.figure(
        "section-6",
        "Section 6: reading what was shared, before and after collection",
        format!(
            "LevelDB, {} MiB of pairs for each value size. All of its tables are then read through the library, 128 \
             KiB at a time. Time: processor time per byte, median of five passes. Whole: the same bytes in files that \
             were written to a device with policy off.",
            read_set_bytes(run) >> 20
        ),
    );
    let mut chart = Chart::new(
        Kind::Lines,
        "Section 6: time to read tables, to those that lie whole",
        "bytes of a value",
        "ratio",
        run.value_sizes().iter().map(ToString::to_string),
    );
    let mut ratios = Ratios::default();
    for &value_bytes in run.value_sizes() {
        let load = Load::of(FILL, (read_set_bytes(run) / (value_bytes + 16)).min(READ_SET.1), value_bytes);
        run.turn.say(&format!("reading LevelDB's tables with values of {value_bytes} bytes"));
        read_as_in_the_paper(run, load, &mut ratios)?;
        read_as_chosen(run, load, &mut ratios)?;
    }
    let sizes = run.value_sizes();
    for at in [0, sizes.len() - 1] {
        for (name, of) in [
            ("before: time to that of whole files", &ratios.before),
            ("after", &ratios.after),
            ("runs as nvfold chooses, before", &ratios.chosen),
        ] {
            figure.rows.push(Row::own(format!("{} bytes, {name}", sizes[at]), of[at], "x"));
        }
    }
    let worst = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
    for (name, of, most) in [
        ("time to read before collection relative to whole files, worst size: 2", &ratios.before, 2.0),
        ("time to read after collection relative to whole files, worst size: 1.5", &ratios.after, 1.5),
        ("the same with runs as nvfold chooses, before collection, worst size: 2", &ratios.chosen, 2.0),
    ] {
        figure.aims.push(Aim::at_most(name, worst(of), most).by(Measure::Cost));
    }
    figure.reading = read_caption(sizes, &ratios);
    let Ratios { before, after, chosen, stored, stored_chosen } = ratios;
    let stored = Chart::new(
        Kind::Table,
        "Stored to logical bytes",
        "bytes of a value",
        "ratio",
        sizes.iter().map(ToString::to_string),
    )
    .with("ICID, after collection", stored)
    .with("runs as nvfold chooses", stored_chosen);
    chart = chart.with("before collection", before).with("after collection", after).with("as nvfold chooses", chosen);
    figure.charts.extend([chart, stored]);
    Ok(vec![figure])
}

/// Shares any run of 64 bytes or more, and reads before and after a collection.
fn read_as_in_the_paper(run: &Run, load: Load, ratios: &mut Ratios) -> Result<()> {
    let wishes = run.lab.new_device("icid", load.device_mebibytes());
    run.lab.leveldb(&wishes, load)?;
    let device = wishes.device;
    let fs = mounted(&device, Policy::Icid)?;
    let all = tables(&fs)?;
    let whole = read_all_whole(&fs, &all, load.device_mebibytes())?;
    ratios.before.push(read_all(&fs, &all)? / whole);
    collect(&fs)?;
    let fs = remounted(&device, fs)?;
    ratios.after.push(read_all(&fs, &all)? / whole);
    ratios.stored.push(stored_to_logical(&fs));
    fs.unmount().doing("unmount")
}

/// Shares the runs that pay on the device, and reads as the program has left it.
fn read_as_chosen(run: &Run, load: Load, ratios: &mut Ratios) -> Result<()> {
    let mebibytes = load.device_mebibytes();
    let options = format!("create,size={mebibytes}M,policy=icid");
    let wishes = Wishes { options, ..run.lab.new_device("icid", mebibytes) };
    run.lab.leveldb(&wishes, load)?;
    let fs = mounted(&wishes.device, Policy::Icid)?;
    let all = tables(&fs)?;
    let whole = read_all_whole(&fs, &all, mebibytes)?;
    ratios.chosen.push(read_all(&fs, &all)? / whole);
    ratios.stored_chosen.push(stored_to_logical(&fs));
    fs.unmount().doing("unmount")
}

fn stored_to_logical(fs: &FileSystem) -> f64 {
    let stats = fs.stats();
    stats.stored_bytes as f64 / stats.logical_bytes as f64
}

/// Describes the times to read tables relative to whole files, before and after collection.
fn read_caption(sizes: &[u64], Ratios { before, after, .. }: &Ratios) -> String {
    let slowest = |of: &[f64]| (0..sizes.len()).max_by(|a, b| of[*a].total_cmp(&of[*b])).expect("a size at least");
    let (worst_before, worst_after) = (slowest(before), slowest(after));
    format!(
        "Each extent is copied by itself, so tables of many short extents are slow: {} times as slow as whole files with \
         values of {} bytes. A collection writes the short parts that one table alone maps in the order of the table. After \
         it, the slowest are {} times as slow, with values of {} bytes.",
        number(before[worst_before]),
        sizes[worst_before],
        number(after[worst_after]),
        sizes[worst_after],
    )
}

/// Returns the nanoseconds per byte of reading the same tables without sharing.
fn read_all_whole(fs: &FileSystem, tables: &[InodeNumber], mebibytes: u64) -> Result<f64> {
    let region = Region::create(&DeviceSpec::Memory, mebibytes << 20, &OpenOptions::default());
    let region = region.map_err(nvfold::Error::from).doing("make a memory device")?;
    FileSystem::mkfs(&region, &MkfsOptions::default()).doing("format")?;
    let options = MountOptions { policy: Policy::Off, ..MountOptions::default() };
    let whole = FileSystem::mount(region, options).doing("mount")?;
    let new = NewInode { kind: nvfold::FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
    let mut copies = Vec::new();
    for (number, ino) in tables.iter().enumerate() {
        let file = fs.open(*ino).doing("open a table")?;
        let mut bytes = vec![0; file.attr().size as usize];
        if file.read_at(0, &mut bytes).doing("read a table")? != bytes.len() {
            return Err(LabError::wrong("a table".into()));
        }
        let made = whole.create(InodeNumber::ROOT, number.to_string().as_bytes(), &new).doing("make a copy")?;
        whole.open(made.ino).and_then(|copy| copy.write_at(0, &bytes)).doing("write a copy")?;
        copies.push(made.ino);
    }
    read_all(&whole, &copies)
}

/// Collects until the stored bytes no longer decrease.
fn collect(fs: &FileSystem) -> Result<()> {
    let mut before = u64::MAX;
    while fs.stats().stored_bytes < before {
        before = fs.stats().stored_bytes;
        while !fs.reclaim_step(Victims::All).doing("collect")? {}
    }
    Ok(())
}

/// Mounts again, so that no state of the earlier reads is left.
fn remounted(device: &Path, fs: FileSystem) -> Result<FileSystem> {
    fs.unmount().doing("unmount")?;
    mounted(device, Policy::Icid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caption_of_reads_names_the_slowest_size_before_and_after() {
        let ratios = Ratios { before: vec![6.44, 1.52], after: vec![1.25, 1.5], ..Ratios::default() };
        let caption = read_caption(&[128, 8192], &ratios);
        assert!(caption.contains("6.44 times as slow as whole files with values of 128 bytes"), "{caption}");
        assert!(caption.contains("slowest are 1.50 times as slow, with values of 8192 bytes"), "{caption}");
    }
}
