//! Placing whole blocks: each is shared with an equal one, stored, or left out as a hole.
//!
//! The policy decides about all blocks of a request together. New ones are stored with as few streams to the media as free
//! space allows. A block that an extent maps is never written in place (invariant 5). Reserved blocks are, because they have
//! no content yet.

use super::BLOCK;
use super::Store;
use super::claims::Claims;
use super::decide::{Fresh, decide, mark_duplicates};
use super::placer::Placer;
use super::remap::{Mapped, block_extent, push_mapped};
use super::runs::count_without;
use super::zeros::{Zeros, add_zeros, between};
use crate::dedup::work::Unfingerprinted;
use crate::dedup::{Looks, Piece, Place};
use crate::error::{Error, Result, errno};
use crate::fingerprint::Fingerprint;
use crate::inode::extents::Extents;
use crate::inode::{FILE_BYTES_MAX, Inode};
use crate::media::log_entry::dedupe;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::Runs;
use smallvec::SmallVec;
use std::ops::Range;

/// Whole blocks of a write.
type BlockPieces<'d> = SmallVec<[Piece<'d>; 1]>;

/// What is known of the whole blocks of a write before the inode is locked.
#[derive(Default)]
pub(crate) struct Whole<'d> {
    /// The blocks that the policy looks at.
    pub(crate) pieces: BlockPieces<'d>,
    /// The blocks that become holes.
    pub(crate) zeros: Zeros,
}

impl Whole<'_> {
    /// Forgets what is known, to look again.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.zeros.clear();
    }
}

impl Fresh<BlockNumber> {
    fn address(&self) -> u64 {
        self.chunk.expect("placed").address()
    }

    /// True if it lies behind `before`, both in the request and on the media.
    fn follows(&self, before: &Fresh<BlockNumber>, pieces: &[Piece<'_>]) -> bool {
        pieces[self.at].at == pieces[before.at].at + 1 && self.address() == before.address() + BLOCK_BYTES
    }
}

impl Store {
    /// Prefetches the chunk entries of the blocks that a write replaces, which are emptied when it is published; they
    /// arrive while the data is being stored. Skipped for policies that make no entries: such blocks rarely have any,
    /// and looking up the blocks would cost more than it saves.
    #[inline]
    pub(crate) fn fetch_replaced(&self, extents: &Extents, range: Range<u64>, policy: Placer<'_>) {
        if !policy.stores_everything() || policy.unfingerprinted() == Unfingerprinted::Queued {
            let replaced: Runs = extents.within(range.start, range.end).map(|(_, extent)| extent.blocks()).collect();
            self.chunks.fetch_entries(&replaced);
        }
    }

    /// Notifies the policy, now or when the log entry is published, that the operation stores data without a
    /// fingerprint.
    #[inline]
    pub(crate) fn notify_unfingerprinted(&self, inode: &Inode, claims: &mut Claims<'_>) {
        match claims.policy().unfingerprinted() {
            Unfingerprinted::Stays => {}
            Unfingerprinted::Filed => file_unfingerprinted(inode, claims.policy()),
            Unfingerprinted::Queued => claims.set_dedupe(dedupe::NEEDED),
        }
    }

    /// Decides for each block of `source` whether to share or to store it, and stores the new ones. Adds the
    /// resulting extents, from file offset `offset` on, to `mapped`. Blocks in `zeros` are left out. `pieces` are all
    /// other blocks of `source`, or only those that the policy looks at.
    pub(crate) fn place(
        &self,
        extents: &Extents,
        offset: u64,
        source: &[u8],
        pieces: &mut [Piece<'_>],
        zeros: &[Range<u64>],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let blocks = count_without(zeros, offset, source);
        debug_assert!(source.len().is_multiple_of(BLOCK) && pieces.len() <= blocks);
        if blocks == 0 {
            return Ok(());
        }
        let has_all = pieces.len() == blocks;
        let finds_nothing = claims.policy().stores_everything()
            || (blocks > 1 || !has_all) && pieces.iter().all(|piece| piece.fingerprint.is_empty());
        match (extents.has_unwritten(), has_all) {
            (false, _) if finds_nothing => self.store_runs(offset, source, zeros, mapped, claims),
            (false, false) => self.place_sampled(offset, source, pieces, zeros, mapped, claims),
            (_, true) => self.place_pieces(extents, offset, source, pieces, mapped, claims),
            // Each block may have its own reserved block.
            (true, false) => {
                let mut all = with_the_others(offset, source, pieces, zeros);
                self.place_pieces(extents, offset, source, &mut all, mapped, claims)
            }
        }
    }

    fn place_pieces(
        &self,
        extents: &Extents,
        offset: u64,
        source: &[u8],
        pieces: &mut [Piece<'_>],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        if let [piece] = pieces {
            let offset = offset + (piece.at * BLOCK) as u64;
            claims.place(std::slice::from_mut(piece));
            let block = match std::mem::replace(&mut piece.place, Place::Store) {
                Place::Shared(reference) => claims.keep(reference),
                _ => self.store_one(extents, offset, piece, claims)?,
            };
            push_mapped(mapped, offset, block_extent(block));
            return Ok(());
        }
        mark_duplicates(pieces);
        claims.place(pieces);
        let mut fresh = SmallVec::with_capacity(pieces.len());
        let decisions = decide(pieces, &mut fresh, claims, Claims::keep);
        for piece in &mut fresh {
            piece.chunk = self.reserved_block_at(extents, offset + (pieces[piece.at].at * BLOCK) as u64);
        }
        self.store_fresh(source, pieces, &mut fresh, claims)?;
        for (piece, decision) in pieces.iter().zip(decisions) {
            push_mapped(mapped, offset + (piece.at * BLOCK) as u64, block_extent(decision.chunk(&fresh)));
        }
        Ok(())
    }

    /// Returns the block that is reserved for a whole block of the file. A reserved block with a chunk entry is
    /// shared with another extent (after damage or a split), so it is never written and not returned.
    pub(super) fn reserved_block_at(&self, extents: &Extents, offset: u64) -> Option<BlockNumber> {
        if !extents.has_unwritten() {
            return None;
        }
        let block = BlockNumber::containing(extents.reserved_block(offset)?);
        let is_sound = self.region.sound_or_forget(block.address(), BLOCK_BYTES);
        (is_sound && !self.chunks.has_entry(block)).then_some(block)
    }

    /// Stores one new block, in the block that the file reserved for it if there is one.
    fn store_one(
        &self,
        extents: &Extents,
        offset: u64,
        piece: &Piece<'_>,
        claims: &mut Claims<'_>,
    ) -> Result<BlockNumber> {
        let block = match self.reserved_block_at(extents, offset) {
            Some(block) => {
                claims.take_reserved(block);
                block
            }
            None => claims.allocate_one("write")?,
        };
        // The entry goes first: an atomic operation after the non-temporal stores would wait until they have drained.
        if !piece.fingerprint.is_empty() {
            claims.enter(block, 1, &piece.fingerprint);
        }
        claims.stored_with(&piece.fingerprint);
        claims.stream(block.address(), piece.bytes);
        Ok(block)
    }

    /// Allocates and writes a block for each new piece. A piece gets a chunk entry if it has a fingerprint or more
    /// than one reference.
    fn store_fresh(
        &self,
        source: &[u8],
        pieces: &[Piece<'_>],
        fresh: &mut [Fresh<BlockNumber>],
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let missing = fresh.iter().filter(|piece| piece.chunk.is_none()).count() as u64;
        fresh.iter().filter_map(|piece| piece.chunk).for_each(|block| claims.take_reserved(block));
        let runs = if missing > 0 { claims.allocate("write", missing)? } else { &[] };
        let blocks = runs.iter().flat_map(|run| run.blocks());
        fresh.iter_mut().filter(|piece| piece.chunk.is_none()).zip(blocks).for_each(|(piece, block)| {
            piece.chunk = Some(block);
        });
        for new in fresh.iter() {
            let fingerprint = &pieces[new.at].fingerprint;
            claims.stored_with(fingerprint);
            if !fingerprint.is_empty() || new.count > 1 {
                claims.enter(BlockNumber::containing(new.address()), new.count, fingerprint);
            }
        }
        let mut at = 0;
        while at < fresh.len() {
            // BlockPieces that are adjacent in the source and on the media are written as one stream.
            let mut end = at + 1;
            while end < fresh.len() && fresh[end].follows(&fresh[end - 1], pieces) {
                end += 1;
            }
            let place = |fresh: &Fresh<BlockNumber>| pieces[fresh.at].at * BLOCK;
            let part = &source[place(&fresh[at])..place(&fresh[end - 1]) + BLOCK];
            claims.stream(fresh[at].address(), part);
            at = end;
        }
        Ok(())
    }
}

/// Notifies a policy that lists the files without all fingerprints that this is one.
#[inline]
pub(crate) fn file_unfingerprinted(inode: &Inode, policy: Placer<'_>) {
    if policy.unfingerprinted() == Unfingerprinted::Filed && inode.mark_unfingerprinted() {
        policy.record_unfingerprinted_file(inode.file_id());
    }
}

/// Returns the end of a range.
///
/// # Errors
/// EFBIG past the largest file size.
#[inline]
pub(crate) fn range_end(doing: &'static str, offset: u64, length: u64) -> Result<u64> {
    match offset.checked_add(length) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(end),
        _ => Err(Error::Posix { doing, why: "the range ends past the largest file size", errno: errno::EFBIG }),
    }
}

/// Returns the range of whole blocks inside `offset..offset + length`, as file offsets. It may be empty.
#[inline]
pub(crate) fn whole_blocks(offset: u64, length: u64) -> (u64, u64) {
    let first = offset.next_multiple_of(BLOCK_BYTES);
    let end = (offset + length) / BLOCK_BYTES * BLOCK_BYTES;
    if first < end { (first, end) } else { (first, first) }
}

/// Looks for zeros in the whole blocks of a write and makes the fingerprints of those that the policy looks at, before
/// the inode is locked. Adds both to `whole`.
///
/// # Errors
/// EFBIG if the range ends past the largest file size.
#[inline]
pub(crate) fn look_at_whole<'d>(policy: Placer<'_>, offset: u64, data: &'d [u8], whole: &mut Whole<'d>) -> Result<()> {
    range_end("write", offset, data.len() as u64)?;
    let (first, end) = whole_blocks(offset, data.len() as u64);
    if first == end {
        return Ok(());
    }
    let blocks = &data[(first - offset) as usize..(end - offset) as usize];
    if !add_zeros(policy, first, blocks, &mut whole.zeros) {
        add_pieces(policy, blocks, 0, &mut whole.pieces);
        return Ok(());
    }
    for part in between(&whole.zeros, first..end) {
        let (start, end) = ((part.start - first) as usize, (part.end - first) as usize);
        add_pieces(policy, &blocks[start..end], start / BLOCK, &mut whole.pieces);
    }
    Ok(())
}

/// Adds those blocks of `whole` that the policy looks at, with their fingerprints. `first` is the position of the first
/// block in the request.
#[inline(always)]
fn add_pieces<'d>(policy: Placer<'_>, whole: &'d [u8], first: usize, pieces: &mut BlockPieces<'d>) {
    // A separate question, because most writes under these policies end here; an answer with places would add a
    // twentieth to their instructions.
    if policy.stores_everything() {
        return policy.observe_blocks(whole);
    }
    if let Looks::Only(places) = policy.looks_for(whole) {
        let piece = |at: usize| {
            let block = &whole[at * BLOCK..(at + 1) * BLOCK];
            Piece::new_at(first + at, block, policy.fingerprint(block))
        };
        return pieces.extend(places.into_iter().map(piece));
    }
    // Prefetch the first block, because hashing would miss on one line after the other.
    policy.prefetch(&whole[..BLOCK]);
    let mut blocks = (first..).zip(whole.chunks_exact(BLOCK)).peekable();
    pieces.reserve(whole.len() / BLOCK);
    // A policy that makes no fingerprint of this block rarely makes one of the next.
    let mut reads_next = true;
    while let Some((at, block)) = blocks.next() {
        // Prefetch the next block while this one is hashed: the CPU's own prefetcher stops at the end of a page.
        if let Some((_, next)) = blocks.peek().filter(|_| reads_next) {
            policy.prefetch(next);
        }
        let fingerprint = policy.fingerprint(block);
        reads_next = !fingerprint.is_empty();
        pieces.push(Piece::new_at(at, block, fingerprint));
    }
}

/// Returns a piece for every block of `source`, which begins at file offset `offset`, other than zeros: those of
/// `pieces`, and the others with an empty fingerprint.
fn with_the_others<'d>(offset: u64, source: &'d [u8], pieces: &[Piece<'_>], zeros: &[Range<u64>]) -> BlockPieces<'d> {
    let mut known = pieces.iter().peekable();
    let mut all = BlockPieces::new();
    for part in between(zeros, offset..offset + source.len() as u64) {
        for at in (part.start - offset) as usize / BLOCK..(part.end - offset) as usize / BLOCK {
            let fingerprint = known.next_if(|piece| piece.at == at).map_or_else(Default::default, |p| p.fingerprint);
            all.push(Piece::new_at(at, &source[at * BLOCK..(at + 1) * BLOCK], fingerprint));
        }
    }
    all
}

/// Returns the fingerprint of a block, if the policy makes one.
#[inline]
pub(crate) fn fingerprint_of(policy: Placer<'_>, block: &[u8]) -> Fingerprint {
    if policy.stores_everything() { Fingerprint::default() } else { policy.fingerprint(block) }
}

/// Returns the pieces of a request without that of its first block.
#[inline]
pub(crate) fn without_first<'p, 'd>(pieces: &'p mut [Piece<'d>]) -> &'p mut [Piece<'d>] {
    let of_first = usize::from(pieces.first().is_some_and(|piece| piece.at == 0));
    let others = &mut pieces[of_first..];
    others.iter_mut().for_each(|piece| piece.at -= 1);
    others
}
