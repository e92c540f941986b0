//! The damage suite: each 4 KiB page of the tables of a device with files of all kinds is overwritten in turn with
//! random bytes. After each the promises of docs/semantics.md are checked: damage stays local, and repair never
//! destroys data.
//!
//! For each page: before repair, readable data is right and the rest is EIO. A mount that writes, where one is
//! possible, frees nothing that is unreadable. fsck announces what repair will give up. After repair the device
//! mounts, and only the announced part is missing. A second fsck finds nothing. The undo file restores the device bit
//! by bit. `make test` takes a sample of the pages, `NVFOLD_SOAK=2` all of them.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use nvfold::check::{CheckOptions, CheckReport, UndoFile, check, check_and_keep, restore};
use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::internals::media::inode::INODE_BYTES;
use nvfold::internals::media::segment::{SegmentEntry, SegmentUse};
use nvfold::internals::media::superblock::Geometry;
use nvfold::{
    AllocateMode, BLOCK_BYTES, File, FileKind, FileSystem, IndexKind, InodeNumber, MkfsOptions, MountOptions, Policy,
    Superblock, XattrMode,
};
use nvfold_tests::device::{self, POLICIES};
use nvfold_tests::hostile::survivors::Survivors;
use nvfold_tests::random::{Seed, soak_factor};
use nvfold_tests::show;
use nvfold_tests::slate::{Content, Slate};
use pmem::{DeviceSpec, OpenOptions, Region};
use zerocopy::FromBytes;

const DEVICE_BYTES: u64 = 32 << 20;
const ROOT: InodeNumber = InodeNumber::ROOT;
/// `make test` damages every n-th page of each table.
const SAMPLE: usize = 9;

// --- the device ----------------------------------------------------------------------------------

fn file(fs: &FileSystem, parent: InodeNumber, name: &str) -> File {
    fs.open(fs.create(parent, name.as_bytes(), &device::regular()).expect("create").ino).expect("open")
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut noise);
    noise
}

/// Makes one directory with everything, under one policy.
fn populate(fs: &FileSystem, policy: Policy, round: u64) {
    let dir = fs.mkdir(ROOT, format!("{policy:?}").as_bytes(), &device::directory()).expect("mkdir").ino;
    let repeated: Vec<u8> = (0..12).flat_map(|block| noise(block % 5, 4096)).collect();
    for number in 0..12 {
        let one = file(fs, dir, &format!("file {number}"));
        one.write_at(0, &noise(1000 * round + number, 9000)).expect("write");
        one.write_at(20_000, &repeated[..4096 * (number as usize % 12)]).expect("write");
    }
    let whole = file(fs, dir, "repeated");
    whole.write_at(0, &repeated).expect("write");
    let clone = file(fs, dir, "clone");
    clone.clone_from(&whole, 100, 5000, 30_000).expect("clone");
    // A log of several pages.
    let scattered = file(fs, dir, "scattered");
    (0..180).for_each(|at| scattered.write_at(at * 8192, &[at as u8, round as u8]).expect("write"));
    let reserved = file(fs, dir, "reserved");
    reserved.allocate(0, 20_000, AllocateMode::Reserve).expect("reserve");
    reserved.write_at(4096, b"written in part").expect("write");
    fs.set_xattr(whole.ino(), b"user.long", &noise(7, 9000), XattrMode::Set).expect("xattr");
    fs.set_xattr(dir, b"user.short", b"value", XattrMode::Set).expect("xattr");
    fs.symlink(dir, b"symlink", b"../somewhere", &device::new_inode(FileKind::Symlink, 0o777)).expect("symlink");
    fs.symlink(dir, b"long symlink", &[b'l'; 2000], &device::new_inode(FileKind::Symlink, 0o777)).expect("symlink");
    fs.create(dir, b"fifo", &device::new_inode(FileKind::Fifo, 0o600)).expect("mknod");
    let below = fs.mkdir(dir, b"below", &device::directory()).expect("mkdir").ino;
    let deep = fs.mkdir(below, b"deep", &device::directory()).expect("mkdir").ino;
    file(fs, deep, "at the bottom").write_at(0, &noise(round, 5000)).expect("write");
    fs.link(whole.ino(), deep, b"hard link").expect("link");
    let crowded = fs.mkdir(dir, b"crowded", &device::directory()).expect("mkdir").ino;
    for number in 0..90 {
        let name = format!("{number} {}", "a long name ".repeat(6));
        fs.create(crowded, name.as_bytes(), &device::regular()).expect("create");
    }
}

/// Returns a device that several policies have written to, unmounted or as after a crash.
fn populated(index: IndexKind, is_clean: bool) -> Content {
    let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).expect("a device");
    FileSystem::mkfs(&region, &MkfsOptions { uuid: *b"the damage suite", index, ..MkfsOptions::default() })
        .expect("mkfs");
    for (round, policy) in (0..).zip(POLICIES) {
        let options = MountOptions { policy, ..MountOptions::default() };
        let fs = FileSystem::mount(region.clone(), options).expect("mount");
        populate(&fs, policy, round);
        while !fs.drain_step().expect("share") {}
        if policy == POLICIES[POLICIES.len() - 1] && !is_clean {
            let content = Content::of(&region);
            drop(fs);
            return content;
        }
        fs.unmount().expect("unmount");
    }
    Content::of(&region)
}

/// Returns the 4 KiB pages of each table.
fn pages(content: &Content, survivors: &Survivors) -> BTreeMap<&'static str, Vec<u64>> {
    let geometry = Geometry::of(DEVICE_BYTES).expect("a size").with_last_copy();
    let written: Vec<u64> = content.block_addresses().collect();
    let mut pages: BTreeMap<&'static str, Vec<u64>> = BTreeMap::new();
    // An unaligned page hits both neighbours at the front of the device.
    pages.insert("superblocks", geometry.copies().chain([256]).collect());
    pages.insert("journal", (geometry.journal_offset..geometry.generators_offset).step_by(4096).collect());
    pages.insert("generators", vec![geometry.generators_offset]);
    pages.insert("segment table", vec![geometry.segment_table_offset]);
    let within = |range: Range<u64>| written.iter().copied().filter(move |at| range.contains(at));
    pages.insert("chunk table", within(geometry.chunk_table_offset..geometry.data_offset).collect());
    for segment in geometry.first_segment()..geometry.segments() {
        let entry = content.read(geometry.segment_entry_offset(segment), 16);
        let table = match SegmentEntry::read_from_bytes(&entry).expect("its length").usage(segment) {
            SegmentUse::Inodes(_) => "inode table",
            SegmentUse::Index(_) => "pm index",
            SegmentUse::Entries(_) => "packed entries",
            SegmentUse::Packed => "packed headers",
            _ => continue,
        };
        let in_segment = within(segment * SEGMENT_BYTES..(segment + 1) * SEGMENT_BYTES);
        // Content is in front of the headers.
        let is_table = |page: &u64| table != "packed headers" || survivors.is_metadata(&(*page..*page + BLOCK_BYTES));
        pages.entry(table).or_default().extend(in_segment.filter(is_table));
    }
    let logs = survivors.footprints().values().flat_map(|own| own.metadata.iter());
    let logs = logs.filter(|range| range.end - range.start > INODE_BYTES).map(|range| range.start);
    pages.insert("logs", logs.collect());
    let superblock = Superblock::read_from_bytes(&content.read(0, 512)).expect("its length");
    pages.insert("saved state", Some(superblock.saved_state).filter(|at| *at != 0).into_iter().collect());
    pages
}

// --- one page ------------------------------------------------------------------------------------

/// An undo file in memory.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl UndoFile for Kept {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().expect("nobody panics with it").extend_from_slice(bytes);
        Ok(())
    }
}

const REPAIR: CheckOptions = CheckOptions { repair: true, data: true };
const LOOK: CheckOptions = CheckOptions { repair: false, data: true };

#[derive(Default)]
struct Figures {
    pages: usize,
    found: usize,
    writable: usize,
    repaired: usize,
    lost: usize,
    moved: usize,
    undone: usize,
}

fn nothing_found(report: &CheckReport) -> bool {
    report.clean && report.findings.is_empty() && report.recoverable == 0
}

/// Damages a page, checks, repairs, checks again, and undoes the repair.
fn try_damage(
    content: &Content,
    hit: Range<u64>,
    bytes: &[u8],
    survivors: &Survivors,
    slate: &Slate,
    figures: &mut Figures,
) -> Result<(), String> {
    let mut damaged = content.clone();
    damaged.write(hit.start, bytes);
    figures.pages += 1;

    let region = slate.with(&damaged);
    let before = check(&region, &LOOK).map_err(|error| format!("fsck: {error}"))?;
    figures.found += usize::from(!before.findings.is_empty());
    if let Ok(fs) = FileSystem::mount(region.clone(), MountOptions { read_only: true, ..MountOptions::default() }) {
        survivors.serve_before_repair(&fs).map_err(|why| format!("read-only, before repair: {why}"))?;
    } else if !before.given_up.iter().any(|lost| lost.ino == ROOT.0) {
        return Err("the root is there, and a read-only mount refuses".into());
    }
    if Content::of(&region) != damaged {
        return Err("fsck without repair, or a read-only mount, wrote to the device".into());
    }

    // A mount that writes before any check must lose nothing.
    if let Ok(fs) = FileSystem::mount(region.clone(), MountOptions::default()) {
        figures.writable += 1;
        survivors.serve_before_repair(&fs).map_err(|why| format!("mounted, before repair: {why}"))?;
        fs.reconcile().map_err(|error| format!("reconcile: {error}"))?;
        for number in 0..40 {
            let new = fs.create(ROOT, format!("made meanwhile {number}").as_bytes(), &device::regular());
            let written = new.and_then(|new| fs.open(new.ino)?.write_at(0, &noise(number, 6000)));
            // After a crash the blocks that an unreadable inode may reference are kept; these may be all that is
            // free.
            let fair = [nvfold::errno::EIO, nvfold::errno::ENOSPC, nvfold::errno::EEXIST];
            let unfair = written.err().filter(|error| !fair.contains(&error.errno()));
            unfair.map_or(Ok(()), |error| Err(format!("a file on a damaged device: {error}")))?;
        }
        survivors.serve_before_repair(&fs).map_err(|why| format!("written to, before repair: {why}"))?;
        fs.unmount().map_err(|error| format!("unmount: {error}"))?;
        let report = check(&region, &REPAIR).map_err(|error| format!("repair after a mount: {error}"))?;
        check_repaired(&region, &report, survivors, &hit).map_err(|why| format!("repaired after a mount: {why}"))?;
    }

    let region = slate.with(&damaged);
    let undo = Kept::default();
    let report = check_and_keep(&region, &REPAIR, || Ok(Box::new(undo.clone()) as Box<dyn UndoFile>));
    let report = report.map_err(|error| format!("repair: {error}"))?;
    if let Some(unannounced) =
        report.given_up.iter().find(|lost| before.given_up.iter().all(|told| told.ino != lost.ino))
    {
        return Err(format!("{unannounced:?} was given up, and fsck had not said so"));
    }
    let (lost, moved) = check_repaired(&region, &report, survivors, &hit)?;
    figures.repaired += 1;
    (figures.lost, figures.moved) = (figures.lost + lost, figures.moved + moved);

    // After a mount the repair can no longer be undone; before it, it can.
    let kept = undo.0.lock().expect("nobody panics with it").clone();
    if !kept.is_empty() {
        let refused = restore(&region, &kept);
        if !matches!(refused, Err(nvfold::Error::Undo { .. })) {
            return Err(format!("put back after a mount: {refused:?}"));
        }
        let region = slate.with(&damaged);
        let again = Kept::default();
        check_and_keep(&region, &REPAIR, || Ok(Box::new(again.clone()) as Box<dyn UndoFile>))
            .map_err(|error| format!("repair: {error}"))?;
        let kept = again.0.lock().expect("nobody panics with it").clone();
        restore(&region, &kept).map_err(|error| format!("put back: {error}"))?;
        if Content::of(&region) != damaged {
            return Err("put back it is not what it was".into());
        }
        figures.undone += 1;
    }
    Ok(())
}

fn check_repaired(
    region: &Region,
    report: &CheckReport,
    survivors: &Survivors,
    hit: &Range<u64>,
) -> Result<(usize, usize), String> {
    if !report.is_consistent() {
        return Err(format!("repair leaves {:#?}", report.findings));
    }
    let after = check(region, &LOOK).map_err(|error| format!("a second fsck: {error}"))?;
    if !nothing_found(&after) {
        return Err(format!("a second fsck finds {:#?}, {} traces", after.findings, after.recoverable));
    }
    let fs = FileSystem::mount(region.clone(), MountOptions::default()).map_err(|error| format!("mount: {error}"))?;
    let figures = survivors.check_repaired(&fs, report, std::slice::from_ref(hit))?;
    fs.unmount().map_err(|error| format!("unmount: {error}"))?;
    let after = check(region, &LOOK).map_err(|error| format!("a third fsck: {error}"))?;
    if nothing_found(&after) { Ok(figures) } else { Err(format!("a third fsck finds {:#?}", after.findings)) }
}

// --- all pages -----------------------------------------------------------------------------------

#[test]
fn a_damaged_page_of_any_table_costs_only_its_content() {
    let seed = Seed::new("the damage suite");
    let slate = Slate::new(DEVICE_BYTES);
    let step = if soak_factor() > 1 { 1 } else { SAMPLE };
    let mut table =
        String::from("damaged pages          pages  found  still writable  repaired  given up  lost+found  undone\n");
    let mut failures = Vec::new();
    for (name, index, is_clean) in [
        ("dram", IndexKind::Dram, true),
        ("pm", IndexKind::Pm, true),
        ("dram, crashed", IndexKind::Dram, false),
        ("pm, crashed", IndexKind::Pm, false),
    ] {
        let content = populated(index, is_clean);
        let survivors = Survivors::of(&content, &slate);
        assert!(survivors.count() > 400, "{} inodes", survivors.count());
        for (of, pages) in pages(&content, &survivors) {
            let mut figures = Figures::default();
            let mut random = seed.generator();
            let from = if pages.len() <= step { 0 } else { random.usize(0..step) };
            let step = if pages.len() <= SAMPLE { 1 } else { step };
            for page in pages.into_iter().skip(if step == 1 { 0 } else { from }).step_by(step) {
                let bytes = noise(random.u64(..), BLOCK_BYTES as usize);
                let hit = page..(page + BLOCK_BYTES).min(DEVICE_BYTES);
                if let Err(why) = try_damage(&content, hit, &bytes, &survivors, &slate, &mut figures) {
                    failures.push(format!("{name}, {of}, the page at {page:#x}: {why}"));
                }
            }
            let Figures { pages, found, writable, repaired, lost, moved, undone } = figures;
            let row = format!("{name}: {of}");
            table += &format!("{row:30} {pages:5} {found:5} {writable:8} {repaired:8} {lost:8} {moved:8} {undone:8}\n");
        }
    }
    show(&table);
    let shown: Vec<_> = failures.iter().take(12).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} pages:\n{}", failures.len(), shown.join("\n"));
}
