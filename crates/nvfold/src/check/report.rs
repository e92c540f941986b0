//! The options and the report of fsck.
//!
//! The problem: a damaged device may have a finding for every block, and a report must fit into memory.
//!
//! The idea: the list holds [`FINDINGS_MAX`] findings, in the order they were met. Further findings are only counted,
//! and a report that counts any is never consistent.

use crate::words::Usage;
use std::path::PathBuf;

/// Most findings that a report lists; further ones are only counted.
pub(super) const FINDINGS_MAX: usize = 10_000;

/// What fsck should do.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Repair the device. Inodes that cannot be read are given up; see [`super::check_and_keep`].
    pub repair: bool,
    /// Also read all data: compare fingerprinted blocks with their fingerprints, and find bad memory.
    pub data: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions { repair: false, data: true }
    }
}

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Finding {
    /// Number of the invariant, 0 for the format.
    pub invariant: u8,
    /// What is wrong.
    pub what: String,
    /// Device offset in bytes.
    pub at: u64,
    /// True if it was repaired.
    pub repaired: bool,
}

/// An inode that a repair gives up, because it cannot be read or has a conflicting claim. Its names go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Number of the inode.
    pub ino: u64,
    /// Path of the inode, if a name leads to it.
    pub path: Option<PathBuf>,
    /// Reason for giving it up.
    pub why: String,
}

/// An inode that had lost its name and got one in `lost+found`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Number of the inode.
    pub ino: u64,
    /// Its new path.
    pub path: String,
}

/// The results of a check, with counts of what was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The findings, in the order they were met, at most 10,000.
    pub findings: Vec<Finding>,
    /// Number of findings that the list had no room for.
    pub findings_unlisted: u64,
    /// True if the device was cleanly unmounted.
    pub clean: bool,
    /// Number of traces of a crash that the next mount, or a repair, removes; 0 if `clean`.
    pub recoverable: u64,
    /// Number of directories of trees that were being made or removed: recovery frees them. 0 if `clean`.
    pub unfinished: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Names in directories.
    pub names: u64,
    /// Extents.
    pub extents: u64,
    /// Data blocks that extents reference.
    pub blocks: u64,
    /// Bytes of packed chunks in use.
    pub packed_bytes: u64,
    /// Bytes that compressing packed chunks saves; each chunk counts once.
    pub compressed_away_bytes: u64,
    /// Packed segments, and segments with packed entries.
    pub packed_segments: u64,
    /// What every stored byte is for. It adds up unless there are findings.
    pub usage: Usage,
    /// Chunk entries in use.
    pub chunks: u64,
    /// Bytes of file data whose content was not compared, because no fingerprint of it is stored, or because
    /// [`CheckOptions::data`] is off. Damage in them is no finding, unless it is memory that cannot be read.
    pub uncompared_bytes: u64,
    /// Log pages and xattr blocks.
    pub metadata_blocks: u64,
    /// Slots of the inode table that are log areas.
    pub log_areas: u64,
    /// Lines of all logs, including dead ones.
    pub log_lines: u64,
    /// What a repair would give up; after a repair, what it gave up.
    pub given_up: Vec<GivenUp>,
    /// What a repair has moved to `lost+found`.
    pub moved: Vec<Moved>,
}

impl CheckReport {
    /// Returns true if nothing is left to repair.
    pub fn is_consistent(&self) -> bool {
        self.findings_unlisted == 0 && self.findings.iter().all(|finding| finding.repaired)
    }
}
