//! One write, whatever it is stored as: what is prepared without the lock, looked at again under it, and tried elsewhere
//! when space is short.
//!
//! The problem: hashing, cutting and comparing take longer than storing, so they are done before the file is locked. By
//! then the file may have grown, or have got another owner. And the place where a write is stored best may be full.
//!
//! The idea: a [`Plan`] prepares for a file offset and places what it has prepared; this function does everything else. It
//! takes the lock, lets the plan prepare again if the guess was wrong, and owns the ladder of places: packed chunks first,
//! then blocks. A rung that finds no space leaves nothing behind, because dropping its [`Claims`] undoes all of it. Nothing
//! waits here: whoever holds no lock may make room before the next rung is tried ([`Ladder`]).
//!
//! Within one rung, the end of a file that finds no packed segment goes to a block by itself, for the rest of the request
//! is where it belongs.

use super::plan::Plan;
use crate::error::{Error, Result};
use crate::fs::Core;
use crate::inode::{Inode, State};
use crate::store::blocks::range_end;
use crate::store::claims::Claims;
use crate::store::placer::{Placer, Rung};
use crate::store::remap::Mapped;
use crate::words::Times;
use std::cell::Cell;

/// How far down an operation may go: not below the first rung that is full, until there is no more room to make there.
#[derive(Default)]
pub(crate) struct Ladder {
    may_descend: Cell<bool>,
    has_stopped: Cell<bool>,
}

impl Ladder {
    /// Lets the operation go all the way down.
    pub(crate) fn open(&self) {
        self.may_descend.set(true);
    }

    /// Returns true if the operation has failed because it was not to go down yet, since the last call.
    pub(crate) fn has_stopped(&self) -> bool {
        self.has_stopped.take()
    }

    fn may_descend(&self) -> bool {
        self.has_stopped.set(!self.may_descend.get());
        self.may_descend.get()
    }
}

impl Core {
    /// Writes a request at offset `at`, or at the end of the file if it is `None`. Returns the offset.
    ///
    /// # Errors
    /// EFBIG, EISDIR, EINVAL, ENOSPC, EIO; nothing has changed then.
    #[inline]
    pub(super) fn write_by<P: Plan>(
        &self,
        inode: &Inode,
        at: Option<u64>,
        plan: &mut P,
        policy: Placer<'_>,
        times: Times,
        ladder: &Ladder,
    ) -> Result<std::result::Result<u64, P::Declined>> {
        inode.check_changeable("write")?;
        let length = plan.length();
        // The offset of an append is only known under the lock. A wrong guess merely costs preparing again.
        let guess = at.unwrap_or_else(|| inode.peek().attributes.size);
        range_end("write", guess, length)?;
        let rung = self.first_rung();
        let mut policy = self.policy_at(rung, policy);
        plan.prepare(self, guess, policy)?;
        let mut state = inode.write()?;
        let offset = at.unwrap_or(state.attributes.size);
        if offset != guess || policy.domain() != inode.domain() || !plan.still_holds(&state) {
            range_end("write", offset, length)?;
            policy = policy.with_domain_of(inode);
            plan.prepare(self, offset, policy)?;
        }
        if length == 0 {
            self.file_extents(&state, "write")?;
        } else if let Err(refusal) = self.go_down(inode, &mut state, plan, rung, policy, (offset, times), ladder)? {
            return Ok(Err(refusal));
        }
        drop(state);
        policy.request_done(length - plan.hole_bytes(), &self.ground());
        Ok(Ok(offset))
    }

    /// Places and publishes a request at the first rung that has space for it.
    #[inline(always)]
    pub(super) fn go_down<P: Plan>(
        &self,
        inode: &Inode,
        state: &mut State,
        plan: &mut P,
        rung: Rung,
        policy: Placer<'_>,
        request: (u64, Times),
        ladder: &Ladder,
    ) -> Result<std::result::Result<(), P::Declined>> {
        let written = self.write_at_rung(inode, state, plan, rung, policy, request);
        if matches!(written, Err(Error::NoSpace { .. })) && plan.has_rung_below(rung) && ladder.may_descend() {
            return self.write_to_blocks(inode, state, plan, policy, request);
        }
        written
    }

    #[cold]
    fn write_to_blocks<P: Plan>(
        &self,
        inode: &Inode,
        state: &mut State,
        plan: &mut P,
        policy: Placer<'_>,
        request: (u64, Times),
    ) -> Result<std::result::Result<(), P::Declined>> {
        // The packed segments that the attempt opened are empty again, so blocks can use them.
        self.give_up_empty_packed();
        let policy = self.policy_at(Rung::Blocks, policy);
        plan.prepare(self, request.0, policy)?;
        self.write_at_rung(inode, state, plan, Rung::Blocks, policy, request)
    }

    #[inline(always)]
    fn write_at_rung<P: Plan>(
        &self,
        inode: &Inode,
        state: &mut State,
        plan: &mut P,
        rung: Rung,
        policy: Placer<'_>,
        (offset, times): (u64, Times),
    ) -> Result<std::result::Result<(), P::Declined>> {
        {
            let mut claims = Claims::of_write(self, inode, policy, times);
            let mut mapped = Mapped::new();
            let range = match plan.place(self, inode, state, rung, &mut mapped, &mut claims)? {
                Ok(range) => range,
                Err(refusal) => return Ok(Err(refusal)),
            };
            if claims.lacks_fingerprints() {
                self.notify_unfingerprinted(inode, &mut claims);
            }
            let size = state.attributes.size.max(offset + plan.length());
            self.publish_written(inode, state, range, &mapped, size, &mut claims)?;
        }
        plan.published(self, inode, state, rung, policy);
        Ok(Ok(()))
    }
}
