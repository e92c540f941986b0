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
//! lines of the entry and of the generator when it comes, and reading and emptying it when the block goes. v is likewise
//! the reference and the compare.

use super::Core;
use crate::fingerprint::Fingerprint;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::{BlockRun, Purpose};
use crate::types::{Costs, Policy, Stopwatch};
use pmem::Flight;
use std::hint::black_box;

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
        costs
    }

    fn measure_with(&self, block: BlockNumber, stopwatch: &Stopwatch) -> Option<Costs> {
        let (weak, strong) = (self.chunks.weak_function(), self.chunks.strong_function());
        let time = |what: &mut dyn FnMut()| time(stopwatch, what);
        let look = median(std::array::from_fn(|_| time(&mut || ())));
        let mut content = [0u8; BLOCK_BYTES as usize];
        let [mut c, mut w, mut s, mut lambda, mut v] = [[0; SAMPLES]; 5];
        for sample in 0..SAMPLES {
            // Never twice the same, and never a block of zeros.
            content.as_chunks_mut::<8>().0.iter_mut().zip(1u64..).for_each(|(word, at)| {
                *word = (at + sample as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
            });
            c[sample] = time(&mut || {
                let _ = self.region.fence(self.region.stream(block.address(), &content));
            });
            w[sample] = time(&mut || {
                for _ in 0..REPEATS {
                    black_box(weak.of(black_box(&content)));
                }
            });
            s[sample] = time(&mut || {
                black_box(strong.of(black_box(&content)));
            });
            (lambda[sample], v[sample]) = self.measure_entry(block, &content, sample as u64, &time, look)?;
        }
        let cost = |samples| median(samples).saturating_sub(look);
        Some(Costs { c: cost(c), w: cost(w).div_ceil(REPEATS), s: cost(s), lambda: median(lambda), v: median(v) })
    }

    /// Lambda and v of one sample: an entry comes, is shared by an equal block, and goes again, as it does when blocks
    /// are overwritten. The block never enters the index, so nobody else can get at it.
    fn measure_entry(
        &self,
        block: BlockNumber,
        content: &[u8],
        sample: u64,
        time: &dyn Fn(&mut dyn FnMut()) -> u64,
        look: u64,
    ) -> Option<(u64, u64)> {
        // Any place in the index.
        let weak = (sample + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) as u32;
        let search = || {
            black_box(self.chunks.index.find(weak, BlockNumber(0), |_| false));
        };
        let first_word = content.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let mut tx = self.chunks.begin();
        let came = time(&mut || {
            search();
            tx.add(block, 1, &Fingerprint { weak: Some(weak), strong: None });
            // In place of the generator's line, which waits for the end of the transaction.
            tx.flight.add(self.region.store_u64(block.address(), first_word).flush());
            // The new fingerprint enters the index.
            search();
        });
        let _ = tx.end(Flight::new());
        let mut tx = self.chunks.begin();
        let mut shared = Ok(());
        let compared = time(&mut || {
            shared = tx.share(block);
            black_box(self.chunks.equal(block, content));
        });
        let _ = tx.end(Flight::new());
        let mut flight = Flight::new();
        if shared.is_ok() {
            self.chunks.release(block, &mut flight);
        }
        let went = time(&mut || {
            self.chunks.release(block, &mut flight);
        });
        let _ = self.region.fence(flight);
        shared.is_ok().then(|| ((came + went).saturating_sub(2 * look), compared.saturating_sub(look)))
    }
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
