//! FACT, the table on the device (IV-C, IV-E): its share of the device, the entries that a lookup reads when the
//! device is full of distinct blocks, and the effect of ordering chains by reference counts. The workload for
//! the last one repeats a few blocks often and most blocks rarely (Zipf).
//!
//! The size of the device is a power of two, so the direct area has exactly one place per block. It is as full as it
//! can be: the gap to 100 % is the blocks of the tables and logs, and a row shows the load. The rank of a block does
//! not depend on when it was stored, because a chain has its oldest entry first.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Aim, Figure, Row};
use super::super::number::number;
use super::Run;
use super::volume::{BLOCK, Hash, System, Volume};
use crate::{Doing, LabError, Result, bounds};
use nvfold::{DedupMode, Error, File, IndexStats, ReorderOptions};
use nvfold_bench::data::Random;
use nvfold_bench::device::Device;

const REQUEST_BYTES: usize = 128 << 10;
const CHUNK_ENTRY_BYTES: u64 = 64;

/// Entries read per lookup, and number of lookups.
#[derive(Clone, Copy, Debug)]
struct Reads {
    each: f64,
    lookups: u64,
}

/// The results of one device.
struct Shown {
    /// Ratio of entries to places of the direct area.
    load: f64,
    /// Share of the device taken by chunk table and direct area, percent.
    share: f64,
    /// Lookups that find nothing, while the device is filled.
    absent: Reads,
    /// Lookups of stored blocks that are all equally likely.
    uniform: Reads,
    /// Lookups by Zipf's law, in the second half of that workload.
    zipf: Reads,
    /// Number of chains that were ordered.
    reordered: u64,
}

/// Number of requests and size of the device.
struct Sizes {
    device_bytes: u64,
    draws: usize,
}

impl Sizes {
    /// Bytes kept free while the device is filled, for later writes: logs, and blocks that wait to be shared.
    fn spare_bytes(&self) -> usize {
        (self.device_bytes as usize / 64).max(2 << 20)
    }
}

/// Measures, and makes the figures.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let sizes = match run.turn.smoke {
        true => Sizes { device_bytes: 64 << 20, draws: 2000 },
        false => Sizes { device_bytes: 512 << 20, draws: 10_000 },
    };
    let title = "FACT: its share of the device, and entries read for a lookup";
    let settings = format!(
        "A device of {} MiB is filled with distinct blocks; then stored blocks are looked up {} times, drawn \
         uniformly, and {} times by Zipf's law (exponent 1), each by writing a duplicate. The fingerprint is XXH3; the \
         table counts its lookups and reads. A chain is ordered when a lookup finds an entry with at least {} \
         references after at least {} reads, or never.",
        sizes.device_bytes >> 20,
        sizes.draws,
        2 * sizes.draws,
        ReorderOptions::default().references,
        ReorderOptions::default().reads
    );
    let mut figure = run.turn.figure("fact", title, settings);
    let never = ReorderOptions { reads: 0, ..ReorderOptions::default() };
    run.turn.say("FACT with chains ordered");
    let ordered = show(run, &sizes, ReorderOptions::default())?;
    run.turn.say("FACT without");
    let unordered = show(run, &sizes, never)?;
    let x = ["absent", "present, even", "present, Zipf"].map(String::from);
    let chart = Chart::new(Drawn::Bars, "FACT: entries read for a lookup", "blocks looked up", "entries", x);
    let reads = |shown: &Shown| [shown.absent.each, shown.uniform.each, shown.zipf.each];
    figure.charts.push(chart.with("chains ordered", reads(&ordered)).with("never ordered", reads(&unordered)));
    let size = Aim::at_most("the table takes at most 3.2 % of the device", ordered.share, 3.2);
    figure.rows = vec![
        Row::value("chunk table and direct area, of the device", 3.2, ordered.share, "%").judged_by(&size),
        Row::own("entries to places of the direct area when the device is full", 100.0 * ordered.load, "%"),
        Row::own("entries read for a block that is there, evenly drawn", ordered.uniform.each, "entries"),
        Row::own("entries read for a block that is not, while the device is filled", ordered.absent.each, "entries"),
        Row::own("entries read by Zipf's law, chains ordered", ordered.zipf.each, "entries"),
        Row::own("entries read by Zipf's law, never ordered", unordered.zipf.each, "entries"),
        Row::own("chains that were ordered", ordered.reordered as f64, ""),
        Row::own("lookups by Zipf's law", ordered.zipf.lookups as f64, ""),
    ];
    figure.aims = vec![
        Aim::at_most(
            format!("at most 1.5 entries read per lookup on a full device ({} % load)", number(100.0 * ordered.load)),
            ordered.uniform.each,
            1.5,
        )
        .with_floor(format!(
            "at this load a chain has on average {} entries before the one that is looked up",
            number(ordered.load / 2.0)
        )),
        size,
        Aim::at_most("ordering chains saves reads in a skewed workload", ordered.zipf.each / unordered.zipf.each, 1.0),
    ];
    figure.reading = format!(
        "Even on a full device, a lookup of a stored block reads {} entries. In a skewed workload, ordered chains save {} \
         % of the reads.",
        number(ordered.uniform.each),
        number(100.0 * (1.0 - ordered.zipf.each / unordered.zipf.each))
    );
    Ok(vec![figure])
}

fn show(run: &Run, sizes: &Sizes, reorder: ReorderOptions) -> Result<Shown> {
    let system = System { reorder, ..System::denova(DedupMode::Inline, Hash::Ours) };
    let volume = Volume::on(&system, &Device::new(&run.turn.profile, sizes.device_bytes), 1)?;
    let spare = volume.create("spare")?;
    let mut different = vec![0; sizes.spare_bytes()];
    block(2, &mut different);
    spare.write_at(0, &different).doing("keep space free")?;
    drop(different);
    let before = index(&volume);
    let contents = fill(&volume)?;
    let full = index(&volume);
    drop(spare);
    volume.remove(nvfold::InodeNumber::ROOT, b"spare")?;

    let mut random = Random(7);
    let drawn = volume.create("drawn")?;
    let evenly: Vec<u64> = (0..sizes.draws).map(|_| contents[random.next_u64() as usize % contents.len()]).collect();
    let before_evenly = index(&volume);
    write_all(&volume, &drawn, sizes.draws, &evenly)?;
    let uniform = reads(before_evenly, index(&volume));

    // The daemon orders chains, so it must be active.
    volume.fs.set_dedup_mode(DedupMode::Immediate);
    let zipf = Zipf::new(shuffled(contents, &mut random));
    let mut half = || -> Vec<u64> { (0..sizes.draws).map(|_| zipf.draw(&mut random)).collect() };
    write_all(&volume, &drawn, sizes.draws, &half())?;
    let before_zipf = index(&volume);
    write_all(&volume, &drawn, sizes.draws, &half())?;
    let after = index(&volume);
    check("evenly drawn", &uniform, full.entries, sizes.device_bytes / BLOCK as u64)?;
    check("by Zipf's law", &reads(before_zipf, after), full.entries, sizes.device_bytes / BLOCK as u64)?;
    let blocks = sizes.device_bytes / BLOCK as u64;
    let table_bytes = blocks * CHUNK_ENTRY_BYTES + after.media_bytes;
    drop(drawn);
    volume.close()?;
    Ok(Shown {
        load: full.entries as f64 / blocks.next_power_of_two() as f64,
        share: 100.0 * table_bytes as f64 / sizes.device_bytes as f64,
        absent: reads(before, full),
        uniform,
        zipf: reads(before_zipf, after),
        reordered: after.reordered,
    })
}

/// Refuses fewer than one entry read for a block that is there, and more entries than blocks.
fn check(what: &str, reads: &Reads, entries: u64, blocks: u64) -> Result<()> {
    let why = "a look-up reads at least the entry that it finds";
    bounds::at_least(format!("{what}: entries read for a block that is there"), reads.each, 1.0, "", why)?;
    bounds::at_most("entries on the full device", entries as f64, blocks as f64, "", "a block has one entry")
}

fn index(volume: &Volume) -> IndexStats {
    volume.fs.stats().index
}

fn reads(before: IndexStats, after: IndexStats) -> Reads {
    let lookups = after.lookups - before.lookups;
    Reads { each: (after.reads - before.reads) as f64 / lookups as f64, lookups }
}

fn block(content: u64, block: &mut [u8]) {
    let mut words = Random(content);
    block.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = words.next_u64().to_le_bytes());
}

/// Writes distinct blocks until there is no space. Returns the numbers that they are made from.
fn fill(volume: &Volume) -> Result<Vec<u64>> {
    let file = volume.create("filled")?;
    let (mut contents, mut random) = (Vec::new(), Random(1));
    let mut request = vec![0; REQUEST_BYTES];
    // Large requests first, then block by block.
    for size in [REQUEST_BYTES, BLOCK] {
        loop {
            let from = contents.len();
            for bytes in request[..size].chunks_mut(BLOCK) {
                contents.push(random.next_u64());
                block(contents[contents.len() - 1], bytes);
            }
            match file.write_at((from * BLOCK) as u64, &request[..size]) {
                Ok(()) => {}
                Err(Error::NoSpace { .. }) => {
                    contents.truncate(from);
                    break;
                }
                Err(error) => return Err(error).doing("fill the device"),
            }
        }
    }
    Ok(contents)
}

/// Writes stored blocks to consecutive places of a file, starting over at its end. They are shared after a few writes,
/// because little space is free.
fn write_all(volume: &Volume, file: &File, places: usize, contents: &[u64]) -> Result<()> {
    let mut bytes = vec![0; BLOCK];
    for (at, content) in contents.iter().enumerate() {
        block(*content, &mut bytes);
        file.write_at(((at % places) * BLOCK) as u64, &bytes).doing("write a stored block")?;
        if at % 16 == 15 {
            share_and_order(volume)?;
        }
    }
    share_and_order(volume)?;
    let last = contents.len() - 1;
    let mut found = vec![0; BLOCK];
    file.read_at(((last % places) * BLOCK) as u64, &mut found).doing("read back")?;
    block(contents[last], &mut bytes);
    if found == bytes { Ok(()) } else { Err(LabError::wrong(volume.system.name.clone())) }
}

/// Does the daemon's work: shares the queue, and orders the chain that a lookup asked for.
fn share_and_order(volume: &Volume) -> Result<()> {
    volume.drain()?;
    while !volume.fs.reorder_step().doing("order a chain")? {}
    Ok(())
}

fn shuffled(mut contents: Vec<u64>, random: &mut Random) -> Vec<u64> {
    for at in (1..contents.len()).rev() {
        contents.swap(at, random.next_u64() as usize % (at + 1));
    }
    contents
}

/// Draws the first content most often: rank r has a weight of 1 / r.
struct Zipf {
    contents: Vec<u64>,
    /// Sum of the weights up to each rank.
    weights: Vec<f64>,
}

impl Zipf {
    fn new(contents: Vec<u64>) -> Zipf {
        let mut sum = 0.0;
        let mut add = |rank: usize| {
            sum += 1.0 / (rank + 1) as f64;
            sum
        };
        let weights = (0..contents.len()).map(&mut add).collect();
        Zipf { contents, weights }
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let all = self.weights[self.weights.len() - 1];
        let at = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * all;
        self.contents[self.weights.partition_point(|weight| *weight <= at).min(self.contents.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_draws_the_first_item_twice_as_often_as_the_second() {
        let zipf = Zipf::new(vec![1, 2, 3, 4]);
        let mut random = Random(3);
        let mut counts = [0u32; 5];
        (0..25_000).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1);
        // The weights are 12, 6, 4 and 3 of 25.
        for (content, expected) in [(1, 12_000), (2, 6000), (3, 4000), (4, 3000u32)] {
            assert!(counts[content].abs_diff(expected) < 400, "{content}: {counts:?}");
        }
    }

    #[test]
    fn fewer_entries_read_than_found_and_more_entries_than_blocks_are_refused() {
        let reads = |each| Reads { each, lookups: 100 };
        check("evenly", &reads(1.0), 100, 100).unwrap();
        let error = check("evenly", &reads(0.9), 100, 100).unwrap_err().to_string();
        assert!(error.contains("evenly: entries read for a block that is there: 0.9 was measured"), "{error}");
        assert!(check("evenly", &reads(1.0), 101, 100).is_err());
    }
}
