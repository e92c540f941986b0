//! Marks: which bytes are live in chunks that extents map only in part. The first pass of a collection
//! ([`super::collect`]) makes them.
//!
//! The problem: there may be any number of such chunks, with any number of references, and the marks are kept in
//! DRAM.
//!
//! The idea: a window of chunks, by number. It begins where the last one ended, and has no end until it holds too
//! many chunks; then the last ones leave it. Each chunk in the window has its number of references and at most
//! `RANGES_MAX` live ranges. If there would be more, the two nearest are merged, together with the bytes between
//! them.

use crate::inode::ranges::Ranges;
use crate::media::ChunkRef;
use std::collections::BTreeMap;
use std::ops::Range;

/// The largest number of chunks in a window; they take about 8 MiB of DRAM.
const CHUNKS_MAX: usize = if cfg!(test) { 64 } else { 65_536 };

/// The largest number of separate live ranges of a chunk.
const RANGES_MAX: usize = 16;

/// A part of a chunk: its number, and a range of its content in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkPart {
    pub(crate) chunk: ChunkRef,
    pub(crate) range: Range<u32>,
}

/// The marks of one window: see the module.
pub(super) struct Marks {
    chunks: BTreeMap<ChunkRef, Marked>,
    /// The first chunk of the window.
    first: ChunkRef,
    /// End of the window (exclusive); `None` if it includes all chunks from the first one on.
    end: Option<ChunkRef>,
}

/// What the marks tell about a chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Marked {
    /// The number of extents that map a part of it.
    pub(crate) names: u32,
    /// The ranges that they map.
    pub(crate) live: Ranges,
    /// The lengths of these parts, added up, bytes.
    pub(super) mapped_bytes: u64,
    /// How many of them begin where the part before them ends in the file.
    pub(super) following: u32,
    users: Users,
    /// What is done with the chunk, once that is chosen.
    pub(super) way: Way,
}

/// The files that map parts of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Users {
    #[default]
    None,
    /// The inode with this number.
    One(u64),
    Several,
}

/// What a collection does with the live bytes of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Way {
    /// They become a smaller chunk, which all files map.
    #[default]
    Replace,
    /// The only file that maps them gets them in its own order ([`super::gather`]).
    Gather,
}

impl Marks {
    /// Makes an empty window that begins at this chunk.
    pub(crate) fn from(first: ChunkRef) -> Marks {
        Marks { chunks: BTreeMap::new(), first, end: None }
    }

    /// Adds a part that an extent of the inode `ino` maps. `follows` is true if it begins where the part before it ends
    /// in the file.
    pub(crate) fn add(&mut self, part: ChunkPart, ino: u64, follows: bool) {
        if part.chunk < self.first || self.end.is_some_and(|end| part.chunk >= end) {
            return;
        }
        self.chunks.entry(part.chunk).or_default().add(part.range, ino, follows);
        if self.chunks.len() > CHUNKS_MAX {
            self.end = self.chunks.pop_last().map(|(chunk, _)| chunk);
        }
    }

    /// Looks at the next `count` chunks from this one on, chooses what is done with each, and removes those that are not
    /// worth collecting. Returns where to continue.
    pub(super) fn choose_some(
        &mut self,
        from: ChunkRef,
        count: usize,
        choose: impl Fn(ChunkRef, &Marked) -> Option<Way>,
    ) -> Option<ChunkRef> {
        let mut rest = self.chunks.range_mut(from..);
        let mut forgotten = Vec::new();
        for (chunk, marked) in rest.by_ref().take(count) {
            match choose(*chunk, marked) {
                Some(way) => marked.way = way,
                None => forgotten.push(*chunk),
            }
        }
        let next = rest.next().map(|(chunk, _)| *chunk);
        forgotten.iter().for_each(|chunk| self.remove(*chunk));
        next
    }

    /// Notes that one of the parts of a chunk was gathered. Returns what is known of the chunk if it was the last one;
    /// the chunk is removed then.
    pub(super) fn gathered(&mut self, chunk: ChunkRef) -> Option<Marked> {
        let marked = self.chunks.get_mut(&chunk)?;
        marked.names = marked.names.saturating_sub(1);
        if marked.names > 0 { None } else { self.chunks.remove(&chunk) }
    }

    /// Removes a chunk.
    pub(crate) fn remove(&mut self, chunk: ChunkRef) {
        self.chunks.remove(&chunk);
    }

    /// Returns what is known of a chunk that is treated in this way.
    pub(super) fn to_treat(&self, chunk: ChunkRef, way: Way) -> Option<&Marked> {
        self.of(chunk).filter(|marked| marked.way == way)
    }

    /// Returns what is known of a chunk.
    pub(crate) fn of(&self, chunk: ChunkRef) -> Option<&Marked> {
        self.chunks.get(&chunk)
    }

    /// True if no chunk is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns where the next window begins, if there is one.
    pub(super) fn next_window(&self) -> Option<ChunkRef> {
        self.end
    }
}

impl Marked {
    fn add(&mut self, range: Range<u32>, ino: u64, follows: bool) {
        self.names = self.names.saturating_add(1);
        self.mapped_bytes += range.len() as u64;
        self.following += u32::from(follows);
        self.users = match self.users {
            Users::None => Users::One(ino),
            Users::One(user) if user == ino => self.users,
            _ => Users::Several,
        };
        self.live.add(range);
        if self.live.count() > RANGES_MAX {
            self.live.join_nearest();
        }
    }

    /// True if one file alone maps parts of it.
    pub(super) fn has_one_user(&self) -> bool {
        matches!(self.users, Users::One(_))
    }

    /// Returns the number of live bytes.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live.bytes()
    }

    /// Returns where the last live range ends.
    pub(crate) fn end(&self) -> u64 {
        self.live.end()
    }

    /// Returns the live ranges of its content, back to back.
    pub(crate) fn of_content(&self, content: &[u8]) -> Vec<u8> {
        let ranges = self.live.iter().map(|live| &content[live.start as usize..live.end as usize]);
        ranges.flatten().copied().collect()
    }

    /// Returns the offset of a range within `Marked::of_content`; `None` if not all of it is live.
    pub(crate) fn place_of(&self, range: &Range<u32>) -> Option<u32> {
        let mut before = 0;
        for live in self.live.iter() {
            if live.start <= range.start && range.end <= live.end {
                return Some(before + (range.start - live.start));
            }
            before += live.end - live.start;
        }
        None
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::media::{BlockNumber, PackedNumber};
    use proptest::prelude::*;

    fn part(chunk: u64, range: Range<u32>) -> ChunkPart {
        ChunkPart { chunk: ChunkRef::Block(BlockNumber(chunk)), range }
    }

    #[test]
    fn a_window_of_marks_ends_at_its_limit_and_the_next_one_continues_there() {
        let mut marks = Marks::from(ChunkRef::NONE);
        let all: Vec<u64> = (1..=CHUNKS_MAX as u64 + 10).rev().collect();
        all.iter().for_each(|chunk| marks.add(part(*chunk, 0..10), 1, false));
        let end = marks.next_window().expect("there are more");
        assert_eq!(end, ChunkRef::Block(BlockNumber(CHUNKS_MAX as u64 + 1)));
        assert_eq!(marks.chunks.len(), CHUNKS_MAX);
        let mut marks = Marks::from(end);
        all.iter().for_each(|chunk| marks.add(part(*chunk, 0..10), 1, false));
        marks.add(ChunkPart { chunk: PackedNumber(3).into(), range: 0..7 }, 1, false);
        assert_eq!((marks.chunks.len(), marks.next_window()), (11, None));
    }

    #[test]
    fn marks_not_worth_collecting_are_dropped_in_steps() {
        let mut marks = Marks::from(ChunkRef::NONE);
        (1..=10).for_each(|chunk| marks.add(part(chunk, 0..chunk as u32), 1, false));
        let mut from = Some(ChunkRef::NONE);
        let mut steps = 0;
        while let Some(first) = from {
            from = marks.choose_some(first, 4, |_, marked| (marked.live_bytes() % 2 == 0).then_some(Way::Replace));
            steps += 1;
        }
        let left: Vec<u64> = marks.chunks.values().map(Marked::live_bytes).collect();
        assert_eq!((steps, left), (3, vec![2, 4, 6, 8, 10]));
    }

    #[test]
    fn a_chunk_is_gathered_with_the_last_of_its_parts() {
        let (mut marks, chunk) = (Marks::from(ChunkRef::NONE), ChunkRef::Block(BlockNumber(7)));
        marks.add(part(7, 0..10), 3, false);
        marks.add(part(7, 10..30), 3, true);
        assert_eq!(
            marks.choose_some(ChunkRef::NONE, 9, |_, marked| marked.has_one_user().then_some(Way::Gather)),
            None
        );
        assert!(marks.to_treat(chunk, Way::Replace).is_none());
        let marked = marks.to_treat(chunk, Way::Gather).unwrap();
        assert_eq!((marked.mapped_bytes, marked.following), (30, 1));
        assert_eq!(marks.gathered(chunk), None);
        assert_eq!(marks.gathered(chunk).map(|marked| marked.mapped_bytes), Some(30));
        assert!(marks.is_empty());
        assert_eq!(marks.gathered(chunk), None);
        // A second file that maps a part of a chunk is a second user.
        marks.add(part(8, 0..10), 3, false);
        marks.add(part(8, 10..20), 4, false);
        marks.add(part(8, 20..30), 3, false);
        assert!(!marks.of(ChunkRef::Block(BlockNumber(8))).unwrap().has_one_user());
    }

    proptest! {
        /// Every added range is live. Nothing else is, unless there were too many ranges. Each live range is found
        /// again.
        #[test]
        fn every_marked_range_is_live(ranges in prop::collection::vec((0u32..500, 1u32..20), 1..40)) {
            let content: Vec<u8> = (0..520u32).map(|at| (at / 256) as u8 ^ at as u8).collect();
            let mut marked = Marked::default();
            let mut named = vec![false; content.len()];
            for (start, length) in &ranges {
                marked.add(*start..start + length, 1, false);
                named[*start as usize..(start + length) as usize].fill(true);
            }
            prop_assert_eq!(marked.names, ranges.len() as u32);
            prop_assert!(marked.live.count() <= RANGES_MAX);
            prop_assert!(marked.live.iter().is_sorted_by(|one, next| one.end < next.start));
            let count = named.iter().filter(|is| **is).count() as u64;
            prop_assert!(marked.live_bytes() >= count);
            prop_assert!(ranges.len() > RANGES_MAX || marked.live_bytes() == count);
            prop_assert_eq!(marked.end(), named.iter().rposition(|is| *is).unwrap() as u64 + 1);
            let kept = marked.of_content(&content);
            for (start, length) in &ranges {
                let place = marked.place_of(&(*start..start + length)).unwrap() as usize;
                let length = *length as usize;
                prop_assert_eq!(&kept[place..place + length], &content[*start as usize..*start as usize + length]);
            }
            prop_assert_eq!(marked.place_of(&(519..521)), None);
        }
    }
}
