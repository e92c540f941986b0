//! What do writing, fingerprinting, searching and comparing cost on this device? The inputs of NV-Dedup's cost model
//! (4.4.1, Table 3).
//!
//! The problem: the costs depend on device, CPU and load, and change. A benchmark at mount would make mounting slow.
//!
//! The idea: do each of them a few times to one block that nobody names, and take the median; some 20 block writes in
//! all. The stopwatch is the front end's. A sampling period has tens of thousands of chunks, so measuring anew at the
//! end of each costs nothing that could be seen, and the load is in the figures.

use super::Core;
use crate::media::chunk_entry::{ChunkEntry, ENTRY_BYTES};
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::{BlockRun, Purpose};
use crate::types::{Costs, Policy, Stopwatch};
use pmem::Flight;

const SAMPLES: usize = 9;
/// What takes less than a look at the stopwatch is done this often for each.
const REPEATS: u64 = 8;

impl Core {
    /// Mount: measures, so that the first sampling period is judged by this device's costs.
    pub(super) fn calibrate(&self) {
        if self.policies.policy == Policy::NvDedup
            && !self.read_only
            && let Some(costs) = self.measure_costs()
        {
            self.policies.nv_dedup.sampling.take_costs(costs);
        }
    }

    /// Ends a sampling period that has had its chunks. One thread does; the others go on meanwhile.
    pub(super) fn end_sampling_period(&self) {
        let sampling = &self.policies.nv_dedup.sampling;
        if sampling.is_over() {
            sampling.end_period(|| self.measure_costs());
        }
    }

    /// Measures with a block of its own. `None` without a stopwatch, and when there is no block to be had.
    fn measure_costs(&self) -> Option<Costs> {
        let stopwatch = self.stopwatch.as_ref()?;
        let block = self.space.allocate_one("measure costs", Purpose::Data).ok()?;
        let costs = self.measure_with(block, stopwatch);
        self.free(BlockRun { start: block, count: 1 });
        Some(costs)
    }

    fn measure_with(&self, block: BlockNumber, stopwatch: &Stopwatch) -> Costs {
        let (weak, strong) = (self.chunks.weak_function(), self.chunks.strong_function());
        let mut content = [0u8; BLOCK_BYTES as usize];
        let mut written = [0; SAMPLES];
        let mut compared = [0; SAMPLES];
        for sample in 0..SAMPLES {
            // Never twice the same, and never a block of zeros.
            content.as_chunks_mut::<8>().0.iter_mut().zip(1u64..).for_each(|(word, at)| {
                *word = (at + sample as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
            });
            written[sample] = time(stopwatch, || {
                let _ = self.region.fence(self.region.stream(block.address(), &content));
            });
            // Streamed past the cache: as cold as a stored block is when a duplicate comes.
            compared[sample] = time(stopwatch, || {
                std::hint::black_box(self.chunks.equal(block, &content));
            });
        }
        Costs {
            c: median(written),
            v: median(compared),
            w: median_of_many(stopwatch, |_| {
                std::hint::black_box(weak.of(std::hint::black_box(&content)));
            }),
            s: median(std::array::from_fn(|_| {
                time(stopwatch, || {
                    std::hint::black_box(strong.of(std::hint::black_box(&content)));
                })
            })),
            lambda: self.measure_lambda(block, stopwatch),
        }
    }

    /// A search, and two lines to flush: the entry, and the generator of its transaction. The data's fence is theirs.
    fn measure_lambda(&self, block: BlockNumber, stopwatch: &Stopwatch) -> u64 {
        let mut flight = Flight::new();
        let lambda = median_of_many(stopwatch, |nth| {
            let fingerprint = (nth as u32).wrapping_mul(0x9E37_79B9);
            std::hint::black_box(self.chunks.index.find(fingerprint, BlockNumber(0), |_| false));
            let line = block.address() + nth * 2 * ENTRY_BYTES % BLOCK_BYTES;
            flight.add(self.region.write(line, &ChunkEntry::default()).flush());
            flight.add(self.region.store_u64(line + ENTRY_BYTES, nth).flush());
        });
        let _ = self.region.fence(flight);
        lambda
    }
}

/// Median of something that takes little time, nanoseconds each. It is told how often it was done before.
fn median_of_many(stopwatch: &Stopwatch, mut what: impl FnMut(u64)) -> u64 {
    median(std::array::from_fn(|sample| {
        let first = sample as u64 * REPEATS;
        time(stopwatch, || (first..first + REPEATS).for_each(&mut what)).div_ceil(REPEATS)
    }))
}

fn time(stopwatch: &Stopwatch, what: impl FnOnce()) -> u64 {
    let start = stopwatch();
    what();
    stopwatch().saturating_sub(start)
}

fn median(mut samples: [u64; SAMPLES]) -> u64 {
    samples.sort_unstable();
    samples[SAMPLES / 2]
}
