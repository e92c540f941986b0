//! What fsck is asked for and what it says.
//!
//! The problem: a damaged device may have a finding for every block, and a report must fit into memory. The idea: the
//! list has room for [`FINDINGS_MAX`], in the order they were met; the others are only counted, and a report that
//! counts any is never consistent.

use std::path::PathBuf;

/// Findings that a report lists; more are only counted.
pub(super) const FINDINGS_MAX: usize = 10_000;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Repair. What cannot be read is given up; see [`super::check_and_keep`].
    pub repair: bool,
    /// Also read all data: hash every fingerprinted block and compare, and find bad memory.
    pub data: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions { repair: false, data: true }
    }
}

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Finding {
    /// Number of the invariant, 0 for the format.
    pub invariant: u8,
    /// What is wrong.
    pub what: String,
    /// Device offset in bytes.
    pub at: u64,
    /// It was repaired.
    pub repaired: bool,
}

/// An inode that a repair gives up: it cannot be read, or claims what is another's. Its names go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Its number.
    pub ino: u64,
    /// Where it is, if a name leads to it.
    pub path: Option<PathBuf>,
    /// Why.
    pub why: String,
}

/// An inode that had lost its name and has one in `lost+found`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its number.
    pub ino: u64,
    /// Where it is now.
    pub path: String,
}

/// What was looked at, and what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What is not as it must be, in the order it was met, 10,000 at most.
    pub findings: Vec<Finding>,
    /// Findings that the list had no room for.
    pub findings_unlisted: u64,
    /// The device was unmounted in order.
    pub clean: bool,
    /// On a device that was not: traces of the crash that the next mount (or repair) removes.
    pub recoverable: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Of them directories.
    pub directories: u64,
    /// Names in directories.
    pub names: u64,
    /// Extents.
    pub extents: u64,
    /// Bytes that extents name.
    pub mapped_bytes: u64,
    /// Data blocks that extents name.
    pub blocks: u64,
    /// Bytes of packed chunks in use.
    pub packed_bytes: u64,
    /// Bytes that sharing packed chunks saves.
    pub packed_saved_bytes: u64,
    /// Bytes that compressing packed chunks saves, each chunk once.
    pub compressed_away_bytes: u64,
    /// Segments of packed chunks, and of their entries.
    pub packed_segments: u64,
    /// Extents that name a block which another one names too: what sharing saves, in blocks.
    pub extra_references: u64,
    /// Chunk entries in use.
    pub chunks: u64,
    /// Log pages and xattr blocks.
    pub metadata_blocks: u64,
    /// Slots of the inode table that are log areas.
    pub log_areas: u64,
    /// Lines of all logs, dead ones included.
    pub log_lines: u64,
    /// What a repair would give up; after a repair, what it gave up.
    pub given_up: Vec<GivenUp>,
    /// What a repair has moved to `lost+found`.
    pub moved: Vec<Moved>,
}

impl Report {
    /// Whether nothing is left to repair.
    pub fn is_consistent(&self) -> bool {
        self.findings_unlisted == 0 && self.findings.iter().all(|finding| finding.repaired)
    }
}
