//! How many long requests a user may have at once.
//!
//! The problem: a request to share, compress or undo sharing reads and writes megabytes. The kernel hands requests over
//! in the order in which they come. A user who sends hundreds of such requests would make the requests of all others
//! wait for them.
//!
//! The idea: a user has at most [`AT_ONCE`] of them. One more is refused at once (EAGAIN), and whoever sent it tries
//! again later.

use parking_lot::Mutex;
use std::collections::HashMap;

/// The largest number of long requests of one user.
pub(crate) const AT_ONCE: u32 = 4;

/// The long requests of each user; see the module.
#[derive(Default)]
pub(crate) struct Turns {
    /// By user id; users without a request are not listed.
    taken: Mutex<HashMap<u32, u32>>,
}

/// A long request that is being carried out.
pub(crate) struct Turn<'t> {
    turns: &'t Turns,
    uid: u32,
}

impl Turns {
    /// Counts a request of a user; `None` if he has too many. It ends when the result is dropped.
    pub(crate) fn take(&self, uid: u32) -> Option<Turn<'_>> {
        let mut taken = self.taken.lock();
        let count = taken.entry(uid).or_default();
        if *count == AT_ONCE {
            return None;
        }
        *count += 1;
        Some(Turn { turns: self, uid })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut taken = self.turns.taken.lock();
        let count = taken.get_mut(&self.uid).expect("it was counted");
        *count -= 1;
        if *count == 0 {
            taken.remove(&self.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_limited_number_of_turns_and_takes_none_from_others() {
        let turns = Turns::default();
        let held: Vec<Turn<'_>> = (0..AT_ONCE).map(|_| turns.take(1).expect("it is free")).collect();
        assert!(turns.take(1).is_none());
        assert!(turns.take(2).is_some());
        drop(held);
        assert!(turns.take(1).is_some());
        assert!(turns.taken.lock().is_empty());
    }
}
