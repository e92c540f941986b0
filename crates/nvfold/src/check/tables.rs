//! Invariant 0 of the tables: superblocks, segment table, TX_ID generators.
//!
//! Each is small and read at once. What a crash can leave of one is a trace, anything else a finding.

use super::Survey;
use crate::media::generator::{GENERATORS, Generator};
use crate::media::segment::SegmentUse;
use crate::media::superblock::{COPIES, Superblock};

impl Survey<'_> {
    pub(super) fn superblocks(&mut self) {
        let copies = COPIES.map(|offset| self.region.read::<Superblock>(offset));
        if self.note_bad("superblock") {
            return;
        }
        for (offset, copy) in COPIES.into_iter().zip(&copies) {
            if let Err(refusal) = copy.verify() {
                self.find(0, format!("this copy of the superblock cannot be used: {refusal:?}"), offset);
                return;
            }
        }
        if copies[0].check != copies[1].check {
            // The second copy is written after the first: a crash in between leaves them apart.
            self.trace(0, "the copies of the superblock differ".into(), COPIES[1]);
        }
    }

    pub(super) fn segment_table(&mut self, uses: &[(u64, SegmentUse)]) {
        for (segment, _) in uses.iter().filter(|(_, usage)| *usage == SegmentUse::Torn) {
            let segment = *segment;
            let at = self.geometry.segment_entry_offset(segment);
            self.trace(0, format!("segment {segment}: half an entry"), at);
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
            self.generators[number as usize] = generator.next.max(1);
        }
    }
}
