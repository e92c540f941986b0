//! Pages of files that the kernel holds.
//!
//! The problem: a device in memory is held a second time when the kernel keeps what is read and written. Without its
//! pages each read is a request, and mapped files need them.
//!
//! The idea: the kernel keeps pages and opens files without asking, as it does on any device; but only so many. We see
//! each page come, for the kernel asks for it or hands it down; what we do not see is which ones are used again. So the
//! oldest are dropped first, a window at a time.

use nvfold::InodeNumber;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};

const PAGE_BYTES: u64 = 4096;
/// Pages of a window: what the kernel reads ahead, and what is dropped at once.
const WINDOW_PAGES: u64 = 256;
/// Bytes of a window.
pub const WINDOW_BYTES: u64 = WINDOW_PAGES * PAGE_BYTES;
/// The kernel holds a 64th of the memory at most, but no less than 64 MiB.
const SHARE_OF_MEMORY: u64 = 64;
const BYTES_LEAST: u64 = 64 << 20;

/// Whether the kernel keeps pages of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// As many as it likes where the device is a disk's, a bounded number where the device is memory itself.
    #[default]
    Auto,
    /// As many as it likes.
    Full,
    /// None but those of mapped files: each read and write is a request, and so are open and close.
    None,
}

impl Cache {
    /// Reads one.
    pub fn parse(text: &str) -> Result<Cache, String> {
        match text {
            "auto" => Ok(Cache::Auto),
            "full" => Ok(Cache::Full),
            "none" => Ok(Cache::None),
            _ => Err(format!("`{text}` is none of none, auto and full")),
        }
    }
}

/// The file and which of its windows.
type Window = (u64, u64);
/// A bit for each page of a window.
type Bits = [u64; (WINDOW_PAGES / u64::BITS as u64) as usize];

#[derive(Default)]
struct Held {
    files: HashMap<u64, HashMap<u64, Bits>>,
    /// Windows by age; some are gone.
    oldest: VecDeque<Window>,
    pages: u64,
}

/// See the module.
pub struct Pages {
    /// How many the kernel may hold.
    most: u64,
    held: Mutex<Held>,
}

impl Pages {
    /// At most a 64th of the memory of this machine.
    pub fn bounded() -> Pages {
        let system = rustix::system::sysinfo();
        // Its unit of memory, which is 1 on all machines of 64 bits.
        let memory = system.totalram as u64 * u64::from(system.mem_unit);
        Pages::of((memory / SHARE_OF_MEMORY).max(BYTES_LEAST) / PAGE_BYTES)
    }

    fn of(most: u64) -> Pages {
        Pages { most, held: Mutex::default() }
    }

    /// The kernel has these bytes of a file now. Ranges that it is to drop: offset and length.
    pub fn came(&self, ino: InodeNumber, offset: u64, length: usize) -> Vec<(InodeNumber, (u64, u64))> {
        let mut held = self.held.lock();
        let pages = offset / PAGE_BYTES..(offset + length as u64).div_ceil(PAGE_BYTES);
        for page in pages {
            held.add(ino.0, page);
        }
        let mut dropped = Vec::new();
        while held.pages > self.most
            && let Some((ino, window)) = held.oldest.pop_front()
        {
            if held.remove(ino, window) {
                dropped.push((InodeNumber(ino), (window * WINDOW_BYTES, WINDOW_BYTES)));
            }
        }
        dropped
    }

    /// The kernel has no page of a file any more.
    pub fn forgotten(&self, ino: InodeNumber) {
        let mut held = self.held.lock();
        let windows = held.files.remove(&ino.0).unwrap_or_default();
        held.pages -= windows.values().map(count).sum::<u64>();
    }
}

impl Held {
    fn add(&mut self, ino: u64, page: u64) {
        let (window, bit) = (page / WINDOW_PAGES, page % WINDOW_PAGES);
        let windows = self.files.entry(ino).or_default();
        let bits = windows.entry(window).or_insert_with(|| {
            self.oldest.push_back((ino, window));
            Bits::default()
        });
        let (word, bit) = (&mut bits[(bit / 64) as usize], 1 << (bit % 64));
        self.pages += u64::from(*word & bit == 0);
        *word |= bit;
    }

    /// False when the window is gone already.
    fn remove(&mut self, ino: u64, window: u64) -> bool {
        let Some(windows) = self.files.get_mut(&ino) else { return false };
        let bits = windows.remove(&window);
        if windows.is_empty() {
            self.files.remove(&ino);
        }
        self.pages -= bits.as_ref().map_or(0, count);
        bits.is_some()
    }
}

fn count(bits: &Bits) -> u64 {
    bits.iter().map(|word| u64::from(word.count_ones())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeNumber = InodeNumber(7);
    const OTHER: InodeNumber = InodeNumber(8);

    #[test]
    fn the_oldest_windows_go_when_there_are_too_many_pages() {
        let pages = Pages::of(2 * WINDOW_PAGES);
        assert!(pages.came(FILE, 0, WINDOW_BYTES as usize).is_empty());
        assert!(pages.came(OTHER, 0, WINDOW_BYTES as usize).is_empty());
        // One that came already counts once.
        assert!(pages.came(FILE, 100, 10).is_empty());
        assert_eq!(pages.came(OTHER, WINDOW_BYTES, 1), [(FILE, (0, WINDOW_BYTES))]);
        let rest = pages.came(OTHER, 2 * WINDOW_BYTES, WINDOW_BYTES as usize);
        assert_eq!(rest, [(OTHER, (0, WINDOW_BYTES))]);
        assert_eq!(pages.held.lock().pages, 1 + WINDOW_PAGES);
    }

    #[test]
    fn a_file_that_is_forgotten_leaves_room() {
        let pages = Pages::of(WINDOW_PAGES);
        assert!(pages.came(FILE, 3 * WINDOW_BYTES, WINDOW_BYTES as usize).is_empty());
        pages.forgotten(FILE);
        assert!(pages.came(OTHER, 4096, 8192).is_empty());
        assert_eq!(pages.held.lock().pages, 2);
        pages.forgotten(FILE);
    }

    #[test]
    fn pages_of_two_windows_are_counted_in_both() {
        let pages = Pages::of(10);
        assert!(pages.came(FILE, WINDOW_BYTES - 1, 2).is_empty());
        assert_eq!(pages.held.lock().files[&FILE.0].len(), 2);
        assert_eq!(pages.held.lock().pages, 2);
    }
}
