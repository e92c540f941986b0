//! A small model of a thread's cache: which lines a read finds there and need not fetch from an emulated device.
//!
//! The problem: a profile that charges every load of a word as a line from the media makes a lock word, or the eight
//! words of one entry, eight times too expensive. A profile that charges none of them makes a walk through a table
//! free.
//!
//! The idea: each thread remembers the last line that it touched in each of [`LINES`] places (a direct-mapped cache
//! of 64 KiB: two first-level caches). A read of a remembered line is free; any other line is charged and remembered.
//! Stores through the cache and flushes (clwb) leave a line in the cache, streaming stores remove it. Stores of other
//! threads do not: the time that a line takes to move between processors is real time here, and no emulated device
//! charges it.
//!
//! The model depends only on the thread's own accesses, so it charges the same in every run.

use std::cell::RefCell;

/// Lines that a thread remembers.
const LINES: usize = 1024;
/// A device has at most 2^38 lines (`DEVICE_BYTES_MAX`), so the bits above can hold the device number.
const LINE_BITS: u32 = 38;

thread_local!(static TOUCHED: RefCell<Box<[u64]>> = RefCell::new(Box::default()));

/// Records that the calling thread reads lines of a device. Returns how many of them it has to fetch.
pub(crate) fn read(device: u64, lines: std::ops::Range<u64>) -> u64 {
    with(|touched| lines.map(|line| u64::from(replace(touched, device, line, true))).sum())
}

/// Records that the calling thread stores lines through the cache.
pub(crate) fn store(device: u64, lines: std::ops::Range<u64>) {
    let _ = read(device, lines);
}

/// Records that the calling thread stores lines past the cache.
pub(crate) fn stream(device: u64, lines: std::ops::Range<u64>) {
    with(|touched| {
        lines.for_each(|line| {
            replace(touched, device, line, false);
        });
        0
    });
}

/// Puts a line into its place, or removes it from there. Returns true if the line was not there before.
fn replace(touched: &mut [u64], device: u64, line: u64, stays: bool) -> bool {
    // The name is never 0, because 0 marks an empty place.
    let name = (device + 1) << LINE_BITS | line;
    let place = &mut touched[line as usize % LINES];
    let missed = *place != name;
    match stays {
        true => *place = name,
        false if !missed => *place = 0,
        false => {}
    }
    missed
}

/// Runs `work` on the thread's cache. A thread that is being torn down has no cache, so every line counts as fetched.
fn with(work: impl FnOnce(&mut [u64]) -> u64) -> u64 {
    let mut work = Some(work);
    let done = TOUCHED.try_with(|touched| {
        let mut touched = touched.borrow_mut();
        if touched.is_empty() {
            *touched = vec![0; LINES].into();
        }
        work.take().map_or(0, |work| work(&mut touched))
    });
    done.unwrap_or_else(|_| work.take().map_or(0, |work| work(&mut [0; LINES])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_in_the_emulated_cache_is_not_charged_again() {
        assert_eq!((read(7, 10..14), read(7, 10..14), read(7, 13..15)), (4, 0, 1));
        assert_eq!(read(8, 10..14), 4, "another device's lines");
        assert_eq!(read(7, 10..11), 1, "which took their places");
        store(7, 20..21);
        assert_eq!(read(7, 20..21), 0, "what was stored through the cache is there");
        stream(7, 20..21);
        assert_eq!(read(7, 20..21), 1, "and what was stored past it is not");
        assert_eq!(read(7, 20 + LINES as u64..21 + LINES as u64), 1);
        stream(7, 20..21);
        assert_eq!(read(7, 20 + LINES as u64..21 + LINES as u64), 0, "another line was in its place");
    }

    #[test]
    fn each_thread_has_a_cache_of_its_own() {
        assert_eq!(read(1, 0..1), 1);
        assert_eq!(std::thread::spawn(|| read(1, 0..1)).join().unwrap(), 1);
        assert_eq!(read(1, 0..1), 0);
    }

    #[test]
    fn a_long_read_leaves_its_last_lines_in_the_emulated_cache() {
        assert_eq!(read(2, 0..2 * LINES as u64), 2 * LINES as u64);
        assert_eq!(read(2, LINES as u64..2 * LINES as u64), 0);
        assert_eq!(read(2, 0..LINES as u64), LINES as u64);
    }
}
