//! Overwriting one whole block that nobody shares, without looking for duplicates: a page of a database under `off`, or
//! under a policy that stores most blocks unseen.
//!
//! The problem: such a write takes a block, stores it, logs one line and frees the old block. What the other ways of a
//! write keep ready (claims, pieces, a transaction of entries) costs as many instructions as all of that.
//!
//! The idea: everything is asked before the block is taken. From then on nothing can fail, so there is nothing to undo,
//! and no entry of the chunk table changes. The order on the media is that of [`super::publish`]; the block that is
//! overwritten stays as it is until the commit word is fenced (invariant 5).
//!
//! ```text
//! ask        private? mapped whole? room in the log? nothing under way that wants to know?   else the other ways
//! stage      the block is streamed, one line of the log beyond the tail; DRAM follows meanwhile
//! fence      both are durable
//! commit     the commit word; fence
//! release    the old block is free
//! ```

use super::Store;
use super::remap::{Stamp, block_extent};
use crate::error::Result;
use crate::inode::log::check_blocks;
use crate::inode::{Body, Changing, Inode, State};
use crate::media::log_entry::ExtentEntry;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::{BlockRun, Purpose};
use crate::words::Times;
use pmem::Flight;

impl Store {
    /// Overwrites the block of a file at `offset` with `data`, one whole block that the policy stores unseen.
    /// Returns false, and changes nothing, if the other ways of a write have to do it.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn overwrite_block(
        &self,
        inode: &Inode,
        state: &mut State,
        offset: u64,
        data: &[u8],
        times: Times,
    ) -> Result<bool> {
        let Some(old) = self.block_to_overwrite(inode, state, offset) else { return Ok(false) };
        let size = state.attributes.size.max(offset + BLOCK_BYTES);
        let Stamp::Changed(time, _) = self.stamp(state, size, times) else { return Ok(false) };
        let new = self.space.allocate_one("write", Purpose::Data)?;
        if check_blocks(&self.geometry, offset, BLOCK_BYTES, new.address(), size).is_err() {
            // The other way refuses it.
            self.free(one(new));
            return Ok(false);
        }
        let changing = Changing::begin(inode, &self.panics);
        let mut flight = Flight::new();
        flight.add(self.region.stream(new.address(), data));
        let extent = block_extent(new);
        let entry = ExtentEntry::write(offset, BLOCK_BYTES, extent.location, false, time, size).sealed(inode.ino);
        let line = self.region.write(state.log.tail, &entry).flush();
        let Body::File(extents) = &mut state.body else { unreachable!("its extents were looked at") };
        extents.insert(offset, extent);
        let (landed, line) = self.region.fence((flight, line));
        self.commit_line(inode, state, line, landed, Flight::new(), Flight::new);
        (state.attributes.size, state.attributes.mtime, state.attributes.ctime) = (size, time, time);
        state.drops += 1;
        changing.done();
        let is_worth_compacting = self.is_worth_compacting(inode, state);
        debug_assert!(!self.chunks.has_entry(old), "{old:?} is freed and others may reference it");
        // Last: the first locked instruction waits until the data has left the processor.
        self.space.free_one(old);
        if is_worth_compacting {
            self.compact_if_worth_it(inode, state);
        }
        Ok(true)
    }

    /// Returns the block that a file maps at `offset`, if it can be overwritten in this way.
    #[inline]
    fn block_to_overwrite(&self, inode: &Inode, state: &State, offset: u64) -> Option<BlockNumber> {
        let block = state.extents()?.whole_block(offset)?;
        // A copy that is being made keeps what is replaced, a recount after a crash counts it, and a policy of the
        // program hears of it.
        let is_watched = self.pending.is_any() || self.is_reconciling() || self.policies.needs_release_notices();
        (self.chunks.is_private(block) && !is_watched && self.has_room_for_one_entry(inode, state)).then_some(block)
    }
}

fn one(start: BlockNumber) -> BlockRun {
    BlockRun { start, count: 1 }
}
