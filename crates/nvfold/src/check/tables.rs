//! Invariant 0 of the tables: superblocks, segment table, TX_ID generators.
//!
//! Each table is small and read at once. A state that a crash can leave is a trace; any other deviation is a finding.

use super::Survey;
use crate::inode::table::{TablePart, exact_parts};
use crate::media::generator::{GENERATORS, Generator};
use crate::media::segment::SegmentUse;
use crate::media::superblock::{Superblock, TABLE_GAPS};
use crate::mount::Tables;

impl Survey<'_> {
    /// Checks the copies of the superblock against `superblock`, the copy in use.
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
            // The copies are written one after the other, so a crash between two writes leaves them different.
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
        match tables.damage {
            Some(damage) => self.find(0, format!("segment table: {damage}"), self.geometry.segment_table_offset),
            None => self.absent_parts(&tables.inodes),
        }
    }

    /// Checks that each part of the inode table says how many parts directly before it are absent. A crash may leave a
    /// part there that is said to be absent.
    fn absent_parts(&mut self, parts: &[Option<TablePart>]) {
        for (ordinal, exact) in exact_parts(parts) {
            let told = parts[ordinal as usize].map_or(0, |part| part.absent_before);
            if told != exact.absent_before {
                let TablePart { segment, absent_before } = exact;
                let what = format!("segment {segment}: it counts {told} absent parts of the inode table before it");
                let at = self.geometry.segment_entry_offset(segment);
                self.trace(0, format!("{what}, and {absent_before} are absent"), at);
            }
        }
        if self.superblock_features & TABLE_GAPS == 0 && parts.iter().any(Option::is_none) {
            let what =
                "parts of the inode table are absent, and the superblock does not have the feature flag for that";
            self.find(0, what.into(), self.geometry.segment_table_offset);
        }
    }

    /// Checks the TX_ID generators: each line holds a sequence and otherwise zeros.
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

    /// Checks that no entry has a sequence that its generator has not given out.
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
