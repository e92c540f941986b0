//! What a repair is to do: the survey writes it down where it finds what is wrong.

use super::GivenUp;
use super::packed::Rebuilt;
use crate::mount::Tables;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// See the module.
#[derive(Default)]
pub(super) struct Plan {
    /// The tables as they must have been.
    pub(super) tables: Option<Tables>,
    /// Segments that hold something and are not marked.
    pub(super) unmarked: Vec<u64>,
    /// The journal holds words that no operation stores.
    pub(super) clears_journal: bool,
    /// Inodes that cannot be kept: slot, and why.
    pub(super) condemned: BTreeMap<u64, (Option<u64>, String)>,
    /// Their paths, as far as names lead to them.
    pub(super) paths: BTreeMap<u64, PathBuf>,
    /// Blocks whose chunk entries say nothing that is true.
    pub(super) entries: BTreeSet<u64>,
    /// TX_ID generators that are behind, and what they have to give next.
    pub(super) generators: BTreeMap<u64, u64>,
    /// Where entries of packed chunks lie whose fingerprints are not those of their bytes.
    pub(super) packed_fingerprints: BTreeSet<u64>,
    /// Where entries of packed chunks lie whose compressed content cannot be read.
    pub(super) packed_lost: BTreeSet<u64>,
    /// Entries of packed chunks that are made again from headers.
    pub(super) rebuilt: Vec<Rebuilt>,
}

impl Plan {
    /// An inode cannot be kept; the first reason counts.
    pub(super) fn condemn(&mut self, ino: u64, slot: Option<u64>, why: impl Into<String>) {
        self.condemned.entry(ino).or_insert_with(|| (slot, why.into()));
    }

    /// What is told of the inodes that cannot be kept.
    pub(super) fn given_up(&self) -> Vec<GivenUp> {
        let told = |(ino, (_, why)): (&u64, &(Option<u64>, String))| GivenUp {
            ino: *ino,
            path: self.paths.get(ino).cloned(),
            why: why.clone(),
        };
        self.condemned.iter().map(told).collect()
    }
}
