//! The plan of a repair: the survey records here what a repair has to do.

use super::GivenUp;
use super::packed::Rebuilt;
use crate::mount::Tables;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// What a repair has to do.
#[derive(Default)]
pub(super) struct RepairPlan {
    /// The tables as they must have been.
    pub(super) tables: Option<Tables>,
    /// Segments that hold blocks or entries, and are not marked.
    pub(super) unmarked: Vec<u64>,
    /// True if the journal holds words that no operation stores, so that it must be cleared.
    pub(super) clears_journal: bool,
    /// Inodes that cannot be kept: slot and reason.
    pub(super) condemned: BTreeMap<u64, (Option<u64>, String)>,
    /// Paths of these inodes, if names lead to them.
    pub(super) paths: BTreeMap<u64, PathBuf>,
    /// Slots of inodes that belong to a snapshot by their place and not by their flag, or the other way round, with the
    /// flags that they must have.
    pub(super) flags: BTreeMap<u64, u16>,
    /// Blocks whose chunk entries are wrong.
    pub(super) entries: BTreeSet<u64>,
    /// TX_ID generators that are behind, and their corrected next sequences.
    pub(super) generators: BTreeMap<u64, u64>,
    /// Offsets of entries of packed chunks whose fingerprints do not match the bytes.
    pub(super) packed_fingerprints: BTreeSet<u64>,
    /// Offsets of entries of packed chunks whose compressed content cannot be read.
    pub(super) packed_lost: BTreeSet<u64>,
    /// Entries of packed chunks that are rebuilt from headers.
    pub(super) rebuilt: Vec<Rebuilt>,
}

impl RepairPlan {
    /// Records an inode that cannot be kept; the first reason counts.
    pub(super) fn condemn(&mut self, ino: u64, slot: Option<u64>, why: impl Into<String>) {
        self.condemned.entry(ino).or_insert_with(|| (slot, why.into()));
    }

    /// Returns the inodes that cannot be kept, for the report.
    pub(super) fn given_up(&self) -> Vec<GivenUp> {
        let told = |(ino, (_, why)): (&u64, &(Option<u64>, String))| GivenUp {
            ino: *ino,
            path: self.paths.get(ino).cloned(),
            why: why.clone(),
        };
        self.condemned.iter().map(told).collect()
    }
}
