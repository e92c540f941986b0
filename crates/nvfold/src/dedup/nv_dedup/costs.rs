//! What do writing, fingerprinting, searching and comparing cost on this device? Measures the inputs of NV-Dedup's
//! cost model (4.4.1, Table 3).
//!
//! The problem: the costs depend on the device, the CPU and the load, and they change. A benchmark at mount would
//! make mounting slow.
//!
//! The idea: do each operation a few times with one unused block and take the median; that is nine block writes in
//! all. The front end supplies the stopwatch. A sampling period has tens of thousands of chunks, so measuring again
//! at the end of each has no visible cost, and the results include the load.
//!
//! The paper's lambda is a search in DRAM tables, 0.1 us, and leaves out the cost of an entry on the media. Here
//! lambda includes everything that a fingerprint causes; otherwise the model would fingerprint where that does not pay:
//!
//! - the searches;
//! - when the block is added, the lines of the entry and of the generator;
//! - when it is freed, reading and clearing the entry.
//!
//! Where a new block gets no entry, lambda is the searches alone. In the same way, v includes the reference and the
//! compare.

use super::options::Costs;
use crate::dedup::PolicyDevice;
use crate::fingerprint::Fingerprint;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef};
use crate::space::{Purpose, Runs};
use crate::words::Stopwatch;
use pmem::Flight;
use std::hint::black_box;

const SAMPLES: usize = 9;
/// An operation that is shorter than a reading of the stopwatch is done this many times for each reading.
const REPEATS: u64 = 8;
/// The blocks that [`measure_run`] writes: in each sample one, and one and [`REPEATS`] more.
const RUN_SAMPLES_BLOCKS: u64 = SAMPLES as u64 * (2 + REPEATS);

/// Measures the costs with a block that it allocates. Returns `None` when there is no free block. `with_entries` says
/// whether new blocks get chunk entries.
pub(in crate::dedup) fn measure(ground: &PolicyDevice<'_>, stopwatch: &Stopwatch, with_entries: bool) -> Option<Costs> {
    with_block(ground, |block| measure_with(ground, block, stopwatch, with_entries))
}

/// Returns the time to write a block of a long request, in which many blocks share a fence, in nanoseconds. `None`
/// when fewer than [`RUN_SAMPLES_BLOCKS`] blocks are free. Each block is written once, because a block that was just
/// written would still be in the CPU cache: on DRAM, writing it again takes a fifth of the time.
pub(in crate::dedup) fn measure_run(ground: &PolicyDevice<'_>, stopwatch: &Stopwatch) -> Option<u64> {
    with_blocks(ground, RUN_SAMPLES_BLOCKS, |runs| {
        let content: Vec<u8> = (0..BLOCK_BYTES).map(|at| (at * 31 % 251) as u8).collect();
        let mut blocks = runs.iter().flat_map(|run| run.blocks());
        let mut write = |count: u64| {
            time(stopwatch, &mut || {
                let mut flight = Flight::new();
                let some = blocks.by_ref().take(count as usize);
                some.for_each(|block| flight.add(ground.region.stream(block.address(), &content)));
                let _ = ground.region.fence(flight);
            })
        };
        let samples: [(u64, u64); SAMPLES] = std::array::from_fn(|_| (write(1), write(1 + REPEATS)));
        let (one, many) = (median(samples.map(|of| of.0)), median(samples.map(|of| of.1)));
        Some(many.saturating_sub(one) / REPEATS)
    })
}

fn measure_with(
    ground: &PolicyDevice<'_>,
    block: BlockNumber,
    stopwatch: &Stopwatch,
    with_entries: bool,
) -> Option<Costs> {
    let (keys, strong) = (ground.chunks.keys(), ground.chunks.strong_function());
    let time = |what: &mut dyn FnMut()| time(stopwatch, what);
    let look = median(std::array::from_fn(|_| time(&mut || ())));
    let mut content = [0u8; BLOCK_BYTES as usize];
    let [mut writes, mut weaks, mut strongs, mut lookups, mut compares] = [[0; SAMPLES]; 5];
    for sample in 0..SAMPLES {
        // The content differs in each sample and is never all zeros.
        content.as_chunks_mut::<8>().0.iter_mut().zip(1u64..).for_each(|(word, at)| {
            *word = (at + sample as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        });
        writes[sample] = time(&mut || {
            let _ = ground.region.fence(ground.region.stream(block.address(), &content));
        });
        weaks[sample] = time(&mut || {
            for _ in 0..REPEATS {
                black_box(keys.first(black_box(&content)));
            }
        });
        strongs[sample] = time(&mut || {
            black_box(strong.of(black_box(&content)));
        });
        let (came, compared, went) = measure_entry(ground, block, &content, sample as u64, &time, with_entries)?;
        let looks = if with_entries { 2 * look } else { look };
        lookups[sample] = (came + if with_entries { went } else { 0 }).saturating_sub(looks);
        compares[sample] = compared.saturating_sub(look);
    }
    let cost = |samples| median(samples).saturating_sub(look);
    Some(Costs {
        write_ns: cost(writes),
        weak_ns: cost(weaks).div_ceil(REPEATS),
        strong_ns: cost(strongs),
        lookup_ns: median(lookups),
        compare_ns: median(compares),
    })
}

/// Allocates a block, measures with it and frees it. Returns `None` when there is no free block.
fn with_block<T>(ground: &PolicyDevice<'_>, measure: impl FnOnce(BlockNumber) -> Option<T>) -> Option<T> {
    with_blocks(ground, 1, |runs| measure(runs[0].start))
}

/// Does the same with `count` blocks. Returns `None` when fewer are free.
fn with_blocks<T>(ground: &PolicyDevice<'_>, count: u64, measure: impl FnOnce(&Runs) -> Option<T>) -> Option<T> {
    let mut runs = Runs::new();
    ground.space.allocate("measure costs", count, Purpose::Data, &mut runs).ok()?;
    let measured = measure(&runs);
    for run in runs {
        let _ = ground.chunks.with_recount(|recount| recount.freed(run));
        ground.space.free(run);
    }
    measured
}

/// Returns three times of one sample: a block is added, with an entry or without one; it is shared by an equal block
/// and compared; it is released, as when blocks are overwritten. The block never enters the index, so no other
/// operation can find it.
fn measure_entry(
    ground: &PolicyDevice<'_>,
    block: BlockNumber,
    content: &[u8],
    sample: u64,
    time: &dyn Fn(&mut dyn FnMut()) -> u64,
    with_entries: bool,
) -> Option<(u64, u64, u64)> {
    let PolicyDevice { region, chunks, .. } = *ground;
    // Any slot of the index.
    let weak = (sample + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) as u32;
    let search = || {
        black_box(chunks.index.find(weak, ChunkRef::NONE, |_| false));
    };
    let first_word = content.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    let mut tx = chunks.begin();
    let came = time(&mut || {
        search();
        if with_entries {
            tx.add(block, 1, &Fingerprint { weak: Some(weak), strong: None });
            // Stands for the generator's line, which is written at the end of the transaction.
            tx.flight.add(region.store_u64(block.address(), first_word).flush());
        }
        // Stands for the insertion of the new fingerprint.
        search();
    });
    let _ = tx.end(Flight::new());
    let mut tx = chunks.begin();
    let mut shared = None;
    let compared = time(&mut || {
        shared = tx.share(block).ok();
        black_box(chunks.equal(block, content));
    });
    let _ = tx.end(Flight::new());
    let mut flight = Flight::new();
    let is_shared = shared.is_some();
    if let Some(reference) = shared {
        chunks.release(reference.take(), &mut flight);
    }
    let went = time(&mut || {
        chunks.release(block, &mut flight);
    });
    let _ = region.fence(flight);
    is_shared.then_some((came, compared, went))
}

fn time(stopwatch: &Stopwatch, what: &mut dyn FnMut()) -> u64 {
    let start = stopwatch();
    what();
    stopwatch().saturating_sub(start)
}

fn median(mut samples: [u64; SAMPLES]) -> u64 {
    samples.sort_unstable();
    samples[SAMPLES / 2]
}
