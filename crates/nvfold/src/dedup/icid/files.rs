//! Names of files in records: tokens that mean nothing any more once the file is forgotten.
//!
//! The problem: when a file is closed its records must go, and there may be a record of it on every page. The idea: a
//! token is a place in a table and a generation, odd while the file is open. Forgetting the file changes the generation,
//! so all its records resolve to nothing at once; they are removed when something else wants their space. Only when a
//! generation comes round again, after 32,768 files in the same place, are all records walked ([`Closed::AfterAWalk`]).

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::zeroed;

/// Bits of a token that say which place of the table.
const PLACE_BITS: u32 = 16;
/// Most places of a table, and so most files open at once.
pub const FILES_MAX: u32 = 1 << PLACE_BITS;
const GENERATION_ONE: u32 = 1 << PLACE_BITS;

/// A file whose bytes are followed, until it is forgotten; after that it names nothing, also when other files have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileToken(u32);

impl FileToken {
    /// Names no file.
    pub const NONE: FileToken = FileToken(0);

    fn place(self) -> usize {
        (self.0 % FILES_MAX) as usize
    }

    /// A number below the tree's `files_max` that no other open file has: for a caller's own table of files.
    pub fn number(self) -> u32 {
        self.0 % FILES_MAX
    }
}

/// Whether a place can be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The token names nothing already.
    Not,
    /// At once.
    AtOnce,
    /// When no record names the file: the next token would be one that was given out before.
    AfterAWalk,
}

/// The open files.
pub struct Files {
    /// Of each place the token given out last, its generation greater by one when that file is closed.
    current: Box<[AtomicU32]>,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    closed: Vec<u16>,
    /// Places from here on have never been used.
    fresh: u32,
}

impl Files {
    /// Makes a table with no file open and room for so many.
    pub fn new(files_max: u32) -> Files {
        Files { current: zeroed(u64::from(files_max.min(FILES_MAX))), free: Mutex::default() }
    }

    /// A token for one more file; `None` when as many are open as may be.
    pub fn open(&self) -> Option<FileToken> {
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

    /// Whether it names a file that is open.
    #[inline]
    pub fn is_open(&self, file: FileToken) -> bool {
        let is_odd = file.0 & GENERATION_ONE != 0;
        is_odd && self.current.get(file.place()).is_some_and(|current| current.load(Ordering::Acquire) == file.0)
    }

    /// The token names nothing from now on. Its place is used again once it is [released](Files::release).
    pub fn close(&self, file: FileToken) -> Closed {
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

    /// The place of a closed file can be used again.
    pub fn release(&self, file: FileToken) {
        self.free.lock().closed.push(file.number() as u16);
    }

    /// Bytes that the table may take.
    pub fn memory_bytes(&self) -> usize {
        let free = self.free.lock();
        free.fresh as usize * size_of::<AtomicU32>() + free.closed.capacity() * size_of::<u16>()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_nothing_once_its_file_is_closed_also_when_another_has_its_place() {
        let files = Files::new(1);
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
    fn a_token_is_given_out_again_only_after_a_walk() {
        let files = Files::new(1);
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
    fn tokens_that_were_never_given_out_name_nothing() {
        let files = Files::new(2);
        for token in [0, 1, GENERATION_ONE, GENERATION_ONE | 5, u32::MAX] {
            assert!(!files.is_open(FileToken(token)));
            assert_eq!(files.close(FileToken(token)), Closed::Not);
        }
    }
}
