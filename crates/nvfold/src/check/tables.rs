//! Invariant 0 of the tables: superblocks, segment table, TX_ID generators.
//!
//! Each is small and read at once. What a crash can leave of one is a trace, anything else a finding.

use super::Survey;
use crate::media::generator::{GENERATORS, Generator};
use crate::media::segment::SegmentUse;
use crate::media::superblock::Superblock;
use crate::mount::Tables;

impl Survey<'_> {
    /// `superblock`: the copy that counts.
    pub(super) fn superblocks(&mut self, superblock: &Superblock) {
        let mut differs = None;
        for offset in self.geometry.copies() {
            let copy = self.region.read::<Superblock>(offset);
            if self.note_bad("superblock") {
                continue;
            }
            if let Err(refusal) = copy.verify() {
                self.find(0, format!("this copy of the superblock cannot be used: {refusal}"), offset);
            } else if copy.check != superblock.check {
                differs = Some(offset);
            }
        }
        if let Some(offset) = differs {
            // They are written one after the other: a crash in between leaves them apart.
            self.trace(0, "the copies of the superblock differ".into(), offset);
        }
    }

    pub(super) fn segment_table(&mut self, tables: &Tables) {
        for (segment, entry) in
            tables.entries.iter().filter(|(segment, entry)| entry.usage(*segment) == SegmentUse::Torn)
        {
            let at = self.geometry.segment_entry_offset(*segment);
            match entry.is_half(*segment) {
                true => self.trace(0, format!("segment {segment}: a crash left half an entry"), at),
                false => self.find(0, format!("segment {segment}: its entry is damaged"), at),
            }
        }
        if let Some(damage) = tables.damage {
            self.find(0, format!("segment table: {damage}"), self.geometry.segment_table_offset);
        }
    }

    /// The TX_ID generators: one line each, a sequence and nothing else.
    pub(super) fn generators(&mut self) {
        for number in 0..GENERATORS {
            let at = self.geometry.generator_offset(number);
            let generator: Generator = self.region.read(at);
            if self.note_bad("TX_ID generator") {
                return;
            }
            if generator != generator.mended() {
                self.find(0, format!("TX_ID generator {number} is damaged"), at);
            }
            self.generators[number as usize] = generator.mended().next.max(1);
        }
    }

    /// No entry has a number that its generator has not given out.
    pub(super) fn check_generators(&mut self) {
        for number in 0..GENERATORS {
            let (next, latest) = (self.generators[number as usize], self.latest[number as usize]);
            if latest > next {
                let what = format!("TX_ID generator {number} gives {next} next, and an entry has number {latest}");
                self.find(0, what, self.geometry.generator_offset(number));
                self.plan.generators.insert(number, latest + 1);
            }
        }
    }
}
