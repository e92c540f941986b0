//! Devices that are made by hand to cost a reader more than they should: memory, time or stack.
//!
//! Each is valid up to its checksums, but for one thing that no nvfold writes. Random damage finds such a thing seldom,
//! because several fields must fit one another.

use std::mem::offset_of;

use nvfold::internals::media::chunk_entry::{ChunkEntry, ENTRY_BYTES, LINKS_WORD};
use nvfold::internals::media::log_entry::{LogEntry, PageFooter, XattrValue};
use nvfold::internals::media::saved_state::{SAVED_RUNS, SavedRun, SavedState};
use nvfold::internals::media::superblock::{Geometry, ZONES};
use nvfold::{
    BLOCK_BYTES, DEVICE_BYTES_MAX, DEVICE_BYTES_MIN, FileKind, FileSystem, InodeNumber, MkfsOptions, MountOptions,
    NewInode, Policy, Superblock, XattrMode,
};
use pmem::{DeviceSpec, OpenOptions, Region};
use zerocopy::{FromBytes, IntoBytes};

use super::damage::superblocks;
use super::image::{self, Image, Kind, Layout, Structure};
use crate::device;
use crate::slate::Content;

const ROOT: InodeNumber = InodeNumber::ROOT;
/// Levels of the deep tree: more than a recursion over them has stack for.
pub const LEVELS: usize = 60_000;
/// Length of a name in the deep tree: its longest path takes megabytes.
const NAME_BYTES: usize = 30;

/// A device and what is wrong with it.
pub struct Made {
    /// What is wrong with it.
    pub name: &'static str,
    /// The bytes.
    pub content: Content,
}

/// Returns all devices but the deep tree, which takes longer than all others together ([`deep_tree`]).
pub fn all() -> Vec<Made> {
    let made = |name, content| Made { name, content };
    vec![
        made("the saved state names one run 248 times", one_run_many_times(|_| {})),
        made(
            "the saved state counts more inodes than there can be",
            one_run_many_times(|header| {
                header.runs_used = 1;
                header.inode_words = header.runs[0].count * BLOCK_BYTES / 8;
                header.payload_words = header.inode_words;
            }),
        ),
        made("a directory leads to one above it", directory_loop("up", "a")),
        made("a directory leads to the root", directory_loop("up", "")),
        made("two names lead to one directory", directory_loop("other", "a/b")),
        made("a chain of log pages is a circle", circle_of_pages()),
        made("a chain of the index is a circle", circle_of_entries()),
        made("the superblock tells of 16 TiB", of_geometry(|superblock, size| *superblock = size(DEVICE_BYTES_MAX))),
        made("the superblock tells of 2^64 bytes", of_geometry(|superblock, _| superblock.device_bytes = u64::MAX)),
        made("the tables lie outside the device", of_geometry(|superblock, _| superblock.data_offset = 1 << 60)),
        made("the list of zones has one that begins in the tables", of_zones(&[1])),
        made("the list of zones has a zone a block", of_zones(&std::array::from_fn::<_, 32, _>(|at| 4096 + at as u32))),
        made("the list of zones leads past the end", of_zones(&[4096, u32::MAX])),
        made("the list of zones is not in order", of_zones(&[8192, 4096])),
        made("a second zone lies over data", zone_over(false)),
        made("the tables of a second zone are noise", zone_over(true)),
        made("files have 2^63 - 1 bytes", of_files(longest)),
        made("all attributes lie in one block", attributes_in_one_block()),
    ]
}

fn made_by(bytes: u64, fill: impl FnOnce(&FileSystem)) -> Content {
    let region = Region::create(&DeviceSpec::Memory, bytes, &OpenOptions::default()).expect("a memory device");
    FileSystem::mkfs(&region, &MkfsOptions::default()).expect("mkfs");
    let options = MountOptions { policy: Policy::Inline, cores: 1, ..MountOptions::default() };
    let fs = FileSystem::mount(region.clone(), options).expect("mount");
    fill(&fs);
    fs.unmount().expect("unmount");
    Content::of(&region)
}

fn of_files(fill: impl FnOnce(&FileSystem)) -> Content {
    made_by(DEVICE_BYTES_MIN, fill)
}

fn mkdir(fs: &FileSystem, parent: InodeNumber, name: &str) -> InodeNumber {
    fs.mkdir(parent, name.as_bytes(), &device::directory()).expect("mkdir").ino
}

fn file(fs: &FileSystem, parent: InodeNumber, name: &str, bytes: usize) -> nvfold::File {
    let ino = fs.create(parent, name.as_bytes(), &device::regular()).expect("create").ino;
    let file = fs.open(ino).expect("open");
    file.write_at(0, &vec![7; bytes]).expect("write");
    file
}

/// Makes a directory in a directory, [`LEVELS`] times, with files at both ends.
pub fn deep_tree() -> Content {
    made_by(64 << 20, |fs| {
        file(fs, ROOT, "top", 5000);
        let name = "d".repeat(NAME_BYTES);
        let last = (0..LEVELS).fold(ROOT, |parent, _| mkdir(fs, parent, &name));
        file(fs, last, "bottom", 5000);
    })
}

fn longest(fs: &FileSystem) {
    // The sum of three such sizes has no place in 64 bits.
    for name in ["one", "two", "three"] {
        let file = file(fs, ROOT, name, 5000);
        file.set_len(i64::MAX as u64).expect("set the length");
        file.write_at(i64::MAX as u64 - 5000, &[1; 5000]).expect("write at the end");
    }
}

/// Makes long attributes of a file, and lets all name the block of one as each of their blocks.
fn attributes_in_one_block() -> Content {
    let content = of_files(|fs| {
        let file = file(fs, ROOT, "file", 100);
        for number in 0..8 {
            let name = format!("user.long {number}");
            fs.set_xattr(file.ino(), name.as_bytes(), &[5; 60_000], XattrMode::Set).expect("set an attribute");
        }
    });
    let mut image = Image::of(Kind::Small, content);
    let mut first = None;
    for at in image.structures[Layout::LogEntry as usize].clone() {
        let Ok((entry, _)) = LogEntry::decode(at.owner, &image.content.read(at.at, at.len)) else { continue };
        let LogEntry::XattrSet { name, value: XattrValue::Blocks { bytes, mut blocks }, time } = entry else {
            continue;
        };
        let block = *first.get_or_insert(blocks[0]);
        blocks.fill(block);
        let mut lines = Vec::new();
        LogEntry::XattrSet { name, value: XattrValue::Blocks { bytes, blocks }, time }.encode(at.owner, &mut lines);
        image.content.write(at.at, &lines);
    }
    assert!(first.is_some(), "an attribute in blocks");
    image.content
}

/// Lets the saved state name all data segments 248 times, and count as many words of the inode table; then changes the
/// header as `change` says. Its checksum is right, that of the payload cannot be told before all of it was read.
fn one_run_many_times(change: impl FnOnce(&mut SavedState)) -> Content {
    let mut content = made_by(64 << 20, |fs| drop(file(fs, ROOT, "file", 50_000)));
    let geometry = Geometry::of(content.len_bytes()).expect("a valid size").with_last_copy();
    let bytes = content.read(0, size_of::<Superblock>() as u64);
    let at = Superblock::read_from_bytes(&bytes).expect("its length").saved_state;
    let mut header = SavedState::read_from_bytes(&content.read(at, BLOCK_BYTES)).expect("its length");
    let (start, end) = (geometry.data_offset / BLOCK_BYTES, geometry.data_end / BLOCK_BYTES);
    header.runs = [SavedRun { start, count: end - start }; SAVED_RUNS];
    header.runs_used = SAVED_RUNS as u64;
    header.segments = 0;
    header.payload_words = SAVED_RUNS as u64 * (end - start) * BLOCK_BYTES / 8;
    header.inode_words = header.payload_words;
    change(&mut header);
    content.write(at, header.sealed(at).as_bytes());
    content
}

/// Makes `a/b/c` and lets the name of an empty directory lead elsewhere: `up` in `c`, or `other` beside `a`. `target`
/// is the path of the directory that it then leads to.
fn directory_loop(name: &str, target: &str) -> Content {
    let mut leads_to = ROOT;
    let content = of_files(|fs| {
        let a = mkdir(fs, ROOT, "a");
        let b = mkdir(fs, a, "b");
        let c = mkdir(fs, b, "c");
        file(fs, a, "in a", 5000);
        file(fs, c, "in c", 5000);
        mkdir(fs, c, "up");
        mkdir(fs, ROOT, "other");
        leads_to = fs.resolve(target.as_bytes()).expect("the target is there").ino;
    });
    let mut image = Image::of(Kind::Small, content);
    let entries: Vec<Structure> = image.structures[Layout::LogEntry as usize].clone();
    let changed = entries.iter().filter(|entry| leads_elsewhere(&mut image.content, entry, name, leads_to)).count();
    assert_eq!(changed, 1, "names `{name}`");
    image.content
}

fn leads_elsewhere(content: &mut Content, at: &Structure, name: &str, target: InodeNumber) -> bool {
    let Ok((entry, _)) = LogEntry::decode(at.owner, &content.read(at.at, at.len)) else { return false };
    let LogEntry::Name { name: known, kind, cookie, time, .. } = entry else { return false };
    if known != name.as_bytes() {
        return false;
    }
    assert_eq!(kind, FileKind::Directory);
    let mut lines = Vec::new();
    LogEntry::Name { name: known, ino: target.0, kind, cookie, time }.encode(at.owner, &mut lines);
    content.write(at.at, &lines);
    true
}

/// Lets the second page of a log with several lead back to the first.
fn circle_of_pages() -> Content {
    let image = image::image(Kind::LongLogs);
    let pages = &image.structures[Layout::PageFooter as usize];
    let footer =
        |page: &Structure| PageFooter::read_from_bytes(&image.content.read(page.at, page.len)).expect("its length");
    let is_chain = |pages: &&[Structure]| footer(&pages[0]).ino == footer(&pages[2]).ino;
    let chain = pages.windows(3).find(is_chain).expect("an inode with three pages");
    let mut content = image.content.clone();
    // The address of its page seeds the checksum of a footer.
    let first = chain[0].owner;
    content.write(chain[1].at + offset_of!(PageFooter, next) as u64, &first.to_le_bytes());
    content
}

/// Lets an entry of the pm index be the next one after itself.
fn circle_of_entries() -> Content {
    let image = image::image(Kind::Chains);
    let geometry = Geometry::of(DEVICE_BYTES_MIN).expect("a valid size");
    let entries = &image.structures[Layout::ChunkEntry as usize];
    let read = |at: u64| ChunkEntry::read_from_bytes(&image.content.read(at, ENTRY_BYTES)).expect("its length");
    let at = entries.iter().map(|entry| entry.at).find(|at| read(*at).next != 0).expect("a chain of several entries");
    let number = ((at - geometry.chunk_table_offset) / ENTRY_BYTES) as u32;
    let mut content = image.content.clone();
    content.write(at + LINKS_WORD + 4, &number.to_le_bytes());
    content
}

/// Lists these zones in all copies of the superblock.
fn of_zones(starts: &[u32]) -> Content {
    of_geometry(|superblock, _| {
        superblock.zones[..starts.len()].copy_from_slice(starts);
        superblock.incompatible |= ZONES;
    })
}

/// Returns a device of which the second half says that it is a zone, with data or noise where its tables would be.
fn zone_over(is_noise: bool) -> Content {
    let mut content = made_by(2 * DEVICE_BYTES_MIN, |fs| {
        let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
        let file = fs.create(InodeNumber::ROOT, b"file", &new).expect("a file").ino;
        let file = fs.open(file).expect("an inode");
        let mut random = fastrand::Rng::with_seed(7);
        let data: Vec<u8> = (0..20 << 20).map(|_| random.u8(..)).collect();
        file.write_at(0, &data).expect("a large file");
    });
    let geometry = Geometry::of(DEVICE_BYTES_MIN).expect("a valid size");
    for at in superblocks(content.len_bytes()) {
        let bytes = content.read(at, size_of::<Superblock>() as u64);
        let mut superblock = Superblock::read_from_bytes(&bytes).expect("its length");
        superblock.zones[0] = (DEVICE_BYTES_MIN / BLOCK_BYTES) as u32;
        superblock.incompatible |= ZONES;
        superblock.segment_table_offset = geometry.segment_table_offset;
        superblock.chunk_table_offset = geometry.chunk_table_offset;
        superblock.data_offset = geometry.data_offset;
        assert!(superblock.sealed().verify().is_ok());
        content.write(at, superblock.sealed().as_bytes());
    }
    if is_noise {
        let mut random = fastrand::Rng::with_seed(8);
        let noise: Vec<u8> = (0..2 << 20).map(|_| random.u8(..)).collect();
        content.write(DEVICE_BYTES_MIN, &noise);
    }
    content
}

/// Changes all copies of the superblock; `change` also gets a function that returns the superblock of a larger device.
fn of_geometry(change: impl Fn(&mut Superblock, &dyn Fn(u64) -> Superblock)) -> Content {
    let mut content = image::image(Kind::Small).content.clone();
    for at in superblocks(content.len_bytes()) {
        let bytes = content.read(at, size_of::<Superblock>() as u64);
        let old = Superblock::read_from_bytes(&bytes).expect("its length");
        let of_size = |bytes: u64| {
            let geometry = Geometry::of(bytes).expect("a valid size");
            let mut of_size = old;
            of_size.device_bytes = bytes;
            of_size.segment_table_offset = geometry.segment_table_offset;
            of_size.chunk_table_offset = geometry.chunk_table_offset;
            of_size.data_offset = geometry.data_offset;
            of_size
        };
        let mut superblock = old;
        change(&mut superblock, &of_size);
        content.write(at, superblock.sealed().as_bytes());
    }
    content
}
