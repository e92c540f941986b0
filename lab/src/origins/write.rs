//! A write whose bytes all have an origin, compared with a plain one of the same length: counted, charged, and timed.
//!
//! Every lane does the same: it reads a piece of a source into a buffer, as a copying program does, and appends the
//! buffer to another file. Only the append is measured. The lanes differ in the origin that the append gets:
//!
//! ```text
//! source                                        target, appended to
//! aligned    | piece 0 | piece 1 | ...          | piece 0 | piece 1 | ...     each lies as in the source: it goes on with
//! unaligned  1000 bytes | piece 0 | 100 bytes | piece 1 | ...                 the last one; here each is an extent
//! ```
//!
//! Plain lanes write new bytes: the piece with a stamp in each 512 bytes.

use super::merge::create;
use crate::cost::{Lines, System, Traffic, WARM_UP};
use crate::{Doing, LabError, Result};
use nvfold::{DedupMode, File, FileSystem, IndexKind, InodeNumber, Method, Origin, Policy};
use nvfold_bench::data::Random;
use nvfold_bench::samples::{median, middle_half};
use pmem::{Counters, OpenOptions, Profile};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Instant;

/// Bytes of a write.
pub(super) const SIZES: [usize; 11] =
    [128, 256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];
/// Number of calls that are counted.
const CALLS: usize = 64;
/// Maximum bytes and calls of a timed pass.
const PASS_BYTES: usize = 4 << 20;
const PASS_CALLS_MAX: usize = 1000;
/// Offset of the first unaligned piece, and bytes between two pieces.
const SHIFT_BYTES: usize = 1000;
const GAP_BYTES: usize = 100;
const STAMP_EVERY_BYTES: usize = 512;
/// More bytes than the modelled cache holds.
const CACHE_BYTES: usize = 1 << 20;

/// The origin that a write gets, and the placement of its pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Its origin, at the same offset within a block.
    Aligned,
    /// Its origin, at any offset.
    Unaligned,
    /// The same, with a source that is in no cache because it was read long ago.
    Cold,
    /// No origin, under a policy.
    Plain(Policy),
}

impl Lane {
    /// All lanes, in the order of the tables.
    pub(super) const ALL: [Lane; 6] = [
        Lane::Aligned,
        Lane::Unaligned,
        Lane::Cold,
        Lane::Plain(Policy::Icid),
        Lane::Plain(Policy::Off),
        Lane::Plain(Policy::Inline),
    ];

    /// Returns its name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Lane::Aligned => "origins, aligned",
            Lane::Unaligned => "origins, unaligned",
            Lane::Cold => "origins, unaligned, cold",
            Lane::Plain(Policy::Icid) => "plain, icid",
            Lane::Plain(Policy::Off) => "plain, off",
            Lane::Plain(_) => "plain, inline",
        }
    }

    fn system(self) -> System {
        let policy = if let Lane::Plain(policy) = self { policy } else { Policy::Icid };
        System { policy, index: IndexKind::Dram, method: Method::WBFin, mode: DedupMode::Inline }
    }

    /// Returns the offset of piece `number` in the source.
    fn source_offset(self, number: usize, bytes: usize) -> usize {
        match self {
            Lane::Unaligned | Lane::Cold => SHIFT_BYTES + number * (bytes + GAP_BYTES),
            Lane::Aligned | Lane::Plain(_) => number * bytes,
        }
    }
}

/// A write of one size in one lane. Counts are for one call.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub bytes: usize,
    pub lane: &'static str,
    pub fences: f64,
    /// Lines written by purpose, as sums of [`CALLS`] calls, and the lines of one call.
    pub written_of_all_calls: Lines,
    pub lines_written: f64,
    pub lines_read: f64,
    pub locked: f64,
    /// Charge of each emulated device, nanoseconds.
    pub charged_ns: BTreeMap<&'static str, f64>,
    /// Nanoseconds on this machine's memory: median of the medians of passes, and the width of their middle half.
    /// Absent for the cold lane, because it is unknown what the processor's cache holds.
    pub wall_ns: Option<f64>,
    pub wall_middle_half_ns: Option<f64>,
    /// Ratio to `plain, off` of the same pass, median and middle half.
    pub wall_ratio: Option<f64>,
    pub wall_ratio_middle_half: Option<f64>,
}

/// A file system with a source and a target.
struct Stage {
    lane: Lane,
    bytes: usize,
    fs: FileSystem,
    content: Vec<u8>,
    source: File,
    target: File,
    buffer: Vec<u8>,
    /// Bytes that the file system reported as shared.
    shared: u64,
    stamp: u64,
}

impl Stage {
    fn new(lane: Lane, bytes: usize, calls: usize, device: &OpenOptions) -> Result<Stage> {
        let fs = lane.system().mount(device)?;
        let mut random = Random(bytes as u64);
        let length = (SHIFT_BYTES + calls * (bytes + GAP_BYTES)).next_multiple_of(8);
        let content: Vec<u8> = (0..length / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        let (source, target) = (create(&fs, "source")?, create(&fs, "target")?);
        source.write_at(0, &content).doing("write the source")?;
        let stage = Stage { lane, bytes, fs, content, source, target, buffer: vec![0; bytes], shared: 0, stamp: 0 };
        let mut unused = vec![0; CACHE_BYTES];
        let region = stage.fs.region();
        region.read_into(region.len_bytes() - CACHE_BYTES as u64, &mut unused);
        Ok(stage)
    }

    /// Fills the buffer with the piece, as a copying program does.
    fn fill(&mut self, number: usize) -> Result<()> {
        let at = self.lane.source_offset(number, self.bytes);
        match self.lane {
            Lane::Cold => self.buffer.copy_from_slice(&self.content[at..at + self.bytes]),
            _ => _ = self.source.read_at(at as u64, &mut self.buffer).doing("read the source")?,
        }
        if let Lane::Plain(_) = self.lane {
            self.stamp += 1;
            let stamp = self.stamp.to_le_bytes();
            self.buffer.chunks_mut(STAMP_EVERY_BYTES).for_each(|part| part[..8].copy_from_slice(&stamp));
        }
        Ok(())
    }

    fn append(&mut self, number: usize) -> Result<()> {
        let source_offset = self.lane.source_offset(number, self.bytes) as u64;
        let origin = Origin { at: 0, length: self.bytes as u64, source: &self.source, source_offset };
        match self.lane {
            Lane::Plain(_) => _ = self.target.append(&self.buffer).doing("append")?,
            _ => self.shared += self.target.append_from(&self.buffer, &[origin]).doing("append with an origin")?.1,
        }
        Ok(())
    }

    /// Replaces the target by a new empty one.
    fn begin_anew(&mut self) -> Result<()> {
        self.fs.unlink(InodeNumber::ROOT, b"target").doing("remove the target")?;
        self.target = create(&self.fs, "target")?;
        self.shared = 0;
        Ok(())
    }

    /// Proves that all appends with an origin were shared, that no others were, and that the target has the written
    /// content.
    fn prove(&mut self, calls: usize) -> Result<()> {
        let (bytes, lane) = ((calls * self.bytes) as u64, self.lane);
        let expected = if let Lane::Plain(_) = lane { 0 } else { bytes };
        if self.shared != expected {
            let system = format!("a write of {} bytes, {}", self.bytes, lane.name());
            return Err(LabError::Unshared { system, shared: self.shared, expected });
        }
        if matches!(lane, Lane::Plain(_)) && self.fs.stats().saved_bytes > 0 {
            return Err(LabError::Miscounted(format!("{}: new bytes were shared", lane.name())));
        }
        let mut piece = vec![0; self.bytes];
        for number in 0..calls {
            let read = self.target.read_at((number * self.bytes) as u64, &mut piece).doing("read the target")?;
            let at = lane.source_offset(number, self.bytes);
            let mut expected = self.content[at..at + self.bytes].to_vec();
            if let Lane::Plain(_) = lane {
                let stamp = (self.stamp - (calls - number - 1) as u64).to_le_bytes();
                expected.chunks_mut(STAMP_EVERY_BYTES).for_each(|part| part[..8].copy_from_slice(&stamp));
            }
            if read != self.bytes || piece != expected {
                return Err(LabError::wrong(format!("a write of {} bytes, {},", self.bytes, lane.name())));
            }
        }
        Ok(())
    }
}

/// Measures writes of `bytes` bytes in every lane.
pub(super) fn measure(bytes: usize, repeats: u32) -> Result<Vec<Row>> {
    let mut rows = Lane::ALL.iter().map(|lane| counted(*lane, bytes)).collect::<Result<Vec<Row>>>()?;
    let timed: Vec<Lane> = Lane::ALL.into_iter().filter(|lane| *lane != Lane::Cold).collect();
    let times = timed_passes(&timed, bytes, repeats)?;
    let base = timed.iter().position(|lane| *lane == Lane::Plain(Policy::Off)).expect("it is one of them");
    for (lane, of_lane) in timed.iter().zip(&times) {
        let row = rows.iter_mut().find(|row| row.lane == lane.name()).expect("each lane has a row");
        let ratios: Vec<f64> = of_lane.iter().zip(&times[base]).map(|(own, base)| own / base).collect();
        (row.wall_ns, row.wall_middle_half_ns) = (Some(median(of_lane)), Some(middle_half(of_lane)));
        (row.wall_ratio, row.wall_ratio_middle_half) = (Some(median(&ratios)), Some(middle_half(&ratios)));
    }
    Ok(rows)
}

/// The summed cost of calls, without filling the buffer.
#[derive(Default)]
struct Sum {
    fences: u64,
    lines_written: u64,
    lines_read: u64,
    locked: u64,
    charged_ps: u64,
}

impl Sum {
    fn add(&mut self, counters: Counters, locked: u64) {
        self.fences += counters.fences;
        self.lines_written += counters.lines_written();
        self.lines_read += counters.lines_read;
        self.locked += locked + counters.exchanges;
        self.charged_ps += counters.charged_ps;
    }
}

/// Runs the calls on a device; returns the cost of those after the warm-up, and lines written by kind if it counts
/// them.
fn run(lane: Lane, bytes: usize, device: &OpenOptions) -> Result<(Sum, Lines)> {
    let mut stage = Stage::new(lane, bytes, WARM_UP + CALLS, device)?;
    for number in 0..WARM_UP {
        stage.fill(number)?;
        stage.append(number)?;
    }
    let region = stage.fs.region().clone();
    let (before, mut sum) = (Traffic::of(&region), Sum::default());
    for number in WARM_UP..WARM_UP + CALLS {
        stage.fill(number)?;
        let (counters, locked) = (region.counters(), nvfold::internals::locked_instructions());
        stage.append(number)?;
        sum.add(region.counters() - counters, nvfold::internals::locked_instructions() - locked);
    }
    let (written, _) = before.until(&Traffic::of(&region), &region)?;
    stage.prove(WARM_UP + CALLS)?;
    Ok((sum, written))
}

fn counted(lane: Lane, bytes: usize) -> Result<Row> {
    let (sum, written) = run(lane, bytes, &OpenOptions { track_wear: true, ..OpenOptions::default() })?;
    let of_blocks: u64 = written.values().sum();
    if of_blocks != sum.lines_written {
        let what = format!("lines written by block: {of_blocks}, in all: {}", sum.lines_written);
        return Err(LabError::Miscounted(what));
    }
    let mut charged_ns = BTreeMap::new();
    for profile in Profile::all().into_iter().filter(|profile| !profile.is_native()) {
        let name = profile.name();
        let device = OpenOptions { profile, counts_only: true, ..OpenOptions::default() };
        charged_ns.insert(name, run(lane, bytes, &device)?.0.charged_ps as f64 / 1000.0 / CALLS as f64);
    }
    let each = |sum: u64| sum as f64 / CALLS as f64;
    Ok(Row {
        bytes,
        lane: lane.name(),
        fences: each(sum.fences),
        written_of_all_calls: written,
        lines_written: each(sum.lines_written),
        lines_read: each(sum.lines_read),
        locked: each(sum.locked),
        charged_ns,
        wall_ns: None,
        wall_middle_half_ns: None,
        wall_ratio: None,
        wall_ratio_middle_half: None,
    })
}

/// Returns the nanoseconds per call of each lane in each pass. The lanes take turns.
fn timed_passes(lanes: &[Lane], bytes: usize, repeats: u32) -> Result<Vec<Vec<f64>>> {
    let calls = (PASS_BYTES / bytes).clamp(CALLS / 4, PASS_CALLS_MAX);
    let native = OpenOptions::default();
    let mut stages =
        lanes.iter().map(|lane| Stage::new(*lane, bytes, calls, &native)).collect::<Result<Vec<Stage>>>()?;
    let mut times = vec![Vec::new(); lanes.len()];
    for pass in 0..=repeats {
        for (stage, times) in stages.iter_mut().zip(&mut times) {
            let nanoseconds = timed_pass(stage, calls)?;
            // The first pass warms up.
            if pass > 0 {
                times.push(nanoseconds);
            }
            stage.prove(calls)?;
            stage.begin_anew()?;
        }
    }
    Ok(times)
}

/// Returns the median of the calls: on a busy machine most of a sum would be the time of other work.
fn timed_pass(stage: &mut Stage, calls: usize) -> Result<f64> {
    let mut nanoseconds = Vec::with_capacity(calls);
    for number in 0..calls {
        stage.fill(number)?;
        let clock = Instant::now();
        stage.append(number)?;
        nanoseconds.push(clock.elapsed().as_nanos() as f64);
    }
    Ok(median(&nanoseconds))
}

/// Returns the sizes with which a lane costs less than a plain write under policy `off`: by the charge of a device,
/// or by the wall clock for `native`.
pub(super) fn pays(rows: &[Row], lane: Lane, profile: &str) -> Vec<usize> {
    let cost = |row: &Row| if profile == "native" { row.wall_ratio } else { row.charged_ns.get(profile).copied() };
    let of = |lane: Lane, bytes: usize| cost(rows.iter().find(|row| row.lane == lane.name() && row.bytes == bytes)?);
    let wins = |bytes: &usize| of(lane, *bytes).zip(of(Lane::Plain(Policy::Off), *bytes)).is_some_and(|(a, b)| a < b);
    rows.iter().filter(|row| row.lane == lane.name()).map(|row| row.bytes).filter(wins).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_with_an_origin_writes_no_data() {
        let rows = measure(8192, 1).unwrap();
        let data = |lane: Lane| {
            let row = rows.iter().find(|row| row.lane == lane.name()).unwrap();
            row.written_of_all_calls.get(&crate::cost::Kind::Data).copied().unwrap_or(0)
        };
        assert_eq!([Lane::Aligned, Lane::Unaligned, Lane::Cold].map(data), [0; 3], "{rows:#?}");
        assert!(data(Lane::Plain(Policy::Off)) >= 128 * CALLS as u64);
        let cold = rows.iter().find(|row| row.lane == Lane::Cold.name()).unwrap();
        assert!(cold.lines_read >= 128.0 && cold.wall_ns.is_none(), "{cold:?}");
    }

    #[test]
    fn an_origin_pays_only_if_sharing_costs_less_than_writing() {
        let rows = [128, 256].map(|bytes| measure(bytes, 1).unwrap()).concat();
        let mut made = rows.clone();
        for row in &mut made {
            let is_plain = row.lane == Lane::Plain(Policy::Off).name();
            row.charged_ns = [("optane", if is_plain || row.bytes == 128 { 5.0 } else { 4.0 })].into();
        }
        assert_eq!(pays(&made, Lane::Aligned, "optane"), [256]);
        made.iter_mut().for_each(|row| _ = row.charged_ns.insert("optane", 5.0));
        assert!(pays(&made, Lane::Aligned, "optane").is_empty());
    }
}
