//! Work beside the calls: what policies defer, sharing and unsharing what is stored, and making space.
//!
//! All of it is done in steps, each under the locks of one inode at a time, so that operations run between them. Nothing
//! below knows of it: [`Jobs`] stands above [`Core`], and a call that goes up does not compile.
//!
//! | file | contents |
//! |---|---|
//! | `contain` | where errors and panics of a step end |
//! | `host` | what policies ask for in the background |
//! | `work_queue` | sharing the blocks of a queued log entry |
//! | `fill_fingerprints` | fingerprints for files that lack them |
//! | `cut_again` | cutting stored data again |
//! | `settle` | packing the ends of files that grew and rest now |
//! | `steps`, `share`, `undedup`, `undedup_plan` | sharing what is stored, on request; undoing it; how much space that takes |
//! | `effort` | how much an operation without space works for some |
//! | `reclaim` | emptying segments of packed chunks |
//! | `collect`, `marks`, `gather`, `parts` | freeing chunks of which only a few bytes are live, and joining what one file alone maps |
//! | `evacuate` | emptying segments of blocks |
//! | `reclamation` | these together: a step of the background, the end at unmount, the counters |

mod collect;
mod contain;
mod cut_again;
mod effort;
mod evacuate;
mod fill_fingerprints;
mod gather;
mod host;
mod marks;
mod parts;
mod reclaim;
mod reclamation;
mod settle;
mod share;
mod steps;
#[cfg(test)]
mod tests;
mod undedup;
mod undedup_plan;
mod work_queue;

pub(crate) use effort::{Effort, Worked};
pub(crate) use steps::ReshareStep;
pub use undedup_plan::UndedupPlan;

use crate::fs::Core;
use collect::Collector;
use evacuate::Evacuation;
use nvfold_sync::Mutex;
use reclaim::{Reclaimed, Victim};
use std::ops::Deref;

/// The work beside the calls of one mount: its files, and what is under way.
#[derive(Clone, Copy)]
pub struct Jobs<'c> {
    core: &'c Core,
    under_way: &'c JobsState,
}

/// The work that a mount has under way, and what was done since.
#[derive(Default)]
pub(crate) struct JobsState {
    /// The segment of packed chunks that is being emptied.
    victim: Mutex<Option<Victim>>,
    reclaimed: Reclaimed,
    collector: Collector,
    evacuation: Evacuation,
}

impl<'c> Jobs<'c> {
    pub(crate) fn new(core: &'c Core, under_way: &'c JobsState) -> Jobs<'c> {
        Jobs { core, under_way }
    }

    /// Returns the files.
    pub(crate) fn core(&self) -> &'c Core {
        self.core
    }
}

/// What stands below is at hand; what stands above is not.
impl Deref for Jobs<'_> {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        self.core
    }
}
