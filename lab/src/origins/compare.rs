//! The paper's Table 3 on this machine: comparing bytes by vectors and one by one, compared with writing as many.

use crate::{LabError, Result};
use nvfold_bench::data::Random;
use nvfold_bench::device::Device;
use nvfold_bench::samples::{median, middle_half};
use pmem::Profile;
use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// Bytes, and nanoseconds in the paper: a write to NVM, a compare byte by byte, a compare by AVX2.
const PAPER: [(usize, [f64; 3]); 5] = [
    (128, [1782.0, 201.0, 41.0]),
    (256, [1785.0, 358.0, 38.0]),
    (1024, [4986.0, 3679.0, 77.0]),
    (4096, [8667.0, 15484.0, 249.0]),
    (8192, [14260.0, 31294.0, 469.0]),
];
/// Batches of a pass, and calls of a batch.
const BATCHES: usize = 100;
const BATCH_CALLS: usize = 32;
const DEVICE_BYTES: u64 = 16 << 20;

/// One size. Times in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub bytes: usize,
    /// A streaming store of as many bytes and a fence: as an emulated `optane` charges it, and on this memory.
    pub write_optane_ns: f64,
    pub write_native_ns: f64,
    pub one_by_one_ns: f64,
    pub one_by_one_middle_half_ns: f64,
    pub vectors_ns: f64,
    pub vectors_middle_half_ns: f64,
    /// Speedup of vectors, here and in the paper.
    pub faster: f64,
    pub paper_faster: f64,
    /// The paper's values: write, one by one, AVX2.
    pub paper_ns: [f64; 3],
}

/// Measures all sizes.
pub(super) fn measure(repeats: u32) -> Result<Vec<Row>> {
    PAPER.iter().map(|(bytes, paper)| row(*bytes, *paper, repeats)).collect()
}

fn row(bytes: usize, paper_ns: [f64; 3], repeats: u32) -> Result<Row> {
    let mut random = Random(bytes as u64);
    let left: Vec<u8> = (0..bytes / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    let right = left.clone();
    prove(&left)?;
    let (mut one_by_one, mut vectors, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    let region = Device::new(&Profile::NATIVE, DEVICE_BYTES).create()?;
    region.populate(0, DEVICE_BYTES);
    let mut runs = Vec::with_capacity(1);
    for _ in 0..=repeats {
        one_by_one.push(pass(bytes, |_| equal_one_by_one(black_box(&left), black_box(&right))));
        vectors.push(pass(bytes, |_| {
            runs.clear();
            pmem::equal_runs(black_box(&left), black_box(&right), bytes, &mut runs);
            runs.first().map_or(0, |run| run.len())
        }));
        writes.push(pass(bytes, |call| {
            let at = (call * bytes) as u64 % (DEVICE_BYTES - bytes as u64) / 64 * 64;
            let _ = region.fence(region.stream(at, black_box(&left)));
            bytes
        }));
    }
    // The first pass warms up.
    [&mut one_by_one, &mut vectors, &mut writes].into_iter().for_each(|times| _ = times.remove(0));
    let (by_byte, by_vector) = (median(&one_by_one), median(&vectors));
    Ok(Row {
        bytes,
        write_optane_ns: charged(&left)?,
        write_native_ns: median(&writes),
        one_by_one_ns: by_byte,
        one_by_one_middle_half_ns: middle_half(&one_by_one),
        vectors_ns: by_vector,
        vectors_middle_half_ns: middle_half(&vectors),
        faster: by_byte / by_vector,
        paper_faster: paper_ns[1] / paper_ns[2],
        paper_ns,
    })
}

/// Returns the nanoseconds per call, each of which must return all bytes as equal. It takes the median of batches,
/// few of which are disturbed by other work on the machine.
fn pass(bytes: usize, mut call: impl FnMut(usize) -> usize) -> f64 {
    let mut batch = |first: usize| {
        let clock = Instant::now();
        let equal: usize = (first..first + BATCH_CALLS).map(|number| black_box(call(number))).sum();
        let nanoseconds = clock.elapsed().as_nanos() as f64 / BATCH_CALLS as f64;
        assert_eq!(equal, BATCH_CALLS * bytes, "a compare of equal bytes");
        nanoseconds
    };
    let batches: Vec<f64> = (0..BATCHES).map(|number| batch(number * BATCH_CALLS)).collect();
    median(&batches)
}

/// Returns how many bytes are equal from the front. Each byte decides whether the next one is read, so no compiler
/// vectorises the loop.
#[inline(never)]
fn equal_one_by_one(left: &[u8], right: &[u8]) -> usize {
    let mut at = 0;
    while at < left.len() && at < right.len() && left[at] == right[at] {
        at += 1;
    }
    at
}

/// Proves that both compares find a difference at any position.
fn prove(content: &[u8]) -> Result<()> {
    for at in [0, 1, content.len() / 2, content.len() - 1] {
        let mut other = content.to_vec();
        other[at] ^= 1;
        let mut runs = Vec::new();
        pmem::equal_runs(content, &other, 1, &mut runs);
        let equal: usize = runs.iter().map(|run| run.len()).sum();
        if equal_one_by_one(content, &other) != at || equal != content.len() - 1 {
            return Err(LabError::wrong(format!("a compare with a difference at byte {at}")));
        }
    }
    Ok(())
}

/// Returns the charge of an emulated Optane for a streaming store and a fence.
fn charged(content: &[u8]) -> Result<f64> {
    let profile: Profile = "optane".parse().expect("a named profile");
    let region = Device::new(&profile, DEVICE_BYTES).create()?;
    let before = region.counters();
    let _ = region.fence(region.stream(0, content));
    Ok((region.counters() - before).charged_ps as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_compare_loops_are_measured_and_find_differences() {
        let rows = measure(1).unwrap();
        assert_eq!(rows.len(), PAPER.len());
        for row in rows {
            assert!(row.vectors_ns > 0.0 && row.one_by_one_ns > row.vectors_ns && row.write_optane_ns > 0.0, "{row:?}");
        }
    }
}
