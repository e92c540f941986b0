//! Several threads read one table, so that a scan at mount is as fast as the memory, not as one core.

use pmem::with_signals_blocked;
use std::thread;

/// The most threads of a scan: more do not make the memory faster.
const THREADS_MAX: usize = 8;

/// Returns how many threads a scan of `items` items is worth, with at least `per_thread_min` items for each.
pub(crate) fn threads(items: usize, per_thread_min: usize) -> usize {
    let wanted = (items / per_thread_min).min(THREADS_MAX);
    if wanted < 2 {
        return 1;
    }
    thread::available_parallelism().map_or(1, |there| wanted.min(there.get()))
}

/// Gives each thread a part of the items, runs `work` on them, and returns the results in order. With fewer than two
/// `threads` the caller does all the work.
pub(crate) fn map<I: Sync, T: Send>(threads: usize, items: &[I], work: impl Fn(&[I]) -> T + Sync) -> Vec<T> {
    if threads < 2 {
        return vec![work(items)];
    }
    let work = &work;
    thread::scope(|scope| {
        let parts = items.chunks(items.len().div_ceil(threads).max(1));
        let running: Vec<_> = parts.map(|part| with_signals_blocked(|| scope.spawn(move || work(part)))).collect();
        running.into_iter().map(|part| part.join().expect("a scan does not panic")).collect()
    })
}
