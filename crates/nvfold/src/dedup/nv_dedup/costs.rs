//! What do writing, fingerprinting, searching and comparing cost on this device? The inputs of NV-Dedup's cost model
//! (4.4.1, Table 3).
//!
//! The problem: the costs depend on device, CPU and load, and change. A benchmark at mount would make mounting slow.
//!
//! The idea: do each of them a few times to one block that nobody names, and take the median: nine block writes in
//! all. The stopwatch is the front end's. A sampling period has tens of thousands of chunks, so measuring anew at the
//! end of each costs nothing that could be seen, and the load is in the figures.
//!
//! The paper's lambda is the search of DRAM tables, 0.1 us, and leaves out what an entry costs on the media. We count
//! all that a fingerprint brings with it, or the model would fingerprint where that does not pay: the searches, the
//! lines of the entry and of the generator when it comes, and reading and emptying it when the block goes. Where a new
//! block has no entry it is the searches alone. v is likewise the reference and the compare.

use super::options::Costs;
use crate::dedup::Ground;
use crate::fingerprint::Fingerprint;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef};
use crate::space::{BlockRun, Purpose};
use crate::words::Stopwatch;
use pmem::Flight;
use std::hint::black_box;

const SAMPLES: usize = 9;
/// What takes less than a look at the stopwatch is done this often for each.
const REPEATS: u64 = 8;

/// Measures with a block of its own. `None` when there is none to be had. `with_entries`: new blocks get chunk entries.
pub(in crate::dedup) fn measure(ground: &Ground<'_>, stopwatch: &Stopwatch, with_entries: bool) -> Option<Costs> {
    with_block(ground, |block| measure_with(ground, block, stopwatch, with_entries))
}

/// Writing a block of a long request, whose fence counts for many blocks, nanoseconds. `None` when there is no block to be
/// had.
pub(in crate::dedup) fn measure_run(ground: &Ground<'_>, stopwatch: &Stopwatch) -> Option<u64> {
    with_block(ground, |block| {
        let content: Vec<u8> = (0..BLOCK_BYTES).map(|at| (at * 31 % 251) as u8).collect();
        let time = |what: &mut dyn FnMut()| time(stopwatch, what);
        let look = median(std::array::from_fn(|_| time(&mut || ())));
        let write = |times: u64| {
            median(std::array::from_fn(|_| {
                time(&mut || {
                    let mut flight = Flight::new();
                    (0..times).for_each(|_| flight.add(ground.region.stream(block.address(), &content)));
                    let _ = ground.region.fence(flight);
                })
            }))
            .saturating_sub(look)
        };
        let (one, many) = (write(1), write(1 + REPEATS));
        Some(many.saturating_sub(one) / REPEATS)
    })
}

fn measure_with(ground: &Ground<'_>, block: BlockNumber, stopwatch: &Stopwatch, with_entries: bool) -> Option<Costs> {
    let (weak, strong) = (ground.chunks.weak_function(), ground.chunks.strong_function());
    let time = |what: &mut dyn FnMut()| time(stopwatch, what);
    let look = median(std::array::from_fn(|_| time(&mut || ())));
    let mut content = [0u8; BLOCK_BYTES as usize];
    let [mut writes, mut weaks, mut strongs, mut lookups, mut compares] = [[0; SAMPLES]; 5];
    for sample in 0..SAMPLES {
        // Never twice the same, and never a block of zeros.
        content.as_chunks_mut::<8>().0.iter_mut().zip(1u64..).for_each(|(word, at)| {
            *word = (at + sample as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        });
        writes[sample] = time(&mut || {
            let _ = ground.region.fence(ground.region.stream(block.address(), &content));
        });
        weaks[sample] = time(&mut || {
            for _ in 0..REPEATS {
                black_box(weak.of(black_box(&content)));
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

/// Measures with a block that is nobody's, if there is one, and gives it back.
fn with_block<T>(ground: &Ground<'_>, measure: impl FnOnce(BlockNumber) -> Option<T>) -> Option<T> {
    let block = ground.space.allocate_one("measure costs", Purpose::Data).ok()?;
    let measured = measure(block);
    let run = BlockRun { start: block, count: 1 };
    let _ = ground.chunks.with_recount(|recount| recount.freed(run));
    ground.space.free(run);
    measured
}

/// The times of one sample: a block comes, with an entry or without one, is shared by an equal block and compared, and
/// goes again, as it does when blocks are overwritten. The block never enters the index, so nobody else can get at it.
fn measure_entry(
    ground: &Ground<'_>,
    block: BlockNumber,
    content: &[u8],
    sample: u64,
    time: &dyn Fn(&mut dyn FnMut()) -> u64,
    with_entries: bool,
) -> Option<(u64, u64, u64)> {
    let Ground { region, chunks, .. } = *ground;
    // Any place in the index.
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
            // In place of the generator's line, which waits for the end of the transaction.
            tx.flight.add(region.store_u64(block.address(), first_word).flush());
        }
        // The new fingerprint enters the index.
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
