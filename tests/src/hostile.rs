//! Devices that no nvfold would have written, and the demand that nvfold survives them.
//!
//! Random bytes alone never get past the first checksum, so damage is done to a valid image, at
//! structures that are known to matter, and most of the time the checksum is put right again:
//! what is then read is well formed and wrong. The same damage is driven by the fuzz target in
//! `fuzz/` and by the test `badinput.rs`; both hand over plain bytes, see [`Damage::list`].

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nvfold::media::inode::{AttributeLine, INODE_BYTES, InodeHead};
use nvfold::media::journal::{JOURNAL_SLOTS, JOURNAL_WORDS, JournalSlot, WordStore};
use nvfold::media::log_entry::{LINE, PAGE_LINES};
use nvfold::media::segment::SegmentEntry;
use nvfold::media::superblock::{COPIES, Geometry, Superblock};
use nvfold::media::{BLOCK_BYTES, SEGMENT_BYTES};
use nvfold::{
    AllocateMode, FileKind, FileSystem, InodeNumber, MountOptions, Policy, RenameMode, SetAttr, Whence, XattrMode,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::device::{self, Device};

/// The smallest device, so that an image is cheap.
const IMAGE_BYTES: u64 = 16 << 20;
/// Inodes visited, and entries listed, before a walk through damaged directories stops.
const WALK_MAX: usize = 3000;

/// A valid image and where in it the structures lie.
pub struct Image {
    bytes: Vec<u8>,
    structures: Vec<Structure>,
}

/// One structure of the image.
#[derive(Clone, Copy, Debug)]
struct Structure {
    at: u64,
    len: u64,
    seal: Seal,
}

/// How a structure's checksum is put right.
#[derive(Clone, Copy, Debug)]
enum Seal {
    Superblock,
    JournalSlot,
    Segment(u64),
    /// Chunk entries have none.
    ChunkEntry,
    InodeHead,
    Attributes {
        ino: u64,
    },
    LogEntry {
        ino: u64,
    },
    Footer {
        page: u64,
    },
}

/// One piece of damage.
#[derive(Clone, Copy, Debug)]
pub struct Damage {
    structure: u16,
    offset: u8,
    what: What,
    mend: bool,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// One byte changed by exclusive or.
    Byte(u8),
    /// The 8-byte word there becomes this.
    Word(u64),
    /// The 8-byte word there becomes the one at this offset of another structure.
    Stolen { structure: u16, offset: u8 },
}

impl Damage {
    /// Reads damage from plain bytes: eight a piece.
    pub fn list(bytes: &[u8]) -> Vec<Damage> {
        bytes.chunks_exact(8).take(24).map(Damage::one).collect()
    }

    fn one(bytes: &[u8]) -> Damage {
        let argument = u16::from_le_bytes([bytes[4], bytes[5]]);
        let what = match bytes[3] % 8 {
            0..3 => What::Byte(bytes[4].max(1)),
            3 => What::Word(u64::from(argument)),
            4 => What::Word(u64::MAX - u64::from(argument % 9)),
            5 => What::Word(u64::from(argument) * LINE),
            6 => What::Word(1 << (argument % 64)),
            _ => What::Stolen { structure: argument, offset: bytes[6] },
        };
        Damage {
            structure: u16::from_le_bytes([bytes[0], bytes[1]]),
            offset: bytes[2],
            what,
            mend: !bytes[7].is_multiple_of(8),
        }
    }
}

impl Image {
    /// An image with a bit of everything; `crashed`: as a crash left it, not an unmount.
    pub fn make(crashed: bool) -> Image {
        let device = Device::blank(IMAGE_BYTES);
        device.mkfs().expect("mkfs");
        let fs = device.mount(Policy::Inline);
        let open = furnish(&fs);
        if crashed {
            drop((open, fs));
        } else {
            drop(open);
            fs.unmount().expect("unmount");
        }
        let bytes = std::fs::read(device.path()).expect("read the image");
        let mut image = Image { bytes, structures: Vec::new() };
        image.find_structures();
        image
    }

    /// A copy of the image with the damage done.
    pub fn damaged(&self, list: &[Damage]) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for damage in list {
            let structure = self.structure(damage.structure);
            let at = (structure.at + u64::from(damage.offset) % structure.len) as usize;
            let word_at = at / 8 * 8;
            match damage.what {
                What::Byte(change) => bytes[at] ^= change,
                What::Word(value) => bytes[word_at..word_at + 8].copy_from_slice(&value.to_le_bytes()),
                What::Stolen { structure, offset } => {
                    let from = self.structure(structure);
                    let from = (from.at + u64::from(offset) % from.len) as usize / 8 * 8;
                    bytes.copy_within(from..from + 8, word_at);
                }
            }
            if damage.mend {
                structure.mend(&mut bytes);
            }
        }
        bytes
    }

    /// The damage in words: which structure, where in it, and what.
    pub fn describe(&self, list: &[Damage]) -> Vec<String> {
        let describe = |damage: &Damage| {
            let Structure { at, len, seal } = self.structure(damage.structure);
            let offset = u64::from(damage.offset) % len;
            let mended = if damage.mend { "mended" } else { "not mended" };
            format!("{seal:?} at {at:#x}, byte {offset} of {len}: {:x?}, checksum {mended}", damage.what)
        };
        list.iter().map(describe).collect()
    }

    fn structure(&self, number: u16) -> Structure {
        self.structures[usize::from(number) % self.structures.len()]
    }

    fn word(&self, at: u64) -> u64 {
        let at = at as usize;
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    fn add(&mut self, at: u64, len: u64, seal: Seal) {
        self.structures.push(Structure { at, len, seal });
    }

    fn find_structures(&mut self) {
        let geometry = Geometry::of(IMAGE_BYTES).expect("a valid size");
        for at in COPIES {
            self.add(at, size_of::<Superblock>() as u64, Seal::Superblock);
        }
        // Few of the journal's slots: they are all alike.
        for slot in (0..JOURNAL_SLOTS).step_by(16) {
            self.add(geometry.journal_slot_offset(slot), size_of::<JournalSlot>() as u64, Seal::JournalSlot);
        }
        for segment in geometry.first_segment()..geometry.segments() {
            let at = geometry.segment_entry_offset(segment);
            self.add(at, size_of::<SegmentEntry>() as u64, Seal::Segment(segment));
            if self.bytes[at as usize] != 0 {
                self.find_inodes(segment * SEGMENT_BYTES);
            }
        }
        for at in (geometry.chunk_table_offset..geometry.data_offset).step_by(LINE as usize) {
            if self.bytes[at as usize..(at + LINE) as usize].iter().any(|&byte| byte != 0) {
                self.add(at, LINE, Seal::ChunkEntry);
            }
        }
        assert!(self.structures.len() > 200, "{} structures", self.structures.len());
    }

    fn find_inodes(&mut self, table: u64) {
        for slot in (table..table + SEGMENT_BYTES).step_by(INODE_BYTES as usize) {
            let head = InodeHead::read_from_bytes(&self.bytes[slot as usize..slot as usize + 64]).expect("64 bytes");
            if head.live(head.ino).is_none() {
                continue;
            }
            let ino = head.ino;
            self.add(slot, LINE, Seal::InodeHead);
            for line in nvfold::media::inode::ATTRIBUTE_LINES {
                self.add(slot + line, LINE, Seal::Attributes { ino });
            }
            self.find_entries(slot + nvfold::media::inode::INLINE_LOG, slot + INODE_BYTES, ino);
            let mut page = head.overflow;
            // Long logs are all alike as well.
            for _ in 0..6 {
                if page == 0 {
                    break;
                }
                let footer = page + PAGE_LINES * LINE;
                self.find_entries(page, footer, ino);
                self.add(footer, LINE, Seal::Footer { page });
                page = self.word(footer);
            }
        }
    }

    fn find_entries(&mut self, mut at: u64, end: u64, ino: u64) {
        while at < end {
            let lines = u64::from(self.bytes[at as usize + 1]);
            if lines == 0 {
                return;
            }
            self.add(at, lines * LINE, Seal::LogEntry { ino });
            at += lines * LINE;
        }
    }
}

impl Structure {
    fn mend(self, image: &mut [u8]) {
        let bytes = &mut image[self.at as usize..(self.at + self.len) as usize];
        let put = |bytes: &mut [u8], at: usize, check: u32| bytes[at..at + 4].copy_from_slice(&check.to_le_bytes());
        match self.seal {
            Seal::Superblock => {
                let superblock = Superblock::read_from_bytes(bytes).expect("a superblock's bytes");
                bytes.copy_from_slice(superblock.sealed().as_bytes());
            }
            Seal::JournalSlot => {
                let count = bytes[4] as usize % (JOURNAL_WORDS + 1);
                let stores: Vec<WordStore> = (0..count.max(1))
                    .map(|store| WordStore::read_from_bytes(&bytes[8 + store * 16..][..16]).expect("16 bytes"))
                    .collect();
                bytes.copy_from_slice(JournalSlot::new(&stores).as_bytes());
            }
            Seal::Segment(segment) => {
                let check = checksum(segment, &bytes[..8]);
                put(bytes, 12, check);
            }
            Seal::ChunkEntry => {}
            Seal::InodeHead => {
                let head = InodeHead::read_from_bytes(&*bytes).expect("a head's bytes");
                let check = checksum(head.ino, &bytes[32..56]);
                put(bytes, std::mem::offset_of!(InodeHead, check), check);
            }
            Seal::Attributes { ino } => {
                let line = AttributeLine::read_from_bytes(&*bytes).expect("a line's bytes");
                bytes.copy_from_slice(line.sealed(ino).as_bytes());
            }
            Seal::LogEntry { ino } => {
                let check = entry_checksum(ino, bytes);
                put(bytes, 4, check);
            }
            Seal::Footer { page } => {
                let check = checksum(page, &bytes[8..16]);
                put(bytes, 16, check);
            }
        }
    }
}

/// CRC-32C seeded with the owner, as docs/media-format.md says.
fn checksum(owner: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(owner as u32 ^ (owner >> 32) as u32, bytes)
}

/// Of a log entry: all of it, the check taken as zero, and in extent entries (kinds 1 and 2) the
/// dedupe flag as well.
fn entry_checksum(ino: u64, entry: &[u8]) -> u32 {
    let mut copy = entry.to_vec();
    copy[4..8].fill(0);
    if [1, 2].contains(&copy[0]) {
        copy[3] = 0;
    }
    checksum(ino, &copy)
}

/// Files of every kind, logs long and short, shared blocks, large values, an unlinked open file.
fn furnish(fs: &FileSystem) -> Vec<nvfold::File> {
    let root = InodeNumber::ROOT;
    let dir = fs.mkdir(root, b"dir", &device::directory()).expect("mkdir").ino;
    let inner = fs.mkdir(dir, b"inner", &device::directory()).expect("mkdir").ino;
    let link = device::new_inode(FileKind::Symlink, 0o777);
    fs.symlink(dir, b"link", b"../dir/inner", &link).expect("symlink");
    fs.symlink(dir, b"long link", &[b'l'; 3000], &link).expect("symlink");
    fs.create(dir, b"fifo", &device::new_inode(FileKind::Fifo, 0o600)).expect("mknod");
    for number in 0..150 {
        let name = format!("file {number} {}", "x".repeat(number % 90)).into_bytes();
        let ino = fs.create(inner, &name, &device::regular()).expect("create").ino;
        if number % 10 == 0 {
            fs.open(ino).expect("open").write_at(0, &[number as u8; 5000]).expect("write");
            fs.link(ino, root, format!("link {number}").as_bytes()).expect("link");
        }
        if number % 3 == 0 {
            fs.unlink(inner, &name).expect("unlink");
        }
    }
    let ino = fs.create(root, b"extents", &device::regular()).expect("create").ino;
    let file = fs.open(ino).expect("open");
    for piece in 0..150u64 {
        file.write_at(piece * 9000 % 700_000, &[piece as u8 % 5; 4999]).expect("write");
    }
    file.allocate(100_000, 50_000, AllocateMode::PunchHole).expect("punch");
    file.allocate(800_000, 50_000, AllocateMode::Reserve).expect("reserve");
    let clone = fs.create(root, b"clone", &device::regular()).expect("create").ino;
    let clone = fs.open(clone).expect("open");
    clone.clone_from(&file, 0, 777, 300_000).expect("clone");
    for len in [0, 10, 900, 5000, 65_536] {
        let name = format!("user.of {len}").into_bytes();
        fs.set_xattr(ino, &name, &vec![7; len], XattrMode::Set).expect("set an xattr");
    }
    let orphan = fs.tmpfile(&device::regular()).expect("tmpfile");
    orphan.write_at(0, &[9; 20_000]).expect("write");
    vec![file, clone, orphan]
}

/// Writes the image to a device and does to it all that a user could. Errors are fine, and so is
/// a refusal; a panic, an abort or a hang is not.
pub fn survive(image: &[u8], scratch: &Path) {
    let path = scratch.join("hostile");
    let write = |path: &Path| {
        let file = File::create(path).expect("create the device");
        file.set_len(image.len() as u64).expect("size the device");
        for (index, block) in image.chunks(BLOCK_BYTES as usize).enumerate() {
            if block.iter().any(|&byte| byte != 0) {
                file.write_all_at(block, index as u64 * BLOCK_BYTES).expect("write the device");
            }
        }
    };
    write(&path);
    check(&path, false);
    for read_only in [true, false] {
        let Ok(region) = device::region_of(&path) else {
            return;
        };
        let options = MountOptions { read_only, ..device::options() };
        if let Ok(fs) = FileSystem::mount(region, options) {
            walk(&fs);
            if !read_only {
                disturb(&fs);
            }
            let _ = fs.unmount();
        }
    }
    check(&path, false);
    write(&path);
    check(&path, true);
    check(&path, false);
    let _ = std::fs::remove_file(&path);
}

fn check(path: &Path, repair: bool) {
    let _ = device::check(path, repair);
}

/// Asks after everything that can be reached.
fn walk(fs: &FileSystem) {
    let mut dirs = vec![InodeNumber::ROOT];
    let mut seen = HashSet::new();
    let _ = (fs.statfs(), fs.stats());
    while let Some(dir) = dirs.pop() {
        if !seen.insert(dir.0) || seen.len() > WALK_MAX {
            continue;
        }
        let mut entries = Vec::new();
        let mut each = |entry: nvfold::DirEntry| {
            entries.push(entry);
            entries.len() < WALK_MAX
        };
        let _ = fs.readdir(dir, 0, &mut each);
        let _ = fs.parent(dir);
        for entry in entries {
            let _ = fs.lookup(dir, &entry.name);
            inspect(fs, entry.ino);
            dirs.push(entry.ino);
        }
    }
}

fn inspect(fs: &FileSystem, ino: InodeNumber) {
    let _ = fs.getattr(ino);
    let _ = fs.readlink(ino);
    for name in fs.list_xattr(ino).unwrap_or_default() {
        let _ = fs.get_xattr(ino, &name);
    }
    if let Ok(file) = fs.open(ino) {
        let size = file.attr().size;
        let mut buffer = vec![0; 100_000];
        let _ = file.read_at(0, &mut buffer);
        let _ = file.read_at(size.saturating_sub(50_000), &mut buffer);
        let _ = file.seek(size / 2, Whence::Data);
        let _ = file.seek(0, Whence::Hole);
    }
}

/// Changes what can be reached: every operation once or more.
fn disturb(fs: &FileSystem) {
    let root = InodeNumber::ROOT;
    let mut entries = Vec::new();
    let mut each = |entry: nvfold::DirEntry| {
        entries.push(entry);
        entries.len() < 100
    };
    let _ = fs.readdir(root, 0, &mut each);
    if let Ok(dir) = fs.lookup(root, b"dir") {
        let mut each = |entry: nvfold::DirEntry| {
            entries.push(entry);
            entries.len() < 200
        };
        let _ = fs.readdir(dir.ino, 0, &mut each);
        let _ = fs.rename(root, b"dir", dir.ino, b"inside itself", RenameMode::Replace);
    }
    let new = fs.create(root, b"new", &device::regular()).and_then(|attr| fs.open(attr.ino)).ok();
    for entry in entries {
        let _ = fs.setattr(entry.ino, &SetAttr { mode: Some(0o600), mtime: Some(1), ..SetAttr::default() });
        let _ = fs.set_xattr(entry.ino, b"user.new", &[3; 3000], XattrMode::Set);
        if let Ok(file) = fs.open(entry.ino) {
            let _ = file.write_at(1000, &[1; 10_000]);
            let _ = file.append(&[2; 100]);
            let _ = file.allocate(5000, 9000, AllocateMode::PunchHole);
            let _ = file.set_len(3000);
            if let Some(new) = &new {
                let _ = new.clone_from(&file, 0, 500, 4000);
            }
        }
        let _ = fs.link(entry.ino, root, &[b"link to ", &entry.name[..]].concat());
        let _ = fs.rename(root, &entry.name, root, b"renamed", RenameMode::Replace);
        let _ = fs.unlink(root, b"renamed");
    }
    let _ = fs.mkdir(root, b"new dir", &device::directory());
    let _ = fs.rmdir(root, b"new dir");
    let _ = fs.tmpfile(&device::regular());
    let _ = fs.sync();
    let _ = fs.trim();
    let _ = fs.stats();
}
