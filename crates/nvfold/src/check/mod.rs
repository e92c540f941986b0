//! fsck: the numbered invariants of the design as code, on an unmounted device.
//!
//! The problem: a file system that says "consistent by construction" must be able to show it, and to say where
//! it is not. The idea: count everything anew from the inode logs - in one pass over the inode table - and hold
//! the tables against it. Nothing is written unless repair is asked for, and then only what follows from the
//! logs without a guess: recovery does most of it, for it rebuilds the same truth.
//!
//! | number | invariant | what is looked at |
//! |---|---|---|
//! | 0 | the format | superblocks, segment table, inode slots, log entries, names |
//! | 1 | a count is never lower than the extents that touch the block | chunk table |
//! | 2 | counts are exact, nothing leaks or is forgotten | chunk table, nameless inodes, link counts, work queue |
//! | 3 | an operation happened wholly or not at all | journal, names and the inodes they lead to |
//! | 4 | no block is used for two things, none that is in use is free | log pages, xattr blocks, data, marks, saved state |
//! | 5 | shared bytes are never written | weak fingerprints against the bytes, reserved blocks |
//! | 6 | chains of the pm index lead to every entry, once | direct area, neighbours in the chunk table |
//!
//! Memory that cannot be read is a finding too, with the files that it takes from: `check/bad.rs`.
//! Invariant 7 (fsck finds nothing after recovery) belongs to the tests.
//! On a device that was not unmounted, what recovery is there to mend is counted as `recoverable`, not found.
//!
//! A `Survey` is what one look at the device found; `survey` is its order. Each step has a file:
//!
//! | file | step | invariants |
//! |---|---|---|
//! | `tables.rs` | superblocks, TX_ID generators, segment table | 0 |
//! | `inodes.rs` | the pass over the inode table; what it writes down is judged by the steps below it | 0, 2, 3, 4 |
//! | `names.rs` | names, link counts, parents | 2, 3 |
//! | `blocks.rs` | chunk entries against extents, fingerprints against bytes | 1, 2, 4, 5 |
//! | `index.rs` | chains of the pm index | 6 |
//! | `space.rs` | marks of segments, saved state | 2, 4 |
//! | `bad.rs` | files that bad memory takes from | 0, 1 |
//! | `repair.rs` | what is written when repair is asked for | |

mod bad;
mod blocks;
mod index;
mod inodes;
mod names;
mod repair;
mod report;
mod space;
mod tables;

pub use report::{CheckOptions, Finding, Report};

use crate::error::Result;
use crate::inode::table::{read_uses, table_segments};
use crate::media::SEGMENT_BLOCKS;
use crate::media::generator::GENERATORS;
use crate::media::superblock::{Geometry, STATE_CLEAN};
use crate::mount;
use crate::words::{FileKind, InodeNumber};
use hashbrown::{HashMap, HashSet};
use pmem::Region;
use repair::repair;
use report::FINDINGS_MAX;

const ROOT: u64 = InodeNumber::ROOT.0;
/// Bit of a block's references: an extent reserves all of it, so its bytes mean nothing.
const RESERVED: u32 = 1 << 31;

/// Checks a device, and repairs it if asked to.
///
/// # Errors
/// When the device holds no nvfold file system of this version, or cannot be read at all. Damage is no error but a
/// finding.
pub fn check(region: &Region, options: &CheckOptions) -> Result<Report> {
    let (before, unmarked) = survey(region, options)?;
    if !options.repair || region.is_read_only() || (before.clean && before.findings.is_empty()) {
        return Ok(before);
    }
    repair(region, &unmarked)?;
    let (after, _) = survey(region, options)?;
    let left: HashSet<(String, u64)> =
        after.findings.iter().map(|finding| (finding.what.clone(), finding.at)).collect();
    let mut findings = after.findings.clone();
    findings.extend(
        before
            .findings
            .into_iter()
            .filter(|finding| !left.contains(&(finding.what.clone(), finding.at)))
            .map(|finding| Finding { repaired: true, ..finding }),
    );
    Ok(Report { findings, clean: before.clean, ..after })
}

/// A name as a directory has it.
struct Name {
    directory: u64,
    kind: FileKind,
    at: u64,
}

/// What the checks of names need to know of an inode.
struct Facts {
    slot: u64,
    kind: FileKind,
    nlink: u32,
    parent: u64,
    /// Names in it.
    names: usize,
}

struct Survey<'r> {
    region: &'r Region,
    geometry: Geometry,
    report: Report,
    /// Extents that touch each block, for segments that have any; with [`RESERVED`].
    references: HashMap<u64, Box<[u32; SEGMENT_BLOCKS as usize]>>,
    /// Blocks of logs and xattr values, with the inode they belong to.
    metadata: HashMap<u64, u64>,
    names: HashMap<u64, Vec<Name>>,
    inodes: HashMap<u64, Facts>,
    /// Inodes that could not be read: number, slot, why.
    unreadable: Vec<(u64, u64, String)>,
    /// Segments of the inode table.
    tables: HashSet<u64>,
    /// What an unmount would have saved of this device.
    space: space::Expected,
    /// What the TX_ID generators give next.
    generators: [u64; GENERATORS as usize],
    /// Bad memory, and what it takes.
    bad: bad::Bad,
    /// The pm index.
    chains: index::Chains,
}

/// Looks at everything. Also the segments that hold something and are not marked.
fn survey(region: &Region, options: &CheckOptions) -> Result<(Report, Vec<u64>)> {
    let (superblock, geometry) = mount::read_superblock(region)?;
    let mut survey = Survey {
        region,
        geometry,
        report: Report { clean: superblock.state == STATE_CLEAN, ..Report::default() },
        references: HashMap::new(),
        metadata: HashMap::new(),
        names: HashMap::new(),
        inodes: HashMap::new(),
        unreadable: Vec::new(),
        tables: HashSet::new(),
        space: space::Expected::default(),
        generators: [1; GENERATORS as usize],
        bad: bad::Bad::default(),
        chains: index::Chains::default(),
    };
    survey.superblocks();
    survey.generators();
    let uses = read_uses(region, &geometry);
    survey.segment_table(&uses);
    let segments = table_segments(&geometry, &uses);
    survey.note_bad("segment table");
    let segments = match segments {
        Ok(segments) => segments,
        Err(error) => {
            survey.find(0, error.to_string(), geometry.segment_table_offset);
            return Ok((survey.report, Vec::new()));
        }
    };
    let stores = mount::journal_stores(region, &geometry, &segments);
    survey.note_bad("journal");
    let stores = match stores {
        Ok(stores) => stores,
        Err(error) => {
            survey.find(3, error.to_string(), geometry.journal_offset);
            Vec::new()
        }
    };
    if !stores.is_empty() {
        survey.trace(3, "the journal holds an operation that was not finished".into(), geometry.journal_offset);
    }
    survey.tables.extend(&segments);
    if !survey.index_segments(&superblock, &uses) {
        return Ok((survey.report, Vec::new()));
    }
    survey.inodes(&segments, &stores);
    survey.check_names();
    survey.check_blocks(options.data);
    survey.check_chains();
    let unmarked = survey.check_marks();
    survey.check_saved_state(&superblock);
    survey.name_bad_files();
    Ok((survey.report, unmarked))
}

impl Survey<'_> {
    fn find(&mut self, invariant: u8, what: String, at: u64) {
        if self.report.findings.len() == FINDINGS_MAX {
            self.report.findings_unlisted += 1;
        } else {
            self.report.findings.push(Finding { invariant, what, at, repaired: false });
        }
    }

    /// Something that a crash may leave behind and recovery removes: a finding only on a clean device.
    fn trace(&mut self, invariant: u8, what: String, at: u64) {
        if self.report.clean {
            self.find(invariant, what, at);
        } else {
            self.report.recoverable += 1;
        }
    }
}
