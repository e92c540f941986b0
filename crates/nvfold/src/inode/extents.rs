//! Extents: which media bytes each range of a file maps.
//!
//! The problem: reference counts must be the same before and after a crash, although only the log is stored. So the
//! map is a pure function of the log: replaying the entries in order gives the same extents, and the counts follow
//! from these. The count of a block is the number of extents that touch any byte of it; the count of a packed chunk
//! is the number of extents that map a part of it.
//!
//! Neighbours in blocks are merged only if the seam is on a block boundary of the media. No block is touched by both
//! then, so merging never changes a count, and a file that is written in steps of 4 KiB is still one extent.
//! Neighbours in a packed chunk are always merged and count once; [`Extents::plan`] returns the references that
//! merging makes superfluous.

use crate::media::location_word::LocationWord;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, Location, PackedNumber};
use crate::space::{BlockRun, Runs, add_run};
use smallvec::SmallVec;
use std::ops::Range;

/// The media bytes that one range of a file maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Length in bytes; never 0.
    pub length: u64,
    /// Location of the first byte.
    pub location: Location,
    /// True for reserved space: the bytes on the media have no meaning, and reads return zeros. Never true for a
    /// packed chunk.
    pub unwritten: bool,
}

impl Extent {
    /// Makes an extent of media bytes from this address on.
    #[inline]
    pub(crate) fn media(length: u64, address: u64, unwritten: bool) -> Extent {
        Extent { length, location: Location::Media(address), unwritten }
    }

    /// Returns the blocks that it touches; an empty run for a packed chunk.
    #[inline]
    pub(crate) fn blocks(&self) -> BlockRun {
        let Location::Media(address) = self.location else { return BlockRun { start: BlockNumber(0), count: 0 } };
        blocks_touched(address, self.length)
    }

    /// Returns what it has references on: each block that it touches, or its packed chunk.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = ChunkRef> + use<> {
        self.blocks().blocks().map(ChunkRef::Block).chain(self.packed().map(ChunkRef::Packed))
    }

    /// True if it is one extent with its neighbour `next` in the file, with one reference: both map parts of a packed
    /// chunk that meet. `offset` is its own file offset, `next_offset` that of the neighbour.
    pub(crate) fn is_one_with(&self, offset: u64, next_offset: u64, next: &Extent) -> bool {
        self.packed().is_some() && Span::of(offset, self).continues(&Span::of(next_offset, next))
    }

    /// Returns the packed chunk of which it maps a part.
    #[inline]
    pub(crate) fn packed(&self) -> Option<PackedNumber> {
        match self.location {
            Location::Media(_) => None,
            Location::Packed(chunk, _) => Some(chunk),
        }
    }

    /// Returns the media address of the first byte; `None` for a packed chunk, because its bytes can move.
    #[inline]
    pub(crate) fn media_address(&self) -> Option<u64> {
        match self.location {
            Location::Media(address) => Some(address),
            Location::Packed(..) => None,
        }
    }
}

#[inline]
fn blocks_touched(address: u64, length: u64) -> BlockRun {
    let start = address / BLOCK_BYTES;
    BlockRun { start: BlockNumber(start), count: (address + length).div_ceil(BLOCK_BYTES) - start }
}

/// References that are lost in a change, and must be released after the commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Each block of these runs loses one reference.
    pub blocks: Runs,
    /// Each of these chunks loses one reference; a chunk that loses several occurs several times.
    pub packed: SmallVec<[PackedNumber; 2]>,
}

impl Dropped {
    /// True if no reference is lost.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.packed.is_empty()
    }

    /// Returns the number of references that are lost.
    pub(crate) fn references(&self) -> u64 {
        self.blocks.iter().map(|run| run.count).sum::<u64>() + self.packed.len() as u64
    }

    /// Adds the references of `others`.
    pub(crate) fn append(&mut self, others: Dropped) {
        others.blocks.into_iter().for_each(|run| add_run(&mut self.blocks, run));
        self.packed.extend(others.packed);
    }

    /// Splits off all references but the first `kept`.
    pub(crate) fn split_off(&mut self, kept: u64) -> Dropped {
        let (mut left, mut rest) = (kept, Dropped::default());
        self.blocks.retain(|run| {
            let count = run.count.min(left);
            left -= count;
            if count < run.count {
                rest.blocks.push(BlockRun { start: BlockNumber(run.start.0 + count), count: run.count - count });
            }
            run.count = count;
            count > 0
        });
        rest.packed.extend(self.packed.drain(self.packed.len().min(left as usize)..));
        rest
    }

    /// Returns each reference that is lost.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = ChunkRef> + '_ {
        let blocks = self.blocks.iter().flat_map(|run| run.blocks()).map(ChunkRef::Block);
        blocks.chain(self.packed.iter().map(|chunk| ChunkRef::Packed(*chunk)))
    }

    /// Adds the references of one whole extent.
    pub(crate) fn push(&mut self, extent: &Extent) {
        match extent.location {
            Location::Media(_) => self.blocks.push(extent.blocks()),
            Location::Packed(chunk, _) => self.packed.push(chunk),
        }
    }
}

impl FromIterator<ChunkRef> for Dropped {
    fn from_iter<T: IntoIterator<Item = ChunkRef>>(chunks: T) -> Dropped {
        let mut dropped = Dropped::default();
        for chunk in chunks {
            match chunk {
                ChunkRef::Block(start) => dropped.blocks.push(BlockRun { start, count: 1 }),
                ChunkRef::Packed(chunk) => dropped.packed.push(chunk),
            }
        }
        dropped
    }
}

impl From<Runs> for Dropped {
    fn from(blocks: Runs) -> Dropped {
        Dropped { blocks, packed: SmallVec::new() }
    }
}

/// How reference counts change when a range of the map is replaced. It assumes that each new extent already holds one
/// reference on each block that it touches, or on its packed chunk.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CountChanges {
    /// References to release after the commit. For packed chunks these include the references of new extents that are
    /// merged with a neighbour.
    pub dropped: Dropped,
    /// References to take before the commit, because an extent is split in two that touch the same block or map the
    /// same packed chunk.
    pub split: SmallVec<[ChunkRef; 2]>,
    /// Number of bytes that are no longer mapped, of chunks that may have other references.
    pub may_be_dead: u64,
}

/// The largest number of extents in one leaf.
const LEAF_MAX: usize = 128;
/// The longest extent in one item. A longer one is held in pieces whose seams are on block boundaries of the media.
const PIECE_BYTES_MAX: u64 = 1 << 31;

/// An extent as a leaf stores it. Its 16 bytes are the DRAM cost of sharing a small range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item {
    /// File offset relative to the leaf's base.
    offset: u32,
    length: u32,
    word: LocationWord,
}

const _: () = assert!(size_of::<Item>() == 16);

impl Item {
    #[inline]
    fn span(&self, base: u64) -> Span {
        Span { offset: base + u64::from(self.offset), length: u64::from(self.length), word: self.word }
    }
}

/// An extent by itself: a range of the file and its location.
#[derive(Clone, Copy)]
struct Span {
    offset: u64,
    length: u64,
    word: LocationWord,
}

impl Span {
    #[inline]
    fn of(offset: u64, extent: &Extent) -> Span {
        Span { offset, length: extent.length, word: LocationWord::new(extent.location, extent.unwritten) }
    }

    #[inline]
    fn extent(self) -> (u64, Extent) {
        let (location, unwritten) = self.word.location().expect("an extent names something");
        (self.offset, Extent { length: self.length, location, unwritten })
    }

    /// Returns the blocks that it touches. It must not be in a packed chunk.
    #[inline]
    fn blocks(self) -> BlockRun {
        debug_assert!(!self.word.is_packed());
        blocks_touched(self.word.address(), self.length)
    }

    #[inline]
    fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// Returns the part from file offset `start` to `end`.
    #[inline]
    fn cut(&self, start: u64, end: u64) -> Span {
        Span { offset: start, length: end - start, word: self.word.plus(start - self.offset) }
    }

    /// True if its end is on a block boundary of the media.
    fn ends_a_block(&self) -> bool {
        self.word.plus(self.length).offset_in_block() == 0
    }

    /// True if `next` can be merged with it.
    #[inline]
    fn continues(&self, next: &Span) -> bool {
        self.end() == next.offset
            && self.word.is_continued_by(self.length, next.word)
            && (self.word.is_packed() || self.ends_a_block())
            && self.length + next.length <= PIECE_BYTES_MAX
    }

    /// True if `other` is inside its range.
    #[inline]
    fn covers(&self, other: &Span) -> bool {
        self.offset <= other.offset && other.end() <= self.end()
    }

    /// True if a cut between blocks of the file may cut this extent inside a block of the media. Always true for a
    /// packed chunk.
    #[inline]
    fn is_shifted(&self) -> bool {
        self.word.is_packed() || self.word.offset_in_block() != self.offset % BLOCK_BYTES
    }

    /// Returns the first piece that fits an item, and the rest.
    #[inline]
    fn split_piece(self) -> (Span, Option<Span>) {
        if self.length <= PIECE_BYTES_MAX {
            return (self, None);
        }
        let at = self.offset + PIECE_BYTES_MAX - self.word.offset_in_block();
        (self.cut(self.offset, at), Some(self.cut(at, self.end())))
    }
}

/// Extents that are close to each other in the file.
#[derive(Clone, Debug)]
struct Leaf {
    /// The base of the items' offsets. It is a multiple of 2 GiB, so that it rarely changes.
    base: u64,
    items: Vec<Item>,
}

impl Leaf {
    fn for_offset(offset: u64) -> Leaf {
        Leaf { base: offset / PIECE_BYTES_MAX * PIECE_BYTES_MAX, items: Vec::new() }
    }

    /// Returns the item for a span, if its offset is within 4 GiB of the base.
    #[inline]
    fn item(&self, span: &Span) -> Option<Item> {
        let offset = u32::try_from(span.offset.wrapping_sub(self.base)).ok()?;
        Some(Item { offset, length: span.length as u32, word: span.word })
    }

    #[inline]
    fn span(&self, item: &Item) -> Span {
        item.span(self.base)
    }
}

/// The extents of one file, sorted by file offset. They are in leaves of at most 128 extents, each of which spans
/// less than 4 GiB. A search is two binary searches, and an insertion moves the items of at most one leaf. A file
/// that is written in order has one leaf with one extent, and overwriting it in order changes that leaf in place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    leaves: Vec<Leaf>,
    /// File offset of the first extent of each leaf.
    firsts: Vec<u64>,
    count: usize,
    bytes: u64,
    unwritten_bytes: u64,
    /// Number of extents whose bytes have another offset in a media block than in the file block (after byte-granular
    /// clones), plus the number of extents of packed chunks.
    shifted: usize,
}

/// A position between extents.
#[derive(Clone, Copy)]
struct ExtentPosition {
    leaf: usize,
    at: usize,
}

/// The extents after a position, in order.
#[derive(Clone)]
struct Spans<'e> {
    base: u64,
    items: std::slice::Iter<'e, Item>,
    rest: std::slice::Iter<'e, Leaf>,
}

impl Iterator for Spans<'_> {
    type Item = Span;

    #[inline]
    fn next(&mut self) -> Option<Span> {
        loop {
            if let Some(item) = self.items.next() {
                return Some(item.span(self.base));
            }
            let leaf = self.rest.next()?;
            (self.base, self.items) = (leaf.base, leaf.items.iter());
        }
    }
}

impl Extents {
    /// Returns the number of bytes that the extents map, including reserved ones.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True if any range is reserved but not written yet.
    pub(crate) fn has_unwritten(&self) -> bool {
        self.unwritten_bytes > 0
    }

    /// Returns the number of extents.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns the number of bytes that they take in DRAM.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let items: usize = self.leaves.iter().map(|leaf| leaf.items.capacity()).sum();
        (items * size_of::<Item>() + self.leaves.capacity() * (size_of::<Leaf>() + size_of::<u64>())) as u64
    }

    /// Returns all extents in order of file offset. An extent of more than 2 GiB is returned in pieces, no two of
    /// which touch the same block.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.spans_from(ExtentPosition { leaf: 0, at: 0 }).map(Span::extent)
    }

    /// Returns the parts of extents that are inside `start..end`, in order.
    pub(crate) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.overlapping(start, end).map(move |span| span.cut(span.offset.max(start), span.end().min(end)).extent())
    }

    /// Plans how references change when `start..end` is replaced by those of the extents `mapped` (sorted by file
    /// offset) that begin in it. Adjacent ranges of one change must be planned as one.
    pub(crate) fn plan(&self, start: u64, end: u64, mapped: &[(u64, Extent)]) -> CountChanges {
        let mut plan = CountChanges::default();
        for span in self.overlapping(start, end) {
            let (is_cut_left, is_cut_right) = (span.offset < start, span.end() > end);
            let (first, behind) = (span.offset.max(start), span.end().min(end));
            if span.is_shifted() || !first.is_multiple_of(BLOCK_BYTES) || !behind.is_multiple_of(BLOCK_BYTES) {
                plan.may_be_dead += behind - first;
            }
            let (_, extent) = span.extent();
            let address = match extent.location {
                Location::Media(address) => address,
                Location::Packed(chunk, _) => {
                    match (is_cut_left, is_cut_right) {
                        (false, false) => plan.dropped.packed.push(chunk),
                        (true, true) => plan.split.push(chunk.into()),
                        _ => {}
                    }
                    continue;
                }
            };
            let run = extent.blocks();
            let (mut first, mut last) = (run.start.0, run.blocks_end());
            if is_cut_left {
                first = (address + (start - span.offset)).div_ceil(BLOCK_BYTES);
            }
            if is_cut_right {
                last = (address + (end - span.offset)) / BLOCK_BYTES;
            }
            if first < last {
                plan.dropped.blocks.push(BlockRun { start: BlockNumber(first), count: last - first });
            } else if first > last {
                plan.split.push(BlockNumber(last).into());
            }
        }
        let first = mapped.partition_point(|(offset, _)| *offset < start);
        let begin_here = mapped[first..].partition_point(|(offset, _)| *offset < end);
        let new = &mapped[first..first + begin_here];
        if new.iter().any(|(_, extent)| extent.packed().is_some()) {
            self.plan_merges(start, end, new, &mut plan.dropped);
        }
        plan
    }

    /// Adds to `dropped` the references that become superfluous when these extents are merged with each other and
    /// with their neighbours.
    fn plan_merges(&self, start: u64, end: u64, mapped: &[(u64, Extent)], dropped: &mut Dropped) {
        // One byte of each neighbour suffices to see whether it can be merged.
        let left = start.checked_sub(1).and_then(|last| self.within(last, start).next());
        let right = self.within(end, end.saturating_add(1)).next();
        let all = left.iter().chain(mapped).chain(&right).map(|(offset, extent)| Span::of(*offset, extent));
        for (span, next) in all.clone().zip(all.skip(1)).filter(|(span, next)| span.continues(next)) {
            if let Some((Location::Packed(chunk, _), _)) = next.word.location() {
                debug_assert!(span.word.is_packed());
                dropped.packed.push(chunk);
            }
        }
    }

    /// True if replacing a range of whole blocks can never split an extent inside a block, so that no plan is needed
    /// before the commit.
    pub(crate) fn splits_only_between_blocks(&self) -> bool {
        self.shifted == 0
    }

    /// True if mapping the file range at `offset` to `extent` replaces whole blocks of the file, so that it splits no
    /// extent inside a block and no plan is needed before the commit. The last block may be mapped in part if the
    /// file maps nothing behind that part.
    pub(crate) fn are_exchanged_whole(&self, offset: u64, extent: &Extent) -> bool {
        let Location::Media(address) = extent.location else { return false };
        let end = offset + extent.length;
        let ends_in_nothing = || self.overlapping(end, end.next_multiple_of(BLOCK_BYTES)).next().is_none();
        self.splits_only_between_blocks()
            && (offset | address).is_multiple_of(BLOCK_BYTES)
            && (end.is_multiple_of(BLOCK_BYTES) || ends_in_nothing())
    }

    /// Returns the block with the data at file offset `offset` (a multiple of 4096), if an extent maps it whole.
    /// Inserting another block there then drops the one reference of this extent, and changes no other count.
    pub(crate) fn whole_block(&self, offset: u64) -> Option<BlockNumber> {
        let from = self.seek(offset);
        let leaf = self.leaves.get(from.leaf)?;
        let span = leaf.span(leaf.items.get(from.at)?);
        let is_mapped = span.offset <= offset && offset + BLOCK_BYTES <= span.end();
        let is_data = !span.word.is_reserved() && !span.is_shifted();
        (is_mapped && is_data).then(|| BlockNumber::containing(span.word.plus(offset - span.offset).address()))
    }

    /// Makes `start..end` a hole.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        if start < end {
            self.replace(self.seek(start), start, end, None, None);
        }
    }

    /// Maps the file range at `offset` to `extent`.
    pub(crate) fn insert(&mut self, offset: u64, extent: Extent) {
        self.put(Span::of(offset, &extent), None);
    }

    /// Does plan and insertion in one pass, when `are_exchanged_whole` is true.
    pub(crate) fn exchange(&mut self, offset: u64, extent: Extent, dropped: &mut Dropped) {
        debug_assert!(self.shifted == 0);
        self.put(Span::of(offset, &extent), Some(dropped));
    }

    #[inline]
    fn put(&mut self, span: Span, mut dropped: Option<&mut Dropped>) {
        if self.append(&span, dropped.as_deref_mut()) {
            return;
        }
        let from = self.seek(span.offset);
        if !self.put_in_place(from, &span, dropped.as_deref_mut()) {
            self.put_pieces(from, span, dropped);
        }
    }

    /// Does `put` at the end of the last extent, if no new leaf is needed. Writing a file in order takes this path.
    #[inline]
    fn append(&mut self, span: &Span, dropped: Option<&mut Dropped>) -> bool {
        let Some(leaf) = self.leaves.last_mut() else { return false };
        let Some(last) = leaf.items.last().map(|last| leaf.span(last)) else { return false };
        if last.end() > span.offset {
            return last.end() < span.end() && self.lengthen(&last, span, dropped);
        }
        if span.length > PIECE_BYTES_MAX {
            return false;
        }
        if last.continues(span) {
            let last = leaf.items.last_mut().expect("it has one");
            last.length += span.length as u32;
            self.bytes += span.length;
            self.unwritten_bytes += if span.word.is_reserved() { span.length } else { 0 };
            return true;
        }
        let Some(item) = leaf.item(span).filter(|_| leaf.items.len() < LEAF_MAX) else { return false };
        leaf.items.push(item);
        self.account(span, true);
        true
    }

    /// Does `put` if the span is the last extent, or its last blocks, with more bytes behind them. A file that grows in
    /// its last block takes this path.
    fn lengthen(&mut self, last: &Span, span: &Span, dropped: Option<&mut Dropped>) -> bool {
        if span.offset < last.offset || last.word.is_packed() || span.end() - last.offset > PIECE_BYTES_MAX {
            return false;
        }
        let same = last.cut(span.offset, last.end());
        let is_whole = span.offset == last.offset || same.word.offset_in_block() == 0;
        let Some(item) = self.leaves.last_mut().and_then(|leaf| leaf.items.last_mut()) else { return false };
        if same.word != span.word || !is_whole {
            return false;
        }
        let more = span.end() - last.end();
        item.length += more as u32;
        self.bytes += more;
        self.unwritten_bytes += if span.word.is_reserved() { more } else { 0 };
        if let Some(dropped) = dropped {
            dropped.blocks.push(same.blocks());
        }
        true
    }

    /// Does `put` inside one extent if the number of extents stays the same. It either replaces the whole extent (a
    /// rewritten small file, a database record), or moves the seam to a neighbour (a file that is overwritten in
    /// order).
    #[inline]
    fn put_in_place(&mut self, from: ExtentPosition, span: &Span, dropped: Option<&mut Dropped>) -> bool {
        let is_last_leaf = from.leaf + 1 == self.leaves.len();
        let Some(Leaf { base, items }) = self.leaves.get_mut(from.leaf) else { return false };
        let Some((before, [item, after @ ..])) = items.split_at_mut_checked(from.at) else { return false };
        // Neighbours in other leaves are left to `replace`.
        let is_at_edge = before.is_empty() && from.leaf > 0 || after.is_empty() && !is_last_leaf;
        let old = item.span(*base);
        if is_at_edge || !old.covers(span) {
            return false;
        }
        let replaced = old.cut(span.offset, span.end());
        // A range with an unchanged location is merged with the rest of the extent.
        if replaced.word == span.word || !replaced.word.is_like(span.word) {
            return false;
        }
        let length = span.length as u32;
        let continues_before = before.last().is_some_and(|before| before.span(*base).continues(span));
        let continued_by_after = after.first().is_some_and(|after| span.continues(&after.span(*base)));
        match (before, after, old.length == span.length) {
            (_, _, true) if !continues_before && !continued_by_after => item.word = span.word,
            ([.., before], _, false) if continues_before => {
                let Some(offset) = item.offset.checked_add(length) else { return false };
                before.length += length;
                *item = Item { offset, length: item.length - length, word: item.word.plus(span.length) };
            }
            (_, [after, ..], false) if continued_by_after => {
                item.length -= length;
                *after = Item { offset: after.offset - length, length: after.length + length, word: span.word };
            }
            _ => return false,
        }
        if let Some(dropped) = dropped {
            dropped.blocks.push(replaced.blocks());
        }
        true
    }

    fn put_pieces(&mut self, from: ExtentPosition, span: Span, mut dropped: Option<&mut Dropped>) {
        let mut next = Some((from, span));
        while let Some((from, span)) = next {
            let (piece, rest) = span.split_piece();
            self.replace(from, piece.offset, piece.end(), Some(piece), dropped.as_deref_mut());
            next = rest.map(|rest| (self.seek(rest.offset), rest));
        }
    }

    /// Returns the media address of the reserved block at file offset `offset` (a multiple of 4096), if there is one.
    pub(crate) fn reserved_block(&self, offset: u64) -> Option<u64> {
        if !self.has_unwritten() {
            return None;
        }
        let span = self.overlapping(offset, offset + BLOCK_BYTES).next()?;
        if !span.word.is_reserved() || span.offset > offset || span.end() < offset + BLOCK_BYTES {
            return None;
        }
        let (_, extent) = span.cut(offset, span.end()).extent();
        extent.media_address().filter(|address| address.is_multiple_of(BLOCK_BYTES))
    }

    /// Returns the first byte at or after `offset` that is data (neither a hole nor reserved), if there is one.
    pub(crate) fn next_data(&self, offset: u64) -> Option<u64> {
        self.overlapping(offset, u64::MAX).find(|span| !span.word.is_reserved()).map(|span| span.offset.max(offset))
    }

    /// Returns the first byte at or after `offset` that is a hole or reserved.
    pub(crate) fn next_hole(&self, offset: u64) -> u64 {
        let mut at = offset;
        for span in self.overlapping(offset, u64::MAX) {
            if span.offset > at || span.word.is_reserved() {
                break;
            }
            at = span.end();
        }
        at
    }

    /// Cuts `start..end` out of the extents that it overlaps, which are those from `from` on. Then it inserts `new`
    /// and merges it with its neighbours. The blocks that lost a reference are added to `dropped`.
    fn replace(
        &mut self,
        mut from: ExtentPosition,
        start: u64,
        end: u64,
        new: Option<Span>,
        mut dropped: Option<&mut Dropped>,
    ) {
        let (mut left, mut right): (Option<Span>, Option<Span>) = (None, None);
        let mut gone = 0;
        for span in self.spans_from(from).take_while(|span| span.offset < end) {
            gone += 1;
            if let Some(dropped) = &mut dropped {
                dropped.blocks.push(span.cut(span.offset.max(start), span.end().min(end)).blocks());
            }
            if span.offset < start {
                left = Some(span.cut(span.offset, start));
            }
            if span.end() > end {
                right = Some(span.cut(end, span.end()));
            }
        }
        let mut middle = None;
        if let Some(mut span) = new {
            // Neighbours that are not cut may still be merged, so they are taken out as well.
            if left.is_none()
                && let Some((cursor, before)) = self.before(from)
                && before.continues(&span)
            {
                (from, gone, left) = (cursor, gone + 1, Some(before));
            }
            if right.is_none()
                && let Some(after) = self.spans_from(from).nth(gone)
                && span.continues(&after)
            {
                (gone, right) = (gone + 1, Some(after));
            }
            if let Some(part) = left.take_if(|part| part.continues(&span)) {
                span = Span { length: part.length + span.length, ..part };
            }
            if let Some(part) = right.take_if(|part| span.continues(part)) {
                span.length += part.length;
            }
            middle = Some(span);
        }
        let mut spans = [Span { offset: 0, length: 0, word: LocationWord::HOLE }; 3];
        let mut count = 0;
        for span in [left, middle, right].into_iter().flatten() {
            spans[count] = span;
            count += 1;
        }
        self.splice(from, gone, &spans[..count]);
    }

    #[inline]
    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = Span> + '_ {
        // An empty range overlaps nothing.
        let end = if start < end { end } else { 0 };
        self.spans_from(self.seek(start)).take_while(move |span| span.offset < end)
    }

    /// Returns the position before the first extent that ends after `offset`.
    fn seek(&self, offset: u64) -> ExtentPosition {
        let leaf = self.firsts.partition_point(|first| *first <= offset).saturating_sub(1);
        let Some(Leaf { base, items }) = self.leaves.get(leaf) else { return ExtentPosition { leaf: 0, at: 0 } };
        let Some(offset) = offset.checked_sub(*base) else { return ExtentPosition { leaf, at: 0 } };
        let ends_before = |item: &Item| u64::from(item.offset) + u64::from(item.length) <= offset;
        ExtentPosition { leaf, at: items.partition_point(ends_before) }
    }

    #[inline]
    fn spans_from(&self, from: ExtentPosition) -> Spans<'_> {
        let (first, rest) = match self.leaves.get(from.leaf..).and_then(<[Leaf]>::split_first) {
            Some((first, rest)) => ((first.base, &first.items[from.at..]), rest),
            None => ((0, &[][..]), &[][..]),
        };
        Spans { base: first.0, items: first.1.iter(), rest: rest.iter() }
    }

    fn before(&self, cursor: ExtentPosition) -> Option<(ExtentPosition, Span)> {
        let (leaf, at) = match cursor {
            ExtentPosition { leaf, at: 0 } => {
                (leaf.checked_sub(1)?, self.leaves.get(leaf - 1)?.items.len().checked_sub(1)?)
            }
            ExtentPosition { leaf, at } => (leaf, at - 1),
        };
        let of = &self.leaves[leaf];
        Some((ExtentPosition { leaf, at }, of.span(&of.items[at])))
    }

    /// Replaces `gone` extents at `from` by `spans`.
    fn splice(&mut self, from: ExtentPosition, gone: usize, spans: &[Span]) {
        if self.leaves.is_empty() {
            let Some(first) = spans.first() else { return };
            self.leaves.push(Leaf::for_offset(first.offset));
            self.firsts.push(first.offset);
        }
        for span in spans {
            self.account(span, true);
        }
        let in_first = gone.min(self.leaves[from.leaf].items.len() - from.at);
        self.account_gone(from.leaf, from.at..from.at + in_first);
        let mut left_to_go = gone - in_first;
        while left_to_go > 0 {
            let next = from.leaf + 1;
            let taken = left_to_go.min(self.leaves[next].items.len());
            self.account_gone(next, 0..taken);
            self.leaves[next].items.drain(..taken);
            self.rebalance(next);
            left_to_go -= taken;
        }
        if !self.splice_leaf(from, in_first, spans) {
            self.replace_leaf(from, in_first, spans);
        }
    }

    /// Does `splice` in one leaf. Returns false if a new extent is out of its reach.
    fn splice_leaf(&mut self, from: ExtentPosition, gone: usize, spans: &[Span]) -> bool {
        let leaf = &mut self.leaves[from.leaf];
        let mut items = [Item { offset: 0, length: 0, word: LocationWord::HOLE }; 3];
        for (item, span) in items.iter_mut().zip(spans) {
            let Some(new) = leaf.item(span) else { return false };
            *item = new;
        }
        // Overwrite as many items as possible; one insertion or removal then makes up the difference.
        let over = gone.min(spans.len());
        leaf.items[from.at..from.at + over].copy_from_slice(&items[..over]);
        if over < spans.len() {
            leaf.items.splice(from.at + over..from.at + over, items[over..spans.len()].iter().copied());
        } else if over < gone {
            leaf.items.drain(from.at + over..from.at + gone);
        }
        self.rebalance(from.leaf);
        true
    }

    /// Does `splice_leaf` with as many new leaves as needed.
    #[cold]
    fn replace_leaf(&mut self, from: ExtentPosition, gone: usize, spans: &[Span]) {
        let old = self.leaves.remove(from.leaf);
        self.firsts.remove(from.leaf);
        let of_old = |items: &[Item]| items.iter().map(|item| old.span(item)).collect::<Vec<Span>>();
        let (before, after) = (of_old(&old.items[..from.at]), of_old(&old.items[from.at + gone..]));
        let mut leaves: Vec<Leaf> = Vec::new();
        for span in before.iter().chain(spans).chain(&after) {
            let near = leaves.last_mut().filter(|leaf| leaf.items.len() < LEAF_MAX);
            if let Some((leaf, item)) = near.and_then(|leaf| leaf.item(span).map(|item| (leaf, item))) {
                leaf.items.push(item);
                continue;
            }
            let mut leaf = Leaf::for_offset(span.offset);
            leaf.items.push(leaf.item(span).expect("a leaf reaches 2 GiB beyond the offset it is made for"));
            leaves.push(leaf);
        }
        let firsts = leaves.iter().map(|leaf| leaf.span(&leaf.items[0]).offset);
        self.firsts.splice(from.leaf..from.leaf, firsts);
        self.leaves.splice(from.leaf..from.leaf, leaves);
    }

    fn account_gone(&mut self, leaf: usize, range: Range<usize>) {
        for at in range {
            let leaf = &self.leaves[leaf];
            let span = leaf.span(&leaf.items[at]);
            self.account(&span, false);
        }
    }

    fn account(&mut self, span: &Span, comes: bool) {
        let unwritten = if span.word.is_reserved() { span.length } else { 0 };
        let shifted = usize::from(span.is_shifted());
        if comes {
            self.count += 1;
            self.bytes += span.length;
            self.unwritten_bytes += unwritten;
            self.shifted += shifted;
        } else {
            self.count -= 1;
            self.bytes -= span.length;
            self.unwritten_bytes -= unwritten;
            self.shifted -= shifted;
        }
    }

    /// Splits a leaf that is too long, removes an empty one, and updates the offset of its first extent.
    fn rebalance(&mut self, leaf: usize) {
        let Leaf { base, items } = &mut self.leaves[leaf];
        let base = *base;
        match items.first() {
            None => {
                self.leaves.remove(leaf);
                self.firsts.remove(leaf);
                return;
            }
            Some(first) => self.firsts[leaf] = base + u64::from(first.offset),
        }
        if items.len() > LEAF_MAX {
            let upper = Leaf { base, items: items.split_off(LEAF_MAX / 2) };
            self.firsts.insert(leaf + 1, base + u64::from(upper.items[0].offset));
            self.leaves.insert(leaf + 1, upper);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const FILE: usize = 64_000;

    /// The location of each byte of a file.
    type Bytes = Vec<Option<Location>>;
    type Counts = HashMap<ChunkRef, i64>;

    fn chunks_of(extent: &Extent) -> Vec<ChunkRef> {
        match extent.packed() {
            Some(chunk) => vec![chunk.into()],
            None => extent.blocks().blocks().map(ChunkRef::from).collect(),
        }
    }

    fn counts(extents: &Extents) -> Counts {
        let mut counts = HashMap::new();
        let chunks = extents.iter().flat_map(|(_, extent)| chunks_of(&extent));
        chunks.for_each(|chunk| *counts.entry(chunk).or_insert(0) += 1);
        counts
    }

    fn bytes_of(extents: &Extents) -> Bytes {
        let mut bytes = vec![None; FILE];
        for (offset, extent) in extents.iter() {
            (0..extent.length).for_each(|at| bytes[(offset + at) as usize] = Some(extent.location.plus(at)));
        }
        bytes
    }

    /// Returns the number of maximal runs of contiguous bytes for each packed chunk.
    fn packed_runs(bytes: &Bytes) -> Counts {
        let mut counts = HashMap::new();
        let mut before = None;
        for byte in bytes {
            let follows = |before: Option<Location>| before.is_some_and(|before| Some(before.plus(1)) == *byte);
            if let Some(Location::Packed(chunk, _)) = *byte
                && !follows(before)
            {
                *counts.entry(chunk.into()).or_insert(0) += 1;
            }
            before = *byte;
        }
        counts
    }

    /// One change as an operation makes it: a range, and the extents that replace it.
    #[derive(Clone, Debug)]
    struct Step {
        start: u64,
        length: u64,
        mapped: Vec<(u64, Extent)>,
    }

    fn step() -> impl Strategy<Value = Step> {
        // Half of the steps in blocks are aligned, as plain writes are.
        let in_blocks = (0u64..40_000, 1u64..20_000, 0u64..60_000, any::<bool>(), any::<bool>()).prop_map(
            |(start, length, address, is_aligned, is_hole)| {
                let round = |value: u64| if is_aligned { value / 4096 * 4096 } else { value };
                let (start, length) = (round(start), round(length).max(if is_aligned { 4096 } else { 1 }));
                let new = (!is_hole).then(|| (start, Extent::media(length, round(address), false)));
                Step { start, length, mapped: Vec::from_iter(new) }
            },
        );
        // Few chunks, often at the place where the file had them before, so that neighbours merge.
        let part = (0u64..300, 1u64..300, 0u32..2, prop_oneof![Just(0u64), Just(7)]);
        let packed = (0u64..2_000, prop::collection::vec(part, 0..4)).prop_map(|(start, parts)| {
            let mut at = start;
            let mut mapped = Vec::new();
            for (gap, length, chunk, shift) in parts {
                at += if gap < 150 { 0 } else { gap };
                let location = Location::Packed(PackedNumber(chunk), (at + shift) as u16);
                mapped.push((at, Extent { length, location, unwritten: false }));
                at += length;
            }
            Step { start, length: (at - start).max(20), mapped }
        });
        prop_oneof![in_blocks, packed.clone(), packed]
    }

    proptest! {
        #[test]
        fn plans_and_merges_of_extents_match_a_model_by_bytes(steps in prop::collection::vec(step(), 1..60)) {
            let mut extents = Extents::default();
            let mut bytes: Bytes = vec![None; FILE];
            for Step { start, length, mapped } in steps {
                let end = start + length;
                let mut expected = counts(&extents);
                let plan = extents.plan(start, end, &mapped);
                plan.split.iter().for_each(|chunk| *expected.entry(*chunk).or_insert(0) += 1);
                for chunk in mapped.iter().flat_map(|(_, extent)| chunks_of(extent)) {
                    *expected.entry(chunk).or_insert(0) += 1;
                }
                let blocks = plan.dropped.blocks.iter().flat_map(|run| run.blocks()).map(ChunkRef::from);
                for chunk in blocks.chain(plan.dropped.packed.iter().map(|chunk| ChunkRef::from(*chunk))) {
                    *expected.get_mut(&chunk).unwrap() -= 1;
                }
                prop_assert!(expected.values().all(|count| *count >= 0), "{:?}", expected);
                expected.retain(|_, count| *count != 0);

                // The log replays entry by entry.
                extents.remove(start, end);
                bytes[start as usize..end as usize].fill(None);
                for (offset, extent) in mapped {
                    extents.insert(offset, extent);
                    (0..extent.length).for_each(|at| bytes[(offset + at) as usize] = Some(extent.location.plus(at)));
                }
                prop_assert_eq!(counts(&extents), expected);
            }
            prop_assert_eq!(extents.bytes(), bytes.iter().filter(|byte| byte.is_some()).count() as u64);
            prop_assert!(bytes_of(&extents) == bytes);
            let mut counts = counts(&extents);
            counts.retain(|chunk, _| matches!(chunk, ChunkRef::Packed(_)));
            prop_assert_eq!(counts, packed_runs(&bytes));
        }

        /// The fast path returns the references that it drops, also where an end grows inside its block.
        #[test]
        fn exchanging_whole_extents_returns_the_dropped_references(steps in prop::collection::vec(
            (0u64..40, prop_oneof![Just(1u64), 1u64..5], 0u64..100, any::<bool>(), prop_oneof![Just(0), 1u64..4096]),
            1..100)) {
            let mut extents = Extents::default();
            for (start, length, address, is_reserved, without) in steps {
                // Half of them continue other extents.
                let address = if address < 50 { address } else { start + 10 * (address % 3) };
                let length = length * BLOCK_BYTES - if is_reserved { 0 } else { without };
                let extent = Extent::media(length, address * BLOCK_BYTES, is_reserved);
                let mut other = extents.clone();
                if !extents.are_exchanged_whole(start * BLOCK_BYTES, &extent) {
                    let end = start * BLOCK_BYTES + length;
                    prop_assert!(without > 0 && extents.within(end, end + BLOCK_BYTES).next().is_some());
                    extents.insert(start * BLOCK_BYTES, extent);
                    continue;
                }
                let mut expected = counts(&extents);
                chunks_of(&extent).into_iter().for_each(|chunk| *expected.entry(chunk).or_insert(0) += 1);
                let mut dropped = Dropped::default();
                extents.exchange(start * BLOCK_BYTES, extent, &mut dropped);
                for block in dropped.blocks.iter().flat_map(|run| run.blocks()) {
                    *expected.get_mut(&block.into()).unwrap() -= 1;
                }
                expected.retain(|_, count| *count != 0);
                prop_assert_eq!(counts(&extents), expected);
                other.remove(start * BLOCK_BYTES, start * BLOCK_BYTES + length);
                other.insert(start * BLOCK_BYTES, extent);
                prop_assert!(extents.iter().eq(other.iter()));
                prop_assert_eq!(
                    (extents.bytes, extents.count, extents.unwritten_bytes, extents.shifted),
                    (other.bytes, other.count, other.unwritten_bytes, other.shifted)
                );
            }
        }

        /// Inserting over extents has the same result as removing the range first.
        #[test]
        fn inserting_over_extents_equals_removing_and_inserting(steps in prop::collection::vec(step(), 1..60)) {
            let mut extents = Extents::default();
            for (offset, extent) in steps.into_iter().flat_map(|step| step.mapped) {
                let mut other = extents.clone();
                other.remove(offset, offset + extent.length);
                other.insert(offset, extent);
                extents.insert(offset, extent);
                prop_assert!(extents.iter().eq(other.iter()));
                prop_assert_eq!(
                    (extents.bytes, extents.count, extents.unwritten_bytes, extents.shifted),
                    (other.bytes, other.count, other.unwritten_bytes, other.shifted)
                );
            }
        }

        /// Extents of many GiB are stored in pieces, and leaves may be too far apart to reach each other.
        #[test]
        fn large_and_distant_extents_match_a_model_of_their_parts(steps in prop::collection::vec(
            (0u64..300, 1u64..20, 0u64..1000, prop_oneof![Just(0u64), Just(100)], any::<bool>()), 1..200)) {
            const UNIT: u64 = 512 << 20;
            let mut extents = Extents::default();
            let mut units: Vec<Option<u64>> = vec![None; 320];
            for (first, count, block, shift, is_hole) in steps {
                let address = block * BLOCK_BYTES + shift;
                match is_hole {
                    true => extents.remove(first * UNIT, (first + count) * UNIT),
                    false => extents.insert(first * UNIT, Extent::media(count * UNIT, address, false)),
                }
                for unit in 0..count {
                    units[(first + unit) as usize] = (!is_hole).then_some(address + unit * UNIT);
                }
            }
            for (start, named) in (0u64..).map(|unit| unit * UNIT).zip(&units) {
                let within: Vec<(u64, Extent)> = extents.within(start, start + UNIT).collect();
                let length: u64 = within.iter().map(|(_, extent)| extent.length).sum();
                prop_assert_eq!(length, named.map_or(0, |_| UNIT));
                for (offset, extent) in within {
                    prop_assert_eq!(extent.media_address(), named.map(|address| address + offset - start));
                }
            }
            let all: Vec<(u64, Extent)> = extents.iter().collect();
            prop_assert_eq!(all.len(), extents.len());
            prop_assert!(all.is_sorted_by_key(|(offset, _)| *offset));
            for ((offset, extent), (next_offset, next)) in all.iter().zip(all.iter().skip(1)) {
                let seam = extent.media_address().unwrap() + extent.length;
                let is_one = offset + extent.length == *next_offset && Some(seam) == next.media_address();
                prop_assert!(!is_one || seam % BLOCK_BYTES == 0 || *next_offset % UNIT == 0, "a piece ends inside a block");
            }
            for leaf in &extents.leaves {
                prop_assert!((1..=LEAF_MAX).contains(&leaf.items.len()));
            }
        }
    }

    #[test]
    fn an_end_that_grows_stays_one_extent_and_drops_its_last_block() {
        const B: u64 = BLOCK_BYTES;
        let mut extents = Extents::default();
        extents.insert(0, Extent::media(2 * B + 100, 10 * B, false));
        let mut dropped = Dropped::default();
        extents.exchange(2 * B, Extent::media(300, 12 * B, false), &mut dropped);
        let grown = Extent::media(2 * B + 300, 10 * B, false);
        assert!(extents.iter().eq([(0, grown)]) && extents.bytes() == grown.length);
        assert_eq!(dropped.blocks[..], [BlockRun { start: BlockNumber(12), count: 1 }]);
        // An extent that begins inside the block has a reference of its own.
        extents.insert(2 * B + 200, Extent::media(300, 12 * B + 200, false));
        assert_eq!(extents.len(), 2);
        // Another place, or space that is reserved.
        extents.insert(2 * B + 200, Extent::media(400, 14 * B + 200, false));
        extents.insert(2 * B + 200, Extent::media(500, 14 * B + 200, true));
        assert_eq!((extents.len(), extents.bytes(), extents.unwritten_bytes), (2, 2 * B + 700, 500));
    }

    #[test]
    fn only_a_block_with_data_that_one_extent_maps_whole_is_a_whole_block() {
        const B: u64 = BLOCK_BYTES;
        let mut extents = Extents::default();
        extents.insert(0, Extent::media(2 * B, 10 * B, false));
        extents.insert(2 * B, Extent::media(B, 20 * B, true));
        extents.insert(3 * B, Extent::media(100, 30 * B, false));
        extents.insert(4 * B, Extent::media(2 * B, 40 * B + 1, false));
        extents.insert(6 * B, Extent { location: Location::Packed(PackedNumber(1), 0), ..Extent::media(B, 0, false) });
        extents.insert(8 * B, Extent::media(B, 50 * B, false));
        let found: Vec<_> = (0..10).map(|block| extents.whole_block(block * B).map(|found| found.0)).collect();
        let expected = [Some(10), Some(11), None, None, None, None, None, None, Some(50), None];
        assert_eq!(found, expected);
    }

    #[test]
    fn an_extent_takes_16_bytes() {
        let mut extents = Extents::default();
        for at in 0..1 << 16 {
            let location = Location::Packed(PackedNumber(at as u32), 0);
            extents.insert(at * 100, Extent { length: 100, location, unwritten: false });
        }
        assert_eq!(extents.len(), 1 << 16);
        // Leaves are between half full and full, and the capacity of a vector may be twice its length.
        assert!(extents.dram_bytes() < (1 << 16) * 40, "{}", extents.dram_bytes());
    }
}
