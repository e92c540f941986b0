//! Writing: how data becomes extents, shared or new, without ever changing a block in place.
//!
//! A write goes through five steps, and each does one thing:
//!
//! ```text
//! 1 prepare    without a lock: fingerprints, pieces, or a comparison with origins; blocks of zeros become holes
//! 2 look again with the lock: is that still right?
//! 3 place      all parts together: shared (takes a reference) or new (allocated, entered in the table, streamed);
//!              the dedup transaction begins with the first entry that changes
//! 4 publish    see `store::publish`
//! 5 release    the references that the old extents held with others
//! ```
//!
//! [`ladder`] does this once for three plans ([`plan`]): [`blocks`], [`stream`] (pieces) and [`origins`] (what was copied from files).
//!
//! Policy `off` looks at no data, so nothing is prepared and the file is locked at once. If the request is one whole
//! block that nobody shares, [`Store::overwrite_block`](crate::store::Store::overwrite_block) does steps 3 to 5. The same
//! holds under `nv-dedup` and `auto` for a request of one block at which they do not look.
//!
//! A block that an extent maps is never written in place (invariant 5). Reserved blocks are, because they have no
//! content yet.

mod blocks;
mod ladder;
mod origins;
mod plan;
mod stream;

pub(crate) use ladder::Ladder;
pub(crate) use origins::InodeOrigin;
pub(super) use origins::OriginTally;

use super::Core;
use crate::error::Result;
use crate::inode::Inode;
use crate::media::BLOCK_BYTES;
use crate::store::BLOCK;
use crate::store::blocks::{file_unfingerprinted, range_end};
use crate::store::placer::{Placer, own};
use crate::store::zeros::becomes_hole;
use crate::words::{OriginStats, Times};
use blocks::InBlocks;
use origins::{CannotShare, WithOrigins, Worth, in_order, leave_short_out, offered_bytes};
use stream::InPieces;

/// True for a request of one whole block.
#[inline]
fn is_one_block(offset: u64, data: &[u8]) -> bool {
    data.len() == BLOCK && offset.is_multiple_of(BLOCK_BYTES)
}

/// How often a request is compared before it is written without origins.
const COMPARES_MAX: u32 = 4;

impl Core {
    /// Writes all of `data` at offset `at`, or at the end of the file if it is `None`. Returns the offset.
    ///
    /// # Errors
    /// EFBIG, EISDIR, EINVAL, ENOSPC, EIO; nothing has changed then.
    pub(crate) fn write(
        &self,
        inode: &Inode,
        at: Option<u64>,
        data: &[u8],
        times: Times,
        ladder: &Ladder,
    ) -> Result<u64> {
        if self.policies.store_unseen(own(inode)) {
            return self.write_unseen(inode, at, data, None, times, ladder);
        }
        let policy = self.policy_for(inode);
        let is_block = at.is_some_and(|offset| is_one_block(offset, data));
        if is_block && policy.stores_unseen(data) && !becomes_hole(policy, data) {
            let offset = self.write_unseen(inode, at, data, Some(policy), times, ladder)?;
            policy.stored_unseen();
            policy.request_done(BLOCK_BYTES, &self.ground());
            return Ok(offset);
        }
        let Some(streams) = policy.streams().filter(|_| !data.is_empty() && self.chunks.entries.may_pack()) else {
            let Ok(offset) = self.write_by(inode, at, &mut InBlocks::new(data), policy, times, ladder)?;
            return Ok(offset);
        };
        let mut pieces = InPieces::new(inode, data, streams);
        let written = self.write_by(inode, at, &mut pieces, policy, times, ladder);
        pieces.into_ended(inode).try_for_each(|(file, stream)| self.end_stream_of(file, stream))?;
        let Ok(offset) = written?;
        Ok(offset)
    }

    /// The same for data at which no policy looks. There is nothing to prepare, so the file is locked at once. `policy`
    /// is the one that decided so, or `None` if it is `off`.
    #[inline]
    fn write_unseen(
        &self,
        inode: &Inode,
        at: Option<u64>,
        data: &[u8],
        policy: Option<Placer<'_>>,
        times: Times,
        ladder: &Ladder,
    ) -> Result<u64> {
        inode.check_changeable("write")?;
        let mut state = inode.write()?;
        let offset = at.unwrap_or(state.attributes.size);
        range_end("write", offset, data.len() as u64)?;
        if is_one_block(offset, data) && self.overwrite_block(inode, &mut state, offset, data, times)? {
            if let Some(policy) = policy {
                file_unfingerprinted(inode, policy);
            }
            return Ok(offset);
        }
        if data.is_empty() {
            return self.file_extents(&state, "write").map(|_| offset);
        }
        // The owner may have changed before the file was locked.
        let policy = policy.map_or_else(|| self.policy_for(inode), |policy| policy.with_domain_of(inode));
        let mut plan = InBlocks::unseen(data, offset);
        let Ok(()) = self.go_down(inode, &mut state, &mut plan, self.first_rung(), policy, (offset, times), ladder)?;
        Ok(offset)
    }

    /// The same as [`Core::write`], and shares what is equal to `origins`. Returns the offset, and the number of bytes
    /// that are shared with origins.
    ///
    /// # Errors
    /// Those of [`Core::write`].
    pub(crate) fn write_from(
        &self,
        inode: &Inode,
        at: Option<u64>,
        data: &[u8],
        origins: &[InodeOrigin<'_>],
        times: Times,
        ladder: &Ladder,
    ) -> Result<(u64, u64)> {
        range_end("write", at.unwrap_or(0), data.len() as u64)?;
        if !self.follows_origins(inode) || origins.is_empty() {
            return Ok((self.write(inode, at, data, times, ladder)?, 0));
        }
        let bytes_min = self.policies.origin_bytes_min.bytes(&self.ground());
        let worth = Worth { bytes_min, only_whole: self.has_grown() };
        let mut origins = in_order(origins, data.len() as u64);
        leave_short_out(&mut origins, data.len() as u64, worth);
        // Not even compared: the time that a comparison takes tells how much is equal.
        origins.retain(|origin| origin.source.domain() == inode.domain());
        let mut compares = 0;
        let (offset, shared) = loop {
            let Some(mut copied) = WithOrigins::compared(self, data, &origins, worth) else {
                break (self.write(inode, at, data, times, ladder)?, 0);
            };
            compares += 1;
            match self.write_by(inode, at, &mut copied, self.policy_for(inode), times, ladder)? {
                Ok(offset) => {
                    let (extents, bytes) = copied.shared();
                    self.origin_tally.shared_extents.add(extents);
                    break (offset, bytes);
                }
                Err(CannotShare::Changed) => {
                    self.origin_tally.changed.add(1);
                    if compares == COMPARES_MAX {
                        origins.clear();
                    }
                }
                Err(CannotShare::Unshareable(origin)) => _ = origins.remove(origin),
            }
        };
        if !origins.is_empty() {
            let offered = offered_bytes(&origins);
            self.origin_tally.requests.add(1);
            self.origin_tally.offered_bytes.add(offered);
            self.origin_tally.shared_bytes.add(shared);
        }
        Ok((offset, shared))
    }

    pub(crate) fn origin_stats(&self) -> OriginStats {
        self.origin_tally.stats()
    }
}
