//! The duration of work: its cost, and the time of the wall clock.
//!
//! The problem: on a shared machine a wall clock cannot resolve differences below about 10 %, but the papers claim
//! differences of about 1 %.
//!
//! The idea: the **cost** of work is the time that emulated devices charged its thread plus the thread's processor
//! time, without its waits for those devices ([`pmem::clock::cost_ns`]). A device charges the same in every run.
//! Processor time depends on caches and clock rates but not on other processes. Wall-clock time is recorded as well.
//!
//! Requests are timed in groups of [`GROUP_BYTES`], from buffers filled immediately before, as in a real program. There
//! are two reasons. First, reading the processor time takes a tenth of the time of a small request. Second, an emulated
//! device hides the time to load cold data into the cache during a store. With cold buffers, the first system that
//! hashes the data would be charged for that.

use crate::Result;
use std::iter::Sum;
use std::ops::AddAssign;
use std::time::Instant;

/// Bytes of requests that are filled and then timed together.
const GROUP_BYTES: usize = 128 << 10;

/// Duration of some work, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    /// Charge of devices plus processor time.
    pub cost_ns: f64,
    /// By the wall clock.
    pub wall_ns: f64,
}

impl AddAssign for Spent {
    fn add_assign(&mut self, more: Spent) {
        self.cost_ns += more.cost_ns;
        self.wall_ns += more.wall_ns;
    }
}

impl Sum for Spent {
    fn sum<I: Iterator<Item = Spent>>(parts: I) -> Spent {
        parts.fold(Spent::default(), |mut sum, part| {
            sum += part;
            sum
        })
    }
}

impl Spent {
    /// Does some work; returns its duration on this thread.
    pub(super) fn on<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Spent)> {
        let (wall, cost) = (Instant::now(), pmem::clock::cost_ns());
        let done = work()?;
        let spent = Spent { cost_ns: pmem::clock::cost_ns() - cost, wall_ns: wall.elapsed().as_nanos() as f64 };
        Ok((done, spent))
    }
}

/// Makes requests, each with its data, and calls `between` after each group with the duration of the group. Returns
/// the total duration.
pub(super) fn in_groups<'d, K>(
    requests: impl Iterator<Item = (K, &'d [u8])>,
    mut request: impl FnMut(K, &[u8]) -> Result<()>,
    mut between: impl FnMut(Spent),
) -> Result<Spent> {
    let mut requests = requests.peekable();
    let Some(bytes) = requests.peek().map(|(_, content)| content.len()) else { return Ok(Spent::default()) };
    let size = (GROUP_BYTES / bytes).max(1);
    let mut buffer = vec![0; size * bytes];
    let mut keys = Vec::with_capacity(size);
    let mut spent = Spent::default();
    while requests.peek().is_some() {
        for (place, (key, content)) in buffer.chunks_mut(bytes).zip(&mut requests) {
            place.copy_from_slice(content);
            keys.push(key);
        }
        let group = keys.drain(..).zip(buffer.chunks(bytes));
        let ((), took) = Spent::on(|| {
            for (key, content) in group {
                request(key, content)?;
            }
            Ok(())
        })?;
        spent += took;
        between(took);
    }
    Ok(spent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_made_exactly_once_and_in_sequence() {
        let data: Vec<u8> = (0..70 * 4096u32).map(|at| (at / 4096) as u8).collect();
        let (mut seen, mut groups) = (Vec::new(), 0);
        let each = |key: usize, content: &[u8]| {
            assert_eq!((content.len(), content[0] as usize), (4096, key));
            seen.push(key);
            Ok(())
        };
        let spent = in_groups((0..).zip(data.chunks(4096)).take(70), each, |_| groups += 1).unwrap();
        assert_eq!((seen, groups), ((0..70).collect(), 3));
        assert!(spent.wall_ns > 0.0);
        let none = in_groups(std::iter::empty::<((), &[u8])>(), |(), _| Ok(()), |_| ()).unwrap();
        assert_eq!(none.wall_ns, 0.0);
    }

    #[test]
    fn time_asleep_does_not_count_as_cost() {
        let work = || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            Ok(())
        };
        let ((), spent) = Spent::on(work).unwrap();
        assert!(spent.wall_ns >= 50e6 && spent.cost_ns < spent.wall_ns / 2.0, "{spent:?}");
    }
}
