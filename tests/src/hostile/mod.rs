//! Devices that no nvfold would write, and the requirements on nvfold for them.
//!
//! Random bytes alone never get past the first checksum. So a valid [`image`] is damaged in structures that are known
//! to matter, and most of the time the checksum is then corrected ([`damage`]). The test runs mount, fsck and repair
//! on the result. Beyond "no panic, no hang", their results must agree:
//!
//! * a device that fsck calls consistent is mounted, read completely, changed without an error and then consistent;
//! * a device that cannot be mounted, or not be read completely, has a finding of fsck;
//! * repair leaves a device consistent and clean, or with findings that it reports as not repaired. The latter is
//!   allowed only where structures were forged, checksums included; after noise a second fsck finds nothing, and the
//!   device mounts;
//! * a structure that no damage touched is there afterwards, with its content ([`run_overwritten`]);
//! * fsck without repair and a read-only mount write nothing;
//! * an export ends, and makes nothing outside of its directory.
//!
//! [`run_damaged`] and [`run_arbitrary`] turn bytes into a device and try it; the fuzz targets and the tests in
//! `tests/fuzz.rs` call them.

pub mod commands;
pub mod damage;
pub mod footprint;
pub mod forge;
pub mod image;
pub mod made;
pub mod survivors;

use std::collections::HashSet;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Mutex;

use nvfold::check::{self, CheckOptions, CheckReport};
use nvfold::host::{self, ExportOptions, Progress};
use nvfold::{
    AllocateMode, DEVICE_BYTES_MIN, DirEntry, Error, FileKind, FileSystem, InodeNumber, Limits, MountOptions, Policy,
    RenameMode, SetAttr, Whence, XattrMode,
};
use pmem::Region;

use crate::device::{self, POLICIES};
use crate::scratch::Scratch;
use crate::slate::{Content, Slate};
use image::KINDS;
use survivors::Survivors;

/// Bytes before the first record of damage: kind of image, policy.
pub const HEAD_BYTES: usize = 2;
/// Inodes visited, and entries listed, before a walk through damaged directories stops.
const WALK_MAX: usize = 2000;
/// Bytes read at either end of a file.
const READ_BYTES: usize = 100_000;
/// Bytes after which an export is stopped: a small image may hold the same block in a thousand files.
const EXPORT_BYTES_MAX: u64 = 1 << 30;

/// Reads an image's kind, a policy and a list of damage, and tries the device.
#[track_caller]
pub fn run_damaged(bytes: &[u8]) {
    let (head, records) = bytes.split_at(HEAD_BYTES.min(bytes.len()));
    let image = image::image(KINDS[usize::from(head.first().copied().unwrap_or(0)) % KINDS.len()]);
    let policy = policy(head.get(1));
    let (content, done) = damage::apply(image, &damage::read(records));
    if let Err(why) = try_device(&content, policy) {
        panic!("{why}\non {:?} under {policy:?}, damaged:\n  {}", image.kind, done.join("\n  "));
    }
}

/// Writes bytes anywhere over an image. The input has records of a place in one of the image's blocks, a length and
/// that many bytes.
#[track_caller]
pub fn run_arbitrary(bytes: &[u8]) {
    let (head, mut rest) = bytes.split_at(HEAD_BYTES.min(bytes.len()));
    let image = image::image(KINDS[usize::from(head.first().copied().unwrap_or(0)) % KINDS.len()]);
    let policy = policy(head.get(1));
    let mut content = image.content.clone();
    let blocks: Vec<u64> = content.block_addresses().collect();
    while let [block, low, high, len, more @ ..] = rest {
        let inside = u64::from(u16::from_le_bytes([*low, *high]) % 4096);
        let (written, left) = more.split_at(more.len().min(usize::from(*len)));
        // Half of the numbers stand for the first blocks, where the tables begin.
        let block = if *block < 128 { usize::from(*block) } else { usize::from(*block) * 31 };
        content.write(blocks[block % blocks.len()] + inside, written);
        rest = left;
    }
    if let Err(why) = try_device(&content, policy) {
        panic!("{why}\non {:?} under {policy:?}, written over", image.kind);
    }
}

/// Overwrites up to 4 KiB of metadata with noise: kind of image, policy, a place, a length and a seed. In addition to
/// the common requirements, everything that the noise did not touch must be there after a repair, with its content.
#[track_caller]
pub fn run_overwritten(bytes: &[u8]) {
    let mut record = [0; OVERWRITTEN_BYTES];
    record.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let [kind, by, low, high, inside_low, inside_high, len_low, len_high, seed] = record;
    // If the noise hits the journal, the operation in it may be done or not.
    let kinds: Vec<_> = KINDS.into_iter().filter(|kind| *kind != image::Kind::CutOff).collect();
    let image = image::image(kinds[usize::from(kind) % kinds.len()]);
    let policy = policy(Some(&by));
    let blocks: Vec<u64> = image.content.block_addresses().collect();
    let inside = u64::from(u16::from_le_bytes([inside_low, inside_high])) % 4096;
    let at = blocks[usize::from(u16::from_le_bytes([low, high])) % blocks.len()] + inside;
    let len = 1 + u64::from(u16::from_le_bytes([len_low, len_high])) % 4096;
    let hit = at..(at + len).min(DEVICE_BYTES_MIN);
    let survivors = survivors::survivors(image);
    if !survivors.is_metadata(&hit) {
        return;
    }
    let mut noise = vec![0; (hit.end - hit.start) as usize];
    fastrand::Rng::with_seed(u64::from(seed)).fill(&mut noise);
    let mut content = image.content.clone();
    content.write(hit.start, &noise);
    let tried = try_content(&content, policy, true).and_then(|()| try_survivors(&content, survivors, &hit));
    if let Err(why) = tried {
        panic!("{why}\non {:?} under {policy:?}, {hit:x?} overwritten with noise {seed}", image.kind);
    }
}

/// Bytes that [`run_overwritten`] reads.
pub const OVERWRITTEN_BYTES: usize = 9;

fn try_survivors(content: &Content, survivors: &Survivors, hit: &Range<u64>) -> Result<(), String> {
    let slate = Borrowed::slate();
    let region = slate.with(content);
    let report = checked(&region, true).map_err(|error| format!("repair: {error}"))?;
    let fs = FileSystem::mount(region, MountOptions::default()).map_err(|error| format!("repaired: {error}"))?;
    survivors.check_repaired(&fs, &report, std::slice::from_ref(hit))?;
    Ok(())
}

fn policy(byte: Option<&u8>) -> Policy {
    POLICIES[usize::from(byte.copied().unwrap_or(0)) % POLICIES.len()]
}

/// Mounts, reads, changes, checks and repairs the device; returns the first violation of the module's requirements.
pub fn try_device(content: &Content, policy: Policy) -> Result<(), String> {
    try_content(content, policy, false)
}

fn try_content(content: &Content, policy: Policy, must_end_whole: bool) -> Result<(), String> {
    let slate = Borrowed::slate();
    let region = slate.with(content);
    let before = region.counters();
    let report = checked(&region, false);
    let read_only = try_read_only(&region);
    if region.counters() != before {
        return Err("fsck without repair, or a read-only mount, wrote to the device".into());
    }
    agree_on_reading(&report, read_only)?;
    try_export(&region)?;
    let read_write = try_read_write(&region, policy);
    agree_on_writing(&report, read_write, &region)?;
    drop(region);
    try_repair(&slate.with(content), policy, must_end_whole)
}

/// A slate that returns to the pool on drop; several threads may try devices at once.
struct Borrowed(Option<Slate>);

static SLATES: Mutex<Vec<Slate>> = Mutex::new(Vec::new());

impl Borrowed {
    fn slate() -> Borrowed {
        let free = SLATES.lock().ok().and_then(|mut slates| slates.pop());
        Borrowed(Some(free.unwrap_or_else(|| Slate::new(DEVICE_BYTES_MIN))))
    }
}

impl std::ops::Deref for Borrowed {
    type Target = Slate;

    fn deref(&self) -> &Slate {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let (Ok(mut slates), Some(slate)) = (SLATES.lock(), self.0.take()) {
            slates.push(slate);
        }
    }
}

fn checked(region: &Region, repair: bool) -> nvfold::Result<CheckReport> {
    check::check(region, &CheckOptions { repair, data: true })
}

fn nothing_found(report: &CheckReport) -> bool {
    report.findings.is_empty() && report.findings_unlisted == 0
}

fn told(report: &CheckReport) -> String {
    let lines: Vec<String> = report.findings.iter().take(20).map(|finding| format!("\n    {finding:?}")).collect();
    format!("clean: {}, recoverable: {}, findings:{}", report.clean, report.recoverable, lines.concat())
}

// --- the trials ---------------------------------------------------------------------------------

fn try_read_only(region: &Region) -> nvfold::Result<()> {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::mount(region.clone(), options)?;
    let walked = walk(&fs);
    fs.unmount()?;
    walked
}

/// Exports the tree to a directory. It may fail, but nothing may appear outside.
fn try_export(region: &Region) -> Result<(), String> {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let Ok(fs) = FileSystem::mount(region.clone(), options) else { return Ok(()) };
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.join("inside")).expect("make a directory");
    let to = scratch.join("inside").join("copy");
    let mut watch = |progress: Progress| match progress.bytes > EXPORT_BYTES_MAX {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let _ = host::export(&fs, &ExportOptions { from: "/".into(), to, threads: 1 }, &mut watch);
    let names = |dir: &Path| host::names(dir).map_err(|error| format!("{}: {error}", dir.display()));
    let (around, inside) = (names(scratch.path())?, names(&scratch.join("inside"))?);
    match around == ["inside"] && inside.iter().all(|name| name == "copy") {
        true => Ok(()),
        false => Err(format!("an export made {around:?}, {inside:?}")),
    }
}

/// How far a read-write mount got.
enum Writing {
    Refused(Error),
    /// Some part was unreadable.
    Damaged(Error),
    /// Everything was read. Holds unexpected failures of changes, and the report of the fsck afterwards.
    Changed(nvfold::Result<()>, Box<nvfold::Result<CheckReport>>),
}

fn try_read_write(region: &Region, policy: Policy) -> Writing {
    let fs = match FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }) {
        Ok(fs) => fs,
        Err(error) => return Writing::Refused(error),
    };
    // After a crash every operation must work before the counts are exact, and while they are being reconciled.
    let walked = walk(&fs);
    let reconciled = fs.reconcile_step();
    let changed = disturb(&fs);
    let unmounted = fs.unmount();
    match (walked, reconciled) {
        (_, Err(error)) => Writing::Refused(error),
        (Err(error), _) => Writing::Damaged(error),
        (Ok(()), Ok(_)) => Writing::Changed(changed.and(unmounted), Box::new(checked(region, false))),
    }
}

fn agree_on_reading(report: &nvfold::Result<CheckReport>, read_only: nvfold::Result<()>) -> Result<(), String> {
    match (report, read_only) {
        (Err(fsck), Ok(())) => Err(format!("mounted read-only, but fsck fails: {fsck}")),
        // A mount that cannot write may fail because of what a crash left.
        (Ok(report), Err(error)) if nothing_found(report) && report.recoverable == 0 => {
            Err(format!("fsck finds nothing, read-only: {error}; {}", told(report)))
        }
        _ => Ok(()),
    }
}

fn agree_on_writing(report: &nvfold::Result<CheckReport>, writing: Writing, region: &Region) -> Result<(), String> {
    let report = match (report, &writing) {
        (Ok(report), _) => report,
        (Err(_), Writing::Refused(_)) => return Ok(()),
        (Err(fsck), _) => return Err(format!("mounted, but fsck fails: {fsck}")),
    };
    if !nothing_found(report) {
        return Ok(());
    }
    match writing {
        // A feature that only writers must know is not damage.
        Writing::Refused(Error::Newer { .. }) => Ok(()),
        Writing::Refused(error) => Err(format!("fsck finds nothing, mount: {error}; {}", told(report))),
        Writing::Damaged(error) => Err(format!("fsck finds nothing, reading: {error}; {}", told(report))),
        Writing::Changed(changed, after) => stays_consistent(changed, *after).and_then(|()| again_writable(region)),
    }
}

/// Checks that changes to a consistent file system have succeeded and left it consistent.
fn stays_consistent(changed: nvfold::Result<()>, after: nvfold::Result<CheckReport>) -> Result<(), String> {
    changed.map_err(|error| format!("a change of a consistent file system failed: {error}"))?;
    match after {
        Ok(report) if nothing_found(&report) && report.clean && report.recoverable == 0 => Ok(()),
        Ok(report) => Err(format!("changes made a consistent file system: {}", told(&report))),
        Err(error) => Err(format!("after changes of a consistent file system fsck fails: {error}")),
    }
}

fn again_writable(region: &Region) -> Result<(), String> {
    let again = FileSystem::mount(region.clone(), MountOptions::default()).and_then(|fs| {
        walk(&fs)?;
        fs.unmount()
    });
    again.map_err(|error| format!("after changes of a consistent file system, mounted again: {error}"))
}

fn try_repair(region: &Region, policy: Policy, must_end_whole: bool) -> Result<(), String> {
    let Ok(repaired) = checked(region, true) else { return Ok(()) };
    let after = checked(region, false).map_err(|error| format!("after repair fsck fails: {error}"))?;
    if !repaired.is_consistent() && !must_end_whole {
        // Structures that were forged, checksums included, may contradict one another for good; fsck then reports the
        // rest.
        return Ok(());
    }
    if !repaired.is_consistent() || !nothing_found(&after) || !after.clean || after.recoverable > 0 {
        return Err(format!("repair says {}\nand afterwards there is {}", told(&repaired), told(&after)));
    }
    agree_on_reading(&Ok(after.clone()), try_read_only(region))?;
    agree_on_writing(&Ok(after), try_read_write(region, policy), region).map_err(|why| format!("after repair: {why}"))
}

// --- reading and changing the content -----------------------------------------------------------

/// Keeps the first error that damage can explain; all other errors are legitimate answers.
#[derive(Default)]
struct Damages(Option<Error>);

impl Damages {
    fn of<T>(&mut self, result: nvfold::Result<T>) -> Option<T> {
        match result {
            Ok(value) => return Some(value),
            Err(error @ Error::Corrupt { .. }) => drop(self.0.get_or_insert(error)),
            Err(_) => {}
        }
        None
    }

    fn result(self) -> nvfold::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

fn entries(fs: &FileSystem, dir: InodeNumber, damages: &mut Damages) -> Vec<DirEntry> {
    let mut entries = Vec::new();
    let mut each = |entry: DirEntry| {
        entries.push(entry);
        entries.len() < WALK_MAX
    };
    damages.of(fs.readdir(dir, 0, &mut each));
    entries
}

/// Reads everything that can be reached. A name must lead to an inode.
fn walk(fs: &FileSystem) -> nvfold::Result<()> {
    let mut damages = Damages::default();
    let mut dirs = vec![InodeNumber::ROOT];
    let mut seen = HashSet::from([InodeNumber::ROOT.0]);
    let _ = (fs.statfs(), fs.stats());
    while let Some(dir) = dirs.pop() {
        damages.of(fs.parent(dir));
        for entry in entries(fs, dir, &mut damages) {
            if let Err(error) = fs.lookup(dir, &entry.name) {
                damages.0.get_or_insert(error);
            }
            if seen.len() < WALK_MAX && seen.insert(entry.ino.0) {
                inspect(fs, entry.ino, &mut damages);
                if entry.kind == FileKind::Directory {
                    dirs.push(entry.ino);
                }
            }
        }
    }
    damages.result()
}

fn inspect(fs: &FileSystem, ino: InodeNumber, damages: &mut Damages) {
    damages.of(fs.getattr(ino));
    damages.of(fs.readlink(ino));
    damages.of(fs.limited_tree(ino));
    damages.of(fs.statfs_at(ino));
    for name in damages.of(fs.list_xattr(ino)).unwrap_or_default() {
        damages.of(fs.get_xattr(ino, &name));
    }
    if let Some(file) = damages.of(fs.open(ino)) {
        let size = file.attr().size;
        let mut buffer = vec![0; READ_BYTES];
        damages.of(file.read_at(0, &mut buffer));
        damages.of(file.read_at(size.saturating_sub(READ_BYTES as u64 / 2), &mut buffer));
        damages.of(file.seek(size / 2, Whence::Data));
        damages.of(file.seek(0, Whence::Hole));
    }
}

/// Changes everything that can be reached, with every operation at least once.
fn disturb(fs: &FileSystem) -> nvfold::Result<()> {
    let mut damages = Damages::default();
    let root = InodeNumber::ROOT;
    let mut reached: Vec<(InodeNumber, DirEntry)> =
        entries(fs, root, &mut damages).into_iter().take(20).map(|entry| (root, entry)).collect();
    let dirs: Vec<InodeNumber> = reached
        .iter()
        .filter(|(_, entry)| entry.kind == FileKind::Directory)
        .map(|(_, entry)| entry.ino)
        .take(3)
        .collect();
    for &dir in &dirs {
        reached.extend(entries(fs, dir, &mut damages).into_iter().take(10).map(|entry| (dir, entry)));
        damages.of(fs.create(dir, b"made here", &device::regular()));
        damages.of(fs.stored_alone_bytes(dir));
        damages.of(fs.change_limits(dir, |limits| limits.logical_bytes = Some(1 << 30)));
        damages.of(fs.tmpfile_in(dir, &device::regular()));
        damages.of(fs.rename(root, b"dir", dir, b"inside itself", RenameMode::Replace));
    }
    let new = damages.of(fs.create(root, b"new", &device::regular()).and_then(|attr| fs.open(attr.ino)));
    for (dir, entry) in reached {
        let change = SetAttr { mode: Some(0o600), mtime: Some(1), ..SetAttr::default() };
        damages.of(fs.setattr(entry.ino, &change));
        damages.of(fs.set_xattr(entry.ino, b"user.new", &[3; 3000], XattrMode::Set));
        if let Some(file) = damages.of(fs.open(entry.ino)) {
            damages.of(file.write_at(1000, &[1; 10_000]));
            damages.of(file.append(&[2; 100]));
            damages.of(file.allocate(5000, 9000, AllocateMode::PunchHole));
            damages.of(file.allocate(0, 20_000, AllocateMode::Reserve));
            damages.of(file.set_len(3000));
            if let Some(new) = &new {
                damages.of(new.clone_from(&file, 0, 500, 4000));
            }
            damages.of(file.dedup_range(0, 20_000));
            damages.of(file.append(&[4; 300]));
            damages.of(file.undedup_range(0, 2000));
        }
        damages.of(fs.link(entry.ino, root, &[b"link to ", &entry.name[..]].concat()));
        damages.of(fs.rename(dir, &entry.name, root, b"renamed", RenameMode::Replace));
        damages.of(fs.unlink(root, b"renamed"));
        damages.of(fs.rmdir(root, b"renamed"));
    }
    damages.of(fs.mkdir(root, b"new dir", &device::directory()));
    damages.of(fs.rmdir(root, b"new dir"));
    damages.of(fs.tmpfile(&device::regular()));
    // Share the queue, so that the new files find equal blocks.
    while damages.of(fs.drain_step()) == Some(false) {}
    while damages.of(fs.reorder_step()) == Some(false) {}
    while damages.of(fs.fill_step()) == Some(false) {}
    for &dir in &dirs {
        damages.of(fs.change_limits(dir, |limits| *limits = Limits::default()));
    }
    for tree in damages.of(fs.limited_trees()).unwrap_or_default() {
        damages.of(fs.change_limits(tree.top, |limits| limits.expires = Some(1)));
    }
    damages.of(fs.remove_expired());
    for entry in entries(fs, root, &mut damages) {
        damages.of(fs.remove_tree(root, &entry.name));
    }
    while damages.of(fs.remove_step()) == Some(false) {}
    damages.of(fs.sync());
    damages.of(fs.trim());
    let _ = fs.stats();
    damages.result()
}
