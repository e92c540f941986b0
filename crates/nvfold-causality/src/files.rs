//! Tokens that stand for files in records, and become invalid when the file is forgotten.
//!
//! The problem: when a file is closed, its records must go, and every page may have one.
//!
//! The idea: a token is a place in a table and a generation, which is odd while the file is open. Forgetting the file
//! changes the generation, so all its records become invalid at once; they are removed when their space is needed.
//! Only when a generation repeats, after 32,768 files in the same place, are all records walked
//! ([`Closed::AfterAWalk`]).

use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicU32, Ordering};
use nvfold_sync::zeroed;

/// Number of bits of a token that hold the place in the table.
const PLACE_BITS: u32 = 16;
/// The largest number of places in a table, and so of open files.
pub(crate) const FILES_MAX: u32 = 1 << PLACE_BITS;
const GENERATION_ONE: u32 = 1 << PLACE_BITS;

/// Stands for a file whose bytes are followed, until it is forgotten. Afterwards it is invalid, even when another
/// file has taken its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileToken(u32);

impl FileToken {
    /// Stands for no file.
    pub const NONE: FileToken = FileToken(0);

    fn place(self) -> usize {
        (self.0 % FILES_MAX) as usize
    }

    /// Returns a number below the tree's `files_max` that no other open file has, for a caller's own table of files.
    pub fn number(self) -> u32 {
        self.0 % FILES_MAX
    }
}

/// When the place of a closed file can be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Not by this call: the token was invalid already.
    Not,
    /// At once.
    AtOnce,
    /// When no record refers to the file any longer, because the next token of the place would be one that was used
    /// before.
    AfterAWalk,
}

/// The table of open files.
pub(crate) struct FollowedFiles {
    /// The last token of each place; its generation is one higher when that file is closed.
    current: Box<[AtomicU32]>,
    free: Mutex<FreePlaces>,
}

#[derive(Default)]
struct FreePlaces {
    closed: Vec<u16>,
    /// The first place that has never been used.
    fresh: u32,
}

impl FollowedFiles {
    /// Creates a table without open files and with room for `files_max`.
    pub(crate) fn new(files_max: u32) -> FollowedFiles {
        FollowedFiles { current: zeroed(u64::from(files_max.min(FILES_MAX))), free: Mutex::default() }
    }

    /// Returns a token for another file; `None` when the table is full.
    pub(crate) fn open(&self) -> Option<FileToken> {
        let mut free = self.free.lock();
        let place = match free.closed.pop() {
            Some(place) => u32::from(place),
            None if (free.fresh as usize) < self.current.len() => {
                free.fresh += 1;
                free.fresh - 1
            }
            None => return None,
        };
        let current = &self.current[place as usize];
        let last = current.load(Ordering::Relaxed) / GENERATION_ONE;
        let token = last.wrapping_add(1).wrapping_mul(GENERATION_ONE) | place;
        current.store(token, Ordering::Release);
        Some(FileToken(token))
    }

    /// True if the token stands for an open file.
    #[inline]
    pub(crate) fn is_open(&self, file: FileToken) -> bool {
        let is_odd = file.0 & GENERATION_ONE != 0;
        is_odd && self.current.get(file.place()).is_some_and(|current| current.load(Ordering::Acquire) == file.0)
    }

    /// Makes the token invalid from now on. Its place is used again once it is [released](FollowedFiles::release).
    pub(crate) fn close(&self, file: FileToken) -> Closed {
        if !self.is_open(file) {
            return Closed::Not;
        }
        let next = file.0.wrapping_add(GENERATION_ONE);
        let current = &self.current[file.place()];
        match current.compare_exchange(file.0, next, Ordering::AcqRel, Ordering::Relaxed) {
            Err(_) => Closed::Not,
            Ok(_) if next < GENERATION_ONE => Closed::AfterAWalk,
            Ok(_) => Closed::AtOnce,
        }
    }

    /// Makes the place of a closed file available again.
    pub(crate) fn release(&self, file: FileToken) {
        self.free.lock().closed.push(file.number() as u16);
    }

    /// Returns the memory that the table takes, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let free = self.free.lock();
        free.fresh as usize * size_of::<AtomicU32>() + free.closed.capacity() * size_of::<u16>()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_a_closed_file_stays_invalid_even_if_its_place_is_reused() {
        let files = FollowedFiles::new(1);
        let first = files.open().unwrap();
        assert_eq!(files.open(), None);
        assert!(files.is_open(first) && !files.is_open(FileToken::default()));
        assert_eq!(files.close(first), Closed::AtOnce);
        assert_eq!((files.close(first), files.open()), (Closed::Not, None));
        files.release(first);
        let second = files.open().unwrap();
        assert!(first != second && first.number() == second.number());
        assert!(files.is_open(second) && !files.is_open(first));
    }

    #[test]
    fn a_file_token_is_reused_only_after_a_walk_of_the_records() {
        let files = FollowedFiles::new(1);
        let first = files.open().unwrap();
        let mut file = first;
        let mut opened = 1;
        while files.close(file) == Closed::AtOnce {
            files.release(file);
            file = files.open().unwrap();
            assert_ne!(file, first);
            opened += 1;
        }
        assert_eq!(opened, 1 << 15);
        files.release(file);
        assert_eq!(files.open(), Some(first));
    }

    #[test]
    fn tokens_that_were_never_issued_are_invalid() {
        let files = FollowedFiles::new(2);
        for token in [0, 1, GENERATION_ONE, GENERATION_ONE | 5, u32::MAX] {
            assert!(!files.is_open(FileToken(token)));
            assert_eq!(files.close(FileToken(token)), Closed::Not);
        }
    }
}
