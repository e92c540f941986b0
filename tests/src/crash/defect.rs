//! Defects that the judgement must detect: the test corrupts something between two steps of the judgement.
//!
//! The problem: an oracle with a hole passes everything. The idea: for each claim of the oracle there is a defect
//! that violates just that claim in a sound state, at one moment of the judgement, and the complaint that the oracle
//! must make. Each defect is tried for every subject on every road that passes its moment.

use std::sync::{Arc, Mutex};

use nvfold::internals::media::chunk_entry::{ChunkEntry, address_word};
use nvfold::internals::media::direct::DirectEntry;
use nvfold::internals::media::segment::{SegmentEntry, SegmentUse};
use nvfold::internals::media::superblock::{COPIES, Geometry};
use nvfold::internals::media::{BlockNumber, SEGMENT_BYTES};
use nvfold::{Compression, FileKind, FileSystem, IndexKind, InodeNumber, Policy, Result, SetAttr, XattrMode};
use pmem::{Action, Pending, Region};

use super::oracle::{Judge, Passed, Road};
use super::workload::{Base, Step, Trace, Workload};
use super::{Disk, Effort, Explorer, SUBJECTS, Seen, Subject, Tree, judging, lock, on_all_cores};
use crate::device;
use crate::model::op::name;

const ROOT: InodeNumber = InodeNumber::ROOT;
const BLOCK_BYTES: u64 = 4096;

/// The steps of the judgement between which a defect acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// After the crash.
    Crashed,
    /// Mounted, before the tree is read.
    Mounted,
    /// Reconciled, before the tree and the totals are read.
    Reconciled,
    /// The totals were read, and the file system is still mounted.
    Counted,
    /// Recovered and not mounted.
    Recovered,
    /// Recovered a second time.
    MountedAgain,
    /// The queue is shared.
    Drained,
    /// The file system was used, before the tree is read.
    InUse,
    /// The file system was used and reconciled, before the tree is read.
    Used,
    /// The file system was used and is not mounted.
    Ended,
    /// Mounted for the last time.
    MountedAtLast,
}

impl Moment {
    /// Returns whether a judgement passes this moment.
    fn is_on(self, road: Road, subject: &Subject) -> bool {
        use Moment::*;
        let is_reconciled_first = matches!(road, Road::ReconciledFirst { .. });
        let is_used = !matches!(road, Road::ReconciledFirst { used: false, .. });
        match self {
            Crashed | Mounted | Counted => true,
            Reconciled | Recovered => is_reconciled_first,
            MountedAgain => is_reconciled_first && is_used,
            Drained => is_reconciled_first && is_used && subject.policy == Policy::DeNova,
            InUse | Used | Ended | MountedAtLast => is_used,
        }
    }
}

/// Something that a broken file system could do.
pub struct Defect {
    /// Its description.
    pub name: &'static str,
    /// The moment.
    pub moment: Moment,
    /// The action.
    act: Act,
    /// Complaints, one of which must be made.
    seen_as: &'static [&'static str],
    /// Whether a subject has the structure that the defect corrupts.
    has: fn(&Subject) -> bool,
}

/// The way in which a defect acts.
#[derive(Clone, Copy)]
enum Act {
    /// Through the file system.
    Files(fn(&FileSystem) -> Result<()>),
    /// On the media.
    Media(fn(&Region, &Geometry)),
}

impl Defect {
    /// Acts, if this is the moment.
    ///
    /// # Errors
    /// The file system's.
    pub fn spoil(&self, moment: Moment, fs: &FileSystem) -> Result<()> {
        match self.act {
            Act::Files(act) if self.moment == moment => act(fs),
            _ => Ok(()),
        }
    }

    /// As `spoil`, on the media.
    pub fn spoil_media(&self, moment: Moment, region: &Region) {
        if let Act::Media(act) = self.act
            && self.moment == moment
        {
            let (_, geometry) = nvfold::read_superblock(region).expect("one copy is whole");
            act(region, &geometry);
        }
    }
}

/// Returns all defects.
pub fn defects() -> Vec<Defect> {
    use Moment::*;
    const TREE: &[&str] = &["after the mount the tree is none that the crash may leave"];
    const OTHER_BYTES: &[&str] =
        &["other bytes", "its bytes do not match its fingerprint", "its compressed content is damaged"];
    const DAMAGED: &[&str] = &["its entry is damaged"];
    const TOTALS: &[&str] =
        &["after reconcile the tree is none that the crash may leave; differences to one of them:\n  Space"];
    let all: fn(&Subject) -> bool = |_| true;
    let files = |name, moment, seen_as, act| Defect { name, moment, act: Act::Files(act), seen_as, has: all };
    let media = |name, moment, seen_as, act| Defect { name, moment, act: Act::Media(act), seen_as, has: all };
    vec![
        // What the crash and the first mount leave.
        media("a count is too low", Crashed, &["fsck before recovery finds"], |region, geometry| {
            change_entry(region, geometry, |entry| entry.count >= 2, |entry| entry.count -= 1);
        }),
        media("a byte of a shared block is another one", Crashed, OTHER_BYTES, |region, geometry| {
            let (_, entry) = entry(region, geometry, |entry| entry.count >= 2);
            flip(region, entry.address());
        }),
        Defect {
            has: |subject| subject.policy.without_origins() == Policy::DeExt && subject.compression == Compression::Off,
            ..media("a packed chunk is shorter than what files name of it", Crashed, DAMAGED, |region, geometry| {
                change_entry(
                    region,
                    geometry,
                    |entry| entry.class() > 0 && entry.count >= 2,
                    |entry| entry.address_length = address_word(entry.address(), entry.stored_bytes() - 1),
                );
            })
        },
        media("an inode in use is marked free", Crashed, &["fsck before recovery finds"], free_slot_of_a_name),
        files("a byte of a file is another one", Mounted, TREE, |fs| overwrite(fs, 0)),
        files("a file is shorter", Mounted, TREE, |fs| fs.open(ino(fs, 0)?)?.set_len(1)),
        files("a file is longer", Mounted, TREE, |fs| fs.open(ino(fs, 0)?)?.set_len(1 << 20)),
        files("a mode is another one", Mounted, TREE, |fs| {
            fs.setattr(ino(fs, 3)?, &SetAttr { mode: Some(0o111), ..SetAttr::default() }).map(drop)
        }),
        files("an owner is another one", Mounted, TREE, |fs| {
            fs.setattr(ino(fs, 7)?, &SetAttr { uid: Some(77), ..SetAttr::default() }).map(drop)
        }),
        files("a time is another one", Mounted, TREE, |fs| {
            let attr = fs.lookup(ROOT, &name(0))?;
            let change = SetAttr { mtime: Some(attr.mtime + 1), ctime: Some(attr.ctime), ..SetAttr::default() };
            fs.setattr(attr.ino, &change).map(drop)
        }),
        files("an attribute has another value", Mounted, TREE, |fs| {
            set_attribute_quietly(fs, ino(fs, 9)?, &crate::model::oracle::xattr_name(0))
        }),
        files("an attribute is new", Mounted, TREE, |fs| set_attribute_quietly(fs, ino(fs, 0)?, b"user.new")),
        files("a name is missing", Mounted, TREE, |fs| fs.unlink(ROOT, &name(8))),
        files("a name is new", Mounted, TREE, |fs| fs.create(ROOT, b"new", &device::regular()).map(drop)),
        files("a file is a directory", Mounted, TREE, |fs| {
            fs.unlink(ROOT, &name(8))?;
            fs.mkdir(ROOT, &name(8), &device::directory()).map(drop)
        }),
        files("a link leads elsewhere", Mounted, TREE, |fs| {
            fs.unlink(ROOT, &name(7))?;
            fs.symlink(ROOT, &name(7), b"elsewhere", &device::new_inode(FileKind::Symlink, 0o777)).map(drop)
        }),
        files("a file has a name more", Mounted, TREE, |fs| fs.link(ino(fs, 0)?, ino(fs, 4)?, b"more").map(drop)),
        // Reconcile and the totals.
        files("reconcile changes a file", Reconciled, &["after reconcile the tree is none"], |fs| overwrite(fs, 0)),
        Defect {
            // Packed chunks stay shared.
            has: |subject| subject.policy.without_origins() != Policy::DeExt,
            ..files("sharing is undone", Reconciled, TOTALS, |fs| {
                fs.open(ino(fs, 1)?)?.undedup_range(0, 1 << 20).map(drop)
            })
        },
        files("a file without a name stays", Reconciled, TOTALS, |fs| {
            std::mem::forget(fs.tmpfile(&device::regular())?);
            Ok(())
        }),
        files("the totals lag behind", Counted, &["the totals [free bytes"], |fs| {
            fs.open(fs.create(ROOT, b"uncounted", &device::regular())?.ino)?.write_at(0, &[1; 100])
        }),
        media("a count stays too high", Recovered, &["fsck after recovery finds"], |region, geometry| {
            change_entry(region, geometry, |entry| entry.count >= 2, |entry| entry.count += 1);
        }),
        media("an update count stays", Recovered, &["fsck after recovery finds"], |region, geometry| {
            change_entry(region, geometry, |entry| entry.count >= 2, |entry| entry.update_count += 1);
        }),
        Defect {
            // Policy denova indexes nothing before it is drained.
            has: |subject| subject.index == IndexKind::Pm && subject.policy != Policy::DeNova,
            ..media("a chain is lost", Recovered, &["fsck after recovery finds"], lose_a_chain)
        },
        media("a copy of the superblock is torn", Recovered, &["fsck after recovery finds"], |region, _| {
            flip(region, COPIES[1] + 40);
        }),
        // The second recovery, and the drain.
        files("a second recovery does something", MountedAgain, &["a second recovery changes the media"], |fs| {
            fs.sync()?;
            let _ = fs.region().write(SEGMENT_BYTES - 64, &[0u64; 8]).flush();
            Ok(())
        }),
        files("the drain undoes sharing", Drained, &["would have been"], |fs| {
            fs.open(ino(fs, 1)?)?.undedup_range(0, 1 << 20).map(drop)
        }),
        // While it is used.
        files("using it overwrites the other files", InUse, OTHER_BYTES, |fs| {
            each_file(fs, |fs, ino| fs.open(ino)?.write_at(0, &[0xEE; 10]))
        }),
        files("using it truncates the other files", InUse, OTHER_BYTES, |fs| {
            each_file(fs, |fs, ino| fs.open(ino)?.set_len(3))
        }),
        files("using it removes another file", InUse, &["is not there"], |fs| fs.unlink(ROOT, &name(8))),
        files("using it changes another attribute", InUse, &["other extended attributes"], |fs| {
            set_attribute_quietly(fs, ino(fs, 9)?, b"user.new")
        }),
        files("using it changes another mode", InUse, &["after it was used the tree is another one"], |fs| {
            fs.setattr(ino(fs, 3)?, &SetAttr { mode: Some(0o111), ..SetAttr::default() }).map(drop)
        }),
        files("a directory that was removed is there", InUse, &["should not be there"], |fs| {
            fs.mkdir(ROOT, b"new directory", &device::directory()).map(drop)
        }),
        files("what was written is not there", InUse, OTHER_BYTES, |fs| overwrite(fs, 0)),
        files("reconcile loses what was written", Used, OTHER_BYTES, |fs| overwrite(fs, 0)),
        // The end.
        media("a byte that was written is another one", Ended, OTHER_BYTES, |region, geometry| {
            flip(region, chunk_of(region, geometry, &[0xC3; 1000]) + 1000);
        }),
        media("a count is too high at the end", Ended, &["after it was used finds"], |region, geometry| {
            change_entry(region, geometry, |entry| entry.count >= 2, |entry| entry.count += 1);
        }),
        media("an inode is marked free at the end", Ended, &["after it was used finds"], free_slot_of_a_name),
        files("the next mount changes a file", MountedAtLast, &["used and mounted again the tree is another"], |fs| {
            overwrite(fs, 9)
        }),
        files("the next mount loses space", MountedAtLast, &["used and mounted again the tree is another"], |fs| {
            std::mem::forget(fs.tmpfile(&device::regular())?);
            Ok(())
        }),
    ]
}

/// Judges the end of a workload with each defect, for each subject, on each road; and once without a defect. Returns
/// the number of judgements, and the wrong ones: a defect was not detected as required, or a complaint came without a
/// defect.
pub fn try_all(workload: &Workload) -> (usize, Vec<String>) {
    let bases: Vec<Base> = SUBJECTS.iter().map(Base::new).collect();
    let defects = defects();
    let subjects: Vec<usize> = (0..SUBJECTS.len()).collect();
    let (count, wrong) = (Mutex::new(0), Mutex::new(Vec::new()));
    on_all_cores(&bases, &subjects, |disks, _, &at| {
        let (subject, disk) = (&SUBJECTS[at], &mut disks[at]);
        let outcomes = play(disk, &bases[at], workload);
        for road in Road::all() {
            let complaint = judge(disk, subject, &outcomes, road, None);
            lock(&wrong).extend(complaint.map(|why| format!("{}, {road:?}, no defect: {why}", subject.name)));
            let is_tried = |defect: &&Defect| defect.moment.is_on(road, subject) && (defect.has)(subject);
            for defect in defects.iter().filter(is_tried) {
                let complaint = judge(disk, subject, &outcomes, road, Some(defect));
                let is_seen = |told: &String| defect.seen_as.iter().any(|words| told.contains(words));
                *lock(&count) += 1;
                if !complaint.as_ref().is_some_and(is_seen) {
                    let (subject, defect, told) = (subject.name, defect.name, complaint.unwrap_or("nothing".into()));
                    lock(&wrong).push(format!("{subject}, {road:?}, {defect}: it says {told}"));
                }
            }
        }
    });
    (count.into_inner().expect("no panic"), wrong.into_inner().expect("no panic"))
}

/// Tests whether a crash reveals that memory is given back too early. It moves the punches in the recording of a
/// workload before one more fence at a time, until some state violates a condition. Returns the subjects without such
/// a state.
pub fn try_early_punch(workload: &Workload, subjects: &[usize], effort: &Effort) -> Vec<&'static str> {
    const FENCES_MAX: usize = 12;
    let bases: Vec<Base> = SUBJECTS.iter().map(Base::new).collect();
    let missed = Mutex::new(Vec::new());
    on_all_cores(&bases, subjects, |disks, _, &at| {
        let (subject, trace) = (&SUBJECTS[at], bases[at].trace(workload));
        let is_seen = (1..=FENCES_MAX).filter_map(|fences| punched_before(&trace, fences)).any(|trace| {
            let seen = Seen::default();
            Explorer::new(subject, &mut disks[at], &seen).explore(&trace, effort, 1).is_err()
        });
        if !is_seen {
            lock(&missed).push(subject.name);
        }
    });
    missed.into_inner().expect("no panic")
}

/// Returns the recording with all punches moved `fences` fences before the first of them.
fn punched_before(trace: &Trace, fences: usize) -> Option<Trace> {
    let is_punch = |step: &Step| matches!(step, Step::Event(event) if matches!(event.action, Action::Punch { .. }));
    let is_fence = |step: &Step| matches!(step, Step::Event(event) if event.action == Action::Fence);
    let first = trace.crashes_from + trace.steps[trace.crashes_from..].iter().position(is_punch)?;
    let before: Vec<usize> = (0..first).rev().filter(|at| is_fence(&trace.steps[*at])).collect();
    if before.len() < fences {
        return None;
    }
    // Behind the fence before those, or behind the outcomes at the beginning of a recording.
    let to = before.get(fences).copied().unwrap_or(0) + 1;
    let (before, after) = trace.steps.split_at(to);
    let punches = after.iter().filter(|step| is_punch(step));
    let rest = after.iter().filter(|step| !is_punch(step));
    let steps = before.iter().chain(punches).chain(rest).cloned().collect();
    Some(Trace { name: trace.name.clone(), steps, crashes_from: trace.crashes_from.min(to) })
}

/// Puts the disk into the state at the end of a workload in which all stores reached the media.
fn play(disk: &mut Disk, base: &Base, workload: &Workload) -> Vec<Arc<Tree>> {
    let mut outcomes = Vec::new();
    let mut pending = Pending::default();
    for step in base.trace(workload).steps {
        match step {
            Step::Event(event) => disk.settle(&pending.play(&event)),
            Step::Outcomes(new) => outcomes = new,
        }
    }
    disk.settle(pending.words());
    outcomes
}

fn judge(
    disk: &mut Disk,
    subject: &Subject,
    allowed: &[Arc<Tree>],
    road: Road,
    defect: Option<&Defect>,
) -> Option<String> {
    let (options, passed) = (subject.options(subject.policy), &Passed::default());
    let judged = judging(Judge { disk, options, allowed, road, passed, defect });
    disk.put_back();
    judged.err()
}

fn ino(fs: &FileSystem, index: u8) -> Result<InodeNumber> {
    Ok(fs.lookup(ROOT, &name(index))?.ino)
}

/// Changes one byte, but neither size nor times.
fn overwrite(fs: &FileSystem, index: u8) -> Result<()> {
    let attr = fs.lookup(ROOT, &name(index))?;
    let file = fs.open(attr.ino)?;
    let mut byte = [0];
    if file.read_at(0, &mut byte)? == 1 {
        file.write_at(0, &[!byte[0]])?;
    } else {
        file.write_at(0, &[1])?;
    }
    restore_times(fs, &attr)
}

fn set_attribute_quietly(fs: &FileSystem, ino: InodeNumber, attribute: &[u8]) -> Result<()> {
    let attr = fs.getattr(ino)?;
    fs.set_xattr(ino, attribute, b"another value", XattrMode::Set)?;
    restore_times(fs, &attr)
}

fn restore_times(fs: &FileSystem, attr: &nvfold::Attr) -> Result<()> {
    let change = SetAttr { mtime: Some(attr.mtime), ctime: Some(attr.ctime), ..SetAttr::default() };
    fs.setattr(attr.ino, &change).map(drop)
}

fn each_file(fs: &FileSystem, act: fn(&FileSystem, InodeNumber) -> Result<()>) -> Result<()> {
    let mut files = Vec::new();
    fs.readdir(ROOT, 0, &mut |entry| {
        files.extend((entry.kind == FileKind::Regular).then_some(entry.ino));
        true
    })?;
    // The first file is the one that was replaced; the filler has no space to be written.
    files.into_iter().skip(1).filter(|ino| fs.getattr(*ino).is_ok_and(|attr| attr.size > 10)).try_for_each(|ino| {
        let attr = fs.getattr(ino)?;
        act(fs, ino)?;
        restore_times(fs, &attr)
    })
}

/// Iterates over all chunk entries, of blocks and packed chunks, with their offsets.
fn entries(region: &Region, geometry: &Geometry) -> impl Iterator<Item = (u64, ChunkEntry)> {
    let of_blocks = (0..geometry.blocks()).map(|block| geometry.chunk_entry_offset(BlockNumber(block)));
    let is_part = |segment: &u64| {
        let entry: SegmentEntry = region.read(geometry.segment_entry_offset(*segment));
        matches!(entry.usage(*segment), SegmentUse::Entries(_))
    };
    let parts = (geometry.first_segment()..geometry.segments()).filter(is_part);
    let of_part = |segment| (segment * SEGMENT_BYTES..(segment + 1) * SEGMENT_BYTES).step_by(size_of::<ChunkEntry>());
    let offsets: Vec<u64> = of_blocks.chain(parts.flat_map(of_part)).collect();
    offsets.into_iter().map(|offset| (offset, region.read(offset)))
}

/// Returns the first chunk entry that satisfies `is_like`, and its offset.
fn entry(region: &Region, geometry: &Geometry, is_like: fn(&ChunkEntry) -> bool) -> (u64, ChunkEntry) {
    entries(region, geometry).find(|(_, entry)| is_like(entry)).expect("the tree has such an entry")
}

fn change_entry(region: &Region, geometry: &Geometry, is_like: fn(&ChunkEntry) -> bool, change: fn(&mut ChunkEntry)) {
    let (offset, mut found) = entry(region, geometry, is_like);
    change(&mut found);
    let _ = region.write(offset, &found);
}

fn flip(region: &Region, offset: u64) {
    let byte: u8 = region.read(offset);
    let _ = region.write(offset, &!byte);
}

/// Returns the device offset of a block or a packed chunk that begins with these bytes.
fn chunk_of(region: &Region, geometry: &Geometry, bytes: &[u8]) -> u64 {
    let blocks = (geometry.first_segment() * SEGMENT_BYTES..geometry.device_bytes).step_by(BLOCK_BYTES as usize);
    let backed = blocks.filter(|offset| !region.is_hole(*offset, BLOCK_BYTES));
    let is_packed = |entry: &ChunkEntry| entry.class() > 0 && entry.stored_bytes() >= bytes.len() as u64;
    let packed = entries(region, geometry).map(|(_, entry)| entry).filter(is_packed).map(|entry| entry.address());
    backed.chain(packed).find(|offset| region.equal(*offset, bytes)).expect("it was written")
}

/// Marks the slot of inode 3, which has a name in all trees, as free.
fn free_slot_of_a_name(region: &Region, geometry: &Geometry) {
    use nvfold::internals::media::inode::{INODE_BYTES, USE_WORD};
    let slot = geometry.first_segment() * SEGMENT_BYTES + 3 * INODE_BYTES;
    let _ = region.store_u64(slot + USE_WORD, 0);
}

/// Empties the head of the first chain of a pm index; the heads are behind the first segment of inodes.
fn lose_a_chain(region: &Region, geometry: &Geometry) {
    let start = (geometry.first_segment() + 1) * SEGMENT_BYTES;
    let heads = (start..start + SEGMENT_BYTES).step_by(size_of::<DirectEntry>());
    let mut used = heads.filter(|head| region.read::<DirectEntry>(*head) != DirectEntry::default());
    let head = used.next().expect("something is indexed");
    let _ = region.write(head, &DirectEntry::default());
}
