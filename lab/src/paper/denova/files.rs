//! The paper's workload: many small files of 4 KiB or fewer large ones of 128 KiB, each written with one request,
//! with an exact share of duplicate blocks, and with think time in between.
//!
//! Requests come from buffers filled immediately before, as in a real program, and are timed in groups (see `spent`).
//! Whenever requests have taken 0.1 ms in total, think time of the same length follows: the paper's cycle of 0.2 ms.
//! The thread sleeps in that time, as fio does. If a sleep is too long, the next one is shorter by the excess.

use super::super::spent::{Spent, in_groups};
use super::super::workload::{Batch, Workload};
use super::volume::{BLOCK, Volume};
use crate::{Doing, LabError, Result};
use nvfold::InodeNumber;
use nvfold::internals::fingerprint::weak64;
use std::collections::HashSet;
use std::time::{Duration, Instant};

const THINK_FROM_NS: f64 = 100_000.0;

/// Small files or large ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// 4 KiB.
    Small,
    /// 128 KiB.
    Large,
}

impl Size {
    /// Both sizes.
    pub(crate) const ALL: [Size; 2] = [Size::Small, Size::Large];

    /// Returns the bytes of a file.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Size::Small => BLOCK,
            Size::Large => 32 * BLOCK,
        }
    }

    /// Returns the paper's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Size::Small => "small files",
            Size::Large => "large files",
        }
    }
}

/// Whether the writer pauses to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Think {
    /// As long as its requests take.
    AsInPaper,
    /// Not at all.
    Never,
}

/// The files that a thread writes, made before any clock starts.
pub(super) struct Lane {
    names: Vec<Vec<u8>>,
    size: Size,
    workload: Workload,
    batch: Batch,
}

impl Lane {
    /// Makes `files` files; lanes with different seeds have nothing in common.
    pub(super) fn new(size: Size, files: usize, percent: u64, seed: u64) -> Lane {
        let names = (0..files).map(|file| format!("file{file}").into_bytes()).collect();
        Lane { names, size, workload: Workload::vdbench(percent, seed), batch: Batch::default() }
    }

    /// Gives the files new content.
    pub(super) fn refill(&mut self, percent: u64) {
        self.workload.set_percent(percent);
        self.workload.next(self.names.len() * (self.size.bytes() / BLOCK), &mut self.batch);
    }

    /// Returns the bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        (self.names.len() * self.size.bytes()) as u64
    }

    /// Returns the number of files.
    pub(super) fn files(&self) -> u64 {
        self.names.len() as u64
    }

    /// Returns the number of blocks that repeat an earlier one.
    pub(super) fn duplicates(&self) -> u64 {
        let blocks = self.batch.data.chunks(BLOCK);
        let total = blocks.len();
        (total - blocks.map(weak64).collect::<HashSet<u64>>().len()) as u64
    }

    fn contents(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.names.iter().map(Vec::as_slice).zip(self.batch.data.chunks(self.size.bytes()))
    }

    /// Writes the files in a directory. Returns the duration of the requests.
    pub(super) fn write(&self, volume: &Volume, directory: InodeNumber, think: Think) -> Result<Spent> {
        self.each(think, |name, content| volume.write_new(directory, name, content))
    }

    /// Overwrites the files. Returns the duration of the requests.
    pub(super) fn overwrite(&self, volume: &Volume, directory: InodeNumber, think: Think) -> Result<Spent> {
        self.each(think, |name, content| volume.overwrite(directory, name, content))
    }

    fn each(&self, think: Think, request: impl Fn(&[u8], &[u8]) -> Result<()>) -> Result<Spent> {
        // Nanoseconds of requests for which the think time is still due.
        let mut unthought: f64 = 0.0;
        let think = |took: Spent| {
            unthought += took.wall_ns;
            if think == Think::AsInPaper && unthought >= THINK_FROM_NS {
                let clock = Instant::now();
                std::thread::sleep(Duration::from_nanos(unthought as u64));
                unthought -= clock.elapsed().as_nanos() as f64;
            }
        };
        in_groups(self.contents(), request, think)
    }

    /// Makes some of the files and removes them again, so that a new mount has allocated its memory.
    pub(super) fn warm_up(&self, volume: &Volume, directory: InodeNumber) -> Result<()> {
        let some = || self.contents().take(self.names.len().div_ceil(16));
        some().try_for_each(|(name, content)| volume.write_new(directory, name, content))?;
        volume.drain()?;
        some().try_for_each(|(name, _)| volume.remove(directory, name))
    }

    /// Reads a part of the files back and compares it.
    pub(super) fn verify(&self, volume: &Volume, directory: InodeNumber) -> Result<()> {
        let mut buffer = vec![0; self.size.bytes()];
        let step = (self.names.len() / 64).max(1);
        for (name, content) in self.contents().step_by(step) {
            volume.open(directory, name)?.read_at(0, &mut buffer).doing("read back")?;
            if buffer != content {
                return Err(LabError::wrong(volume.system.name.clone()));
            }
        }
        Ok(())
    }

    /// Removes the files.
    pub(super) fn remove(&self, volume: &Volume, directory: InodeNumber) -> Result<()> {
        self.names.iter().try_for_each(|name| volume.remove(directory, name))
    }
}

#[cfg(test)]
mod tests {
    use super::super::volume::{Hash, System};
    use super::*;
    use nvfold::DedupMode;
    use pmem::Profile;

    #[test]
    fn the_denova_file_benchmark_works_with_and_without_think_time() {
        for size in Size::ALL {
            let mut lane = Lane::new(size, 40, 50, 1);
            let volume = Volume::new(&System::off(), &Profile::NATIVE, lane.bytes(), lane.files(), 1).unwrap();
            let directory = volume.directory("d").unwrap();
            let free = volume.fs.stats().data_blocks;
            for think in [Think::AsInPaper, Think::Never] {
                lane.refill(50);
                assert_eq!(lane.duplicates(), lane.bytes() / BLOCK as u64 / 2);
                lane.write(&volume, directory, think).unwrap();
                lane.verify(&volume, directory).unwrap();
                lane.refill(0);
                assert!(lane.verify(&volume, directory).is_err(), "other content is told");
                lane.overwrite(&volume, directory, think).unwrap();
                lane.verify(&volume, directory).unwrap();
                lane.remove(&volume, directory).unwrap();
                assert_eq!(volume.fs.stats().data_blocks, free);
            }
            volume.close().unwrap();
        }
    }

    #[test]
    fn inline_saves_exactly_the_duplicates() {
        let mut lane = Lane::new(Size::Large, 20, 25, 1);
        lane.refill(25);
        for hash in Hash::ALL {
            let system = System::denova(DedupMode::Inline, hash);
            let volume = Volume::new(&system, &Profile::NATIVE, lane.bytes(), lane.files(), 1).unwrap();
            let directory = volume.directory("d").unwrap();
            lane.write(&volume, directory, Think::Never).unwrap();
            volume.drain().unwrap();
            assert_eq!(volume.saved_bytes(), lane.duplicates() * BLOCK as u64, "{hash:?}");
            volume.close().unwrap();
        }
    }
}
