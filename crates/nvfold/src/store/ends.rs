//! Appending: the end of a file that grows stays in one block.
//!
//! The problem: copy on write would store the whole last block of a file again for each append, 4 KiB for 100 bytes, or
//! its whole end as another packed chunk. Each copy takes other memory from the host, and what it replaces is not used
//! again soon.
//!
//! The idea: bytes that no extent maps are nobody's content. The extent of an end that grows maps exactly the bytes that
//! were written, and an append stores its bytes behind them in the same block:
//!
//! ```text
//! block     | mapped by the extent of the end | new bytes | whatever was there
//! staged                                       the bytes; a log entry with the longer extent
//! commit word                                  the new bytes are mapped: one extent touches the block, as before
//! ```
//!
//! A crash before the commit word leaves torn bytes that nothing maps: reading them gives a hole, and the next append
//! writes over them. A file that becomes longer without data there has a hole there, too.
//!
//! **No one else maps or reads these bytes.** An end grows in place only in a block that has no chunk entry and that no
//! search can find ([`Chunks::is_only_named`](crate::chunk::Chunks::is_only_named)). Then this one extent touches the
//! block, and no reference can be taken on it while the inode is locked. A clone of the end counts the block, so the
//! next append of either file moves to a block of its own. What reads blocks without the inode's lock (the daemon,
//! compares with origins) reads mapped bytes, and looks at [`State::drops`] afterwards, which each append counts up.
//!
//! **Life of an end.** The first write of a file packs or stores its end as always, because most files are written
//! once. The first append to it moves it to a block of its own, and from then on the file *grows*: its end is mapped
//! exactly, a block that it fills is shared or indexed like any other, and the next one begins in a new block. An end
//! that rests is packed or stored as always, once (`jobs::settle`).

use super::BLOCK;
use super::Store;
use super::blocks::{file_unfingerprinted, fingerprint_of};
use super::claims::Claims;
use super::placer::Placer;
use super::remap::{Mapped, block_extent, push_mapped};
use super::zeros::becomes_hole;
use crate::dedup::{NewChunk, Piece, Place};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::words::{FileId, TimeNs};
use nvfold_sync::Mutex;
use std::collections::VecDeque;

/// The end of a file that was not written to for this time (in ns) rests.
pub(crate) const RESTS_AFTER: TimeNs = 1_000_000_000;

/// The largest number of growing files that are listed. The ends of others stay in their blocks.
const GROWING_MAX: usize = 4096;

/// The files whose ends grow and have not rested yet, with the time at which to look at them.
#[derive(Default)]
pub(crate) struct Growing {
    files: Mutex<VecDeque<(FileId, TimeNs)>>,
}

impl Growing {
    pub(crate) fn add(&self, file: FileId, look_at: TimeNs) {
        let mut files = self.files.lock();
        if files.len() < GROWING_MAX {
            files.push_back((file, look_at));
        }
    }

    /// Takes the next file that is to be looked at now.
    pub(crate) fn take(&self, now: TimeNs) -> Option<FileId> {
        let mut files = self.files.lock();
        files.front().filter(|(_, look_at)| *look_at <= now)?;
        files.pop_front().map(|(file, _)| file)
    }
}

/// The end of a file, as a write finds it and leaves it.
#[derive(Default)]
pub(crate) struct FileEnd {
    /// The size of the file before the write.
    size: u64,
    /// True if the file grows, so that a new end gets a block of its own.
    grows: bool,
    /// A block that the write filled in place.
    filled: Option<FilledBlock>,
}

impl FileEnd {
    #[inline]
    pub(crate) fn of(state: &State) -> FileEnd {
        FileEnd { size: state.attributes.size, grows: state.growth.grows, filled: None }
    }

    /// True if the file grows and ends inside the block at this file offset.
    #[inline]
    pub(crate) fn grows_in(&self, start: u64) -> bool {
        self.grows && start < self.size && self.size < start + BLOCK_BYTES
    }
}

/// A block that was filled in place, and the fingerprint of its content.
struct FilledBlock {
    /// File offset of the block.
    offset: u64,
    block: BlockNumber,
    fingerprint: Fingerprint,
}

/// Which block holds what an append has filled its block with.
enum FilledBy {
    /// Another block with equal content.
    Shared(BlockNumber),
    /// The block itself, with this fingerprint.
    Itself(Fingerprint),
}

impl Store {
    /// Places the part of one block with which a write begins or ends. An end that grows goes behind what its block
    /// has, or to a new block.
    pub(crate) fn place_edge(
        &self,
        extents: &Extents,
        offset: u64,
        part: &[u8],
        end: &mut FileEnd,
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let start = offset / BLOCK_BYTES * BLOCK_BYTES;
        let is_placed = if start < end.size {
            self.place_append(extents, offset, part, end, mapped, claims)?
        } else {
            end.grows && start == offset && self.store_end(extents, start, part, mapped, claims)?
        };
        match is_placed {
            true => Ok(()),
            false => self.place_part(extents, offset, part, end.size.max(offset + part.len() as u64), mapped, claims),
        }
    }

    /// Places the part of one block that continues the end of the file in that block. Returns false if it does not, or
    /// if the block becomes full and cannot be filled in place. Bytes in front of the end count as continuing it if
    /// they are those of the file, because the kernel writes whole pages.
    pub(crate) fn place_append(
        &self,
        extents: &Extents,
        offset: u64,
        part: &[u8],
        end: &mut FileEnd,
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<bool> {
        let (start, size) = (offset / BLOCK_BYTES * BLOCK_BYTES, end.size);
        let continues = offset <= size && size < offset + part.len() as u64;
        if !continues || extents.reserved_block(start).is_some() {
            return Ok(false);
        }
        let (known, new) = part.split_at((size - offset) as usize);
        if !known.is_empty() && !self.is_content(extents, offset, known) {
            return Ok(false);
        }
        end.grows = true;
        match self.end_that_grows(extents, start, size) {
            Some(grows) => self.grow_end(grows, new, end, mapped, claims).map(|()| true),
            None => self.move_end(extents, size, new, mapped, claims),
        }
    }

    fn is_content(&self, extents: &Extents, offset: u64, bytes: &[u8]) -> bool {
        let mut stored = [0; BLOCK];
        let stored = &mut stored[..bytes.len()];
        let is_read = self.read_extents(extents, offset, stored).is_ok();
        // Unreadable memory reads as zeros; the write may replace it.
        let is_sound = self.region.check().is_ok();
        is_read && is_sound && *stored == *bytes
    }

    /// Returns the extent that maps the end of a file of `size` bytes in the block at `start`, if new bytes may be
    /// stored behind it. It is the only one there: what is in front of it is a hole.
    pub(crate) fn end_that_grows(&self, extents: &Extents, start: u64, size: u64) -> Option<(u64, Extent)> {
        let mut mapped = extents.within(start, start + BLOCK_BYTES);
        let (at, extent) = mapped.next().filter(|_| mapped.next().is_none())?;
        let address = extent.media_address().filter(|_| !extent.unwritten && at + extent.length == size)?;
        let block = BlockNumber::containing(address);
        let is_in_place = address % BLOCK_BYTES == at % BLOCK_BYTES;
        let is_its_own = is_in_place && self.chunks.is_only_named(block);
        (is_its_own && self.region.sound_or_forget(block.address(), BLOCK_BYTES)).then_some((at, extent))
    }

    /// Stores bytes behind the end of a file, in the same block.
    fn grow_end(
        &self,
        (at, extent): (u64, Extent),
        new: &[u8],
        end: &mut FileEnd,
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let address = extent.media_address().expect("an end that grows is in a block");
        let block = BlockNumber::containing(address);
        let longer = Extent { length: extent.length + new.len() as u64, ..extent };
        if longer.length == BLOCK_BYTES {
            let fingerprint = match self.place_filled(block, extent.length as usize, new, claims)? {
                FilledBy::Shared(other) => {
                    push_mapped(mapped, at, block_extent(other));
                    return Ok(());
                }
                FilledBy::Itself(fingerprint) => fingerprint,
            };
            claims.stored_with(&fingerprint);
            end.filled = Some(FilledBlock { offset: at, block, fingerprint });
        }
        claims.take_end(block, extent.length);
        claims.stream(address + extent.length, new);
        push_mapped(mapped, at, longer);
        Ok(())
    }

    /// Looks for a block that is equal to one whose last bytes are `new`.
    fn place_filled(&self, block: BlockNumber, length: usize, new: &[u8], claims: &mut Claims<'_>) -> Result<FilledBy> {
        if claims.policy().stores_everything() {
            return Ok(FilledBy::Itself(Fingerprint::default()));
        }
        let mut bytes = [0; BLOCK];
        self.region.read_into(block.address(), &mut bytes[..length]);
        self.region.check()?;
        bytes[length..].copy_from_slice(new);
        let mut own = [Piece::new(&bytes, claims.policy().fingerprint(&bytes))];
        claims.place(&mut own);
        let [Piece { place, fingerprint, .. }] = own;
        match place {
            Place::Shared(reference) => Ok(FilledBy::Shared(claims.keep(reference))),
            Place::Store | Place::Duplicate(_) => Ok(FilledBy::Itself(fingerprint)),
        }
    }

    /// Moves the end of a file of `size` bytes to a block of its own, with `new` behind it. Returns false if the block
    /// would be full, or if there is no block.
    fn move_end(
        &self,
        extents: &Extents,
        size: u64,
        new: &[u8],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<bool> {
        let old = (size % BLOCK_BYTES) as usize;
        let length = old + new.len();
        if length == BLOCK {
            return Ok(false);
        }
        let mut bytes = [0; BLOCK];
        self.read_extents(extents, size - old as u64, &mut bytes[..old])?;
        // Unreadable memory reads as zeros; those must not become content of the file.
        self.region.check()?;
        bytes[old..length].copy_from_slice(new);
        self.store_end(extents, size - old as u64, &bytes[..length], mapped, claims)
    }

    /// Stores the end of a file that grows, from file offset `start` (of a block) on, in a block of its own, and maps
    /// exactly its bytes; zeros are not mapped. Returns false if there is no block.
    fn store_end(
        &self,
        extents: &Extents,
        start: u64,
        bytes: &[u8],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<bool> {
        if becomes_hole(claims.policy(), bytes) {
            return Ok(true);
        }
        let block = match self.reserved_block_at(extents, start) {
            Some(block) => {
                claims.take_reserved(block);
                block
            }
            None => match claims.allocate_one("write") {
                Ok(block) => block,
                Err(Error::NoSpace { .. }) => return Ok(false),
                Err(error) => return Err(error),
            },
        };
        claims.stream(block.address(), bytes);
        push_mapped(mapped, start, Extent::media(bytes.len() as u64, block.address(), false));
        Ok(true)
    }

    /// Completes a write that is published: a block that it filled can be found from now on, and a file that grows is
    /// listed, so that its end is packed when it rests.
    #[inline]
    pub(crate) fn note_append(&self, inode: &Inode, state: &mut State, end: &FileEnd, policy: Placer<'_>) {
        if let Some(filled) = &end.filled {
            self.index_filled(inode, state, filled, policy);
        }
        let began = end.grows && !std::mem::replace(&mut state.growth.grows, end.grows);
        if began && !state.growth.has_rested {
            self.growing.add(inode.file_id(), self.now().saturating_add(RESTS_AFTER));
        }
    }

    /// Makes a block findable that was filled in place. An entry gets the fingerprint only now that the content is
    /// durable, because the block was named before: a crash must not leave the fingerprint of other bytes.
    fn index_filled(&self, inode: &Inode, state: &mut State, filled: &FilledBlock, policy: Placer<'_>) {
        let FilledBlock { offset, block, fingerprint } = filled;
        if fingerprint.is_empty() {
            return;
        }
        if !self.chunks.is_only_named(*block) {
            // What it was before is kept for a copy that is being made, so its entry counts two references already.
            file_unfingerprinted(inode, policy);
            return;
        }
        if Claims::needs_entry(self, policy, 1, fingerprint) {
            let is_writable = self.region.check_writable(self.chunks.entry_offset(*block), ENTRY_BYTES).is_ok();
            if !is_writable || self.is_reconciling() {
                // Until reconcile is over, an empty entry may still be linked in a chain.
                file_unfingerprinted(inode, policy);
                return;
            }
            let mut tx = self.chunks.begin();
            tx.add(*block, 1, fingerprint);
            let _ = self.region.fence(std::mem::take(&mut tx.flight));
            let _ = tx.end(());
        }
        let new = NewChunk { chunk: (*block).into(), count: 1, fingerprint: *fingerprint };
        if !policy.published(&[new], &[], &self.chunks).is_empty() {
            let at = (*offset, block_extent(*block));
            self.merge_concurrent(inode, state, &[at], &[((*block).into(), *fingerprint)], policy);
        }
    }

    /// Places the part of one block that a write changes; `size` is the file size afterwards. The end of the file
    /// becomes a packed chunk if it is short enough and a packed segment has room.
    pub(crate) fn place_part(
        &self,
        extents: &Extents,
        offset: u64,
        part: &[u8],
        size: u64,
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let start = offset / BLOCK_BYTES * BLOCK_BYTES;
        if size - start <= self.packed_ends_max && !extents.has_unwritten() {
            match self.pack_end(extents, offset, part, size, mapped, claims) {
                Err(Error::NoSpace { .. }) => {}
                packed => return packed,
            }
        }
        self.place_patched(extents, offset, part, mapped, claims)
    }

    /// Places one block: `part` is its new content from file offset `offset` on, the rest comes from the file. A block
    /// of zeros is not mapped.
    fn place_patched(
        &self,
        extents: &Extents,
        offset: u64,
        part: &[u8],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        let mut block = [0; BLOCK];
        let start = self.patch(extents, offset, part, &mut block)?;
        if becomes_hole(claims.policy(), &block) {
            return Ok(());
        }
        let fingerprint = fingerprint_of(claims.policy(), &block);
        self.place(extents, start, &block, &mut [Piece::new(&block, fingerprint)], &[], mapped, claims)
    }
}
