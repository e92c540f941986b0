//! Bounds the number of file pages that the kernel caches.
//!
//! The problem: with a device in memory, the kernel's page cache holds the same data a second time. Without cached
//! pages each read is a request; mapped files need them in any case.
//!
//! The idea: the kernel caches pages and opens files without asking, as on any device, but the number of pages is
//! bounded. The server sees each page enter the cache, because the kernel requests it or writes it. It does not see
//! which pages are used again. So the oldest pages are dropped first, a window at a time.

use crate::memory;
use nvfold::InodeNumber;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

const PAGE_BYTES: u64 = 4096;
/// Pages in a window: the size of a read-ahead, and the unit in which pages are dropped.
const WINDOW_PAGES: u64 = 256;
/// Bytes in a window.
pub(crate) const WINDOW_BYTES: u64 = WINDOW_PAGES * PAGE_BYTES;
/// The kernel may hold 1/64 of the memory, but at least 64 MiB, or an eighth where that is less.
const SHARE_OF_MEMORY: u64 = 64;
const BYTES_LEAST: u64 = 64 << 20;
const SHARE_OF_LITTLE_MEMORY: u64 = 8;

/// The inode number, and the number of the window in the file.
type Window = (u64, u64);
/// One bit for each page of a window.
type Bits = [u64; (WINDOW_PAGES / u64::BITS as u64) as usize];

/// The pages of a window that the kernel holds.
struct HeldWindow {
    bits: Bits,
    /// How many windows came before it.
    came: u64,
}

#[derive(Default)]
struct Held {
    files: HashMap<u64, HashMap<u64, HeldWindow>>,
    /// All windows of `files`, oldest first: by the number of windows that came before each.
    oldest: BTreeMap<u64, Window>,
    /// How many windows came in all.
    came: u64,
    pages: u64,
}

/// The pages that the kernel holds; see the module.
pub(crate) struct Pages {
    /// The largest number of pages that the kernel may hold.
    most: u64,
    held: Mutex<Held>,
}

impl Pages {
    /// Bounds the pages by the memory that this process may use.
    pub(crate) fn bounded() -> Pages {
        Pages::of(most_bytes(memory::memory_bytes()) / PAGE_BYTES)
    }

    fn of(most: u64) -> Pages {
        Pages { most, held: Mutex::default() }
    }

    /// Records that the kernel now holds these bytes of a file. Returns the ranges (offset, length) that it must
    /// drop.
    pub(crate) fn came(&self, ino: InodeNumber, offset: u64, length: usize) -> Vec<(InodeNumber, (u64, u64))> {
        let mut held = self.held.lock();
        let pages = offset / PAGE_BYTES..(offset + length as u64).div_ceil(PAGE_BYTES);
        for page in pages {
            held.add(ino.0, page);
        }
        let mut dropped = Vec::new();
        while held.pages > self.most
            && let Some((_, (ino, window))) = held.oldest.pop_first()
        {
            held.remove(ino, window);
            dropped.push((InodeNumber(ino), (window * WINDOW_BYTES, WINDOW_BYTES)));
        }
        dropped
    }

    /// Records that the kernel holds no page of a file.
    pub(crate) fn forgotten(&self, ino: InodeNumber) {
        let mut held = self.held.lock();
        for window in held.files.remove(&ino.0).unwrap_or_default().into_values() {
            held.oldest.remove(&window.came);
            held.pages -= count(&window.bits);
        }
    }
}

impl Held {
    fn add(&mut self, ino: u64, page: u64) {
        let (number, bit) = (page / WINDOW_PAGES, page % WINDOW_PAGES);
        let window = self.files.entry(ino).or_default().entry(number).or_insert_with(|| {
            self.came += 1;
            self.oldest.insert(self.came, (ino, number));
            HeldWindow { bits: Bits::default(), came: self.came }
        });
        let (word, bit) = (&mut window.bits[(bit / 64) as usize], 1 << (bit % 64));
        self.pages += u64::from(*word & bit == 0);
        *word |= bit;
    }

    /// Removes a window that `oldest` no longer has.
    fn remove(&mut self, ino: u64, number: u64) {
        let Some(windows) = self.files.get_mut(&ino) else { return };
        self.pages -= windows.remove(&number).map_or(0, |window| count(&window.bits));
        if windows.is_empty() {
            self.files.remove(&ino);
        }
    }
}

fn most_bytes(memory: u64) -> u64 {
    (memory / SHARE_OF_MEMORY).max(BYTES_LEAST).min(memory / SHARE_OF_LITTLE_MEMORY)
}

fn count(bits: &Bits) -> u64 {
    bits.iter().map(|word| u64::from(word.count_ones())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeNumber = InodeNumber(7);

    #[test]
    fn the_page_limit_follows_the_memory_of_the_machine() {
        let in_mib = [300, 1 << 10, 64 << 10].map(|mib: u64| most_bytes(mib << 20) >> 20);
        assert_eq!(in_mib, [37, 64, 1024]);
    }
    const OTHER: InodeNumber = InodeNumber(8);

    #[test]
    fn the_oldest_windows_are_dropped_above_the_page_limit() {
        let pages = Pages::of(2 * WINDOW_PAGES);
        assert!(pages.came(FILE, 0, WINDOW_BYTES as usize).is_empty());
        assert!(pages.came(OTHER, 0, WINDOW_BYTES as usize).is_empty());
        // A page that came before counts once.
        assert!(pages.came(FILE, 100, 10).is_empty());
        assert_eq!(pages.came(OTHER, WINDOW_BYTES, 1), [(FILE, (0, WINDOW_BYTES))]);
        let rest = pages.came(OTHER, 2 * WINDOW_BYTES, WINDOW_BYTES as usize);
        assert_eq!(rest, [(OTHER, (0, WINDOW_BYTES))]);
        assert_eq!(pages.held.lock().pages, 1 + WINDOW_PAGES);
    }

    #[test]
    fn pages_of_a_forgotten_file_no_longer_count() {
        let pages = Pages::of(WINDOW_PAGES);
        assert!(pages.came(FILE, 3 * WINDOW_BYTES, WINDOW_BYTES as usize).is_empty());
        pages.forgotten(FILE);
        assert!(pages.came(OTHER, 4096, 8192).is_empty());
        assert_eq!(pages.held.lock().pages, 2);
        pages.forgotten(FILE);
    }

    /// As many files as anyone makes and the kernel forgets take no memory, though the pages never become too many.
    #[test]
    fn forgotten_files_take_no_memory_in_the_page_list() {
        let pages = Pages::of(10 * WINDOW_PAGES);
        for file in 0..10_000 {
            assert!(pages.came(InodeNumber(file), 0, 2 * WINDOW_BYTES as usize).is_empty());
            pages.forgotten(InodeNumber(file));
            let held = pages.held.lock();
            assert_eq!((held.files.len(), held.oldest.len(), held.pages), (0, 0, 0));
        }
        // A window that is dropped and comes again is one window.
        for _ in 0..100 {
            pages.came(FILE, 0, 11 * WINDOW_BYTES as usize);
        }
        let held = pages.held.lock();
        assert_eq!(held.oldest.len(), held.files[&FILE.0].len());
    }

    #[test]
    fn pages_of_two_windows_are_counted_in_both() {
        let pages = Pages::of(10);
        assert!(pages.came(FILE, WINDOW_BYTES - 1, 2).is_empty());
        assert_eq!(pages.held.lock().files[&FILE.0].len(), 2);
        assert_eq!(pages.held.lock().pages, 2);
    }
}
