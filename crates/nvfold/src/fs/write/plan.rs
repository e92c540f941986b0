//! What a way to store a request has to do; [`super::ladder`] does everything else.

use crate::error::Result;
use crate::inode::{Inode, State};
use crate::store::Store;
use crate::store::claims::Claims;
use crate::store::placer::{Placer, Rung};
use crate::store::remap::Mapped;
use std::ops::Range;

/// A way to store one request.
pub(super) trait Plan {
    /// Why a request cannot be stored this way.
    type Declined;

    /// Prepares to write at this file offset. It is called without the lock, and again under it if the guess was wrong or
    /// the rung is another one.
    ///
    /// # Errors
    /// Those of the policy.
    fn prepare(&mut self, store: &Store, offset: u64, policy: Placer<'_>) -> Result<()>;

    /// True if what was prepared is still right, now that the file is locked.
    fn still_holds(&self, _state: &State) -> bool {
        true
    }

    /// Places the request at this rung: adds what the file maps then to `mapped`, and returns the range that changes.
    ///
    /// # Errors
    /// ENOSPC, EIO; nothing is placed then once the claims are dropped.
    fn place(
        &mut self,
        store: &Store,
        inode: &Inode,
        state: &State,
        rung: Rung,
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<std::result::Result<Range<u64>, Self::Declined>>;

    /// True if a rung below could find space where this one did not.
    fn has_rung_below(&self, rung: Rung) -> bool {
        rung == Rung::Packed
    }

    /// Completes a request that is published, while the file is still locked.
    fn published(&mut self, store: &Store, inode: &Inode, state: &mut State, rung: Rung, policy: Placer<'_>);

    /// Returns the length of the request in bytes.
    fn length(&self) -> u64;

    /// Returns how many of its bytes became holes.
    fn hole_bytes(&self) -> u64;
}
