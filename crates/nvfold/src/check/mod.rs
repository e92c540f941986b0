//! fsck: checks the numbered invariants of the design on an unmounted device.
//!
//! The problem: a file system that claims to be consistent by construction must be able to prove it, and to say where
//! it is not.
//!
//! The idea: recompute everything from the inode logs, in one pass over the inode table, and compare the tables with
//! the result. Nothing is written unless repair is requested. A repair trusts what can be read and gives up what
//! cannot; recovery does most of the work, because it rebuilds the same state. The report lists beforehand what a
//! repair would give up, and the repair keeps a copy of everything it overwrites.
//!
//! | number | invariant | what is checked |
//! |---|---|---|
//! | 0 | the format | superblocks, segment table, inode slots, log entries, names, targets of symlinks |
//! | 1 | a count is never lower than the extents that touch the block | chunk table |
//! | 2 | counts are exact, nothing leaks or is forgotten | chunk table, nameless inodes and log areas, links, queue |
//! | 3 | an operation happened completely or not at all | journal; each name is there once and leads to its inode; each directory has one name, and leads up to the root |
//! | 4 | no block has two uses, no used block is free | log areas and pages, xattr blocks, data, marks, saved state |
//! | 5 | shared bytes are never written | weak fingerprints against the bytes, reserved blocks |
//! | 6 | chains of the pm index lead to every entry, once | direct area, neighbours in the chunk table |
//!
//! Memory that cannot be read is a finding too, with the files that lose data by it: `check/bad_files.rs`. Invariant 7
//! (fsck finds nothing after recovery) belongs to the tests. On a device that was not unmounted, damage that recovery
//! repairs is counted as `recoverable`, not as a finding.
//!
//! A `Survey` holds the results of one check of the device; `survey` runs the steps one after the other. Each step has a file:
//!
//! | file | step | invariants |
//! |---|---|---|
//! | `tables.rs` | superblocks, TX_ID generators, segment table | 0 |
//! | `inodes.rs` | the pass over the inode table; later steps check what it records | 0, 2, 3, 4 |
//! | `names.rs` | names, link counts, parents | 2, 3 |
//! | `snapshots.rs` | inodes of snapshots | 3 |
//! | `limits.rs` | limits of trees, and what is charged to them | 0, 2, 3 |
//! | `blocks.rs` | chunk entries against extents, fingerprints against bytes | 1, 2, 4, 5 |
//! | `domains.rs` | in whose domain a weak fingerprint may be | 5 |
//! | `packed.rs`, `packed_survey.rs`, `range_map.rs` | packed chunks: entries against extents, and against one another | 0, 1, 2, 4, 5 |
//! | `index.rs` | chains of the pm index | 6 |
//! | `space.rs` | marks of segments, saved state | 2, 4 |
//! | `bad.rs` | bad memory | 0, 1 |
//! | `bad_files.rs`, `paths.rs` | files that lose data by it, or by damage; their paths | 0, 1, 4, 5 |
//! | `plan.rs` | what a repair has to do, as the steps above found it | |
//! | `repair.rs`, `lost_found.rs` | what a repair writes | |
//! | `undo.rs` | a copy of what a repair overwrites, and its restoration | |
//! | `report.rs` | the options and the report | |

mod bad;
mod bad_files;
mod blocks;
mod domains;
mod index;
mod inodes;
mod limits;
mod lost_found;
mod names;
mod packed;
mod packed_survey;
mod paths;
mod plan;
mod range_map;
mod repair;
mod report;
mod snapshots;
mod space;
mod tables;
mod undo;

pub use report::{CheckOptions, CheckReport, Finding, GivenUp, Moved};
pub use undo::{UndoFile, restore};

use crate::chunk::entries::Entries;
use crate::error::{Error, Result};
use crate::inode::coverage::Coverage;
use crate::media::SEGMENT_BLOCKS;
use crate::media::generator::GENERATORS;
use crate::media::log_area::AreaHead;
use crate::media::superblock::{Geometry, STATE_CLEAN, STATE_REPAIR};
use crate::mount;
use crate::mount::Tables;
use crate::words::{FileKind, InodeNumber};
use domains::KnownDomains;
use hashbrown::{HashMap, HashSet};
use plan::RepairPlan;
use pmem::Region;
use report::FINDINGS_MAX;
use std::collections::{BTreeMap, BTreeSet};

const ROOT: u64 = InodeNumber::ROOT.0;
/// Bit of a block's references: an extent reserves the whole block, so its bytes are meaningless.
const RESERVED: u32 = 1 << 31;

/// Checks a device, and repairs it if requested.
///
/// # Errors
/// Fails if the device holds no nvfold file system of this version, or cannot be read at all. Damage is not an error
/// but a finding.
pub fn check(region: &Region, options: &CheckOptions) -> Result<CheckReport> {
    check_with(region, options, None)
}

/// Checks a device and repairs it. Everything the repair overwrites is kept in the undo file, which `undo` opens only
/// if there is something to repair; [`restore`] puts it back. If only recovery after a crash is needed, the check
/// does it without an undo file.
///
/// # Errors
/// Errors of [`check`]; [`crate::Error::Undo`] if a copy could not be kept, in which case nothing more was changed.
pub fn check_and_keep(
    region: &Region,
    options: &CheckOptions,
    undo: impl FnOnce() -> std::io::Result<Box<dyn UndoFile>>,
) -> Result<CheckReport> {
    let open = || undo().map_err(|error| Error::Undo { why: format!("it cannot be made: {error}") });
    check_with(region, options, Some(Box::new(open)))
}

type OpenUndo<'u> = Box<dyn FnOnce() -> Result<Box<dyn UndoFile>> + 'u>;

fn check_with(region: &Region, options: &CheckOptions, undo: Option<OpenUndo<'_>>) -> Result<CheckReport> {
    let is_sound = |report: &CheckReport| report.findings.is_empty() && report.findings_unlisted == 0;
    let (before, mut plan) = survey(region, options, false)?;
    if !options.repair || region.is_read_only() || (before.clean && is_sound(&before) && before.recoverable == 0) {
        return Ok(before);
    }
    mount::require_known_features(&mount::read_superblock(region)?.0)?;
    if is_sound(&before) && repair::recover(region)? {
        // Recovery may reveal damage that the unfinished state had hidden.
        let (after, next) = survey(region, options, false)?;
        if is_sound(&after) && after.clean {
            return Ok(CheckReport { clean: before.clean, ..after });
        }
        plan = next;
    }
    let (superblock, _) = mount::read_superblock(region)?;
    let after = match undo {
        Some(undo) => undo::keeping(region, &superblock, undo()?, || repair_all(region, options, plan))?,
        None => repair_all(region, options, plan)?,
    };
    repair::finish(region)?;
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
    Ok(CheckReport { findings, clean: before.clean, ..after })
}

/// Most rounds of repair before the remaining findings are left: giving up an inode may remove the conflicting user
/// of a block, or a name of another inode.
const ROUNDS_MAX: usize = 8;

/// Repairs until nothing is found. The report describes the final state, and lists everything that was given up and
/// moved.
fn repair_all(region: &Region, options: &CheckOptions, plan: RepairPlan) -> Result<CheckReport> {
    let (mut given_up, mut moved) = (Vec::new(), Vec::new());
    let mut plan = plan;
    repair::begin(region)?;
    for round in 1.. {
        given_up.append(&mut plan.given_up());
        let is_done = match repair::repair(region, &plan) {
            Ok(mut more) => {
                moved.append(&mut more);
                true
            }
            // The survey reports the obstacle.
            Err(Error::Corrupt { .. } | Error::BadMemory { .. }) => false,
            Err(error) => return Err(error),
        };
        let (report, next) = survey(region, options, true)?;
        if !is_done && (round == ROUNDS_MAX || !region.bad_ranges().is_empty()) {
            repair::abandon_repair(region)?;
        }
        let has_findings = !report.findings.is_empty() || report.findings_unlisted > 0 || !report.clean;
        if !has_findings || round == ROUNDS_MAX || !region.bad_ranges().is_empty() {
            return Ok(CheckReport { given_up, moved, ..report });
        }
        plan = next;
    }
    unreachable!("the last round returns")
}

/// A name in a directory.
struct DirectoryName {
    directory: u64,
    kind: FileKind,
    at: u64,
}

/// The facts about an inode that the checks of names need.
struct Facts {
    slot: u64,
    kind: FileKind,
    nlink: u32,
    parent: u64,
    /// Number of names in a directory.
    names: usize,
    /// True if it belongs to a snapshot.
    is_read_only: bool,
    /// Number of the limited tree that it is charged to.
    tree: u16,
}

struct Survey<'r> {
    region: &'r Region,
    geometry: Geometry,
    report: CheckReport,
    /// Number of extents that touch each block, with [`RESERVED`], for segments that have any.
    references: HashMap<u64, Box<[u32; SEGMENT_BLOCKS as usize]>>,
    /// The bytes of chunks that extents map.
    coverage: Coverage,
    /// Blocks of logs and xattr values, with the inode that they belong to.
    metadata: HashMap<u64, u64>,
    names: HashMap<u64, Vec<DirectoryName>>,
    inodes: HashMap<u64, Facts>,
    /// Log areas by slot; below, the slots that logs reference, with the inode.
    areas: BTreeMap<u64, AreaHead>,
    named_areas: Vec<(u64, u64)>,
    /// Incompatible features that are set in the superblock.
    superblock_features: u64,
    /// The domains of weak fingerprints.
    domains: KnownDomains,
    /// Inodes that could not be read: number, slot, reason.
    unreadable: Vec<(u64, u64, String)>,
    /// Symlinks with a target in blocks that no symlink can have: number, slot.
    bad_targets: Vec<(u64, u64)>,
    /// Segments of the inode table.
    tables: HashSet<u64>,
    /// Limited trees.
    charges: limits::Charges,
    /// Packed chunks.
    packed: packed_survey::PackedSurvey,
    /// The state that an unmount would have saved of this device.
    space: space::Expected,
    /// The next sequence of each TX_ID generator; below, the latest sequence of each in an entry.
    generators: [u64; GENERATORS as usize],
    latest: [u64; GENERATORS as usize],
    /// Bad memory, and what is lost by it.
    bad: bad::Bad,
    /// The pm index.
    chains: index::Chains,
    /// What a repair has to do.
    plan: RepairPlan,
    /// Blocks with more than one use; below, blocks whose content may be damaged.
    contested: BTreeSet<u64>,
    doubtful: BTreeSet<u64>,
}

/// Checks everything; also returns what a repair has to do. `in_repair` is true if this process has begun the repair
/// under way.
fn survey(region: &Region, options: &CheckOptions, in_repair: bool) -> Result<(CheckReport, RepairPlan)> {
    let (mut superblock, geometry) = mount::read_superblock(region)?;
    if in_repair && superblock.state == STATE_REPAIR {
        superblock.state = STATE_CLEAN;
    }
    let mut survey = Survey {
        region,
        geometry,
        report: CheckReport { clean: superblock.state == STATE_CLEAN, ..CheckReport::default() },
        references: HashMap::new(),
        coverage: Coverage::default(),
        metadata: HashMap::new(),
        names: HashMap::new(),
        inodes: HashMap::new(),
        areas: BTreeMap::new(),
        named_areas: Vec::new(),
        superblock_features: superblock.incompatible,
        domains: KnownDomains::from(&superblock),
        unreadable: Vec::new(),
        bad_targets: Vec::new(),
        tables: HashSet::new(),
        charges: limits::Charges::default(),
        packed: packed_survey::PackedSurvey::new(Entries::new(geometry)),
        space: space::Expected::default(),
        generators: [1; GENERATORS as usize],
        latest: [0; GENERATORS as usize],
        bad: bad::Bad::default(),
        chains: index::Chains::default(),
        plan: RepairPlan::default(),
        contested: BTreeSet::new(),
        doubtful: BTreeSet::new(),
    };
    if superblock.state == STATE_REPAIR {
        survey.find(0, "a repair was interrupted".into(), 0);
    }
    survey.superblocks(&superblock);
    survey.generators();
    let saved = mount::saved::Saved::read(region, &geometry, &superblock);
    let saved = if region.check().is_ok() { saved } else { None };
    let tables = Tables::read(region, &geometry, &superblock, saved.as_ref());
    if let Some(bad) = &tables.bad {
        survey.find(0, format!("segment table: {bad}"), geometry.segment_table_offset);
    }
    survey.segment_table(&tables);
    let segments = tables.inode_segments();
    let stores = mount::journal_stores(region, &geometry, &segments);
    survey.note_bad("journal");
    let stores = match stores {
        Ok(stores) => stores,
        Err(error) => {
            survey.find(3, error.to_string(), geometry.journal_offset);
            survey.plan.clears_journal = true;
            Vec::new()
        }
    };
    if !stores.is_empty() {
        survey.trace(3, "the journal holds an operation that was not finished".into(), geometry.journal_offset);
    }
    survey.tables.extend(&segments);
    let has_index = survey.index_segments(&superblock, &tables.uses);
    survey.packed_segments(&tables);
    survey.inodes(&tables.inodes, &stores);
    survey.check_areas();
    survey.check_names();
    survey.check_blocks(options.data);
    survey.check_packed(options.data);
    survey.report.usage = survey.usage();
    survey.check_generators();
    if has_index {
        survey.check_chains();
    }
    survey.plan.unmarked = survey.check_marks(&tables);
    if tables.damage.is_none() {
        survey.check_saved_state(&superblock);
    }
    survey.name_bad_files();
    survey.find_contested_files();
    survey.plan.tables = Some(tables);
    survey.report.given_up = survey.plan.given_up();
    Ok((survey.report, survey.plan))
}

impl Survey<'_> {
    fn find(&mut self, invariant: u8, what: String, at: u64) {
        if self.report.findings.len() == FINDINGS_MAX {
            self.report.findings_unlisted += 1;
        } else {
            self.report.findings.push(Finding { invariant, what, at, repaired: false });
        }
    }

    /// Reports something that a crash may leave and recovery removes: a finding only on a clean device.
    fn trace(&mut self, invariant: u8, what: String, at: u64) {
        if self.report.clean {
            self.find(invariant, what, at);
        } else {
            self.report.recoverable += 1;
        }
    }
}
