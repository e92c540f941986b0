//! Writing.
//!
//! A write goes through five steps, and each does one thing:
//!
//! ```text
//! 1 fingerprint  the whole blocks, before any lock
//! 2 patch        the first and last block, if they are written in part, with what the file holds
//! 3 place        all blocks together: shared (a reference is taken) or new (allocated, entered in the table, streamed);
//!                the dedup transaction begins with the first entry that changes
//! 4 publish      see `publish`
//! 5 release      the references that the old extents held with others
//! ```
//!
//! Blocks that an extent names are never written (invariant 5); reserved blocks are, for their bytes mean nothing yet.

use super::Core;
use super::claims::Claims;
use super::publish::{Mapped, Remap, Stamp, block_extent, push_mapped};
use super::range::{range_end, whole_blocks};
use crate::dedup::work::Unfingerprinted;
use crate::dedup::{Dedup, Piece, Place};
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::log_entry::dedupe;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::{BlockRun, Purpose};
use hashbrown::HashMap;
use smallvec::SmallVec;

const BLOCK: usize = BLOCK_BYTES as usize;

/// The whole blocks of a write.
type Pieces<'d> = SmallVec<[Piece<'d>; 1]>;

/// A piece that is stored.
struct Fresh {
    /// Its place in the request.
    at: usize,
    /// How many pieces of the request are equal to it, itself included.
    count: u32,
    block: Option<BlockNumber>,
}

impl Fresh {
    fn address(&self) -> u64 {
        self.block.expect("placed").address()
    }

    fn follows(&self, before: &Fresh) -> bool {
        self.at == before.at + 1 && self.address() == before.address() + BLOCK_BYTES
    }
}

/// What becomes of one block of a write.
#[derive(Clone, Copy)]
enum Decision {
    Shared(BlockNumber),
    /// Stored as the n-th new piece, alone or with its equals.
    Stored(usize),
}

/// The whole blocks of a write, with the fingerprints that a policy wants before the inode is locked; none when it
/// stores everything.
fn whole_pieces<'d>(policy: &dyn Dedup, offset: u64, data: &'d [u8]) -> Result<Pieces<'d>> {
    range_end("write", offset, data.len() as u64)?;
    let (first, end) = whole_blocks(offset, data.len() as u64);
    if policy.stores_everything() || first == end {
        return Ok(Pieces::new());
    }
    let whole = &data[(first - offset) as usize..(end - offset) as usize];
    Ok(whole.chunks_exact(BLOCK).map(|block| Piece::new(block, policy.fingerprint(block))).collect())
}

/// Marks pieces that are equal to an earlier one of the request.
fn mark_twins(pieces: &mut [Piece<'_>]) {
    let mut seen: HashMap<u32, usize> = HashMap::new();
    for at in 0..pieces.len() {
        let Some(weak) = pieces[at].fingerprint.weak else { continue };
        match seen.get(&weak) {
            Some(&other) if pieces[other].bytes == pieces[at].bytes => pieces[at].place = Place::Twin(other),
            _ => _ = seen.insert(weak, at),
        }
    }
}

impl Core {
    /// Writes all of `data` at an offset or at the end; the offset.
    pub(crate) fn write(&self, inode: &Inode, at: Option<u64>, data: &[u8]) -> Result<u64> {
        // An append does not know its offset yet; a guess that turns out wrong only costs the hashing again.
        let guess = at.unwrap_or_else(|| inode.peek().attributes.size);
        let policy = self.policy_for(inode);
        let mut pieces = whole_pieces(policy, guess, data)?;
        let mut state = inode.write()?;
        self.file_extents(&state, "write")?;
        let offset = at.unwrap_or(state.attributes.size);
        if offset != guess {
            pieces = whole_pieces(policy, offset, data)?;
        }
        if !data.is_empty() {
            let mut claims = Claims::with_policy(self, policy);
            self.write_locked(inode, &mut state, offset, data, &mut pieces, &mut claims)?;
        }
        drop(state);
        policy.request_done(&self.ground());
        Ok(offset)
    }

    fn write_locked(
        &self,
        inode: &Inode,
        state: &mut State,
        offset: u64,
        data: &[u8],
        pieces: &mut [Piece<'_>],
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        let mut mapped = Mapped::new();
        let extents = self.file_extents(state, "write")?;
        let (first, last) = whole_blocks(offset, data.len() as u64);
        let (range_start, range_end) = (offset / BLOCK_BYTES * BLOCK_BYTES, end.next_multiple_of(BLOCK_BYTES));
        if range_start < first {
            let part = &data[..(first.min(end) - offset) as usize];
            self.place_patched(extents, offset, part, &mut mapped, claims)?;
        }
        if first < last {
            let whole = &data[(first - offset) as usize..(last - offset) as usize];
            self.place(extents, first, whole, pieces, &mut mapped, claims)?;
        }
        if last < end {
            let part = &data[(last - offset) as usize..];
            self.place_patched(extents, last, part, &mut mapped, claims)?;
        }
        if claims.lacks_fingerprints {
            self.record_lacking(inode, claims);
        }
        let stamp = Stamp::Changed(self.now(), state.attributes.size.max(end));
        self.publish(inode, state, &Remap::new(&(range_start..range_end), &mapped, stamp), None, claims)
    }

    /// Something is stored without a fingerprint: the policy is told, now or when the log entry is published.
    fn record_lacking(&self, inode: &Inode, claims: &mut Claims<'_>) {
        match claims.policy.unfingerprinted() {
            Unfingerprinted::Stays => {}
            Unfingerprinted::Filed if inode.record_lacking() => claims.policy.file_lacks(inode.ino),
            Unfingerprinted::Filed => {}
            Unfingerprinted::Queued => claims.dedupe = dedupe::NEEDED,
        }
    }

    /// Places a block of which `part`, at file offset `offset`, is new and the rest is as the file has it.
    fn place_patched(
        &self,
        extents: &Extents,
        offset: u64,
        part: &[u8],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let mut block = [0; BLOCK];
        let start = offset / BLOCK_BYTES * BLOCK_BYTES;
        self.read_extents(extents, start, &mut block);
        // Zeros that stand for what cannot be read must not become content.
        self.region.check()?;
        let at = (offset - start) as usize;
        block[at..at + part.len()].copy_from_slice(part);
        let policy = claims.policy;
        let fingerprint = if policy.stores_everything() { Fingerprint::default() } else { policy.fingerprint(&block) };
        self.place(extents, start, &block, &mut [Piece::new(&block, fingerprint)], mapped, claims)
    }

    /// Decides for each block of `source` whether to share or store it, stores what is new, and adds what the file range
    /// at `offset` will name to `mapped`. `pieces`: the blocks, or nothing when the policy stores everything.
    fn place(
        &self,
        extents: &Extents,
        offset: u64,
        source: &[u8],
        pieces: &mut [Piece<'_>],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let blocks = source.len() / BLOCK;
        debug_assert!(source.len().is_multiple_of(BLOCK) && (pieces.is_empty() || pieces.len() == blocks));
        let finds_nothing =
            claims.policy.stores_everything() || blocks > 1 && pieces.iter().all(|piece| piece.fingerprint.is_empty());
        if finds_nothing && !extents.has_unwritten() {
            return self.store_run(offset, source, mapped, claims);
        }
        if pieces.is_empty() {
            let unknown = |block| Piece::new(block, Fingerprint::default());
            let mut pieces: Pieces<'_> = source.chunks_exact(BLOCK).map(unknown).collect();
            return self.place_pieces(extents, offset, source, &mut pieces, mapped, claims);
        }
        self.place_pieces(extents, offset, source, pieces, mapped, claims)
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
            claims.policy.place(std::slice::from_mut(piece), &mut claims.tx);
            let block = match std::mem::replace(&mut piece.place, Place::Store) {
                Place::Shared(reference) => claims.keep(reference),
                _ => self.store_one(extents, offset, piece, claims)?,
            };
            push_mapped(mapped, offset, block_extent(block));
            return Ok(());
        }
        mark_twins(pieces);
        claims.policy.place(pieces, &mut claims.tx);
        let mut fresh: SmallVec<[Fresh; 1]> = SmallVec::new();
        let decisions = decide(pieces, &mut fresh, claims);
        for piece in &mut fresh {
            piece.block = self.reserved_block_at(extents, offset + (piece.at * BLOCK) as u64);
        }
        self.store_fresh(source, pieces, &mut fresh, claims)?;
        for (at, decision) in (0u64..).zip(decisions) {
            let block = match decision {
                Decision::Shared(block) => block,
                Decision::Stored(nth) => fresh[nth].block.expect("store_fresh gave every new piece a block"),
            };
            push_mapped(mapped, offset + at * BLOCK_BYTES, block_extent(block));
        }
        Ok(())
    }

    /// Stores all of `source` in new blocks: the whole of policy `off`.
    fn store_run(&self, offset: u64, source: &[u8], mapped: &mut Mapped, claims: &mut Claims<'_>) -> Result<()> {
        let first = claims.fresh.len();
        claims.lacks_fingerprints = true;
        self.space.allocate("write", source.len() as u64 / BLOCK_BYTES, Purpose::Data, &mut claims.fresh)?;
        let mut at = 0;
        for run in &claims.fresh[first..] {
            let length = run.count * BLOCK_BYTES;
            let part = &source[at as usize..(at + length) as usize];
            claims.tx.flight.add(self.region.stream(run.start.address(), part));
            push_mapped(mapped, offset + at, Extent { length, address: run.start.address(), unwritten: false });
            at += length;
        }
        Ok(())
    }

    /// The block that is reserved for a whole block of the file. One that is counted is not the file's alone (an
    /// extent was damaged, or split) and is never written.
    fn reserved_block_at(&self, extents: &Extents, offset: u64) -> Option<BlockNumber> {
        if !extents.has_unwritten() {
            return None;
        }
        let block = BlockNumber::containing(extents.reserved_block(offset)?);
        let is_sound = self.region.sound_or_forget(block.address(), BLOCK_BYTES);
        (is_sound && !self.chunks.has_entry(block)).then_some(block)
    }

    /// Stores one new block, in its reserved place if the file has one.
    fn store_one(
        &self,
        extents: &Extents,
        offset: u64,
        piece: &Piece<'_>,
        claims: &mut Claims<'_>,
    ) -> Result<BlockNumber> {
        let block = match self.reserved_block_at(extents, offset) {
            Some(block) => {
                claims.reserved.push(block);
                block
            }
            None => {
                self.space.allocate("write", 1, Purpose::Data, &mut claims.fresh)?;
                claims.fresh[claims.fresh.len() - 1].start
            }
        };
        // The entry first: an atomic operation behind the stream would wait until it has drained.
        if !piece.fingerprint.is_empty() {
            claims.enter(block, 1, &piece.fingerprint);
        }
        claims.lacks_fingerprints |= piece.fingerprint.weak.is_none();
        claims.tx.flight.add(self.region.stream(block.address(), piece.bytes));
        Ok(block)
    }

    /// Gives every new piece a block, streams it there, and enters it in the chunk table if it can be found
    /// or is named more than once.
    fn store_fresh(
        &self,
        source: &[u8],
        pieces: &[Piece<'_>],
        fresh: &mut [Fresh],
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let missing = fresh.iter().filter(|piece| piece.block.is_none()).count() as u64;
        let first = claims.fresh.len();
        if missing > 0 {
            self.space.allocate("write", missing, Purpose::Data, &mut claims.fresh)?;
        }
        let mut blocks = claims.fresh[first..].iter().copied();
        let mut run: Option<BlockRun> = None;
        for piece in fresh.iter_mut() {
            match piece.block {
                Some(block) => claims.reserved.push(block),
                None => {
                    let current = match run.take().filter(|run| run.count > 0) {
                        Some(run) => run,
                        None => blocks.next().expect("exactly as many blocks as missing pieces"),
                    };
                    piece.block = Some(current.start);
                    run = Some(BlockRun { start: BlockNumber(current.start.0 + 1), count: current.count - 1 });
                }
            }
        }
        for new in fresh.iter() {
            let fingerprint = &pieces[new.at].fingerprint;
            claims.lacks_fingerprints |= fingerprint.weak.is_none();
            if !fingerprint.is_empty() || new.count > 1 {
                claims.enter(BlockNumber::containing(new.address()), new.count, fingerprint);
            }
        }
        let mut at = 0;
        while at < fresh.len() {
            // Neighbours in the source that are neighbours on the media go out in one stream.
            let mut end = at + 1;
            while end < fresh.len() && fresh[end].follows(&fresh[end - 1]) {
                end += 1;
            }
            let part = &source[fresh[at].at * BLOCK..fresh[end - 1].at * BLOCK + BLOCK];
            claims.tx.flight.add(self.region.stream(fresh[at].address(), part));
            at = end;
        }
        Ok(())
    }
}

/// What becomes of each piece, and those that are stored. The claims have all references from here on.
fn decide(
    pieces: &mut [Piece<'_>],
    fresh: &mut SmallVec<[Fresh; 1]>,
    claims: &mut Claims<'_>,
) -> SmallVec<[Decision; 1]> {
    let mut decisions: SmallVec<[Decision; 1]> = SmallVec::with_capacity(pieces.len());
    for (at, piece) in pieces.iter_mut().enumerate() {
        let decision = match std::mem::replace(&mut piece.place, Place::Store) {
            Place::Shared(reference) => Some(Decision::Shared(claims.keep(reference))),
            Place::Twin(other) => match decisions[other] {
                Decision::Stored(nth) => {
                    fresh[nth].count += 1;
                    Some(Decision::Stored(nth))
                }
                // As many references as can be counted: it is stored anew.
                Decision::Shared(block) => {
                    claims.tx.share_known(block).map(|reference| Decision::Shared(claims.keep(reference)))
                }
            },
            Place::Store => None,
        };
        decisions.push(decision.unwrap_or_else(|| {
            fresh.push(Fresh { at, count: 1, block: None });
            Decision::Stored(fresh.len() - 1)
        }));
    }
    decisions
}
