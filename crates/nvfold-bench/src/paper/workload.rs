//! The requests of the papers' workloads: which block of a file is written, and with what.
//!
//! A request is one block of 4 KiB. Of each hundred requests exactly as many repeat a block as is asked for; all
//! others write what occurs nowhere else. What is repeated is what is stored now at the place of one of the last
//! [`RECENT`] requests: fio too repeats what it wrote just before, and so the block is there though files are
//! overwritten all the time.
//!
//! | workload | where it writes |
//! |---|---|
//! | fio | anywhere in a file that is there already, as `rw=randwrite` |
//! | vdbench | one block after the other, into a new file |

use super::system::BLOCK;
use crate::data::Random;
use std::collections::VecDeque;

/// Places whose blocks a duplicate may repeat.
const RECENT: usize = 1024;

/// Requests, made before the clock starts.
#[derive(Default)]
pub struct Batch {
    /// Their data, one block after the other.
    pub data: Vec<u8>,
    /// Their places: numbers of blocks in the file.
    pub at: Vec<u64>,
}

/// A stream of requests that never ends.
pub struct Workload {
    random: Random,
    percent: u64,
    /// Duplicates to come, in hundredths.
    owed: u64,
    order: Order,
    /// What each block of the file holds: the number that it is made from.
    file: Vec<u64>,
    /// Where the last requests wrote.
    recent: VecDeque<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Random,
    Sequential,
}

impl Workload {
    /// Random overwrites of a file of so many blocks, `percent` of them duplicates.
    pub fn fio(file_blocks: u64, percent: u64, seed: u64) -> Workload {
        let workload = Workload::vdbench(percent, seed);
        Workload { order: Order::Random, file: vec![0; file_blocks as usize], ..workload }
    }

    /// Sequential writes: every batch is a file, `percent` of its blocks duplicates.
    pub fn vdbench(percent: u64, seed: u64) -> Workload {
        let (file, recent) = (Vec::new(), VecDeque::new());
        Workload { random: Random(seed << 40), percent, owed: 0, order: Order::Sequential, file, recent }
    }

    /// Another share of duplicates from now on.
    pub fn set_percent(&mut self, percent: u64) {
        self.percent = percent;
    }

    /// The first content of the file that fio overwrites.
    pub fn lay_out(&mut self, batch: &mut Batch) {
        self.fill((0..self.file.len() as u64).collect(), batch);
    }

    /// The next requests.
    pub fn next(&mut self, requests: usize, batch: &mut Batch) {
        let places = match self.order {
            Order::Random => (0..requests).map(|_| self.random.next() % self.file.len() as u64).collect(),
            Order::Sequential => {
                self.file.resize(requests, 0);
                self.recent.clear();
                (0..requests as u64).collect()
            }
        };
        self.fill(places, batch);
    }

    fn fill(&mut self, places: Vec<u64>, batch: &mut Batch) {
        batch.data.resize(places.len() * BLOCK, 0);
        batch.at = places;
        for (block, place) in batch.data.chunks_mut(BLOCK).zip(&batch.at) {
            let content = self.next_content();
            self.file[*place as usize] = content;
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(*place);
            let mut words = Random(content);
            block.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = words.next().to_le_bytes());
        }
    }

    /// What the next block is made from: equal numbers make equal blocks.
    fn next_content(&mut self) -> u64 {
        self.owed += self.percent;
        if self.owed < 100 || self.recent.is_empty() {
            return self.random.next();
        }
        self.owed -= 100;
        let place = self.recent[self.random.next() as usize % self.recent.len()];
        self.file[place as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    /// Requests of a batch that write what is stored somewhere when they come; `file` is what is stored.
    fn duplicates(batch: &Batch, file: &mut HashMap<u64, Vec<u8>>) -> usize {
        let mut stored: HashMap<Vec<u8>, usize> = HashMap::new();
        file.values().for_each(|content| *stored.entry(content.clone()).or_default() += 1);
        let mut found = 0;
        for (at, content) in batch.at.iter().zip(batch.data.chunks(BLOCK)) {
            found += usize::from(stored.get(content).is_some_and(|times| *times > 0));
            *stored.entry(content.to_vec()).or_default() += 1;
            if let Some(before) = file.insert(*at, content.to_vec()) {
                *stored.get_mut(&before).unwrap() -= 1;
            }
        }
        found
    }

    #[test]
    fn exactly_the_share_that_is_asked_for_is_stored_already() {
        for percent in [0, 10, 30, 50, 70] {
            // A small file: most of what is written is overwritten soon.
            let mut workload = Workload::fio(50, percent, 7);
            let (mut batch, mut file) = (Batch::default(), HashMap::new());
            workload.lay_out(&mut batch);
            duplicates(&batch, &mut file);
            workload.next(1000, &mut batch);
            assert_eq!(duplicates(&batch, &mut file), percent as usize * 10, "{percent} %");
            workload.set_percent(100 - percent);
            workload.next(1000, &mut batch);
            assert_eq!(duplicates(&batch, &mut file), 1000 - percent as usize * 10, "100 - {percent} %");
        }
    }

    #[test]
    fn what_is_new_in_a_file_is_in_no_other() {
        let mut workload = Workload::vdbench(30, 1);
        let mut seen = HashSet::new();
        for _ in 0..3 {
            let mut batch = Batch::default();
            workload.next(100, &mut batch);
            let before = seen.len();
            seen.extend(batch.data.chunks(BLOCK).map(<[u8]>::to_vec));
            assert_eq!(seen.len() - before, 70);
        }
    }

    #[test]
    fn fio_writes_anywhere_and_vdbench_one_after_the_other() {
        let mut batch = Batch::default();
        Workload::vdbench(30, 1).next(50, &mut batch);
        assert_eq!(batch.at, (0..50).collect::<Vec<u64>>());
        let mut fio = Workload::fio(10, 30, 1);
        fio.lay_out(&mut batch);
        assert_eq!(batch.at, (0..10).collect::<Vec<u64>>());
        fio.next(500, &mut batch);
        assert_eq!(batch.at.iter().collect::<HashSet<_>>().len(), 10, "every block is met, none outside the file");
        assert!(batch.at.iter().all(|at| *at < 10));
    }
}
