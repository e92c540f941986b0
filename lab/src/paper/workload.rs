//! The requests of the papers' workloads: which block of a file is written, and with which content.
//!
//! A request is one block of 4 KiB. Of each hundred requests exactly the given number repeats a block; all others
//! write unique content. Which block is repeated is a choice ([`Draw`]):
//!
//! | draw | a duplicate repeats | its source in the processor's cache |
//! |---|---|---|
//! | `LastBuffer` | the last new block again, as fio does (`dedupe_percentage`) | always |
//! | `Sets` | one of a few sets of equal blocks, as vdbench does (`dedupsets`): every twentieth new block begins one | often |
//! | `Evenly` | a block that is stored at that moment, each with the same probability | rarely |
//! | `Zipf` | a stored block by Zipf's law: the place of rank r has a weight of 1/r; ranks are spread over the files | sometimes |
//!
//! | workload | place of its writes |
//! |---|---|
//! | fio | anywhere in an existing file, as `rw=randwrite` |
//! | vdbench | one block after the other, into a new file |

use nvfold_bench::data::Random;

/// Bytes of a request.
pub(super) const BLOCK: usize = 4096;

/// Spreads ranks over places: a prime, and larger than any number of places.
const SPREAD: u64 = 0xFFFF_FFFB;

/// Requests, made before the clock starts.
#[derive(Default)]
pub(super) struct Batch {
    /// Their data, one block after the other.
    pub data: Vec<u8>,
    /// Their places: numbers of blocks in the file.
    pub at: Vec<u64>,
}

/// How the stored block that a duplicate repeats is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Draw {
    /// Each with the same probability.
    #[default]
    Evenly,
    /// By Zipf's law with exponent 1: few of them very often.
    Zipf,
    /// Always the last new block.
    LastBuffer,
    /// One of the sets of the file.
    Sets,
}

/// New blocks for each set of equal blocks: vdbench has a set for 5 % of them.
const NEW_BLOCKS_OF_SET: u64 = 20;

/// An endless stream of requests.
pub(super) struct Workload {
    random: Random,
    percent: u64,
    draw: Draw,
    /// Pending duplicates, in hundredths.
    owed: u64,
    order: Order,
    /// Seed of the content of each block: first the files that are kept, then the file that is written.
    stored: Vec<u64>,
    /// Blocks of the files that are kept and not written.
    beside: usize,
    /// Seeds of the content of the last new block, and of the sets; and how many new blocks there were.
    last: Option<u64>,
    sets: Vec<u64>,
    new: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Random,
    Sequential,
}

impl Workload {
    /// Makes random overwrites of a file of `file_blocks` blocks, `percent` % of them duplicates.
    /// [`Workload::lay_out`] makes the file.
    pub(super) fn fio(file_blocks: u64, percent: u64, seed: u64) -> Workload {
        let workload = Workload::vdbench(percent, seed);
        Workload { order: Order::Random, stored: vec![0; file_blocks as usize], ..workload }
    }

    /// Makes sequential writes: every batch is a file, `percent` of its blocks duplicates.
    pub(super) fn vdbench(percent: u64, seed: u64) -> Workload {
        let random = Random(seed << 40);
        let (draw, order) = (Draw::default(), Order::Sequential);
        let (stored, sets) = (Vec::new(), Vec::new());
        Workload { random, percent, draw, owed: 0, order, stored, beside: 0, last: None, sets, new: 0 }
    }

    /// Keeps the file of a `fio` workload unchanged and writes new files in addition; their duplicates repeat blocks
    /// of both.
    pub(super) fn beside(self) -> Workload {
        Workload { order: Order::Sequential, beside: self.stored.len(), ..self }
    }

    /// Changes how duplicates are drawn.
    pub(super) fn drawn(self, draw: Draw) -> Workload {
        Workload { draw, ..self }
    }

    /// Changes the share of duplicates from now on.
    pub(super) fn set_percent(&mut self, percent: u64) {
        self.percent = percent;
    }

    /// Makes the first content of the file that fio overwrites.
    pub(super) fn lay_out(&mut self, batch: &mut Batch) {
        let blocks = self.stored.len() as u64;
        self.stored.clear();
        self.fill((0..blocks).collect(), batch);
    }

    /// Makes the next requests.
    pub(super) fn next(&mut self, requests: usize, batch: &mut Batch) {
        let places = match self.order {
            Order::Random => (0..requests).map(|_| self.random.next_u64() % self.stored.len() as u64).collect(),
            Order::Sequential => {
                self.stored.truncate(self.beside);
                // The file before this one is gone, and with it what its duplicates repeat.
                (self.last, self.sets, self.new) = (None, Vec::new(), 0);
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
            match self.stored.get_mut(self.beside + *place as usize) {
                Some(stored) => *stored = content,
                None => self.stored.push(content),
            }
            let mut words = Random(content);
            block.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = words.next_u64().to_le_bytes());
        }
    }

    /// Returns the seed of the next block: equal seeds give equal blocks.
    fn next_content(&mut self) -> u64 {
        self.owed += self.percent;
        let repeated = if self.owed < 100 { None } else { self.draw_content() };
        match repeated {
            Some(content) => {
                self.owed -= 100;
                content
            }
            None => self.new_content(),
        }
    }

    fn new_content(&mut self) -> u64 {
        let content = self.random.next_u64();
        self.last = Some(content);
        if self.new.is_multiple_of(NEW_BLOCKS_OF_SET) {
            self.sets.push(content);
        }
        self.new += 1;
        content
    }

    /// Returns the content that a duplicate repeats, if there is one yet.
    fn draw_content(&mut self) -> Option<u64> {
        match self.draw {
            Draw::LastBuffer => self.last,
            Draw::Sets if self.sets.is_empty() => None,
            Draw::Sets => Some(self.sets[self.random.next_u64() as usize % self.sets.len()]),
            Draw::Evenly | Draw::Zipf if self.stored.is_empty() => None,
            Draw::Evenly | Draw::Zipf => {
                let place = self.draw_place();
                Some(self.stored[place])
            }
        }
    }

    fn draw_place(&mut self) -> usize {
        let places = self.stored.len() as u64;
        let drawn = self.random.next_u64();
        let place = match self.draw {
            Draw::Evenly | Draw::LastBuffer | Draw::Sets => drawn % places,
            // The share of the first r ranks grows with the logarithm of r.
            Draw::Zipf => {
                let share = (drawn >> 11) as f64 / (1u64 << 53) as f64;
                let rank = (share * (places as f64 + 1.0).ln()).exp() as u64 - 1;
                rank.min(places - 1) * SPREAD % places
            }
        };
        place as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    /// Counts the requests of a batch whose content is stored somewhere when they are made; `file` is the stored
    /// content.
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
    fn the_workload_has_exactly_the_requested_share_of_duplicates() {
        let draws = [Draw::Evenly, Draw::Zipf];
        for (percent, draw) in [0, 10, 30, 50, 70].into_iter().flat_map(|percent| draws.map(|draw| (percent, draw))) {
            // A small file: most blocks are soon overwritten.
            let mut workload = Workload::fio(50, percent, 7).drawn(draw);
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
    fn duplicates_as_fio_makes_them_repeat_the_last_new_block() {
        let mut workload = Workload::fio(1000, 50, 7).drawn(Draw::LastBuffer);
        let mut batch = Batch::default();
        workload.lay_out(&mut batch);
        workload.next(1000, &mut batch);
        let blocks: Vec<&[u8]> = batch.data.chunks(BLOCK).collect();
        let equal = blocks.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!((499..=501).contains(&equal), "{equal}");
        assert_eq!(blocks.iter().collect::<HashSet<_>>().len(), 1000 - equal);
    }

    #[test]
    fn duplicates_as_vdbench_makes_them_repeat_a_few_sets_of_their_own_file() {
        let mut workload = Workload::vdbench(50, 7).drawn(Draw::Sets);
        let mut batch = Batch::default();
        let mut seen = HashSet::new();
        for _ in 0..2 {
            workload.next(2000, &mut batch);
            let mut counts: HashMap<&[u8], usize> = HashMap::new();
            batch.data.chunks(BLOCK).for_each(|block| *counts.entry(block).or_default() += 1);
            let repeated = counts.values().filter(|count| **count > 1).count();
            assert_eq!(counts.len(), 1000, "half of the blocks are new");
            assert!((45..=50).contains(&repeated), "a set for twenty new blocks: {repeated}");
            let before = seen.len();
            seen.extend(counts.into_keys().map(<[u8]>::to_vec));
            assert_eq!(seen.len() - before, 1000, "no set is that of another file");
        }
    }

    #[test]
    fn new_blocks_of_a_workload_are_unique_across_files() {
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
    fn duplicates_of_another_file_are_drawn_from_all_of_that_file() {
        let (mut batch, mut laid_out) = (Batch::default(), HashMap::new());
        let mut workload = Workload::fio(1000, 0, 3);
        workload.lay_out(&mut batch);
        laid_out.extend(batch.data.chunks(BLOCK).map(<[u8]>::to_vec).zip(0..));
        let mut workload = workload.beside();
        workload.set_percent(50);
        for _ in 0..2 {
            workload.next(1000, &mut batch);
            let places: Vec<usize> =
                batch.data.chunks(BLOCK).filter_map(|block| laid_out.get(block).copied()).collect();
            // Half of the writes are duplicates; at first all of these repeat that file, in the end half of them.
            assert!((300..460).contains(&places.len()), "{}", places.len());
            assert!((0..10).all(|tenth| places.iter().any(|place| place / 100 == tenth)), "{places:?}");
        }
    }

    #[test]
    fn zipf_repeats_few_blocks_often_and_can_draw_every_block() {
        let mut workload = Workload::fio(1 << 12, 0, 9).drawn(Draw::Zipf);
        let mut batch = Batch::default();
        workload.lay_out(&mut batch);
        let mut counts = vec![0u32; 1 << 12];
        (0..200_000).for_each(|_| counts[workload.draw_place()] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // Of ln(4097) = 8.3 parts the first has ln 2, the second ln(3/2).
        assert!((16_000..17_400).contains(&counts[0]), "{}", counts[0]);
        assert!((9_200..10_300).contains(&counts[1]), "{}", counts[1]);
        assert!(counts.iter().filter(|count| **count > 0).count() > 3500);
        let mut even = Workload::fio(1 << 12, 0, 9);
        assert!(
            (0..200_000)
                .fold(vec![0u32; 1 << 12], |mut counts, _| {
                    counts[even.draw_place()] += 1;
                    counts
                })
                .iter()
                .all(|count| (10..120).contains(count))
        );
    }

    #[test]
    fn the_fio_workload_writes_at_random_and_the_vdbench_workload_in_sequence() {
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
