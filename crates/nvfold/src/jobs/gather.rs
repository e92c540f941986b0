//! Gathering: what one file alone maps of some chunks is written anew, in the order of that file.
//!
//! The problem: after copies through memory ([`crate::dedup::origins`]) a file may consist of many short parts of blocks,
//! each elsewhere. Once the files that these blocks came from are gone, nobody shares them any more, but each part
//! is still an extent of its own: it costs metadata, and reading it costs a look-up and lines far from each other.
//! LevelDB's tables with values of 128 bytes took six times as long to read as whole files.
//!
//! The idea: a chunk is gathered if one file alone maps it, in four or more short parts most of which follow another
//! part, or in any parts if enough of it is dead. Its bytes go to a new packed chunk, together with those of the parts
//! that follow in the file. So neighbours become one extent, and the old chunk is free after its last part.
//!
//! It is one pass of a collection ([`super::collect`]), and as safe as that: it holds no reference between steps, and
//! each step is one commit. A chunk that somebody has shared since it was marked stays.

use super::Jobs;
use super::marks::{Marked, Marks, Way};
use super::parts::{Ended, NamedPart, saves_enough};
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::inode::extents::{Extent, Extents};
use crate::inode::{Inode, State};
use crate::media::chunk_entry::CLASS_UNKNOWN;
use crate::media::packed::PackedBytes;
use crate::media::{ChunkRef, Location, PACKED_BYTES_MAX};
use crate::space::packed::Pool;
use crate::store::claims::Claims;
use crate::store::packed::ToPack;
use crate::store::placer::Placer;
use crate::store::remap::{Mapped, Remap, Stamp};
use std::ops::Range;

/// A chunk of which nothing is dead is gathered if a file maps it in so many parts or more.
const PARTS_MIN: u32 = 4;

/// And if these are shorter on average, in bytes.
const SHORT_BYTES: u64 = 1024;

/// A new chunk of this length takes no more parts, in bytes.
const GATHERED_BYTES: u64 = 32 << 10;

/// The parts that one new chunk takes.
#[derive(Default)]
struct Gathered {
    parts: Vec<NamedPart>,
    bytes: u64,
}

impl Jobs<'_> {
    /// True if a chunk is to be written anew for the only file that maps it.
    pub(super) fn is_worth_gathering(&self, chunk: ChunkRef, marked: &Marked) -> bool {
        let Some(PackedBytes { stored, content }) = self.bytes_of(chunk) else { return false };
        if !marked.has_one_user() || marked.mapped_bytes > content || self.chunks.count(chunk) != marked.names {
            return false;
        }
        let needed = (marked.mapped_bytes * stored).div_ceil(content);
        let is_short = marked.mapped_bytes < SHORT_BYTES * u64::from(marked.names);
        let follow = marked.following * 2 >= marked.names;
        let is_scattered = marked.names >= PARTS_MIN && is_short && follow;
        is_scattered || saves_enough(stored, needed, 1)
    }

    /// Gathers the next parts of a file, from the offset `from` on.
    pub(super) fn gather_file(&self, inode: &Inode, from: u64, most: usize, marks: &mut Marks) -> Result<Ended> {
        let mut state = inode.write()?;
        let Some(extents) = state.extents() else { return Ok(Ended::default()) };
        let (gathered, mut ended) = self.parts_to_gather(extents, from, most, marks);
        if !gathered.parts.is_empty() {
            ended.changed = true;
            ended.saved_bytes = self.gather(inode, &mut state, &gathered, marks)?;
        }
        Ok(ended)
    }

    fn parts_to_gather(&self, extents: &Extents, from: u64, most: usize, marks: &Marks) -> (Gathered, Ended) {
        let (mut gathered, mut ended) = (Gathered::default(), Ended::default());
        for (offset, extent) in extents.within(from, u64::MAX) {
            let mut parts = self.parts_of(offset, &extent);
            parts.retain(|named| self.is_gathered(named, marks));
            let bytes: u64 = parts.iter().map(|named| named.end() - named.offset).sum();
            let is_full = gathered.bytes >= GATHERED_BYTES || gathered.bytes + bytes > PACKED_BYTES_MAX;
            if ended.looks >= most || is_full {
                ended.next = Some(offset);
                break;
            }
            ended.looks += 1;
            gathered.bytes += bytes;
            gathered.parts.extend(parts);
        }
        (gathered, ended)
    }

    /// True if this part belongs to a chunk that was chosen, and nobody has begun to share the chunk since.
    fn is_gathered(&self, NamedPart { part, .. }: &NamedPart, marks: &Marks) -> bool {
        let marked = marks.to_treat(part.chunk, Way::Gather);
        marked.is_some_and(|marked| self.chunks.count(part.chunk) <= marked.names)
    }

    /// Copies these parts of a file to a new chunk, one behind the other, and makes the file map them there. Returns the
    /// saved bytes of each chunk of which these were the last parts.
    fn gather(&self, inode: &Inode, state: &mut State, gathered: &Gathered, marks: &mut Marks) -> Result<Vec<u64>> {
        let ranges: Vec<_> = gathered.parts.iter().map(|part| part.offset..part.end()).collect();
        let mut content = vec![0; gathered.bytes as usize];
        let (extents, mut rest) = (self.file_extents(state, "collect")?, &mut content[..]);
        for range in &ranges {
            let (part, behind) = rest.split_at_mut((range.end - range.start) as usize);
            self.read_extents(extents, range.start, part)?;
            rest = behind;
        }
        self.region.check()?;
        let policy = Placer::of_no_file(self.policies.of(None));
        let mut claims = Claims::with_compression(self, policy, self.compression_for(inode));
        let (pool, class) = (Pool::ContentDefined, CLASS_UNKNOWN);
        let piece = ToPack { bytes: &content, pool, class, fingerprint: Fingerprint::default(), grows: false };
        let runs = ranges.chunk_by(|range, next| range.end == next.start);
        let runs: Vec<_> = runs.map(|run| run[0].start..run[run.len() - 1].end).collect();
        let to = Location::Packed(self.store_packed(&piece, runs.len() as u32, &mut claims)?, 0);
        let (mut mapped, mut at) = (Mapped::new(), 0);
        for Range { start, end } in runs {
            mapped.push((start, Extent { length: end - start, location: to.plus(at), unwritten: false }));
            at += end - start;
        }
        let remap = Remap { ranges: &ranges, mapped: &mapped, has_holes: false, stamp: Stamp::Kept };
        let stored_of = |named: &NamedPart| self.bytes_of(named.part.chunk).map_or(0, |bytes| bytes.stored);
        let stored: Vec<u64> = gathered.parts.iter().map(stored_of).collect();
        self.publish(inode, &mut *state, &remap, None, &mut claims)?;
        self.may_be_dead.forget(&ranges);
        let ended = gathered.parts.iter().zip(stored).filter_map(|(named, stored)| {
            marks.gathered(named.part.chunk).map(|marked| stored.saturating_sub(marked.mapped_bytes))
        });
        Ok(ended.collect())
    }
}
