//! Figure 2 and Table IV: the time to write, to fingerprint and to share.
//!
//! T_w is the time to store bytes on the device and wait until they are durable, nothing else. T_f is the time
//! that a policy takes to decide whether a block exists: fingerprint and lookup. A wrapper around the policy measures
//! T_f during normal writes ([`Watched`]).

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Figure, Measure, Row};
use super::super::number::number;
use super::super::spent::{Spent, in_groups};
use super::Run;
use super::files::{Lane, Size, Think};
use super::volume::{BLOCK, Hash, System, Volume};
use crate::{Doing, Result, bounds};
use nvfold::custom_policy::{ChunkRef, Chunks, Dedup, Fingerprint, NewChunk, Piece, Transaction};
use nvfold::internals::dedup::NvDedup;
use nvfold::{
    DedupMode, FileKind, FileSystem, IndexKind, InodeNumber, Method, MethodChoice, MkfsOptions, MountOptions, NewInode,
    NvDedupOptions, Policy, StrongFunction, Verify, WeakFunction,
};
use nvfold_bench::data::Random;
use nvfold_bench::device::Device;
use nvfold_bench::samples::median;
use pmem::Profile;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Write sizes of Figure 2.
const SIZES: [usize; 9] = [4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// A way to recognise a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// Name of its line in the figures.
    pub name: &'static str,
    weak: WeakFunction,
    strong: Option<StrongFunction>,
    method: Method,
}

const fn trusted(name: &'static str, weak: WeakFunction, strong: StrongFunction) -> Way {
    Way { name, weak, strong: Some(strong), method: Method::StrFin }
}

/// The paper's way.
pub(super) const SHA1: Way = trusted("SHA-1", WeakFunction::Sha1, StrongFunction::Sha1);
/// Our way.
pub(super) const BYTES: Way =
    Way { name: "XXH3 and bytes (ours)", weak: WeakFunction::Xxh3, strong: None, method: Method::WBFin };
/// All ways. Equations (4) and (5) are for the one with a weak fingerprint before a strong one.
pub(super) const WAYS: [Way; 6] = [
    SHA1,
    trusted("MD5", WeakFunction::Md5, StrongFunction::Md5),
    trusted("SHA-256", WeakFunction::Sha256, StrongFunction::Sha256),
    trusted("BLAKE3", WeakFunction::Blake3, StrongFunction::Blake3),
    Way {
        name: "CRC-32, then SHA-1",
        weak: WeakFunction::Crc32,
        strong: Some(StrongFunction::Sha1),
        method: Method::WSFin,
    },
    BYTES,
];

/// A policy whose time is measured.
struct Watched {
    policy: NvDedup,
    epoch: Instant,
    ns: AtomicU64,
}

impl Watched {
    fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        // The thread waits for a charge later, so this clock counts device time when it is charged.
        let began = pmem::clock::device_ns(self.epoch);
        let done = work();
        self.ns.fetch_add(pmem::clock::device_ns(self.epoch) - began, Ordering::Relaxed);
        done
    }
}

impl Dedup for Watched {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        self.timed(|| self.policy.fingerprint(piece))
    }

    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        self.timed(|| self.policy.place(pieces, tx));
    }

    fn published(&self, new: &[NewChunk], known: &[ChunkRef], chunks: &Chunks) -> Vec<ChunkRef> {
        self.policy.published(new, known, chunks)
    }
}

/// Nanoseconds to decide about a block of 4 KiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// If it is new.
    pub new: f64,
    /// If it exists.
    pub duplicate: f64,
}

/// A file system that detects duplicates in one way, and times its policy.
pub(super) struct Bench {
    fs: FileSystem,
    watch: Arc<Watched>,
    round: u64,
}

impl Bench {
    /// Makes it on an empty device with space for two files of `bytes` bytes.
    pub(super) fn new(profile: &Profile, way: Way, bytes: usize) -> Result<Bench> {
        let nv_dedup = NvDedupOptions {
            weak: way.weak,
            strong: way.strong,
            verify: if way.strong.is_some() { Verify::Strong } else { Verify::Bytes },
            method: MethodChoice::Fixed(way.method),
            ..NvDedupOptions::default()
        };
        let watch =
            Arc::new(Watched { policy: NvDedup::new(&nv_dedup, None), epoch: Instant::now(), ns: AtomicU64::new(0) });
        let custom_policy = Some(watch.clone() as Arc<dyn Dedup>);
        let mount = MountOptions { policy: Policy::Off, nv_dedup, custom_policy, ..MountOptions::default() };
        let mkfs = MkfsOptions { index: IndexKind::Pm, weak: way.weak, ..MkfsOptions::default() };
        let fs = Device::new(profile, 4 * bytes as u64 + (32 << 20)).mount(&mkfs, mount)?;
        Ok(Bench { fs, watch, round: 0 })
    }

    /// Writes new data and then the same data again, with requests of `request_bytes` bytes; returns both times.
    pub(super) fn times(&mut self, bytes: usize, request_bytes: usize) -> Result<Times> {
        self.round += 1;
        let content = unique(bytes, self.round);
        let [new, duplicate] = ["new", "duplicate"].map(|name| self.write(name, &content, request_bytes));
        for name in ["new", "duplicate"] {
            self.fs.unlink(InodeNumber::ROOT, name.as_bytes()).doing("remove a file")?;
        }
        Ok(Times { new: new?, duplicate: duplicate? })
    }

    /// Returns the median of `rounds` rounds.
    pub(super) fn median_times(&mut self, rounds: usize, bytes: usize, request_bytes: usize) -> Result<Times> {
        self.times(bytes, request_bytes)?;
        let times = (0..rounds).map(|_| self.times(bytes, request_bytes)).collect::<Result<Vec<Times>>>()?;
        let of = |what: fn(&Times) -> f64| median(&times.iter().map(what).collect::<Vec<f64>>());
        Ok(Times { new: of(|times| times.new), duplicate: of(|times| times.duplicate) })
    }

    /// Unmounts it in order.
    pub(super) fn close(self) -> Result<()> {
        self.fs.unmount().doing("unmount")
    }

    /// Writes a file; returns the nanoseconds per block that the policy took.
    fn write(&self, name: &str, content: &[u8], request_bytes: usize) -> Result<f64> {
        let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
        let ino = self.fs.create(InodeNumber::ROOT, name.as_bytes(), &new).doing("create a file")?.ino;
        let file = self.fs.open(ino).doing("open a file")?;
        let mut buffer = vec![0; request_bytes];
        let before = self.watch.ns.load(Ordering::Relaxed);
        for (at, request) in (0..).step_by(request_bytes).zip(content.chunks(request_bytes)) {
            buffer.copy_from_slice(request);
            file.write_at(at, &buffer).doing("write")?;
        }
        let ns = self.watch.ns.load(Ordering::Relaxed) - before;
        Ok(ns as f64 / (content.len() / BLOCK) as f64)
    }
}

/// Returns unique bytes.
fn unique(bytes: usize, seed: u64) -> Vec<u8> {
    let mut content = vec![0; bytes];
    let mut random = Random(seed << 40);
    content.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.next_u64().to_le_bytes());
    content
}

/// T_w: returns the cost to store a request durably on a device of this profile, nanoseconds; the median of rounds.
/// The device is larger than a cache.
pub(super) fn write_ns(run: &Run, profile: &Profile, request_bytes: usize) -> Result<f64> {
    let bytes = if run.turn.smoke { 1 << 20 } else { 128 << 20 };
    let rounds = run.fewer;
    let device = Device::new(profile, bytes as u64);
    let region = device.create()?;
    region.populate(0, device.bytes);
    let content = unique(bytes, 1);
    let round = |_| {
        let requests = (0..bytes / request_bytes).zip(content.chunks(request_bytes));
        let write = |at: usize, request: &[u8]| {
            let _ = region.fence(region.stream((at * request_bytes) as u64, request));
            Ok(())
        };
        let spent = in_groups(requests, write, |_| ())?;
        Ok(spent.cost_ns / (bytes / request_bytes) as f64)
    };
    round(0)?;
    let ns = median(&(0..rounds).map(round).collect::<Result<Vec<f64>>>()?);
    check_write(profile, request_bytes, ns)?;
    Ok(ns)
}

/// Refuses a time to write that is shorter than what the device charges.
fn check_write(profile: &Profile, bytes: usize, ns: f64) -> Result<()> {
    let (what, least) =
        (format!("T_w of {bytes} bytes on {}", profile.name()), bounds::write_charge_ns(profile, bytes as f64));
    bounds::at_least(what, ns, least, "ns", "the device charges each line that is written")
}

/// Refuses parts of the time to share that exceed it by more than a tenth: they are measured in loops of their own.
fn check_parts(what: &str, share: f64, read: f64, fingerprint: f64) -> Result<()> {
    let why = "no part is longer than the whole; parts are measured apart, to a tenth";
    bounds::at_most(format!("{what}: reading and fingerprints"), read + fingerprint, 1.1 * share, "us", why)
}

/// Returns the cost to read a block that is in no cache from a device of this profile, nanoseconds; the median of
/// rounds.
fn read_ns(profile: &Profile, bytes: usize, rounds: usize) -> Result<f64> {
    let device = Device::new(profile, bytes as u64);
    let region = device.create()?;
    region.populate(0, device.bytes);
    let mut buffer = vec![0; BLOCK];
    let round = |_| {
        let read_all = || {
            for at in (0..device.bytes).step_by(BLOCK) {
                region.read_into(at, &mut buffer);
                std::hint::black_box(&buffer);
            }
            Ok(())
        };
        let ((), spent) = Spent::on(read_all)?;
        Ok(spent.cost_ns / (device.bytes / BLOCK as u64) as f64)
    };
    Ok(median(&(0..rounds).map(round).collect::<Result<Vec<f64>>>()?))
}

/// Returns the cost to compute the fingerprint of a block in the cache, nanoseconds.
fn fingerprint_ns(hash: Hash, blocks: usize) -> Result<f64> {
    let options = hash.options();
    let content = unique(16 * BLOCK, 1);
    let fingerprints = || {
        for (block, _) in content.chunks(BLOCK).cycle().zip(0..blocks) {
            std::hint::black_box(Fingerprint::of(block, options.weak, options.strong));
        }
        Ok(())
    };
    let ((), spent) = Spent::on(fingerprints)?;
    Ok(spent.cost_ns / blocks as f64)
}

/// Figure 2: T_w and T_f over write sizes.
pub(super) fn write_and_fingerprint(run: &Run) -> Result<Vec<Figure>> {
    let bytes = if run.turn.smoke { 1 << 20 } else { 32 << 20 };
    let title = "Figure 2: writing and fingerprinting";
    let settings = format!(
        "{} MiB of new data, written in requests of each size. T_w is the time of a streaming store to the device and \
         a fence; T_f is the time to fingerprint each 4 KiB block and look it up in the pm index, measured in a \
         running policy. Medians of {} rounds.",
        bytes >> 20,
        run.fewer
    );
    let mut figure = run.turn.figure("figure-2", title, settings);
    let (mut tw, mut tf) = (Vec::new(), vec![Vec::new(); 2]);
    let mut benches = [SHA1, BYTES].map(|way| Bench::new(&run.turn.profile, way, bytes));
    for kib in SIZES {
        run.turn.say(&format!("T_w and T_f of {kib} KiB"));
        let request_bytes = kib << 10;
        tw.push(write_ns(run, &run.turn.profile, request_bytes)? / 1000.0);
        for (bench, tf) in benches.iter_mut().zip(&mut tf) {
            let Ok(bench) = bench else { continue };
            let times = bench.median_times(run.fewer, bytes, request_bytes)?;
            tf.push(times.new * kib as f64 / 4.0 / 1000.0);
        }
    }
    for bench in benches {
        bench?.close()?;
    }
    let x = || SIZES.iter().map(|kib| format!("{kib} KiB"));
    let names = [SHA1, BYTES].map(|way| way.name);
    let share = |tf: &[f64]| tf.iter().zip(&tw).map(|(tf, tw)| 100.0 * tf / (tf + tw)).collect::<Vec<f64>>();
    for (name, tf) in names.into_iter().zip(&tf) {
        let chart_title = format!("{title}: {name}");
        let chart = Chart::new(Drawn::Stacked, &chart_title, "write size", "% of T_f + T_w", x());
        let fingerprint = share(tf);
        let write: Vec<f64> = fingerprint.iter().map(|share| 100.0 - share).collect();
        figure.charts.push(chart.with("T_f", fingerprint).with("T_w", write));
    }
    let times = Chart::new(Drawn::Table, "times, us", "write size", "times, us", x()).with("T_w", tw.clone());
    let add = |chart: Chart, (name, tf): (&str, &Vec<f64>)| chart.with(&format!("T_f, {name}"), tf.clone());
    figure.charts.push(names.into_iter().zip(&tf).fold(times, add));
    let least: Vec<f64> =
        tf.iter().map(|tf| tf.iter().zip(&tw).map(|(tf, tw)| tf / tw).fold(f64::INFINITY, f64::min)).collect();
    for (at, name) in names.into_iter().enumerate() {
        let what = format!("T_f to T_w with {name}, least over the sizes (the paper: more than 1 at every size)");
        figure.rows.push(Row::own(what, least[at], "x"));
    }
    figure.reading = format!(
        "Fingerprinting with SHA-1 takes at least {} times as long as writing; with XXH3 it takes at least {} times as \
         long.",
        number(least[0]),
        number(least[1])
    );
    Ok(vec![figure])
}

/// Measures Table IV: the latency of a write, and of sharing its data.
pub(super) fn latencies(run: &Run) -> Result<Vec<Figure>> {
    let title = "Table IV: the latency of a write and of sharing it later";
    let settings = format!(
        "Policy denova without a daemon: files are written and timed, then the queue is drained and timed; 50 % \
         duplicates. Fingerprinting and reading a block are timed separately; the rest is other operations. Medians of \
         {} passes of {} small and {} large files.",
        run.fewer,
        run.files(Size::Small),
        run.files(Size::Large)
    );
    let mut figure = run.turn.figure("table-4", title, settings);
    let profile = &run.turn.profile;
    let reading = read_ns(profile, if run.turn.smoke { 8 << 20 } else { 128 << 20 }, run.fewer)? / 1000.0;
    let mut times = Vec::new();
    for hash in Hash::ALL {
        let fingerprint = fingerprint_ns(hash, if run.turn.smoke { 1000 } else { 100_000 })? / 1000.0;
        for size in Size::ALL {
            run.turn.say(&format!("latencies, {}, {}", size.name(), hash.name()));
            let (write, share) = write_and_share(run, hash, size)?;
            let blocks = (size.bytes() / BLOCK) as f64;
            let (read, fingerprint) = (blocks * reading, blocks * fingerprint);
            let kib = size.bytes() >> 10;
            let what = |what: &str| format!("{}: {what}, {kib} KiB", hash.name());
            check_write(profile, size.bytes(), 1e3 * write)?;
            check_parts(&what("sharing"), share, read, fingerprint)?;
            let other = share - read - fingerprint;
            const PROCESSOR: &str = "the paper's processor computes SHA-1 without instructions for it";
            figure.rows.push(Row::own(what("reading the file"), read, "us"));
            let (papers_write, papers_fingerprint) = match size {
                Size::Small => (2.85, 11.78),
                Size::Large => (39.86, 215.26),
            };
            let row = Row::value(what("write"), papers_write, write, "us");
            let aim = row.stay_below(Measure::Cost).with_floor(format!(
                "the device charges {} us for the blocks; the rest makes the file, in user space",
                number(bounds::write_charge_ns(profile, size.bytes() as f64) / 1e3)
            ));
            let mut claims = vec![(row, aim)];
            let row = Row::value(what("fingerprints"), papers_fingerprint, fingerprint, "us");
            figure.rows.push(row.not_comparable(PROCESSOR));
            let others = what("other operations");
            match size {
                Size::Small => {
                    let row = Row::value(others, 3.66, other, "us");
                    let aim = row.stay_below(Measure::Cost);
                    claims.push((row, aim));
                }
                Size::Large => figure.rows.push(Row::own(others, other, "us")),
            }
            for (row, aim) in claims {
                match run.turn.is_the_papers {
                    true => figure.claim(row, aim),
                    false => figure.rows.push(row),
                }
            }
            let all = what("sharing in all, times the write");
            figure.rows.push(
                match size {
                    Size::Small => Row::value(all, (11.78 + 3.66) / 2.85, share / write, "x"),
                    Size::Large => Row::range(all, 6.0, 7.0, share / write, "x"),
                }
                .not_comparable(PROCESSOR),
            );
            times.push((format!("{kib} KiB, {}", hash.name()), write, fingerprint, read, other.max(0.0)));
        }
    }
    let places = times.iter().map(|(name, ..)| name.clone());
    let parts = |what: fn(&(String, f64, f64, f64, f64)) -> f64| {
        times.iter().map(|time| what(time) / time.1).collect::<Vec<f64>>()
    };
    let chart = Chart::new(Drawn::Stacked, title, "file", "times its write", places)
        .with("fingerprints", parts(|time| time.2))
        .with("reading the file", parts(|time| time.3))
        .with("other operations", parts(|time| time.4))
        .with_paper(Some("fingerprints"), "4 KiB, as in the paper", 11.78 / 2.85, 11.78 / 2.85)
        .with_paper(None, "4 KiB, as in the paper", (11.78 + 3.66) / 2.85, (11.78 + 3.66) / 2.85)
        .with_paper(Some("fingerprints"), "128 KiB, as in the paper", 215.26 / 39.86, 215.26 / 39.86)
        .with_paper(None, "128 KiB, as in the paper", 6.0, 7.0);
    figure.charts.push(chart);
    figure.reading =
        "Sharing a file takes several times as long as writing it: the paper's reason to share it later.".into();
    Ok(vec![figure])
}

/// Returns the microseconds to write a file, and to share it.
fn write_and_share(run: &Run, hash: Hash, size: Size) -> Result<(f64, f64)> {
    let mut lane = Lane::new(size, run.files(size), 50, 1);
    let system = System::denova(DedupMode::Immediate, hash);
    let volume = Volume::new(&system, &run.turn.profile, lane.bytes(), lane.files(), 1)?;
    let directory = volume.directory("files")?;
    let (mut write, mut share) = (Vec::new(), Vec::new());
    for pass in 0..=run.fewer {
        lane.refill(50);
        let took = lane.write(&volume, directory, Think::Never)?;
        let ((), drained) = Spent::on(|| volume.drain())?;
        lane.verify(&volume, directory)?;
        lane.remove(&volume, directory)?;
        if pass > 0 {
            write.push(took.cost_ns / 1e3 / lane.files() as f64);
            share.push(drained.cost_ns / 1e3 / lane.files() as f64);
        }
    }
    volume.close()?;
    Ok((median(&write), median(&share)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_above_the_speed_of_the_device_is_refused() {
        let optane = "optane".parse().unwrap();
        check_write(&optane, BLOCK, 1_300.0).unwrap();
        let error = check_write(&optane, BLOCK, 1_200.0).unwrap_err().to_string();
        assert!(error.contains("T_w of 4096 bytes on optane: 1200 ns"), "{error}");
    }

    #[test]
    fn parts_that_exceed_the_whole_are_refused() {
        check_parts("ours", 3.0, 0.1, 2.9).unwrap();
        let error = check_parts("ours", 3.0, 1.0, 2.9).unwrap_err().to_string();
        assert!(error.contains("3.9 us") && error.contains("no part is longer"), "{error}");
    }
}
