//! Hints from processes about writes to come: which bytes will be copies of which (`nvfold_causality::hint`).
//!
//! The problem: a hint comes before its bytes, by up to half a minute if the kernel caches writes. For some hints the
//! bytes never come, and a process may give any number of hints.
//!
//! The idea: hints wait in a queue with bounded memory and bounded age. They may be lost at any time, because a hint
//! can only save work.
//!
//! Whether the bytes were shared can be seen, so a hint must not speak of a file that its sender may not read. A token
//! is issued for one user and for what let him read the file: owner, group, mode and ACL. If any of that has changed
//! when the hint arrives, or when its bytes do, the source is left out.
//!
//! ```text
//! token  ->  proof of user, file, permissions, time
//! tell   ->  by target and offset; none overlaps another, the newer one stays   ->  take: hints for a written range
//!                     |  too old, or too many: the oldest go
//! ```

use nvfold::{Attr, FileKind, InodeNumber};
use nvfold_causality::anchors::{SampledFile, Stretch};
use nvfold_causality::hint::{Hint, SourceToken, TOKEN_VALID_S};
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
/// A token is valid in the period in which it was issued and in the next one.
const TOKEN_PERIOD: Duration = Duration::from_secs(TOKEN_VALID_S / 2);

/// Returns the part of a stretch that is inside a range, relative to the start of the range.
fn within(stretch: &Stretch, start: u64, end: u64) -> Option<Stretch> {
    let (from, to) = (stretch.at.max(start), (stretch.at + stretch.length).min(end));
    let source_offset = stretch.source_offset + (from - stretch.at);
    (from < to).then(|| Stretch { at: from - start, length: to - from, source_offset, ..*stretch })
}

/// A file that a user may name as a source, with what lets him read it.
#[derive(Clone, Debug)]
pub(crate) struct Readable {
    /// The user.
    pub user: u32,
    pub attr: Attr,
    /// The stored ACL of the file; empty if its mode says all.
    pub acl: Vec<u8>,
}

/// What let a user read a file, in short: it changes if the file, its owner, its group, its mode or its ACL does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    pub user: u32,
    sum: u64,
}

/// A range that a hint says was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    pub stretch: Stretch,
    /// What let the sender of the hint read the source.
    pub grant: Grant,
}

/// The target, the offset of the first byte, and a sequence number.
type Key = (InodeNumber, u64, u64);

struct Told {
    length: u32,
    /// The copied ranges; `at` is an offset in the target.
    copied: Box<[Copied]>,
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
pub(crate) struct Hints {
    /// Makes proofs that no process can guess.
    secret: RandomState,
    /// Periods of tokens are counted from here.
    began: Instant,
    held: Mutex<Held>,
    /// The number of waiting hints. If it is 0, a write takes no lock.
    waiting: AtomicUsize,
}

impl Hints {
    /// Begins with no hints, and with a secret of its own. `now`: the present time.
    pub(crate) fn new(now: Instant) -> Hints {
        Hints { secret: RandomState::new(), began: now, held: Mutex::default(), waiting: AtomicUsize::new(0) }
    }

    /// Returns the token by which a user names a file as a source; `None` if it is not a regular file.
    pub(crate) fn token(&self, source: &Readable, now: Instant) -> Option<SourceToken> {
        let is_regular = source.attr.kind == FileKind::Regular;
        is_regular.then(|| self.token_of_period(source, self.period(now)))
    }

    fn token_of_period(&self, source: &Readable, period: u64) -> SourceToken {
        SourceToken { ino: source.attr.ino.0, proof: self.secret.hash_one((self.grant(source), period)) }
    }

    fn period(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / TOKEN_PERIOD.as_secs()
    }

    /// Returns what lets a user read a file.
    pub(crate) fn grant(&self, source: &Readable) -> Grant {
        let Readable { user, attr, acl } = source;
        let read_by = (attr.uid, attr.gid, attr.mode, acl);
        Grant { user: *user, sum: self.secret.hash_one((user, attr.ino.0, attr.generation, read_by)) }
    }

    /// Returns the source that a token names, if `find` knows it and this mount issued the token for this very file,
    /// with these permissions, to this user, lately.
    fn source(
        &self,
        token: &SourceToken,
        now: Instant,
        find: impl Fn(InodeNumber) -> Option<Readable>,
    ) -> Option<(SampledFile, Grant)> {
        let source = find(InodeNumber(token.ino))?;
        let period = self.period(now);
        let is_valid = |period| self.token_of_period(&source, period) == *token;
        let is_ours = source.attr.kind == FileKind::Regular && (is_valid(period) || period > 0 && is_valid(period - 1));
        let place = SampledFile { ino: source.attr.ino.0, generation: source.attr.generation };
        is_ours.then(|| (place, self.grant(&source)))
    }

    /// Keeps a hint for a target. `find` returns a source as the sender of the hint may read it. Origins without a
    /// valid source are left out.
    pub(crate) fn tell(
        &self,
        target: InodeNumber,
        hint: &Hint,
        now: Instant,
        find: impl Fn(InodeNumber) -> Option<Readable>,
    ) {
        let sources: Vec<_> = hint.sources().iter().map(|token| self.source(token, now, &find)).collect();
        let copied = hint.origins().iter().filter_map(|origin| {
            let (source, grant) = sources[usize::from(origin.source)]?;
            let at = hint.offset + u64::from(origin.at);
            let stretch = Stretch { at, length: origin.length.into(), source, source_offset: origin.source_offset };
            Some(Copied { stretch, grant })
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
    /// Drops hints that the range covers completely. The caller checks that each grant still holds.
    pub(crate) fn take(&self, target: InodeNumber, offset: u64, length: u64, now: Instant) -> Vec<Copied> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut held = self.held.lock();
        held.make_room(now);
        let end = offset.saturating_add(length);
        let mut copied = Vec::new();
        for key in held.overlapping(target, offset, end) {
            let told = &held.by_target[&key];
            let within =
                |copied: &Copied| Some(Copied { stretch: within(&copied.stretch, offset, end)?, grant: copied.grant });
            copied.extend(told.copied.iter().filter_map(within));
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
    const SOURCE: SampledFile = SampledFile { ino: 7, generation: 3 };

    fn attr(source: SampledFile, kind: FileKind) -> Attr {
        let SampledFile { ino, generation } = source;
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

    const USER: u32 = 1000;

    fn readable(source: SampledFile, kind: FileKind) -> Readable {
        Readable { user: USER, attr: attr(source, kind), acl: Vec::new() }
    }

    fn find(ino: InodeNumber) -> Option<Readable> {
        (ino.0 == SOURCE.ino).then(|| readable(SOURCE, FileKind::Regular))
    }

    fn new() -> (Hints, Instant) {
        let now = Instant::now();
        (Hints::new(now), now)
    }

    /// Returns the ranges of the hints that are taken.
    fn take(hints: &Hints, offset: u64, length: u64, now: Instant) -> Vec<Stretch> {
        hints.take(TARGET, offset, length, now).iter().map(|copied| copied.stretch).collect()
    }

    /// Gives one hint: a whole range was copied.
    fn tell(hints: &Hints, offset: u64, length: u32, source_offset: u64, now: Instant) {
        let mut hint = Hint::new(offset, length);
        let token = hints.token(&readable(SOURCE, FileKind::Regular), now).unwrap();
        assert!(hint.add(0, length, token, source_offset));
        hints.tell(TARGET, &hint, now, find);
    }

    fn copied(at: u64, length: u64, source_offset: u64) -> Stretch {
        Stretch { at, length, source: SOURCE, source_offset }
    }

    #[test]
    fn a_hint_is_kept_until_all_bytes_of_its_range_are_written() {
        let (hints, now) = new();
        tell(&hints, 1000, 100, 50, now);
        assert_eq!(take(&hints, 0, 1000, now), []);
        assert_eq!(take(&hints, 1100, 1000, now), []);
        assert_eq!(hints.take(InodeNumber(8), 1000, 100, now), []);
        assert_eq!(take(&hints, 1010, 20, now), [copied(0, 20, 60)]);
        assert_eq!(take(&hints, 900, 150, now), [copied(100, 50, 50)]);
        assert_eq!(take(&hints, 1000, 100, now), [copied(0, 100, 50)]);
        assert_eq!(take(&hints, 1000, 100, now), []);
        assert_eq!(hints.held.lock().bytes, 0);
    }

    #[test]
    fn the_latest_hint_for_a_range_wins() {
        let (hints, now) = new();
        tell(&hints, 0, 100, 1, now);
        tell(&hints, 100, 100, 2, now);
        tell(&hints, 10, 90, 3, now);
        assert_eq!(take(&hints, 0, 200, now), [copied(10, 90, 3), copied(100, 100, 2)]);
    }

    #[test]
    fn hints_expire() {
        let (hints, now) = new();
        tell(&hints, 0, 100, 0, now);
        assert_eq!(take(&hints, 0, 50, now + AGE_MAX).len(), 1);
        assert_eq!(take(&hints, 0, 50, now + AGE_MAX + Duration::from_secs(1)), []);
        assert!(hints.held.lock().queue.is_empty());
    }

    #[test]
    fn hints_take_bounded_memory_and_the_newest_are_kept() {
        let (hints, now) = new();
        let rounds = 2 * (BYTES_MAX / HINT_OWN_BYTES) as u64;
        (0..rounds).for_each(|n| tell(&hints, n * 100, 100, n, now));
        assert!(hints.held.lock().bytes <= BYTES_MAX);
        assert_eq!(take(&hints, (rounds - 1) * 100, 100, now).len(), 1);
        assert_eq!(take(&hints, 0, 100, now), []);
        // Hints that are taken at once do not pile up in the queue.
        for n in 0..rounds {
            tell(&hints, n * 100, 100, n, now);
            take(&hints, n * 100, 100, now);
        }
        assert!(hints.held.lock().queue.len() * HINT_OWN_BYTES <= BYTES_MAX);
    }

    /// Sends a hint with a token, and returns whether it is kept when the source is as `found`.
    fn is_kept(hints: &Hints, token: SourceToken, now: Instant, found: &Readable) -> bool {
        let mut hint = Hint::new(0, 100);
        assert!(hint.add(0, 100, token, 0));
        hints.tell(TARGET, &hint, now, |ino| (ino == found.attr.ino).then(|| found.clone()));
        !take(hints, 0, 100, now).is_empty()
    }

    #[test]
    fn a_forged_token_and_one_of_a_freed_inode_are_invalid() {
        let (hints, now) = new();
        let source = readable(SOURCE, FileKind::Regular);
        let good = hints.token(&source, now).unwrap();
        let of_before =
            hints.token(&readable(SampledFile { generation: 2, ..SOURCE }, FileKind::Regular), now).unwrap();
        let of_others = Hints::new(now).token(&source, now).unwrap();
        assert!(is_kept(&hints, good, now, &source));
        for token in [SourceToken { proof: 0, ..good }, SourceToken { ino: 8, ..good }, of_before, of_others] {
            assert!(!is_kept(&hints, token, now, &source), "{token:?}");
        }
        assert!(hints.token(&readable(SOURCE, FileKind::Directory), now).is_none());
    }

    /// Changes that take from a token what it was issued for.
    fn changes() -> [(&'static str, fn(&mut Readable)); 6] {
        [
            ("user", |source| source.user += 1),
            ("owner", |source| source.attr.uid += 1),
            ("group", |source| source.attr.gid += 1),
            ("mode", |source| source.attr.mode = 0o600),
            ("ACL", |source| source.acl = vec![2, 0, 0, 0]),
            ("generation", |source| source.attr.generation += 1),
        ]
    }

    #[test]
    fn a_token_is_valid_only_for_its_user_and_unchanged_permissions() {
        let (hints, now) = new();
        let source = readable(SOURCE, FileKind::Regular);
        let token = hints.token(&source, now).unwrap();
        for (what, change) in changes() {
            let mut changed = source.clone();
            change(&mut changed);
            assert!(!is_kept(&hints, token, now, &changed), "another {what}");
            assert_ne!(hints.grant(&changed), hints.grant(&source), "another {what}");
        }
        let mut written = source.clone();
        (written.attr.size, written.attr.mtime, written.attr.ctime) = (7, 7, 7);
        assert!(is_kept(&hints, token, now, &written), "that it was written to changes nothing");
    }

    #[test]
    fn a_token_expires() {
        let (hints, began) = new();
        let source = readable(SOURCE, FileKind::Regular);
        for issued_s in [0, TOKEN_VALID_S / 2 - 1, 1000] {
            let issued = began + Duration::from_secs(issued_s);
            let token = hints.token(&source, issued).unwrap();
            let later = |seconds| issued + Duration::from_secs(seconds);
            assert!(is_kept(&hints, token, later(TOKEN_VALID_S / 2), &source), "issued after {issued_s} s");
            assert!(!is_kept(&hints, token, later(TOKEN_VALID_S), &source), "issued after {issued_s} s");
        }
    }
}
