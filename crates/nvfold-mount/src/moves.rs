//! Names that get into other directories while trees are cloned.
//!
//! The problem: before a tree is cloned, the kernel writes back the files in it. A file that is moved into the tree after
//! its directory was passed would come into the copy without what was written to it before.
//!
//! The idea: while a clone is under way, whoever moves a name has the kernel write back what it leads to first. A clone
//! begins when all moves have ended that knew nothing of it. No move ever waits for a clone.

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct State {
    clones: u32,
    /// Moves that began while no clone was under way.
    moves: u32,
}

/// The moves and the clones of a mount; see the module.
#[derive(Default)]
pub(crate) struct Moves {
    state: Mutex<State>,
    ended: Condvar,
}

/// A clone that is under way until this is dropped.
pub(crate) struct Cloning<'m>(&'m Moves);

/// A move, until this is dropped. `None`: a clone was under way when it began.
pub(crate) struct Moving<'m>(Option<&'m Moves>);

impl Moves {
    /// Begins a clone: waits for moves that know nothing of it.
    pub(crate) fn begin_clone(&self) -> Cloning<'_> {
        let mut state = self.state.lock();
        state.clones += 1;
        self.ended.wait_while(&mut state, |state| state.moves > 0);
        Cloning(self)
    }

    /// Begins a move.
    pub(crate) fn begin_move(&self) -> Moving<'_> {
        let mut state = self.state.lock();
        let is_alone = state.clones == 0;
        state.moves += u32::from(is_alone);
        Moving(is_alone.then_some(self))
    }
}

impl Moving<'_> {
    /// Returns true if a clone was under way when the move began, so that what is moved must be written back first.
    pub(crate) fn is_beside_clone(&self) -> bool {
        self.0.is_none()
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        if let Some(moves) = self.0 {
            moves.state.lock().moves -= 1;
            moves.ended.notify_all();
        }
    }
}

impl Drop for Cloning<'_> {
    fn drop(&mut self) {
        self.0.state.lock().clones -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_clone_begins_after_the_moves_that_know_nothing_of_it() {
        let moves = Moves::default();
        let before = moves.begin_move();
        assert!(!before.is_beside_clone());
        thread::scope(|scope| {
            let clone = scope.spawn(|| moves.begin_clone());
            while moves.state.lock().clones == 0 {
                thread::yield_now();
            }
            // It waits for the first one, and not for those that come now.
            let during = moves.begin_move();
            assert!(during.is_beside_clone());
            assert!(!clone.is_finished());
            drop(before);
            let cloning = clone.join().unwrap();
            drop(cloning);
            drop(during);
        });
        assert!(!moves.begin_move().is_beside_clone());
    }
}
