//! The TX_ID generators in DRAM: which core takes its transaction numbers from which generator
//! ([`crate::media::generator`]).

use crate::media::generator::{GENERATORS, Generator, parts, tx_id};
use crate::media::superblock::Geometry;
use nvfold_sync::Padded;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use nvfold_sync::{Mutex, MutexGuard, thread_number};
use pmem::{Flight, Region};

/// Where dedup transactions get their TX_IDs (NV-Dedup 4.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Generators {
    /// Each core has a generator: transactions on different cores never wait for one another.
    #[default]
    PerCore,
    /// All cores share one generator, as in the paper: one transaction at a time.
    Global,
}

/// The TX_ID generators in DRAM.
pub(super) struct GeneratorLines {
    kind: Generators,
    lines: Vec<Padded<Line>>,
    /// How often the threads moved on to the next generator since the device was formatted.
    hops: Padded<AtomicU64>,
}

/// Numbers that a generator gives before the threads move on to the next one. Each number is a write of the
/// generator's line, so this wears all lines evenly.
const NUMBERS_A_HOP: u64 = 4096;

#[derive(Default)]
struct Line {
    /// Held from the first entry operation of a transaction until its end is durable.
    held: Mutex<()>,
    /// The sequence number of the next transaction.
    next: AtomicU64,
}

impl GeneratorLines {
    pub(super) fn new(kind: Generators) -> GeneratorLines {
        let lines: Vec<Padded<Line>> = (0..GENERATORS).map(|_| Padded::default()).collect();
        lines.iter().for_each(|line| line.next.store(1, Ordering::Relaxed));
        GeneratorLines { kind, lines, hops: Padded::default() }
    }

    /// Loads the generators from the media; for the mount.
    pub(super) fn load(&self, region: &Region, geometry: &Geometry) {
        for (line, next) in self.lines.iter().zip(stored(region, geometry)) {
            line.next.store(next, Ordering::Relaxed);
        }
        self.hops.store(self.begun() / NUMBERS_A_HOP, Ordering::Relaxed);
    }

    /// Returns how many transactions began since the device was formatted.
    pub(super) fn begun(&self) -> u64 {
        // A damaged generator can hold any number.
        let begun = self.lines.iter().map(|line| line.next.load(Ordering::Relaxed).saturating_sub(1));
        begun.fold(0, u64::saturating_add)
    }

    /// Makes the generators pass the numbers of unfinished transactions, durably; for a mount after a crash.
    pub(super) fn pass(&self, region: &Region, geometry: &Geometry, from: &Sequences, to: &Sequences) {
        let mut flight = Flight::new();
        for (generator, line) in self.lines.iter().enumerate() {
            if to[generator] > from[generator] {
                let offset = geometry.generator_offset(generator as u64);
                flight.add(region.store_u64(offset, to[generator]).flush());
            }
            line.next.store(to[generator], Ordering::Relaxed);
        }
        let _ = region.fence(flight);
    }

    /// Returns the generator assigned to the calling thread.
    fn own(&self) -> usize {
        match self.kind {
            Generators::PerCore => {
                thread_number().wrapping_add(self.hops.load(Ordering::Relaxed) as usize) % GENERATORS as usize
            }
            Generators::Global => 0,
        }
    }

    /// Acquires a generator: the one assigned to the thread, or else a free one. Waits if none is free.
    pub(super) fn acquire(&self) -> (usize, MutexGuard<'_, ()>) {
        self.try_acquire().unwrap_or_else(|| {
            let own = self.own();
            (own, self.lines[own].held.lock())
        })
    }

    /// Acquires a generator without waiting, if one is free.
    pub(super) fn try_acquire(&self) -> Option<(usize, MutexGuard<'_, ()>)> {
        let own = self.own();
        let others = (1..self.lines.len()).map(|step| (own + step) % self.lines.len());
        let tried = others.take_while(|_| self.kind == Generators::PerCore);
        std::iter::once(own).chain(tried).find_map(|at| Some((at, self.lines[at].held.try_lock()?)))
    }

    /// Returns the next number of a generator that the caller holds.
    pub(super) fn next_of(&self, generator: usize) -> u64 {
        let sequence = self.lines[generator].next.fetch_add(1, Ordering::Relaxed);
        if sequence.is_multiple_of(NUMBERS_A_HOP) {
            self.hops.fetch_add(1, Ordering::Relaxed);
        }
        sequence
    }

    /// Takes the number of a transaction that did not end back. The caller holds the generator, so it gave no other
    /// number since.
    pub(super) fn take_back(&self, generator: usize, id: u64) {
        let (_, sequence) = parts(id);
        self.lines[generator].next.store(sequence, Ordering::Relaxed);
    }

    /// Returns a TX_ID for a change that is never taken back: the number of the thread's next transaction.
    pub(super) fn passing_id(&self) -> u64 {
        let own = self.own();
        tx_id(own as u64, self.lines[own].next.load(Ordering::Relaxed))
    }
}

/// A sequence number for each generator.
pub(super) type Sequences = [u64; GENERATORS as usize];

/// Returns the next sequence number of each generator, from the media.
pub(super) fn stored(region: &Region, geometry: &Geometry) -> Sequences {
    let line = |generator| region.read::<Generator>(geometry.generator_offset(generator));
    std::array::from_fn(|generator| line(generator as u64).mended().next.max(1))
}
