//! The writes: files of one size, overwritten completely, evenly or by Zipf's law.
//!
//! Every other file is compressible, so both classes of pools are used. No content is written twice, so nothing is
//! shared; shared data would not be written and would cause no wear.

use crate::{Doing, LabError, Result};
use nvfold::{BLOCK_BYTES, File, FileKind, FileSystem, InodeNumber, NewInode, Victims};
use nvfold_bench::data::{Random, Unshared};
use serde::Serialize;

/// Bytes of a file.
pub(super) const FILE_BYTES: usize = 64 << 10;
/// Overwrites between two runs of the background, as a mount's threads do it.
pub(super) const STEPS_EVERY: u64 = 64;
const ZIPF_EXPONENT: f64 = 0.99;
const SEED: u64 = 23;

/// The choice of the file that is overwritten next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Pattern {
    /// Any, with the same probability.
    Uniform,
    /// By Zipf's law, exponent 0.99: few of them very often.
    Zipf,
}

impl Pattern {
    /// Both patterns.
    pub(super) const ALL: [Pattern; 2] = [Pattern::Uniform, Pattern::Zipf];

    /// Returns its name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Pattern::Uniform => "uniform",
            Pattern::Zipf => "Zipf",
        }
    }
}

/// The files, and their content.
pub(super) struct Load {
    files: usize,
    content: Unshared,
}

/// The result of the writes.
pub(super) struct Done {
    /// Bytes written to files.
    pub written_bytes: u64,
    /// Maximum bytes of files in blocks, for lack of a free segment.
    pub in_blocks_max_bytes: u64,
}

impl Load {
    /// Makes a load of files that take `bytes` bytes in total.
    pub(super) fn new(bytes: u64) -> Load {
        Load { files: (bytes as usize / FILE_BYTES).max(2), content: Unshared::new(FILE_BYTES, SEED) }
    }

    /// Returns the number of files.
    pub(super) fn files(&self) -> usize {
        self.files
    }

    /// Writes all files and overwrites them until `bytes` bytes are written.
    pub(super) fn write(&self, fs: &FileSystem, pattern: Pattern, bytes: u64) -> Result<Done> {
        let files = (0..self.files).map(|number| create(fs, number)).collect::<Result<Vec<File>>>()?;
        let mut content = self.content.clone();
        let mut order = Order::new(pattern, self.files);
        let mut done = Done { written_bytes: 0, in_blocks_max_bytes: 0 };
        for number in 0..bytes.div_ceil(FILE_BYTES as u64).max(self.files as u64) {
            let file = if (number as usize) < self.files { number as usize } else { order.next() };
            let content = content.stamped(file.is_multiple_of(2), number);
            files[file].write_at(0, content).doing("overwrite a file")?;
            done.written_bytes += FILE_BYTES as u64;
            if number % STEPS_EVERY == 0 {
                while !fs.fill_step().doing("work in the background")? {}
                while !fs.reclaim_step(Victims::Worthwhile).doing("reclaim space")? {}
                let in_blocks = fs.stats().data_blocks * BLOCK_BYTES;
                done.in_blocks_max_bytes = done.in_blocks_max_bytes.max(in_blocks);
            }
            if number % 4096 == 0 {
                verify(&files[file], content)?;
            }
        }
        Ok(done)
    }
}

fn create(fs: &FileSystem, number: usize) -> Result<File> {
    let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
    let name = format!("f{number}");
    let ino = fs.create(InodeNumber::ROOT, name.as_bytes(), &new).doing("create a file")?.ino;
    fs.open(ino).doing("open a file")
}

fn verify(file: &File, content: &[u8]) -> Result<()> {
    let mut read = vec![0; content.len()];
    file.read_at(0, &mut read).doing("read back")?;
    if read == content { Ok(()) } else { Err(LabError::wrong("deext".into())) }
}

/// Draws files at random.
struct Order {
    random: Random,
    /// Files, the most written first, and the sums of their shares; empty if all are written equally often.
    by_rank: Vec<usize>,
    sums: Vec<f64>,
}

impl Order {
    fn new(pattern: Pattern, files: usize) -> Order {
        let mut random = Random(SEED);
        let mut by_rank: Vec<usize> = (0..files).collect();
        for at in (1..files).rev() {
            by_rank.swap(at, random.next_u64() as usize % (at + 1));
        }
        let share = |rank: usize| match pattern {
            Pattern::Uniform => 1.0,
            Pattern::Zipf => 1.0 / (rank as f64).powf(ZIPF_EXPONENT),
        };
        let add = |sum: &mut f64, rank| {
            *sum += share(rank);
            Some(*sum)
        };
        let sums = (1..=files).scan(0.0, add).collect();
        Order { random, by_rank, sums }
    }

    fn next(&mut self) -> usize {
        let all = self.sums.last().expect("there are files");
        let drawn = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * all;
        let rank = self.sums.partition_point(|sum| *sum <= drawn);
        self.by_rank[rank.min(self.by_rank.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uniform_load_is_even_and_a_zipf_load_is_not() {
        for (pattern, hottest, coldest) in
            [(Pattern::Uniform, 900..1200, 800..1000), (Pattern::Zipf, 15_000..25_000, 100..300)]
        {
            let mut order = Order::new(pattern, 100);
            let mut counts = [0u64; 100];
            (0..100_000).for_each(|_| counts[order.next()] += 1);
            let (max, min) = (*counts.iter().max().unwrap(), *counts.iter().min().unwrap());
            assert!(hottest.contains(&max) && coldest.contains(&min), "{pattern:?}: {min} to {max}");
        }
    }
}
