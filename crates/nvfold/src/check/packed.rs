//! Packed chunks: compares their entries with the extents that reference them, and with one another.
//!
//! The problem: the address and the length of a packed chunk are only in its entry, so a damaged entry loses data of
//! every file that references it.
//!
//! The idea: the header of the chunk repeats the information. A lost entry is rebuilt from a header that can be
//! trusted: it has the right chunk number, is long enough, and does not overlap a live chunk. A chunk that was moved
//! has a header in each place. If there are several, all of them must lead to the same bytes.
//!
//! ```text
//! references   entry                     judged
//! 0            empty                     free
//! 0            counts                    trace 2: a leak
//! n            empty, or damaged         finding 1, or 0: made again from its header, or the files are given up
//! n            counts n                  exact; less: finding 1; more, or updates under way: trace 2
//! ```

use super::Survey;
use super::blocks::{counted, fingerprints_fit, has_fingerprint, may_be_unfinished};
use super::packed_survey::PackedUse;
use crate::chunk::content::content_of;
use crate::chunk::entries::ENTRIES_PER_SEGMENT;
use crate::chunk::packed::WORDS_PER_PART;
use crate::compression::FrameError;
use crate::media::chunk_entry::{CLASS_LOST, ChunkEntry};
use crate::media::packed::{PackedBytes, PackedHeader, header_offset};
use crate::media::segment::SegmentUse;
use crate::media::{ChunkRef, PackedNumber, SEGMENT_BYTES};
use crate::mount::Tables;
use crate::space::packed::headers;
use hashbrown::HashMap;
use std::ops::Range;
use zerocopy::IntoBytes;

/// An entry that a repair rebuilds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rebuilt {
    pub(super) entry_offset: u64,
    pub(super) address: u64,
    pub(super) bytes: PackedBytes,
    pub(super) references: u32,
}

impl Survey<'_> {
    /// Records the packed segments and those with packed entries: they hold nothing else.
    pub(super) fn packed_segments(&mut self, tables: &Tables) {
        for (segment, usage) in &tables.uses {
            match usage {
                // The part is valid and claimed once; otherwise the tables were found by the content of the segments.
                SegmentUse::Entries(part) => self.packed.entries.set_part(*part, Some(*segment)),
                SegmentUse::Packed => {
                    self.packed.segments.insert(*segment, tables.entry(*segment).map_or(0, |entry| entry.wear));
                    self.packed.live.insert(*segment, 0);
                }
                _ => continue,
            }
            self.report.packed_segments += 1;
            self.tables.insert(*segment);
        }
    }

    /// Checks all entries of packed chunks, and reports the chunks that have none.
    pub(super) fn check_packed(&mut self, data: bool) {
        let parts = (0..self.packed.entries.parts_max()).take_while(|part| self.packed.entries.part(*part).is_some());
        let parts = parts.count() as u32;
        if data {
            self.scrub_packed();
        }
        let mut entries = vec![ChunkEntry::default(); 512];
        for part in 0..parts {
            self.packed.used_words.extend([0; WORDS_PER_PART]);
            for at in (0..ENTRIES_PER_SEGMENT).step_by(entries.len()) {
                let first = PackedNumber(part * ENTRIES_PER_SEGMENT + at);
                self.region.scan_into(self.packed.entries.offset(first.into()), entries.as_mut_bytes());
                let has_bad = self.region.check().is_err();
                for (number, entry) in (first.0..).map(PackedNumber).zip(&entries) {
                    // Most entries of a part are free, so the map is not consulted after its last chunk was met.
                    let named = &mut self.packed.named;
                    let named = if named.is_empty() { None } else { named.remove(&number) };
                    let is_used = named.is_some() || !entry.is_empty() || has_bad;
                    if is_used && (!has_bad || !self.is_bad_packed_entry(number)) {
                        self.check_packed_entry(number, entry, named, data);
                    }
                }
            }
        }
        let mut without: Vec<(PackedNumber, PackedUse)> = self.packed.named.drain().collect();
        without.sort_unstable_by_key(|(number, _)| *number);
        for (number, named) in without {
            let what =
                format!("packed chunk {} is referenced by {} extents, and has no entry", number.0, named.references);
            self.find(1, what, self.packed.entries.packed_offset(number).unwrap_or(0));
            self.packed.contested.insert(number);
        }
        self.find_rebuildable_entries();
    }

    fn check_packed_entry(&mut self, number: PackedNumber, entry: &ChunkEntry, named: Option<PackedUse>, data: bool) {
        let at = self.packed.entries.offset(number.into());
        let PackedUse { references, bytes } = named.unwrap_or_default();
        if entry.is_empty() {
            if let Some(named) = named {
                let what = format!("packed chunk {} is referenced by {references} extents and not counted", number.0);
                self.find(1, what, at);
                self.packed.lost.push((number, named));
            }
            return;
        }
        let is_in_place = self.is_packed_place(number, entry);
        if references == 0 {
            // A crash may leave any words of a new entry; the others are those of an earlier chunk.
            return self.trace(2, format!("packed chunk {} is free and its entry is not", number.0), at);
        }
        if !is_in_place || entry.content_bytes() < bytes || data && self.is_of_another_header(number, entry) {
            self.find(0, format!("packed chunk {}: its entry is damaged", number.0), at);
            self.packed.lost.extend(named.map(|named| (number, named)));
            return;
        }
        self.takes(number, entry);
        self.note_transaction(entry);
        if !(data && has_fingerprint(entry)) {
            self.report.uncompared_bytes += entry.content_bytes();
        }
        self.report.chunks += 1;
        let told = || format!("packed chunk {} is referenced by {references} extents and {}", number.0, counted(entry));
        if entry.taken() < u64::from(references) || self.is_unfinished(entry) && !may_be_unfinished(entry, references) {
            self.find(1, told(), at);
        } else if entry.count != references || entry.update_count != 0 {
            self.trace(2, told(), at);
        } else if self.is_unfinished(entry) {
            self.trace(1, format!("packed chunk {}: the transaction that counted it last did not end", number.0), at);
        } else if data && !self.is_bad_packed_data(entry) {
            self.check_packed_content(number, entry, at);
        }
    }

    /// Returns true if the content of a compressed chunk cannot be decompressed, and the headers of the segment give
    /// the chunk another place or length: then the entry is damaged, not the content.
    fn is_of_another_header(&self, number: PackedNumber, entry: &ChunkEntry) -> bool {
        let is_readable = || content_of(self.region, entry) != Err(FrameError::Damaged);
        if !entry.packed_bytes().is_compressed() || self.is_bad_packed_data(entry) || is_readable() {
            return false;
        }
        let segment = entry.address() / SEGMENT_BYTES;
        let opened = self.packed.segments.get(&segment).copied().unwrap_or_default();
        let says = |header: PackedHeader| (segment * SEGMENT_BYTES + u64::from(header.offset), header.bytes());
        let of_chunk = headers(self.region, segment, opened).filter(|(_, header)| header.chunk == number.0);
        let said: Vec<(u64, PackedBytes)> = of_chunk.map(|(_, header)| says(header)).collect();
        !said.is_empty() && !said.contains(&(entry.address(), entry.packed_bytes()))
    }

    /// Checks the content of a packed chunk whose entry is exact; the offset of the entry is `at`.
    fn check_packed_content(&mut self, number: PackedNumber, entry: &ChunkEntry, at: u64) {
        let is_checked = has_fingerprint(entry) || entry.packed_bytes().is_compressed();
        if !is_checked || entry.class() == CLASS_LOST {
            return;
        }
        match content_of(self.region, entry) {
            Ok(content) if fingerprints_fit(entry, &content, &self.domains) => {}
            Ok(_) => {
                let what = format!("packed chunk {}: its bytes do not match its fingerprint", number.0);
                self.find(5, what, entry.address());
                self.plan.packed_fingerprints.insert(at);
                self.packed.doubtful.insert(number);
            }
            Err(error) => {
                self.find(5, format!("packed chunk {}: {error}", number.0), entry.address());
                self.plan.packed_lost.insert(at);
                self.packed.doubtful.insert(number);
            }
        }
    }

    /// Returns the range of the media that holds a part of a packed chunk, if its entry is valid; the whole range of
    /// a compressed chunk.
    pub(super) fn packed_part(&self, chunk: PackedNumber, offset: u64, length: u64) -> Option<Range<u64>> {
        let entry: ChunkEntry = self.region.read(self.packed.entries.packed_offset(chunk)?);
        let is_there = self.is_packed_place(chunk, &entry) && offset + length <= entry.content_bytes();
        let (start, length) = match entry.packed_bytes().is_compressed() {
            true => (entry.address(), entry.stored_bytes()),
            false => (entry.address() + offset, length),
        };
        is_there.then(|| start..start + length)
    }

    /// Reads the packed segments, only to find bad memory in them.
    fn scrub_packed(&self) {
        for segment in self.packed.segments.keys() {
            // Reading a hole would make the host allocate it.
            for range in self.region.allocated_ranges(segment * SEGMENT_BYTES, SEGMENT_BYTES) {
                // `name_bad_files` reports the files that lose data.
                let _ = self.region.scrub(range.start, range.end - range.start);
            }
        }
    }

    /// Returns the range of the readable headers of a packed segment; `None` for another segment.
    pub(super) fn headers_of(&self, segment: u64) -> Option<Range<u64>> {
        let opened = *self.packed.segments.get(&segment)?;
        let end = (segment + 1) * SEGMENT_BYTES;
        let whole = headers(self.region, segment, opened).map(|(nth, _)| nth).last();
        let _ = self.region.check();
        let first = whole.map_or(end, |nth| segment * SEGMENT_BYTES + header_offset(nth));
        Some(first..end)
    }

    /// Records an entry in use, for the comparison with the saved state; reports two chunks that overlap.
    fn takes(&mut self, number: PackedNumber, entry: &ChunkEntry) {
        let chunk = ChunkRef::Packed(number);
        self.packed.used_words[number.0 as usize / 64] |= 1 << (number.0 % 64);
        *self.packed.live.entry(entry.address() / SEGMENT_BYTES).or_default() += entry.stored_bytes();
        let saved = u64::from(entry.count.saturating_sub(1)) * entry.content_bytes();
        self.packed.saved_bytes += saved;
        self.packed.compressed_away_bytes += entry.packed_bytes().saved();
        self.report.compressed_away_bytes += entry.packed_bytes().saved();
        self.report.packed_bytes += entry.stored_bytes();
        self.space.indexes(chunk, entry);
        self.chains.enters(chunk, entry);
        let range = entry.address()..entry.address() + entry.stored_bytes();
        if let Some(other) = self.packed.taken.insert(range, number) {
            let what = format!("packed chunks {} and {} have bytes in common", other.0, number.0);
            self.find(4, what, entry.address());
            self.packed.contested.extend([other, number]);
        }
    }

    /// Returns true if an entry places its chunk in a packed segment.
    fn is_packed_place(&self, number: PackedNumber, entry: &ChunkEntry) -> bool {
        let holds = |at, bytes| self.geometry.holds_data(at, bytes);
        let is_place = !entry.is_empty() && entry.check(number.into(), holds).is_ok();
        is_place && self.packed.segments.contains_key(&(entry.address() / SEGMENT_BYTES))
    }

    /// Finds the lost entries that can be rebuilt from headers.
    fn find_rebuildable_entries(&mut self) {
        let lost = std::mem::take(&mut self.packed.lost);
        if lost.is_empty() {
            return;
        }
        let mut found: HashMap<PackedNumber, Vec<(u64, PackedBytes)>> = HashMap::new();
        for (segment, opened) in &self.packed.segments {
            for (_, header) in headers(self.region, *segment, *opened) {
                let place = (segment * SEGMENT_BYTES + u64::from(header.offset), header.bytes());
                found.entry(PackedNumber(header.chunk)).or_default().push(place);
            }
        }
        let _ = self.region.check();
        for (number, named) in lost {
            let is_free = |(at, bytes): &&(u64, PackedBytes)| !self.packed.taken.overlaps(*at..*at + bytes.stored);
            let fits = |(_, bytes): &&(u64, PackedBytes)| bytes.content >= named.bytes && bytes.is_sound();
            let places = found.get(&number).into_iter().flatten().filter(fits).filter(is_free);
            match self.place_of_lost(&places.copied().collect::<Vec<_>>()) {
                Some((address, bytes)) => self.plan.rebuilt.push(Rebuilt {
                    entry_offset: self.packed.entries.offset(number.into()),
                    address,
                    bytes,
                    references: named.references,
                }),
                None => _ = self.packed.contested.insert(number),
            }
        }
    }

    /// Returns the place of a lost chunk, of all places that headers give for it: any of them, if all hold the same
    /// bytes. A chunk that was moved is still whole in its old segment until that is overwritten, and files read the
    /// same from both. If the bytes differ, one place is of an earlier chunk with the same number, and nothing tells
    /// which.
    fn place_of_lost(&self, places: &[(u64, PackedBytes)]) -> Option<(u64, PackedBytes)> {
        // A chunk moves to a segment that is being filled. Choosing the other place would keep a segment in use that
        // was being emptied.
        let live = |(address, _): &(u64, PackedBytes)| self.packed.live.get(&(address / SEGMENT_BYTES));
        let (address, bytes) = places.iter().copied().max_by_key(live)?;
        if places.len() > 1 {
            let stored = self.region.to_vec(address, bytes.stored);
            let is_same = |(at, of): &(u64, PackedBytes)| *of == bytes && self.region.equal(*at, &stored);
            let are_same = places.iter().all(is_same);
            // Bytes in bad memory compare as different.
            if self.region.check().is_err() || !are_same {
                return None;
            }
        }
        Some((address, bytes))
    }
}
