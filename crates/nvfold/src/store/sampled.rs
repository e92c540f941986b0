//! Placing a write of which the policy looks at only some blocks.
//!
//! The problem: a policy that stores everything still has to know how many duplicates there are, so it looks at one
//! block in 32. Placing the whole request block by block because of one of them costs much more than a run of new
//! blocks.
//!
//! The idea: the policy answers for the blocks that it looks at ([`Looks::Only`](crate::dedup::Looks::Only)). Blocks
//! that are already stored split the request. Everything between them is stored in runs, as under policy `off`; a new
//! block that was looked at gets its chunk entry and its fingerprint wherever the run has put it.
//!
//! ```text
//! request     . . . w . . . . . S . . w . .      w looked at and new, S looked at and stored already, . not looked at
//! stored      |------ run -----|   |- run -|     one allocation and one stream each, if free space is contiguous
//! ```
//!
//! Zeros split the request too; they become holes.

use super::BLOCK;
use super::Store;
use super::claims::Claims;
use super::decide::{Decision, Fresh, decide, mark_duplicates};
use super::remap::{Mapped, block_extent, push_mapped};
use super::zeros::between;
use crate::dedup::Piece;
use crate::error::Result;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::BlockRun;
use smallvec::SmallVec;
use std::ops::Range;

impl Store {
    /// Places all blocks of `source` but the zeros for the file range at `offset`; `pieces` are the blocks that the
    /// policy looks at.
    ///
    /// # Errors
    /// ENOSPC, those of the device.
    pub(super) fn place_sampled(
        &self,
        offset: u64,
        source: &[u8],
        pieces: &mut [Piece<'_>],
        zeros: &[Range<u64>],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        mark_duplicates(pieces);
        claims.place(pieces);
        let mut fresh = SmallVec::with_capacity(pieces.len());
        let decisions = decide(pieces, &mut fresh, claims, Claims::keep);
        let mut placed = 0;
        for (nth, (piece, decision)) in pieces.iter().zip(decisions).enumerate() {
            let is_new = matches!(decision, Decision::Stored(new) if fresh[new].at == nth);
            if !is_new {
                self.store_around(offset, source, placed..piece.at, pieces, zeros, &mut fresh, mapped, claims)?;
                let at = offset + (piece.at * BLOCK) as u64;
                push_mapped(mapped, at, block_extent(decision.chunk(&fresh)));
                placed = piece.at + 1;
            }
        }
        let rest = placed..source.len() / BLOCK;
        self.store_around(offset, source, rest, pieces, zeros, &mut fresh, mapped, claims)
    }

    /// Stores a range of blocks of the request in a run, or several where there are zeros in between, and makes entries
    /// for those that were looked at.
    fn store_around(
        &self,
        offset: u64,
        source: &[u8],
        range: Range<usize>,
        pieces: &[Piece<'_>],
        zeros: &[Range<u64>],
        fresh: &mut [Fresh<BlockNumber>],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let of_file = |at: usize| offset + (at * BLOCK) as u64;
        for part in between(zeros, of_file(range.start)..of_file(range.end)) {
            let first = claims.fresh().len();
            let bytes = (part.start - offset) as usize..(part.end - offset) as usize;
            self.store_run(part.start, &source[bytes], mapped, claims)?;
            for new in fresh.iter_mut().filter(|new| part.contains(&of_file(pieces[new.at].at))) {
                let piece = &pieces[new.at];
                let block = nth_block(&claims.fresh()[first..], (of_file(piece.at) - part.start) / BLOCK_BYTES);
                new.chunk = Some(block);
                claims.enter(block, new.count, &piece.fingerprint);
            }
        }
        Ok(())
    }
}

/// Returns the block with index `nth` in runs that have more blocks than that.
fn nth_block(runs: &[BlockRun], mut nth: u64) -> BlockNumber {
    for run in runs {
        match nth.checked_sub(run.count) {
            None => return BlockNumber(run.start.0 + nth),
            Some(left) => nth = left,
        }
    }
    unreachable!("as many blocks were allocated as the range has")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_block_is_found_across_several_runs() {
        let runs = [(10, 1), (20, 3), (40, 2)].map(|(start, count)| BlockRun { start: BlockNumber(start), count });
        let blocks: Vec<u64> = (0..6).map(|nth| nth_block(&runs, nth).0).collect();
        assert_eq!(blocks, [10, 20, 21, 22, 40, 41]);
    }
}
