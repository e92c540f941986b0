//! One table, several readers: a scan at mount is as fast as the memory, not as one core.

use std::thread;

/// More threads than this do not make a memory faster.
const THREADS_MAX: usize = 8;

/// How many threads a scan of so many items is worth.
pub fn threads(items: usize, per_thread_min: usize) -> usize {
    let wanted = (items / per_thread_min).min(THREADS_MAX);
    if wanted < 2 {
        return 1;
    }
    thread::available_parallelism().map_or(1, |there| wanted.min(there.get()))
}

/// Gives each thread a part of the items, and waits for all of them. One thread is the caller's.
pub fn map<I: Sync, T: Send>(threads: usize, items: &[I], work: impl Fn(&[I]) -> T + Sync) -> Vec<T> {
    if threads < 2 {
        return vec![work(items)];
    }
    let work = &work;
    thread::scope(|scope| {
        let parts = items.chunks(items.len().div_ceil(threads).max(1));
        let running: Vec<_> = parts.map(|part| scope.spawn(move || work(part))).collect();
        running.into_iter().map(|part| part.join().expect("a scan does not panic")).collect()
    })
}
