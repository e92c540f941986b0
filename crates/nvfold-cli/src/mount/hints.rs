//! Hints from processes about writes to come: which bytes will be copies of which (`nvfold::dedup::icid::hint`).
//!
//! The problem: a hint comes before its bytes, by up to half a minute if the kernel caches writes. For some hints the
//! bytes never come, and a process may give any number of hints.
//!
//! The idea: hints wait in a queue with bounded memory and bounded age. They may be lost at any time, because a hint
//! can only save work.
//!
//! ```text
//! tell   ->  by target and offset; none overlaps another, the newer one stays   ->  take: hints for a written range
//!                     |  too old, or too many: the oldest go
//! ```

use nvfold::dedup::icid::anchors::{Place, Stretch};
use nvfold::dedup::icid::hint::{Hint, Token};
use nvfold::{Attr, FileKind, InodeNumber};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bound on the memory of all hints together, in bytes.
const BYTES_MAX: usize = 64 << 20;
/// How long a hint waits for its bytes. The kernel writes cached data back after 30 s.
const AGE_MAX: Duration = Duration::from_secs(60);
/// Memory of a hint in the tree and in the queue, without its origins, in bytes.
const HINT_OWN_BYTES: usize = 160;

/// Returns the part of a stretch that is inside a range, relative to the start of the range.
fn within(stretch: &Stretch, start: u64, end: u64) -> Option<Stretch> {
    let (from, to) = (stretch.at.max(start), (stretch.at + stretch.length).min(end));
    let source_offset = stretch.source_offset + (from - stretch.at);
    (from < to).then(|| Stretch { at: from - start, length: to - from, source_offset, ..*stretch })
}

/// The target, the offset of the first byte, and a sequence number.
type Key = (InodeNumber, u64, u64);

struct Told {
    length: u32,
    /// The copied ranges; `at` is an offset in the target.
    copied: Box<[Stretch]>,
}

impl Told {
    fn bytes(&self) -> usize {
        HINT_OWN_BYTES + size_of_val(&*self.copied)
    }
}

#[derive(Default)]
struct Held {
    by_target: BTreeMap<Key, Told>,
    /// Oldest first. A hint that was taken keeps its entry here until the entry is too old.
    queue: VecDeque<(Instant, Key)>,
    bytes: usize,
    told: u64,
}

/// The waiting hints; see the module.
#[derive(Default)]
pub struct Hints {
    /// Makes proofs that no process can guess.
    secret: RandomState,
    held: Mutex<Held>,
    /// The number of waiting hints. If it is 0, a write takes no lock.
    waiting: AtomicUsize,
}

impl Hints {
    /// Returns the token that names a file as a source; `None` if it is not a regular file.
    pub fn token(&self, attr: &Attr) -> Option<Token> {
        let source = Place { ino: attr.ino.0, generation: attr.generation };
        (attr.kind == FileKind::Regular).then(|| Token { ino: attr.ino.0, proof: self.proof(source) })
    }

    fn proof(&self, source: Place) -> u64 {
        self.secret.hash_one((source.ino, source.generation))
    }

    /// Returns the source that a token names, if `find` knows its inode and this mount made the token for this very
    /// inode.
    fn source(&self, token: &Token, find: impl Fn(InodeNumber) -> Option<Attr>) -> Option<Place> {
        let attr = find(InodeNumber(token.ino))?;
        let source = Place { ino: attr.ino.0, generation: attr.generation };
        (self.token(&attr)? == *token).then_some(source)
    }

    /// Keeps a hint for a target. `find` returns the attributes of sources. Origins without a valid source are left
    /// out.
    pub fn tell(&self, target: InodeNumber, hint: &Hint, now: Instant, find: impl Fn(InodeNumber) -> Option<Attr>) {
        let sources: Vec<_> = hint.sources().iter().map(|token| self.source(token, &find)).collect();
        let copied = hint.origins().iter().filter_map(|origin| {
            let source = sources[usize::from(origin.source)]?;
            let at = hint.offset + u64::from(origin.at);
            Some(Stretch { at, length: origin.length.into(), source, source_offset: origin.source_offset })
        });
        let told = Told { length: hint.length, copied: copied.collect() };
        if told.copied.is_empty() || told.length == 0 {
            return;
        }
        let mut held = self.held.lock();
        held.overlapping(target, hint.offset, hint.offset + u64::from(hint.length))
            .into_iter()
            .for_each(|key| held.remove(key));
        held.told += 1;
        let key = (target, hint.offset, held.told);
        held.bytes += told.bytes();
        held.by_target.insert(key, told);
        held.queue.push_back((now, key));
        held.make_room(now);
        self.waiting.store(held.by_target.len(), Ordering::Release);
    }

    /// Returns the hints for a range of a target that is being written; `at` is relative to the start of the range.
    /// Drops hints that the range covers completely.
    pub fn take(&self, target: InodeNumber, offset: u64, length: u64, now: Instant) -> Vec<Stretch> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut held = self.held.lock();
        held.make_room(now);
        let end = offset.saturating_add(length);
        let mut copied = Vec::new();
        for key in held.overlapping(target, offset, end) {
            let told = &held.by_target[&key];
            copied.extend(told.copied.iter().filter_map(|copied| within(copied, offset, end)));
            if offset <= key.1 && key.1 + u64::from(told.length) <= end {
                held.remove(key);
            }
        }
        self.waiting.store(held.by_target.len(), Ordering::Release);
        copied
    }
}

impl Held {
    /// Returns the hints that overlap a range. Hints do not overlap one another, so only the last one before the
    /// range can reach into it.
    fn overlapping(&self, target: InodeNumber, start: u64, end: u64) -> Vec<Key> {
        let before = self.by_target.range((target, 0, 0)..(target, start, 0)).next_back();
        let reaches = before.filter(|((_, offset, _), told)| offset + u64::from(told.length) > start);
        let within = self.by_target.range((target, start, 0)..(target, end, 0));
        reaches.into_iter().chain(within).map(|(key, _)| *key).collect()
    }

    fn remove(&mut self, key: Key) {
        if let Some(told) = self.by_target.remove(&key) {
            self.bytes -= told.bytes();
        }
    }

    /// Drops the oldest hints until all fit into the memory and none is too old.
    fn make_room(&mut self, now: Instant) {
        let too_long = |queue: &VecDeque<_>| queue.len() * HINT_OWN_BYTES > BYTES_MAX;
        while let Some((since, key)) = self.queue.front().copied()
            && (self.bytes > BYTES_MAX || too_long(&self.queue) || now.duration_since(since) > AGE_MAX)
        {
            self.queue.pop_front();
            self.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: InodeNumber = InodeNumber(9);
    const SOURCE: Place = Place { ino: 7, generation: 3 };

    fn attr(source: Place, kind: FileKind) -> Attr {
        let Place { ino, generation } = source;
        let time = 0;
        Attr {
            ino: InodeNumber(ino),
            generation,
            kind,
            size: 0,
            blocks: 0,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        }
    }

    fn find(ino: InodeNumber) -> Option<Attr> {
        (ino.0 == SOURCE.ino).then(|| attr(SOURCE, FileKind::Regular))
    }

    /// Gives one hint: a whole range was copied.
    fn tell(hints: &Hints, offset: u64, length: u32, source_offset: u64, now: Instant) {
        let mut hint = Hint::new(offset, length);
        let token = hints.token(&attr(SOURCE, FileKind::Regular)).unwrap();
        assert!(hint.add(0, length, token, source_offset));
        hints.tell(TARGET, &hint, now, find);
    }

    fn copied(at: u64, length: u64, source_offset: u64) -> Stretch {
        Stretch { at, length, source: SOURCE, source_offset }
    }

    #[test]
    fn a_hint_is_found_by_the_writes_that_it_speaks_of_until_all_of_it_has_come() {
        let (hints, now) = (Hints::default(), Instant::now());
        tell(&hints, 1000, 100, 50, now);
        assert_eq!(hints.take(TARGET, 0, 1000, now), []);
        assert_eq!(hints.take(TARGET, 1100, 1000, now), []);
        assert_eq!(hints.take(InodeNumber(8), 1000, 100, now), []);
        assert_eq!(hints.take(TARGET, 1010, 20, now), [copied(0, 20, 60)]);
        assert_eq!(hints.take(TARGET, 900, 150, now), [copied(100, 50, 50)]);
        assert_eq!(hints.take(TARGET, 1000, 100, now), [copied(0, 100, 50)]);
        assert_eq!(hints.take(TARGET, 1000, 100, now), []);
        assert_eq!(hints.held.lock().bytes, 0);
    }

    #[test]
    fn what_was_said_last_counts() {
        let (hints, now) = (Hints::default(), Instant::now());
        tell(&hints, 0, 100, 1, now);
        tell(&hints, 100, 100, 2, now);
        tell(&hints, 10, 90, 3, now);
        assert_eq!(hints.take(TARGET, 0, 200, now), [copied(10, 90, 3), copied(100, 100, 2)]);
    }

    #[test]
    fn old_hints_are_forgotten() {
        let (hints, now) = (Hints::default(), Instant::now());
        tell(&hints, 0, 100, 0, now);
        assert_eq!(hints.take(TARGET, 0, 50, now + AGE_MAX).len(), 1);
        assert_eq!(hints.take(TARGET, 0, 50, now + AGE_MAX + Duration::from_secs(1)), []);
        assert!(hints.held.lock().queue.is_empty());
    }

    #[test]
    fn any_number_of_hints_takes_bounded_memory_and_the_newest_stay() {
        let (hints, now) = (Hints::default(), Instant::now());
        let rounds = 2 * (BYTES_MAX / HINT_OWN_BYTES) as u64;
        (0..rounds).for_each(|n| tell(&hints, n * 100, 100, n, now));
        assert!(hints.held.lock().bytes <= BYTES_MAX);
        assert_eq!(hints.take(TARGET, (rounds - 1) * 100, 100, now).len(), 1);
        assert_eq!(hints.take(TARGET, 0, 100, now), []);
        // Hints that are taken at once do not pile up in the queue.
        for n in 0..rounds {
            tell(&hints, n * 100, 100, n, now);
            hints.take(TARGET, n * 100, 100, now);
        }
        assert!(hints.held.lock().queue.len() * HINT_OWN_BYTES <= BYTES_MAX);
    }

    #[test]
    fn a_token_that_was_not_made_here_or_for_an_inode_of_before_names_nothing() {
        let (hints, now) = (Hints::default(), Instant::now());
        let good = hints.token(&attr(SOURCE, FileKind::Regular)).unwrap();
        let of_before = hints.token(&attr(Place { generation: 2, ..SOURCE }, FileKind::Regular)).unwrap();
        let of_others = Hints::default().token(&attr(SOURCE, FileKind::Regular)).unwrap();
        for token in [Token { proof: 0, ..good }, Token { ino: 8, ..good }, of_before, of_others] {
            let mut hint = Hint::new(0, 100);
            assert!(hint.add(0, 100, token, 0));
            hints.tell(TARGET, &hint, now, find);
            assert_eq!(hints.take(TARGET, 0, 100, now), [], "{token:?}");
        }
        assert!(hints.token(&attr(SOURCE, FileKind::Directory)).is_none());
    }
}
