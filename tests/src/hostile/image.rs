//! Valid devices of many kinds, and the offsets of their structures.

use std::mem::offset_of;
use std::sync::OnceLock;

use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::internals::media::direct::{BEGUN, DIRECT_BYTES, DirectEntry, prefix_bits};
use nvfold::internals::media::inode::{ATTRIBUTE_LINES, INLINE_LOG, INODE_BYTES, InodeHead};
use nvfold::internals::media::journal::{JOURNAL_SLOTS, JournalSlot};
use nvfold::internals::media::log_area::{AreaHead, NEXT_WORD};
use nvfold::internals::media::log_entry::LINE;
use nvfold::internals::media::packed::HEADER_BYTES;
use nvfold::internals::media::saved_state::{SEGMENT_RECORD_WORDS, SavedState};
use nvfold::internals::media::segment::{SegmentEntry, SegmentUse};
use nvfold::internals::media::superblock::Geometry;
use nvfold::{
    AllocateMode, BLOCK_BYTES, Compression, DEVICE_BYTES_MIN, DeNovaOptions, File, FileKind, FileSystem, IndexKind,
    InodeNumber, MkfsOptions, MountOptions, Pack, Policy, RenameMode, ReorderOptions, Superblock, XattrMode,
};
use pmem::{DeviceSpec, OpenOptions, Region, StoreOrder};
use zerocopy::FromBytes;

use crate::device;
use crate::hostile::footprint::{part, part_end};
use crate::model::op;
use crate::slate::Content;

const ROOT: InodeNumber = InodeNumber::ROOT;

/// The content of a device. All devices have the smallest size and are the same in every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only the root.
    Empty,
    /// A file of each kind, small.
    Small,
    /// Blocks that several files share, completely and in part.
    Shared,
    /// Extended attributes, short and long.
    Xattrs,
    /// Directories that lost most of their names, and one whose log was rewritten.
    Tombstones,
    /// Logs of many pages, of files and directories.
    LongLogs,
    /// A bit of everything.
    Everything,
    /// The same after a crash, with open files that had no name.
    Crashed,
    /// A crash in the middle of a rename, which is in the journal.
    CutOff,
    /// No block left.
    Full,
    /// Data that policy denova stored and shared in part, with the rest in the queue.
    Queued,
    /// The same with a pm index whose chains are long.
    Chains,
    /// A crash while the queue is shared: references are taken on the way, and entries say so.
    Sharing,
    /// A crash while a chain is reordered.
    Ordering,
    /// Pieces of files in packed chunks, some of them equal, with parts that several files reference.
    Packed,
    /// The same after a crash, with open streams.
    Streams,
    /// Blocks, and the ends of files in packed chunks, all in chains of a pm index.
    Ends,
    /// The same files as `Packed`, with compressible chunks compressed.
    Compressed,
}

/// All kinds.
pub const KINDS: [Kind; 18] = [
    Kind::Empty,
    Kind::Small,
    Kind::Shared,
    Kind::Xattrs,
    Kind::Tombstones,
    Kind::LongLogs,
    Kind::Everything,
    Kind::Crashed,
    Kind::CutOff,
    Kind::Full,
    Kind::Queued,
    Kind::Chains,
    Kind::Sharing,
    Kind::Ordering,
    Kind::Packed,
    Kind::Streams,
    Kind::Ends,
    Kind::Compressed,
];

/// A valid device and the offsets of its structures.
pub struct Image {
    /// Its kind.
    pub kind: Kind,
    /// The bytes.
    pub content: Content,
    /// Structures, by layout.
    pub structures: Vec<Vec<Structure>>,
}

/// One structure of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Structure {
    /// Device offset.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
    /// Its layout.
    pub layout: Layout,
    /// The seed of its checksum: an inode number, a segment number, the address of a page or of the saved state. For
    /// the entry of a packed chunk, its number.
    pub owner: u64,
}

/// The layout of a structure; docs/media-format.md has a table for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Layout {
    Superblock,
    JournalSlot,
    SegmentEntry,
    ChunkEntry,
    InodeHead,
    AttributeLine,
    LogEntry,
    PageFooter,
    AreaHead,
    SavedState,
    SavedPayload,
    DirectEntry,
    PackedEntry,
    PackedHeader,
}

/// Number of layouts.
pub const LAYOUTS: usize = Layout::PackedHeader as usize + 1;

/// Shards of a saved index.
const INDEX_SHARDS: usize = 64;

/// Returns the image of a kind, made at its first use.
pub fn image(kind: Kind) -> &'static Image {
    static IMAGES: [OnceLock<Image>; KINDS.len()] = [const { OnceLock::new() }; KINDS.len()];
    IMAGES[kind as usize].get_or_init(|| Image::make(kind))
}

impl Image {
    fn make(kind: Kind) -> Image {
        Image::of(kind, content(kind))
    }

    /// Finds the structures of a valid device of the smallest size.
    pub fn of(kind: Kind, content: Content) -> Image {
        let mut image = Image { kind, content, structures: vec![Vec::new(); LAYOUTS] };
        image.find_structures();
        image
    }

    /// Selects a structure by two numbers; any numbers are valid.
    pub fn structure(&self, layout: u8, index: u16) -> Structure {
        let present: Vec<_> = self.structures.iter().filter(|list| !list.is_empty()).collect();
        let list = present[usize::from(layout) % present.len()];
        list[usize::from(index) % list.len()]
    }

    /// Selects any structure, whatever its layout.
    pub fn any(&self, index: u16) -> Structure {
        let count: usize = self.structures.iter().map(Vec::len).sum();
        *self.structures.iter().flatten().nth(usize::from(index) % count).expect("less than the count")
    }

    /// Returns the `InodeHead` structures: one for each inode.
    pub fn inodes(&self) -> &[Structure] {
        &self.structures[Layout::InodeHead as usize]
    }

    fn add(&mut self, layout: Layout, at: u64, len: u64, owner: u64) {
        self.structures[layout as usize].push(Structure { at, len, layout, owner });
    }

    fn word(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.content.read(at, 8).try_into().expect("eight bytes"))
    }

    fn find_structures(&mut self) {
        let geometry = Geometry::of(DEVICE_BYTES_MIN).expect("a valid size").with_last_copy();
        for at in geometry.copies() {
            self.add(Layout::Superblock, at, size_of::<Superblock>() as u64, 0);
        }
        self.find_saved_state();
        // Few of the journal's slots, because they are all alike.
        for slot in [0, 1, JOURNAL_SLOTS - 1] {
            self.add(Layout::JournalSlot, geometry.journal_slot_offset(slot), size_of::<JournalSlot>() as u64, 0);
        }
        for segment in geometry.first_segment()..geometry.segments() {
            let at = geometry.segment_entry_offset(segment);
            self.add(Layout::SegmentEntry, at, size_of::<SegmentEntry>() as u64, segment);
            let bytes = self.content.read(at, size_of::<SegmentEntry>() as u64);
            let entry = SegmentEntry::read_from_bytes(&bytes).expect("its length");
            match entry.usage(segment) {
                SegmentUse::Index(_) => self.find_chains(segment * SEGMENT_BYTES),
                SegmentUse::Entries(part) => self.find_packed_entries(segment * SEGMENT_BYTES, part),
                SegmentUse::Packed => self.find_packed_headers(segment * SEGMENT_BYTES, entry.wear),
                _ if self.word(at) != 0 => self.find_inodes(segment * SEGMENT_BYTES),
                _ => {}
            }
        }
        let table = geometry.chunk_table_offset..geometry.data_offset;
        let blocks: Vec<u64> = self.content.block_addresses().filter(|at| table.contains(at)).collect();
        for at in blocks.into_iter().flat_map(|block| (block..block + BLOCK_BYTES).step_by(LINE as usize)) {
            if self.content.read(at, LINE).iter().any(|&byte| byte != 0) {
                self.add(Layout::ChunkEntry, at, LINE, 0);
            }
        }
        // Entries of blocks that hold data without being counted, or hold nothing.
        for block in [geometry.data_offset + SEGMENT_BYTES, DEVICE_BYTES_MIN - 2 * BLOCK_BYTES] {
            let block = nvfold::internals::media::BlockNumber::containing(block);
            self.add(Layout::ChunkEntry, geometry.chunk_entry_offset(block), LINE, 0);
        }
    }

    /// Finds the saved state of the unmount: its header, and the meaningful parts of its payload.
    fn find_saved_state(&mut self) {
        let bytes = self.content.read(0, size_of::<Superblock>() as u64);
        let at = Superblock::read_from_bytes(&bytes).expect("its length").saved_state;
        if at == 0 {
            return;
        }
        self.add(Layout::SavedState, at, size_of::<SavedState>() as u64, at);
        let header = SavedState::read_from_bytes(&self.content.read(at, BLOCK_BYTES)).expect("its length");
        let payload = saved_payload(&self.content, &header).expect("an unmount saves a whole state");
        let mut next = 0;
        let mut part = |words: u64| {
            let at = next * 8;
            next += words;
            (payload.address_of(at), words * 8)
        };
        let records = (0..header.segments).map(|_| part(SEGMENT_RECORD_WORDS as u64)).collect::<Vec<_>>();
        let inodes = part(header.inode_words);
        let mut parts = [records, vec![inodes]].concat();
        for _ in 0..INDEX_SHARDS {
            let slots = self.word(payload.address_of((next + 1) * 8));
            let at = payload.address_of(next * 8);
            next += 2 + slots;
            // Most shards of the index are empty.
            if slots > 0 || parts.len() % 8 == 0 {
                parts.push((at, (2 + slots) * 8));
            }
        }
        if next < header.payload_words {
            parts.push((payload.address_of(next * 8), (header.payload_words - next) * 8));
        }
        parts.into_iter().for_each(|(start, len)| self.add(Layout::SavedPayload, start, len, at));
    }

    /// Finds the heads of chains, and two empty ones.
    fn find_chains(&mut self, segment: u64) {
        let chains = 1 << prefix_bits(DEVICE_BYTES_MIN / BLOCK_BYTES);
        let is_empty = |at: &u64| self.word(*at) == 0 && self.word(at + 8) == 0;
        let heads = (0..chains).map(|chain| segment + chain * DIRECT_BYTES);
        let (empty, used): (Vec<u64>, Vec<u64>) = heads.partition(is_empty);
        let heads = used.into_iter().chain(empty.into_iter().take(2));
        heads.for_each(|at| self.add(Layout::DirectEntry, at, DIRECT_BYTES, 0));
    }

    /// Finds the entries of packed chunks in use, and one that is not.
    fn find_packed_entries(&mut self, table: u64, part: u32) {
        let entries = (table..table + SEGMENT_BYTES).step_by(LINE as usize);
        let is_used = |at: &u64| self.content.read(*at, LINE).iter().any(|&byte| byte != 0);
        let last = entries.clone().filter(is_used).last().unwrap_or(table);
        for at in entries.take_while(|at| *at <= last + LINE) {
            let number = u64::from(part) * SEGMENT_BYTES / LINE + (at - table) / LINE;
            self.add(Layout::PackedEntry, at, LINE, number);
        }
    }

    /// Finds the headers of packed chunks, including those of freed chunks, and the place of the next one.
    fn find_packed_headers(&mut self, segment: u64, wear: u32) {
        let owner = segment ^ u64::from(wear) << 32;
        let mut at = segment + SEGMENT_BYTES;
        loop {
            at -= HEADER_BYTES;
            self.add(Layout::PackedHeader, at, HEADER_BYTES, owner);
            if self.word(at + 8) == 0 {
                return;
            }
        }
    }

    fn find_inodes(&mut self, table: u64) {
        for slot in (table..table + SEGMENT_BYTES).step_by(INODE_BYTES as usize) {
            let head = InodeHead::read_from_bytes(&self.content.read(slot, LINE)).expect("64 bytes");
            if head.live(head.ino).is_none() {
                continue;
            }
            let ino = head.ino;
            self.add(Layout::InodeHead, slot, LINE, ino);
            ATTRIBUTE_LINES.iter().for_each(|line| self.add(Layout::AttributeLine, slot + line, LINE, ino));
            self.find_entries(slot + INLINE_LOG, slot + INODE_BYTES, ino);
            let first = if head.head == slot + INLINE_LOG { head.overflow } else { head.head };
            let mut first = first;
            while first != 0 {
                let (start, end) = (part(first).start, part_end(first));
                let is_area = start != first;
                // An area that the log has left may have another owner.
                if is_area && self.word(start + offset_of!(AreaHead, owner) as u64) != ino {
                    break;
                }
                self.find_entries(first, end, ino);
                match is_area {
                    true => self.add(Layout::AreaHead, start, LINE, start),
                    false => self.add(Layout::PageFooter, end, LINE, first),
                }
                first = self.word(if is_area { start + NEXT_WORD } else { end });
            }
        }
    }

    fn find_entries(&mut self, mut at: u64, end: u64, ino: u64) {
        while at < end {
            let lines = u64::from(self.content.read(at + 1, 1)[0]);
            if lines == 0 {
                return;
            }
            self.add(Layout::LogEntry, at, lines * LINE, ino);
            at += lines * LINE;
        }
    }
}

/// The payload of a saved state: its bytes, and their offsets.
pub struct SavedPayload {
    runs: Vec<(u64, u64)>,
    /// The whole payload.
    pub bytes: Vec<u8>,
}

impl SavedPayload {
    /// Returns the device offset of a byte of the payload.
    fn address_of(&self, mut at: u64) -> u64 {
        for (start, len) in &self.runs {
            if at < *len {
                return start + at;
            }
            at -= len;
        }
        panic!("past the end of the payload");
    }
}

/// Follows the runs of a header, which may contain anything. Returns `None` if the payload is not on the device or
/// too long to be one of ours.
pub fn saved_payload(content: &Content, header: &SavedState) -> Option<SavedPayload> {
    let mut left = header.payload_words.checked_mul(8).filter(|bytes| *bytes <= 1 << 20)?;
    let mut payload = SavedPayload { runs: Vec::new(), bytes: Vec::new() };
    for run in header.runs.iter().take(usize::try_from(header.runs_used).ok()?) {
        let (start, len) = (run.start.checked_mul(BLOCK_BYTES)?, run.count.checked_mul(BLOCK_BYTES)?.min(left));
        if start.checked_add(len)? > content.len_bytes() {
            return None;
        }
        payload.runs.push((start, len));
        payload.bytes.extend(content.read(start, len));
        left -= len;
    }
    (left == 0).then_some(payload)
}

// --- the content of the devices -----------------------------------------------------------------

fn content(kind: Kind) -> Content {
    match kind {
        Kind::CutOff => return cut_off(),
        Kind::Queued => return queued(IndexKind::Dram, None),
        Kind::Chains => return queued(IndexKind::Pm, None),
        Kind::Sharing => return queued(IndexKind::Pm, Some(is_sharing)),
        Kind::Ordering => return queued(IndexKind::Pm, Some(is_ordering)),
        _ => {}
    }
    let policy = match kind {
        Kind::Full => Policy::Off,
        Kind::Packed | Kind::Streams | Kind::Compressed => Policy::DeExt,
        _ => Policy::Inline,
    };
    let (index, pack) = match kind {
        Kind::Ends => (IndexKind::Pm, Pack::On),
        _ => (IndexKind::Dram, Pack::Auto),
    };
    let region = formatted(&OpenOptions::default(), index);
    let compression = if kind == Kind::Compressed { Compression::ZSTD } else { Compression::Off };
    let fs = mount_packing(&region, policy, pack, compression);
    match kind {
        Kind::Empty | Kind::CutOff | Kind::Queued | Kind::Chains | Kind::Sharing | Kind::Ordering => {}
        Kind::Ends => ends(&fs),
        Kind::Packed | Kind::Compressed => drop(packed(&fs)),
        Kind::Streams => {
            let open = packed(&fs);
            let content = Content::of(&region);
            drop(open);
            return content;
        }
        Kind::Small => small(&fs),
        Kind::Shared => shared(&fs),
        Kind::Xattrs => xattrs(&fs),
        Kind::Tombstones => tombstones(&fs),
        Kind::LongLogs => long_logs(&fs),
        Kind::Everything => {
            everything(&fs);
        }
        Kind::Crashed => {
            let open = everything(&fs);
            // The content while the files are open, as after a crash.
            let content = Content::of(&region);
            drop(open);
            return content;
        }
        Kind::Full => full(&fs),
    }
    fs.unmount().expect("unmount");
    Content::of(&region)
}

fn formatted(options: &OpenOptions, index: IndexKind) -> Region {
    let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES_MIN, options).expect("a memory device");
    let options = MkfsOptions { uuid: *b"a uuid for tests", index, ..MkfsOptions::default() };
    FileSystem::mkfs(&region, &options).expect("mkfs");
    region
}

fn mount(region: &Region, policy: Policy) -> FileSystem {
    mount_packing(region, policy, Pack::Auto, Compression::Off)
}

fn mount_packing(region: &Region, policy: Policy, pack: Pack, compression: Compression) -> FileSystem {
    let denova = DeNovaOptions { reorder: ReorderOptions { references: 1, reads: 2 }, ..DeNovaOptions::default() };
    // With one allocation cursor the images are the same, whichever thread makes them.
    let options = MountOptions { policy, denova, pack, compression, cores: 1, ..MountOptions::default() };
    FileSystem::mount(region.clone(), options).expect("mount")
}

fn mkdir(fs: &FileSystem, parent: InodeNumber, name: &[u8]) -> InodeNumber {
    fs.mkdir(parent, name, &device::directory()).expect("mkdir").ino
}

fn create(fs: &FileSystem, parent: InodeNumber, name: &[u8]) -> File {
    let ino = fs.create(parent, name, &device::regular()).expect("create").ino;
    fs.open(ino).expect("open")
}

fn file(fs: &FileSystem, parent: InodeNumber, name: &[u8], data: &[u8]) -> File {
    let file = create(fs, parent, name);
    file.write_at(0, data).expect("write");
    file
}

fn small(fs: &FileSystem) {
    let link = device::new_inode(FileKind::Symlink, 0o777);
    let dir = mkdir(fs, ROOT, b"dir");
    create(fs, ROOT, b"nothing");
    file(fs, ROOT, b"short", b"a few bytes");
    file(fs, dir, b"odd", &[3; 5000]);
    fs.symlink(dir, b"link", b"../short", &link).expect("symlink");
    fs.create(dir, b"fifo", &device::new_inode(FileKind::Fifo, 0o600)).expect("mknod");
    let sparse = create(fs, ROOT, b"sparse");
    sparse.write_at(1 << 40, b"far").expect("write");
    sparse.allocate(0, 20_000, AllocateMode::Reserve).expect("reserve");
}

fn shared(fs: &FileSystem) {
    let blocks: Vec<u8> = (0..20u8).flat_map(|block| [block % 4 + 1; 4096]).collect();
    let first = file(fs, ROOT, b"first", &blocks);
    file(fs, ROOT, b"second", &blocks[4096..]);
    let clone = create(fs, ROOT, b"clone");
    clone.clone_from(&first, 0, 0, 80_000).expect("clone");
    let part = file(fs, ROOT, b"part", &[9; 10_000]);
    part.clone_from(&clone, 777, 6000, 30_000).expect("clone");
    part.clone_from(&part, 100, 100_000, 5000).expect("clone");
    clone.write_at(10_000, b"no longer equal").expect("write");
    part.allocate(8000, 9000, AllocateMode::PunchHole).expect("punch");
    fs.unlink(ROOT, b"second").expect("unlink");
}

/// Makes files of pieces, one of which grows by appends; returns the open files.
fn packed(fs: &FileSystem) -> Vec<File> {
    let noise = op::data(1, 40_000);
    let lines = (0..3000u32).flat_map(|line| format!("line {} of a text\n", line * line % 977).into_bytes());
    let text: Vec<u8> = lines.collect();
    let first = file(fs, ROOT, b"noise", &noise);
    file(fs, ROOT, b"text", &text);
    file(fs, ROOT, b"text again", &[b"one line more\n", &text[..]].concat());
    file(fs, ROOT, b"gone", &op::data(2, 20_000));
    file(fs, ROOT, b"short", b"a few bytes");
    let parts = file(fs, ROOT, b"parts", &text[..5000]);
    parts.clone_from(&first, 777, 2000, 30_000).expect("clone");
    parts.clone_from(&parts, 100, 50_000, 900).expect("clone");
    first.write_at(20_000, b"no longer equal").expect("write");
    fs.unlink(ROOT, b"gone").expect("unlink");
    let grows = create(fs, ROOT, b"grows");
    for length in [1000, 901, 77] {
        grows.append(&op::data(3, length)).expect("append");
    }
    vec![first, parts, grows]
}

/// Makes small files and odd ends, some of them equal, and a clone of one.
fn ends(fs: &FileSystem) {
    for number in 0..12u8 {
        let length = [10, 700, 4096 + 300][usize::from(number) % 3] + usize::from(number / 6);
        file(fs, ROOT, format!("file {number}").as_bytes(), &vec![number % 6; length]);
    }
    let first = file(fs, ROOT, b"first", &op::data(op::IN_CHAINS, 2 * BLOCK_BYTES + 1000));
    file(fs, ROOT, b"equal", &op::data(op::IN_CHAINS, 2 * BLOCK_BYTES + 1000));
    let part = create(fs, ROOT, b"part");
    part.clone_from(&first, 2 * BLOCK_BYTES + 100, 0, 500).expect("clone");
    fs.unlink(ROOT, b"file 4").expect("unlink");
}

fn xattrs(fs: &FileSystem) {
    let file = create(fs, ROOT, b"file");
    let dir = mkdir(fs, ROOT, b"dir");
    for (owner, lengths) in [(file.ino(), &[0, 1, 900, 1024, 1025, 9000, 65_536][..]), (dir, &[40, 5000])] {
        for len in lengths {
            let name = format!("user.of {len}").into_bytes();
            fs.set_xattr(owner, &name, &vec![*len as u8; *len], XattrMode::Set).expect("set an xattr");
        }
    }
    fs.set_xattr(file.ino(), &[b'n'; 255], &[1; 300], XattrMode::Create).expect("set an xattr");
    fs.set_xattr(file.ino(), b"user.of 9000", &[8; 4097], XattrMode::Replace).expect("set an xattr");
    fs.remove_xattr(file.ino(), b"user.of 1").expect("remove an xattr");
    let link = device::new_inode(FileKind::Symlink, 0o777);
    fs.symlink(ROOT, b"long link", &[b'l'; 3000], &link).expect("symlink");
    limits(fs);
}

/// Makes a limited tree with another one in it.
fn limits(fs: &FileSystem) {
    let outer = mkdir(fs, ROOT, b"limited");
    let inner = mkdir(fs, outer, b"inner");
    file(fs, outer, b"file", &[5; 5000]);
    file(fs, inner, b"file", &[6; 5000]);
    for (top, inodes) in [(outer, 50), (inner, 20)] {
        fs.change_limits(top, |limits| limits.inodes = Some(inodes)).expect("limits");
    }
}

fn tombstones(fs: &FileSystem) {
    let (few, rewritten) = (mkdir(fs, ROOT, b"few"), mkdir(fs, ROOT, b"rewritten"));
    for number in 0..40 {
        let name = format!("file {number} {}", "x".repeat(number % 90)).into_bytes();
        create(fs, few, &name);
        if number % 4 != 0 {
            fs.unlink(few, &name).expect("unlink");
        }
    }
    create(fs, rewritten, b"stays");
    for number in 0..200 {
        let name = format!("{number}").into_bytes();
        create(fs, rewritten, &name);
        fs.rename(rewritten, &name, rewritten, b"moved", RenameMode::Replace).expect("rename");
    }
}

fn long_logs(fs: &FileSystem) {
    let fragments = create(fs, ROOT, b"fragments");
    for piece in 0..200u64 {
        fragments.write_at(piece * 8192, &[piece as u8 % 5 + 1; 3000]).expect("write");
    }
    let dir = mkdir(fs, ROOT, b"dir");
    for number in 0..70 {
        create(fs, dir, format!("{number} {}", "long name ".repeat(8)).as_bytes());
    }
}

/// Makes one of everything and returns files that stay open: one never had a name, one has lost it.
fn everything(fs: &FileSystem) -> Vec<File> {
    small(fs);
    let dir = fs.lookup(ROOT, b"dir").expect("look up").ino;
    let inner = mkdir(fs, dir, b"inner");
    for number in 0..30 {
        let name = format!("file {number} {}", "x".repeat(number * 3)).into_bytes();
        let file = create(fs, inner, &name);
        if number % 10 == 0 {
            file.write_at(0, &[number as u8; 5000]).expect("write");
            fs.link(file.ino(), ROOT, format!("link {number}").as_bytes()).expect("link");
        }
        if number % 3 == 0 {
            fs.unlink(inner, &name).expect("unlink");
        }
    }
    let extents = create(fs, ROOT, b"extents");
    for piece in 0..70u64 {
        extents.write_at(piece * 9000 % 200_000, &[piece as u8 % 5; 4999]).expect("write");
    }
    extents.allocate(100_000, 50_000, AllocateMode::PunchHole).expect("punch");
    extents.allocate(300_000, 50_000, AllocateMode::Reserve).expect("reserve");
    let clone = create(fs, ROOT, b"clone");
    clone.clone_from(&extents, 0, 777, 150_000).expect("clone");
    for len in [10, 5000] {
        fs.set_xattr(extents.ino(), format!("user.of {len}").as_bytes(), &vec![7; len], XattrMode::Set).expect("xattr");
    }
    let orphan = fs.tmpfile(&device::regular()).expect("tmpfile");
    orphan.write_at(0, &[9; 20_000]).expect("write");
    let unlinked = file(fs, ROOT, b"unlinked", &[8; 10_000]);
    fs.unlink(ROOT, b"unlinked").expect("unlink");
    vec![extents, clone, orphan, unlinked]
}

/// Renames over an existing file in another directory, stopped when the rename is in the journal and not applied yet.
fn cut_off() -> Content {
    let region = formatted(&OpenOptions { record: true, ..OpenOptions::default() }, IndexKind::Dram);
    let fs = mount(&region, Policy::Inline);
    let (from, to) = (mkdir(&fs, ROOT, b"from"), mkdir(&fs, ROOT, b"to"));
    mkdir(&fs, from, b"moves");
    file(&fs, from, b"other", &[1; 9000]);
    mkdir(&fs, to, b"is replaced");
    let holds_an_operation = |image: &[u8]| {
        let geometry = Geometry::of(DEVICE_BYTES_MIN).expect("a valid size");
        let at = geometry.journal_slot_offset(0) as usize;
        let slot = JournalSlot::read_from_bytes(&image[at..at + size_of::<JournalSlot>()]).expect("its length");
        !slot.words().is_empty()
    };
    let rename = || fs.rename(from, b"moves", to, b"is replaced", RenameMode::Replace).expect("rename");
    stopped(&region, rename, holds_an_operation)
}

/// Returns the guaranteed content at the first point of `doing` at which `when` is true.
fn stopped(region: &Region, doing: impl FnOnce(), when: impl Fn(&[u8]) -> bool) -> Content {
    region.take_recording();
    let before = region.to_vec(0, region.len_bytes());
    doing();
    let recording = region.take_recording();
    // Of the words in flight at that moment none has reached the media.
    let mut states =
        (0..=recording.events.len()).map(|events| recording.image(&before, events, StoreOrder::Line, |_| false));
    let state = states.find(|state| when(state)).expect("it comes by that");
    let mut content = Content::zeros(DEVICE_BYTES_MIN);
    for (at, block) in (0..).step_by(BLOCK_BYTES as usize).zip(state.chunks(BLOCK_BYTES as usize)) {
        if block.iter().any(|&byte| byte != 0) {
            content.write(at, block);
        }
    }
    content
}

/// Makes blocks in one chain of a pm index, some of them shared, some in the queue. The device is unmounted in order,
/// or stopped at the first moment of the drain for which a condition is true.
fn queued(index: IndexKind, stopped_when: Option<fn(&[u8]) -> bool>) -> Content {
    let region = formatted(&OpenOptions { record: true, ..OpenOptions::default() }, index);
    let fs = mount(&region, Policy::DeNova);
    // Four neighbouring numbers are in four chains.
    let blocks = |number: u64, count: u64| op::data(op::IN_CHAINS + number, count * BLOCK_BYTES);
    for number in [0, 4, 8, 1] {
        file(&fs, ROOT, format!("{number}").as_bytes(), &blocks(number, 4));
    }
    while !fs.drain_step().expect("drain") {}
    let last = file(&fs, ROOT, b"last", &blocks(8, 4));
    file(&fs, ROOT, b"mixed", &[blocks(4, 1), blocks(12, 2), blocks(1, 1), vec![7; 3000]].concat());
    let drain = || {
        while !fs.drain_step().expect("drain") {}
        while !fs.reorder_step().expect("reorder") {}
    };
    if let Some(when) = stopped_when {
        return stopped(&region, drain, when);
    }
    drain();
    file(&fs, ROOT, b"queued", &[blocks(0, 4), blocks(16, 2)].concat());
    last.write_at(BLOCK_BYTES, &blocks(2, 2)).expect("write");
    drop(last);
    fs.unmount().expect("unmount");
    Content::of(&region)
}

/// Returns whether a chunk entry has an update count.
fn is_sharing(image: &[u8]) -> bool {
    let geometry = Geometry::of(DEVICE_BYTES_MIN).expect("a valid size");
    let entries = geometry.chunk_table_offset as usize..geometry.data_offset as usize;
    image[entries].as_chunks::<{ LINE as usize }>().0.iter().any(|entry| entry[12..16] != [0; 4])
}

/// Returns whether a chain has its new order but not its normal form yet.
fn is_ordering(image: &[u8]) -> bool {
    let geometry = Geometry::of(DEVICE_BYTES_MIN).expect("a valid size");
    let is_index = |segment: &u64| {
        let at = geometry.segment_entry_offset(*segment) as usize;
        let entry = SegmentEntry::read_from_bytes(&image[at..at + size_of::<SegmentEntry>()]).expect("its length");
        matches!(entry.usage(*segment), SegmentUse::Index(_))
    };
    let segment = (geometry.first_segment()..geometry.segments()).find(is_index).expect("it has a pm index");
    let heads = &image[(segment * SEGMENT_BYTES) as usize..][..SEGMENT_BYTES as usize];
    let heads = heads.as_chunks::<{ DIRECT_BYTES as usize }>().0.iter();
    heads.map(|head| DirectEntry::decode(u128::from_le_bytes(*head))).any(|head| ![0, BEGUN].contains(&head.order))
}

fn full(fs: &FileSystem) {
    small(fs);
    let dir = mkdir(fs, ROOT, b"crowded");
    let big = create(fs, ROOT, b"big");
    // Most of it is reserved, not written, because every fsck reads what is written.
    big.allocate(1 << 30, (fs.statfs().blocks_available - 300) * BLOCK_BYTES, AllocateMode::ReserveKeepSize)
        .expect("reserve");
    for piece in [65_536, 4096] {
        // Under this policy zeros are stored like other data, and they take no memory in the image.
        while big.append(&vec![0; piece]).is_ok() {}
    }
    let name = |number: u32| format!("{number} {}", "name ".repeat(40)).into_bytes();
    let made = (0..300).take_while(|number| fs.create(dir, &name(*number), &device::regular()).is_ok());
    assert!(made.count() < 300, "the directory's log found no end");
    assert_eq!(fs.statfs().blocks_available, 0);
}
