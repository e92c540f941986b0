//! Figure 15: LevelDB's operations per second while space is collected; section 6: reading shared data.
//!
//! The paper starts collection by hand after each 16 GB of updates. Here it starts by itself. A store is filled and
//! then gets as many updates, on two devices. One has space for all dead data. The other does not, so space must be
//! collected while LevelDB writes.

use super::Run;
use super::lab::{Done, FILL, Load, Wishes};
use crate::paper::chart::{Chart, Kind};
use crate::paper::figure::{Aim, Figure, Measure, Row};
use crate::paper::number::number;
use crate::{Doing, LabError, Result};
use nvfold::{FileSystem, InodeNumber, MkfsOptions, MountOptions, NewInode, Policy, Victims};
use nvfold_bench::samples::{median, smallest};
use pmem::{DeviceSpec, OpenOptions, Region};
use std::path::Path;

/// Bytes of a value; the divisor of the set, because short values take longer; and the size of the small device in
/// percent of the set. That size covers the live data, the current compaction of LevelDB, and the dead bytes of
/// blocks that are not worth collecting.
const SIZES: [(u64, u64, u64); 2] = [(1024, 8, 260), (8192, 1, 175)];
/// Bytes of the pairs whose tables are read; and their largest number.
const READ_SET: (u64, u64) = (128 << 20, 1_000_000);
/// Bytes of a read.
const READ_BYTES: usize = 128 << 10;

/// Makes Figure 15, and the figure of section 6.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let updated = SIZES.iter().map(|size| updates(run, *size)).collect::<Result<Vec<Updated>>>()?;
    Ok(vec![updating(run, &updated), reading(run)?])
}

/// A store that was filled and updated.
struct Updated {
    value_bytes: u64,
    load: Load,
    /// With ample space, and with little: operations per second of each part of the updates, and the final state of
    /// the device.
    roomy: Done,
    tight: Done,
    tight_mebibytes: u64,
}

fn updates(run: &Run, (value_bytes, part, percent): (u64, u64, u64)) -> Result<Updated> {
    let bytes = run.collected_bytes / part;
    let pairs = bytes / (value_bytes + 16);
    let load = Load { reads: pairs / 100, ..Load::of("fillrandom,overwrite", pairs, value_bytes) };
    let mebibytes = bytes >> 20;
    run.turn.say(&format!("LevelDB, {mebibytes} MiB with values of {value_bytes} bytes, updated with room"));
    let roomy = run.lab.leveldb(&Wishes::in_memory("icid", 256 + mebibytes * 4), load)?;
    let tight_mebibytes = (64 + mebibytes * percent / 100).next_multiple_of(2);
    run.turn.say(&format!("LevelDB, the same on a device of {tight_mebibytes} MiB"));
    let tight = run.lab.leveldb(&Wishes::in_memory("icid", tight_mebibytes), load)?;
    Ok(Updated { value_bytes, load, roomy, tight, tight_mebibytes })
}

/// Returns the rate of each part of the updates, without the parts of the fill.
fn rates(done: &Done) -> Vec<f64> {
    let all = done.all("window_rate");
    all[all.len() / 2..].to_vec()
}

fn updating(run: &Run, updated: &[Updated]) -> Figure {
    let of = |updated: &Updated| {
        let Updated { value_bytes, load, tight_mebibytes, .. } = updated;
        format!("{tight_mebibytes} MiB for {} pairs with values of {value_bytes} bytes", load.pairs)
    };
    let mut figure = run.turn.figure(
        "figure-15",
        "Figure 15: updates while space is collected",
        format!(
            "LevelDB without compression: pairs put in random order, then the same number of updates. With room: a \
             device four times as large as the pairs. Collecting: a device of {}. Operations per second of wall time, \
             in each sixteenth of the updates.",
            updated.iter().map(of).collect::<Vec<String>>().join(", and one of ")
        ),
    );
    let parts = updated.first().map_or(0, |updated| rates(&updated.roomy).len());
    let places = (1..=parts).map(|part| format!("{}", part * 100 / parts.max(1)));
    let mut chart = Chart::new(
        Kind::Lines,
        "Figure 15: operations a second while pairs are updated",
        "% of the pairs updated",
        "thousand a second",
        places,
    );
    for of in updated {
        let thousands = |done: &Done| rates(done).into_iter().map(|rate| rate / 1e3).collect::<Vec<f64>>();
        chart = chart.with(&format!("{} bytes, room", of.value_bytes), thousands(&of.roomy));
        chart = chart.with(&format!("{} bytes, collecting", of.value_bytes), thousands(&of.tight));
        let (roomy, tight) = (rates(&of.roomy), rates(&of.tight));
        let ratio = median(&tight) / median(&roomy);
        let what = |what: &str| format!("{} bytes: {what}", of.value_bytes);
        figure.rows.push(Row::own(what("pairs"), of.load.pairs as f64, ""));
        figure.rows.push(Row::own(what("collecting to room, median of the parts"), ratio, "x"));
        figure.rows.push(Row::own(
            what("slowest part to the median, with room"),
            smallest(&roomy) / median(&roomy),
            "x",
        ));
        figure.rows.push(Row::own(
            what("slowest part to the median, collecting"),
            smallest(&tight) / median(&tight),
            "x",
        ));
        for (name, done) in [("with room", &of.roomy), ("collecting", &of.tight)] {
            let stored = done.get("stored_bytes").and_then(|stored| Ok(stored / done.get("logical_bytes")?));
            let name = format!("stored to logical bytes at the end, {name}");
            figure.rows.push(Row::own(what(&name), stored.unwrap_or(f64::NAN), "x"));
        }
        figure.aims.push(
            Aim::at_least(
                format!("{} bytes: rate while collecting to that with room: 0.9", of.value_bytes),
                ratio,
                0.9,
            )
            .by(Measure::Wall),
        );
    }
    figure.charts.push(chart);
    figure.reading =
        "The paper states that \"GC has only a slight impact on the throughput of LevelDB\", and shows it \
                      in a picture."
            .into();
    figure
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

fn reading(run: &Run) -> Result<Figure> {
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
    let (mut before, mut after, mut stored) = (Vec::new(), Vec::new(), Vec::new());
    for &value_bytes in run.value_sizes() {
        let load = Load::of(FILL, (read_set_bytes(run) / (value_bytes + 16)).min(READ_SET.1), value_bytes);
        run.turn.say(&format!("reading LevelDB's tables with values of {value_bytes} bytes"));
        let wishes = run.lab.new_device("icid", load.device_mebibytes());
        run.lab.leveldb(&wishes, load)?;
        let device = wishes.device;
        let fs = mounted(&device, Policy::Icid)?;
        let all = tables(&fs)?;
        let whole = read_all_whole(&fs, &all, load.device_mebibytes())?;
        before.push(read_all(&fs, &all)? / whole);
        collect(&fs)?;
        let fs = remounted(&device, fs)?;
        after.push(read_all(&fs, &all)? / whole);
        let stats = fs.stats();
        stored.push(stats.stored_bytes as f64 / stats.logical_bytes as f64);
        fs.unmount().doing("unmount")?;
    }
    let sizes = run.value_sizes();
    for at in [0, sizes.len() - 1] {
        figure.rows.push(Row::own(
            format!("{} bytes, before: time to that of whole files", sizes[at]),
            before[at],
            "x",
        ));
        figure.rows.push(Row::own(format!("{} bytes, after", sizes[at]), after[at], "x"));
    }
    let worst = after.iter().copied().fold(0.0, f64::max);
    figure.aims.push(
        Aim::at_most("time to read after collection relative to whole files, worst size: 2", worst, 2.0)
            .by(Measure::Cost),
    );
    let stored = Chart::new(
        Kind::Table,
        "Stored to logical bytes after collection",
        "bytes of a value",
        "ratio",
        sizes.iter().map(ToString::to_string),
    )
    .with("ICID", stored);
    let before_and_after = [before.clone(), after.clone()];
    chart = chart.with("before collection", before).with("after collection", after);
    figure.charts.extend([chart, stored]);
    figure.reading = read_caption(run.value_sizes(), &before_and_after);
    Ok(figure)
}

/// Describes the times to read tables relative to whole files, before and after collection.
fn read_caption(sizes: &[u64], [before, after]: &[Vec<f64>; 2]) -> String {
    let slowest = (0..sizes.len()).max_by(|a, b| after[*a].total_cmp(&after[*b])).expect("a size at least");
    let gains = before.iter().zip(after).filter(|(before, after)| after < before).count();
    format!(
        "Each extent is copied by itself, so tables with many short extents are slowest: {} times as slow as whole files \
         with values of {} bytes, after collection. Collection makes reading faster at {gains} of {} sizes: it frees \
         space, and does not put extents together.",
        number(after[slowest]),
        sizes[slowest],
        sizes.len()
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
    fn the_caption_of_reads_names_the_slowest_size_and_counts_what_collection_gains() {
        let caption = read_caption(&[128, 8192], &[vec![6.44, 1.52], vec![6.25, 1.53]]);
        assert!(caption.contains("6.25 times as slow as whole files with values of 128 bytes"), "{caption}");
        assert!(caption.contains("faster at 1 of 2 sizes"), "{caption}");
    }
}
