//! One inode in DRAM: the content of its slot and its log, and how it is built from them.
//!
//! | file | contents |
//! |---|---|
//! | [`extents`] | a file's bytes: from file offsets to media addresses |
//! | [`coverage`] | which bytes of chunks the extents of all files map |
//! | [`directory`] | names |
//! | [`ranges`] | ranges of the content of one chunk |
//! | [`log`] | the log of an inode: reading it and adding to it |
//! | [`table`] | the slots, and which are in use |
//!
//! **A freed inode.** An inode may be freed while a thread still has a pointer to it. A thread that then locks it
//! with [`Inode::read`], [`Inode::write`] or [`Inode::upgradable_read`] gets ENOENT. [`Inode::peek`] and
//! [`Inode::lock`] do not check this, for callers that must not fail.
//!
//! **An inode of which a change was cut off** by a panic is locked by the same calls with EIO ([`Changing`]).

pub(crate) mod coverage;
pub(crate) mod directory;
pub(crate) mod extents;
pub(crate) mod log;
pub(crate) mod ranges;
pub(crate) mod table;

use crate::error::{Error, Result, errno};
use crate::fingerprint::Domain;
use crate::media::inode::{ATTRIBUTE_LINES, AttributeLine, IN_USE, INLINE_LOG, INODE_BYTES, InodeHead, READ_ONLY_COPY};
use crate::media::log_area::KIND_LOG_AREA;
pub(crate) use crate::media::log_entry::SYMLINK_TARGET;
use crate::media::log_entry::{LogEntry, XATTR_NAME_OFFSET, XattrValue, dedupe, xattr_lines};
use crate::media::superblock::Geometry;
use crate::media::vector_entry::Named;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::panics::Panics;
use crate::words::{Attr, FileId, FileKind, InodeNumber, TimeNs};
use directory::Directory;
use extents::{Extent, Extents};
use log::Log;
use nvfold_sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use nvfold_sync::{RwLock, RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard};
use pmem::Region;
use std::collections::BTreeMap;
use std::ops::Range;

/// Largest file offset (off_t).
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Longest value of an extended attribute that is held in DRAM, in bytes: names of policies, most ACLs, labels.
const SHORT_VALUE_MAX: usize = 64;

/// Why an entry does not fit an inode.
const NO_FILE: &str = "extents of something that is no file";
const NO_DIRECTORY: &str = "name in something that is no directory";

/// Values of an inode's `use_word`: it can be used; its slot was freed, so that a thread that still finds this object
/// must drop it; DRAM and media may say different things of it.
const USABLE: u8 = 0;
const FREED: u8 = 1;
const CUT_OFF: u8 = 2;

/// Value of [`Inode::own_policy`] and [`Inode::own_compression`] for an inode that has neither.
const NONE_OF_ITS_OWN: u8 = u8::MAX;

/// A cached inode.
pub(crate) struct Inode {
    /// Inode number.
    pub ino: u64,
    /// Device offset of its slot.
    pub slot: u64,
    /// File type.
    pub kind: FileKind,
    /// Distinguishes the users that the slot has had.
    pub generation: u32,
    /// True if it belongs to a snapshot, so that nothing of it may change.
    pub is_read_only: bool,
    /// Birth time.
    pub btime: TimeNs,
    /// Directories: number of the parent. Changes under the tree lock.
    pub parent: AtomicU64,
    /// Number of open `File`s.
    pub pins: AtomicUsize,
    /// See [`Inode::own_policy`].
    own_policy: AtomicU8,
    /// See [`Inode::own_compression`].
    own_compression: AtomicU8,
    /// See [`Inode::domain`].
    domain: AtomicU64,
    /// The number of changes of its owner that are under way.
    owner_changes: AtomicUsize,
    /// True once it is recorded that some of its data was stored without a fingerprint.
    lacks_fingerprints: AtomicBool,
    /// Whether it can be used. It changes with the lock held.
    use_word: AtomicU8,
    /// Everything that changes, under the inode's lock.
    state: RwLock<State>,
}

/// The part of the state that depends on the file type.
pub(crate) enum Body {
    /// Regular file.
    File(Extents),
    /// Directory.
    Directory(Directory),
    /// Symlinks, fifos, sockets, devices.
    Other,
}

/// How a file grows. Known only in DRAM, and a hint: it decides where new data goes, never what it means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    /// True if it was appended to inside a block, so that its end is likely to grow again.
    pub grows: bool,
    /// True if it rested once and then grew again, so that its end stays in a block when it rests.
    pub has_rested: bool,
}

/// The changing part of an inode.
pub(crate) struct State {
    /// Current attributes.
    pub attributes: AttributeLine,
    /// Which attribute line the commit word selects.
    pub selector: u64,
    /// Location of its log.
    pub log: Log,
    /// Extents or names.
    pub body: Body,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, HeldValue>,
    /// Lines of the log entries that set them.
    xattr_lines: u64,
    /// Number of log entries whose dedupe-flag says that they are still to be shared.
    pub needed: AtomicU64,
    /// A file range that contains the ranges of all those entries. Valid only while there are any.
    pub waiting: Range<u64>,
    /// Counts the changes after which a block that the file mapped may have another user.
    pub drops: u64,
    /// When the file was last truncated since it was loaded.
    pub truncated: Option<TimeNs>,
    /// How the file was appended to since it was loaded.
    pub growth: Growth,
}

impl State {
    /// Makes a new inode's state.
    pub(crate) fn new(kind: FileKind, attributes: AttributeLine, log: Log) -> State {
        let body = match kind {
            FileKind::Regular => Body::File(Extents::default()),
            FileKind::Directory => Body::Directory(Directory::default()),
            _ => Body::Other,
        };
        State {
            attributes,
            selector: 0,
            log,
            body,
            xattrs: BTreeMap::new(),
            xattr_lines: 0,
            needed: AtomicU64::new(0),
            waiting: 0..0,
            drops: 0,
            truncated: None,
            growth: Growth::default(),
        }
    }

    /// Sets an extended attribute.
    pub(crate) fn set_xattr(&mut self, name: Vec<u8>, value: HeldValue) {
        self.remove_xattr(&name);
        self.xattr_lines += xattr_lines(&name, value.log_bytes());
        self.xattrs.insert(name, value);
    }

    /// Removes an extended attribute, if there is one of this name.
    pub(crate) fn remove_xattr(&mut self, name: &[u8]) {
        let old = self.xattrs.remove(name);
        self.xattr_lines -= old.map_or(0, |old| xattr_lines(name, old.log_bytes()));
    }

    /// Removes all extended attributes.
    pub(crate) fn clear_xattrs(&mut self) {
        self.xattrs.clear();
        self.xattr_lines = 0;
    }

    /// Returns the extents of a regular file, `None` for other inodes.
    pub(crate) fn extents(&self) -> Option<&Extents> {
        match &self.body {
            Body::File(extents) => Some(extents),
            _ => None,
        }
    }

    /// Records a log entry that is still to be shared, and the file range that it writes.
    pub(crate) fn add_waiting(&mut self, offset: u64, length: u64) {
        let (start, end) = (offset, offset.saturating_add(length));
        let is_first = self.needed.fetch_add(1, Ordering::Relaxed) == 0;
        self.waiting = if is_first { start..end } else { self.waiting.start.min(start)..self.waiting.end.max(end) };
    }

    /// True if log entries are still to be shared.
    pub(crate) fn is_waiting(&self) -> bool {
        self.needed.load(Ordering::Relaxed) > 0
    }

    /// Returns a file range that contains all that is still to be shared; an empty one if nothing is.
    pub(crate) fn waiting_range(&self) -> Range<u64> {
        if self.is_waiting() { self.waiting.clone() } else { 0..0 }
    }

    /// Returns the number of bytes that the extents map.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.extents().map_or(0, Extents::bytes)
    }

    /// Returns the number of lines of a compacted log, apart from what is left over at the ends of its parts. That of
    /// names and extended attributes is exact. Extents take at most one line each, and two while parts of them are still
    /// to be shared.
    pub(crate) fn live_lines(&self) -> u64 {
        let body = match &self.body {
            Body::File(extents) => extents.len() as u64,
            Body::Directory(directory) => directory.lines(),
            Body::Other => 0,
        };
        body + self.xattr_lines
    }

    /// Returns the value of an extended attribute that is short enough to be held here.
    pub(crate) fn short_attribute(&self, name: &[u8]) -> Option<&[u8]> {
        match self.xattrs.get(name)? {
            HeldValue::Short(value) => Some(value),
            HeldValue::InLog { .. } | HeldValue::Blocks { .. } => None,
        }
    }

    /// Reads all extended attributes. The caller holds the inode's lock, and asks the region whether they could be read.
    pub(crate) fn read_xattrs(&self, region: &Region) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.xattrs.iter().map(|(name, value)| (name.clone(), value.read(region))).collect()
    }

    /// Returns the blocks that hold values of extended attributes.
    pub(crate) fn xattr_blocks(&self) -> impl Iterator<Item = BlockNumber> + '_ {
        self.xattrs.values().flat_map(HeldValue::blocks)
    }

    /// Returns the approximate number of bytes that it takes in DRAM.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let body = match &self.body {
            Body::File(extents) => extents.dram_bytes(),
            Body::Directory(directory) => directory.dram_bytes(),
            Body::Other => 0,
        };
        let xattrs: u64 = self.xattrs.iter().map(|(name, value)| name.len() as u64 + value.dram_bytes()).sum();
        size_of::<Inode>() as u64 + body + xattrs + self.log.parts.capacity() as u64 * 8
    }

    /// Checks whether a log entry fits the inode: extents belong to files, names to directories, in order. Whoever
    /// writes an entry asks before the commit, and whoever reads one before it is applied.
    ///
    /// # Errors
    /// A reason why it does not fit.
    #[inline]
    pub(crate) fn check_fits(&self, entry: &LogEntry) -> std::result::Result<(), &'static str> {
        match (entry, &self.body) {
            (LogEntry::Extent(_) | LogEntry::Vector(_), Body::File(_)) => Ok(()),
            (LogEntry::Extent(_) | LogEntry::Vector(_), _) => Err(NO_FILE),
            // The check also keeps a damaged log from making every addition a search.
            (LogEntry::Name { cookie, .. } | LogEntry::BadName { cookie, .. }, Body::Directory(directory))
                if *cookie < directory.next_cookie() =>
            {
                Err("name out of order")
            }
            (LogEntry::Name { .. } | LogEntry::BadName { .. } | LogEntry::Unname { .. }, body) => match body {
                Body::Directory(_) => Ok(()),
                _ => Err(NO_DIRECTORY),
            },
            (LogEntry::XattrSet { .. } | LogEntry::XattrRemove { .. } | LogEntry::Skip, _) => Ok(()),
        }
    }

    /// Applies a committed log entry to the state. The operation that wrote the entry and the replay of the log both
    /// use this function, so they always agree. `newer` is true if the entry is younger than the attributes.
    ///
    /// # Errors
    /// A reason why the entry does not fit the inode, which means that the log is damaged.
    pub(crate) fn apply(
        &mut self,
        position: u64,
        entry: &LogEntry,
        newer: bool,
    ) -> std::result::Result<(), &'static str> {
        self.check_fits(entry)?;
        let time = match entry {
            LogEntry::Extent(entry) => {
                if dedupe::is_pending(entry.dedupe) {
                    self.add_waiting(entry.file_offset, entry.length);
                }
                let Body::File(extents) = &mut self.body else { return Err(NO_FILE) };
                if entry.maps() {
                    let (length, location) = (entry.length, entry.location());
                    let extent = Extent { length, location, unwritten: entry.is_unwritten() };
                    extents.insert(entry.file_offset, extent);
                } else {
                    extents.remove(entry.file_offset, entry.file_offset.saturating_add(entry.length));
                }
                if newer {
                    self.attributes.size = entry.size;
                    self.attributes.mtime = entry.time;
                }
                entry.time
            }
            LogEntry::Vector(entry) => {
                if dedupe::is_pending(entry.dedupe()) {
                    self.add_waiting(entry.file_offset(), entry.length());
                }
                let Body::File(extents) = &mut self.body else { return Err(NO_FILE) };
                for Named { file_offset, length, word } in entry.named() {
                    match word.location() {
                        None => extents.remove(file_offset, file_offset + length),
                        Some((location, unwritten)) => {
                            extents.insert(file_offset, Extent { length, location, unwritten });
                        }
                    }
                }
                if newer {
                    self.attributes.size = entry.size();
                    self.attributes.mtime = entry.time();
                }
                entry.time()
            }
            LogEntry::Name { name, ino, kind, cookie, time } => {
                let Body::Directory(directory) = &mut self.body else { return Err(NO_DIRECTORY) };
                directory.add(name, *ino, *kind, *cookie, position);
                if newer {
                    self.attributes.mtime = *time;
                }
                *time
            }
            LogEntry::BadName { name_bytes, ino, kind, cookie, time } => {
                let Body::Directory(directory) = &mut self.body else { return Err(NO_DIRECTORY) };
                directory.add_bad(*name_bytes, *ino, *kind, *cookie, position);
                if newer {
                    self.attributes.mtime = *time;
                }
                *time
            }
            LogEntry::Unname { cookie, time } => {
                let Body::Directory(directory) = &mut self.body else { return Err(NO_DIRECTORY) };
                if !directory.remove(*cookie) {
                    return Err("removal of a name that is not there");
                }
                if newer {
                    self.attributes.mtime = *time;
                }
                *time
            }
            LogEntry::XattrSet { name, value, time } => {
                self.set_xattr(name.clone(), HeldValue::of(name, value, position));
                *time
            }
            LogEntry::XattrRemove { name, time } => {
                self.remove_xattr(name);
                *time
            }
            LogEntry::Skip => return Ok(()),
        };
        if newer {
            self.attributes.ctime = time;
        }
        Ok(())
    }
}

/// A change of an inode that is being committed: media and DRAM do not say the same until it is done. Dropped before
/// that, by a panic, it makes the inode unusable, because DRAM may never say what the media say. Nothing more is changed
/// then, so the media stay as the commit has left them.
#[must_use = "an inode of which no change is done cannot be used any more"]
pub(crate) struct Changing<'i> {
    inode: &'i Inode,
    panics: &'i Panics,
}

impl<'i> Changing<'i> {
    /// Begins a change. The caller holds the inode's lock, and releases it later than this.
    #[inline]
    pub(crate) fn begin(inode: &'i Inode, panics: &'i Panics) -> Changing<'i> {
        Changing { inode, panics }
    }

    /// Ends the change.
    #[inline]
    pub(crate) fn done(self) {
        std::mem::forget(self);
    }
}

impl Drop for Changing<'_> {
    #[cold]
    fn drop(&mut self) {
        self.inode.use_word.store(CUT_OFF, Ordering::Relaxed);
        let _ = self.panics.abandons();
    }
}

/// Returns the blocks of one value of an extended attribute, as a log entry says it.
pub(crate) fn value_blocks(value: &XattrValue) -> impl Iterator<Item = BlockNumber> + '_ {
    let blocks = match value {
        XattrValue::Inline(_) => &[][..],
        XattrValue::Blocks { blocks, .. } => blocks,
    };
    blocks.iter().map(|address| BlockNumber::containing(*address))
}

/// What DRAM holds of the value of an extended attribute: the value if it is short, else where it is on the media. So
/// the memory that an inode takes depends on the number of its attributes, not on their length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeldValue {
    /// The value.
    Short(Box<[u8]>),
    /// The value is in the log.
    InLog {
        /// Device offset of its first byte.
        at: u64,
        /// Length in bytes.
        bytes: u32,
    },
    /// The value is in blocks.
    Blocks {
        /// Length in bytes.
        bytes: u32,
        /// Media addresses, in order.
        blocks: Box<[u64]>,
    },
}

impl HeldValue {
    /// Returns what is held of a value whose log entry is at `position`.
    pub(crate) fn of(name: &[u8], value: &XattrValue, position: u64) -> HeldValue {
        match value {
            XattrValue::Inline(value) if value.len() <= SHORT_VALUE_MAX => HeldValue::Short(value.as_slice().into()),
            XattrValue::Inline(value) => {
                HeldValue::InLog { at: position + XATTR_NAME_OFFSET + name.len() as u64, bytes: value.len() as u32 }
            }
            XattrValue::Blocks { bytes, blocks } => {
                HeldValue::Blocks { bytes: *bytes, blocks: blocks.as_slice().into() }
            }
        }
    }

    /// Returns its length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            HeldValue::Short(value) => value.len() as u64,
            HeldValue::InLog { bytes, .. } | HeldValue::Blocks { bytes, .. } => u64::from(*bytes),
        }
    }

    /// Returns the bytes that its log entry has for it.
    fn log_bytes(&self) -> usize {
        match self {
            HeldValue::Short(value) => value.len(),
            HeldValue::InLog { bytes, .. } => *bytes as usize,
            HeldValue::Blocks { blocks, .. } => size_of_val(&**blocks),
        }
    }

    /// Returns the approximate number of bytes that it takes in DRAM, with its part of the map.
    fn dram_bytes(&self) -> u64 {
        const OF_MAP: u64 = 96;
        match self {
            HeldValue::Short(value) => OF_MAP + value.len() as u64,
            HeldValue::InLog { .. } => OF_MAP,
            HeldValue::Blocks { blocks, .. } => OF_MAP + 8 * blocks.len() as u64,
        }
    }

    /// Returns its blocks.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockNumber> + '_ {
        let blocks = match self {
            HeldValue::Short(_) | HeldValue::InLog { .. } => &[][..],
            HeldValue::Blocks { blocks, .. } => blocks,
        };
        blocks.iter().map(|address| BlockNumber::containing(*address))
    }

    /// Returns it as a log entry says it.
    pub(crate) fn in_entry(&self, region: &Region) -> XattrValue {
        match self {
            HeldValue::Blocks { bytes, blocks } => XattrValue::Blocks { bytes: *bytes, blocks: blocks.to_vec() },
            _ => XattrValue::Inline(self.read(region)),
        }
    }

    /// Reads the value. The caller holds the inode's lock, and asks the region whether it could be read.
    pub(crate) fn read(&self, region: &Region) -> Vec<u8> {
        let mut value = vec![0; self.bytes() as usize];
        match self {
            HeldValue::Short(short) => value.copy_from_slice(short),
            HeldValue::InLog { at, .. } => region.read_into(*at, &mut value),
            HeldValue::Blocks { blocks, .. } => {
                for (address, part) in blocks.iter().zip(value.chunks_mut(BLOCK_BYTES as usize)) {
                    region.read_into(*address, part);
                }
            }
        }
        value
    }
}

impl Inode {
    /// Returns what deferred work records of a file.
    pub(crate) fn file_id(&self) -> FileId {
        FileId { number: self.ino, generation: self.generation }
    }

    /// Reads the inode in `slot`; `None` if the slot is free. Everything on the media is checked.
    ///
    /// # Errors
    /// EIO for damage and bad memory.
    pub(crate) fn load(region: &Region, geometry: &Geometry, slot: u64, ino: u64) -> Result<Option<Inode>> {
        let head = region.read(slot);
        Inode::load_with_head(region, geometry, slot, ino, head)
    }

    /// The same as `load`, with the head as it will be after the journal was replayed.
    pub(crate) fn load_with_head(
        region: &Region,
        geometry: &Geometry,
        slot: u64,
        ino: u64,
        head: InodeHead,
    ) -> Result<Option<Inode>> {
        let loaded = Inode::load_unchecked(region, geometry, slot, ino, head);
        // Bad memory reads like damage or a free slot, so it must be reported first.
        region.check().map_err(Error::of(|| format!("inode {ino}")))?;
        loaded
    }

    fn load_unchecked(
        region: &Region,
        geometry: &Geometry,
        slot: u64,
        ino: u64,
        head: InodeHead,
    ) -> Result<Option<Inode>> {
        let Some(kind) = head.live(ino) else { return Ok(None) };
        let corrupt =
            |what: &str, at: u64| Error::Corrupt { what: format!("inode {ino}: its log is damaged ({what})"), at };
        let line = slot + ATTRIBUTE_LINES[head.selector() as usize];
        let attributes: AttributeLine = region.read(line);
        if !attributes.is_whole(ino) {
            return Err(corrupt("attributes", line));
        }
        log::check_attributes(&attributes).map_err(|what| corrupt(what, line))?;
        let mut state = State::new(kind, attributes, Log::default());
        state.selector = head.selector();
        let mut newer = attributes.as_of == head.head;
        let log = log::walk(region, geometry, slot, &head, |position, end, entry| {
            if let (LogEntry::Name { name, cookie, .. }, Body::Directory(directory)) = (&entry, &mut state.body) {
                directory.note_if_double(name, *cookie, region);
            }
            state.apply(position, &entry, newer).map_err(|what| corrupt(what, position))?;
            newer |= end == attributes.as_of;
            Ok(())
        })?;
        if !newer {
            return Err(corrupt("attributes of another log", line));
        }
        if kind == FileKind::Symlink && !state.xattrs.contains_key(SYMLINK_TARGET) {
            return Err(corrupt("a symlink without a target", slot));
        }
        state.log = log;
        Ok(Some(Inode::new(ino, slot, &head, kind, state)))
    }

    /// True if the creation of an unreadable inode, or log area, may have been cut off by a crash: the words with its
    /// number and its use are whole, because each is stored at once, and its log is empty, or begins with an attribute
    /// that an inode is created with. Such an inode has no data that could be lost.
    pub(crate) fn may_be_half_created(region: &Region, slot: u64, ino: u64) -> bool {
        let head: InodeHead = region.read(slot);
        let (tail, start) = (head.tail(), slot + INLINE_LOG);
        let mut lines = vec![0; (INODE_BYTES - INLINE_LOG) as usize];
        region.read_into(start, &mut lines);
        if region.check().is_err() {
            return false;
        }
        let has_kind = FileKind::from_byte(head.kind).is_some() || head.kind == KIND_LOG_AREA;
        let is_in_use = has_kind && head.in_use == IN_USE && head.flags & !READ_ONLY_COPY == 0;
        if !is_in_use || head.ino != ino && head.ino != 0 {
            return false;
        }
        let is_birth = |entry: &LogEntry| matches!(entry, LogEntry::XattrSet { .. } | LogEntry::Skip);
        let begins_as_one = || LogEntry::decode(ino, &lines).map_or(true, |(entry, _)| is_birth(&entry));
        tail == 0 || tail == start || (head.head == start || head.head == 0) && begins_as_one()
    }

    /// Makes an inode from its head and state.
    pub(crate) fn new(ino: u64, slot: u64, head: &InodeHead, kind: FileKind, state: State) -> Inode {
        Inode {
            ino,
            slot,
            kind,
            generation: head.generation,
            is_read_only: head.flags & READ_ONLY_COPY != 0,
            btime: head.btime,
            parent: AtomicU64::new(head.parent),
            pins: AtomicUsize::new(0),
            own_policy: AtomicU8::new(NONE_OF_ITS_OWN),
            own_compression: AtomicU8::new(NONE_OF_ITS_OWN),
            domain: AtomicU64::new(Domain::ALL.number()),
            owner_changes: AtomicUsize::new(0),
            lacks_fingerprints: AtomicBool::new(false),
            use_word: AtomicU8::new(USABLE),
            state: RwLock::new(state),
        }
    }

    /// Returns the number of the directory whose policy applies to it: a directory itself, or for other inodes the
    /// directory in which they were created.
    #[inline]
    pub(crate) fn directory(&self) -> u64 {
        match self.kind {
            FileKind::Directory => self.ino,
            _ => self.parent.load(Ordering::Relaxed),
        }
    }

    /// Returns the number of the inode's own policy, if it has one; `fs` knows what it means. A write asks for it
    /// before it takes the lock.
    #[inline]
    pub(crate) fn own_policy(&self) -> Option<u8> {
        Some(self.own_policy.load(Ordering::Relaxed)).filter(|number| *number != NONE_OF_ITS_OWN)
    }

    /// Sets the inode's own policy; `None` removes it.
    pub(crate) fn set_own_policy(&self, number: Option<u8>) {
        self.own_policy.store(number.unwrap_or(NONE_OF_ITS_OWN), Ordering::Relaxed);
    }

    /// Returns the number of the inode's own compression, if it has one; `fs` knows what it means.
    #[inline]
    pub(crate) fn own_compression(&self) -> Option<u8> {
        Some(self.own_compression.load(Ordering::Relaxed)).filter(|number| *number != NONE_OF_ITS_OWN)
    }

    /// Sets the inode's own compression; `None` removes it.
    pub(crate) fn set_own_compression(&self, number: Option<u8>) {
        self.own_compression.store(number.unwrap_or(NONE_OF_ITS_OWN), Ordering::Relaxed);
    }

    /// Returns the domain in which its data is shared. A write asks for it before it takes the lock, and again under it.
    #[inline]
    pub(crate) fn domain(&self) -> Domain {
        Domain::numbered(self.domain.load(Ordering::Relaxed))
    }

    /// Sets the domain. The caller holds the lock, so that no writer does.
    pub(crate) fn set_domain(&self, domain: Domain) {
        self.domain.store(domain.number(), Ordering::Relaxed);
    }

    /// Begins a change of the owner: until its end, the file shares nothing. The caller holds the lock for a change.
    pub(crate) fn begin_owner_change(&self) {
        self.owner_changes.fetch_add(1, Ordering::Relaxed);
        self.set_domain(Domain::NOBODY);
    }

    /// Ends a change of the owner, and sets the domain if no other change is under way. The caller holds the lock.
    pub(crate) fn end_owner_change(&self, domain: Domain) {
        if self.owner_changes.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.set_domain(domain);
        }
    }

    /// Records that some of its data was stored without a fingerprint. Returns true if that was not recorded yet.
    #[inline]
    pub(crate) fn mark_unfingerprinted(&self) -> bool {
        let lacks = &self.lacks_fingerprints;
        !lacks.load(Ordering::Relaxed) && !lacks.swap(true, Ordering::Relaxed)
    }

    /// Clears that record, when the data is about to be fingerprinted.
    pub(crate) fn clear_lacking(&self) {
        self.lacks_fingerprints.store(false, Ordering::Relaxed);
    }

    /// True if it is neither freed nor cut off in a change. The caller holds the lock.
    #[inline(always)]
    pub(crate) fn is_usable(&self) -> bool {
        self.use_word.load(Ordering::Relaxed) == USABLE
    }

    /// True if a panic has cut off a change of it.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.use_word.load(Ordering::Relaxed) == CUT_OFF
    }

    /// Records that its slot was freed. The caller holds the lock for the change.
    pub(crate) fn set_freed(&self) {
        self.use_word.store(FREED, Ordering::Relaxed);
    }

    /// Locks the inode for reading. Returns ENOENT if it was freed in the meantime.
    #[inline(always)]
    pub(crate) fn read(&self) -> Result<RwLockReadGuard<'_, State>> {
        let state = self.state.read();
        if self.is_usable() { Ok(state) } else { Err(self.unusable()) }
    }

    /// Locks the inode for reading if no writer has it now, for a thread that holds the lock of another inode and
    /// must not wait. Returns `None` if it is locked or was freed.
    #[inline]
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, State>> {
        self.state.try_read().filter(|_| self.is_usable())
    }

    /// Locks the inode for a change. Returns ENOENT if it was freed in the meantime, because its slot may have been
    /// reused.
    #[inline(always)]
    pub(crate) fn write(&self) -> Result<RwLockWriteGuard<'_, State>> {
        let state = self.state.write();
        if self.is_usable() { Ok(state) } else { Err(self.unusable()) }
    }

    /// Locks the inode against changes but not against readers. Returns ENOENT if it was freed in the meantime.
    #[inline]
    pub(crate) fn upgradable_read(&self) -> Result<RwLockUpgradableReadGuard<'_, State>> {
        let state = self.state.upgradable_read();
        if self.is_usable() { Ok(state) } else { Err(self.unusable()) }
    }

    /// Locks the inode for reading, freed or not.
    #[inline]
    pub(crate) fn peek(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// Locks the inode for a change, freed or not. Used to make and to free it.
    #[inline]
    pub(crate) fn lock(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write()
    }

    /// Returns the state of an inode that no other thread can reach.
    pub(crate) fn into_state(self) -> State {
        self.state.into_inner()
    }

    #[cold]
    #[inline(never)]
    fn unusable(&self) -> Error {
        match self.is_cut_off() {
            true => Error::Panicked { what: format!("a change of inode {}", self.ino) },
            false => Error::NotFound { what: format!("inode {}", self.ino) },
        }
    }

    /// Returns the attributes as `stat` shows them.
    pub(crate) fn attr(&self, state: &State) -> Attr {
        let attributes = &state.attributes;
        let (nlink, size, bytes) = match &state.body {
            Body::File(extents) => (attributes.nlink, attributes.size, extents.bytes()),
            Body::Directory(directory) => {
                let nlink = if attributes.nlink == 0 { 0 } else { 2 + directory.subdirectories() };
                (nlink, state.log.lines * 64, state.log.bytes())
            }
            Body::Other => (attributes.nlink, attributes.size, 0),
        };
        Attr {
            ino: InodeNumber(self.ino),
            generation: self.generation,
            kind: self.kind,
            mode: attributes.mode.into(),
            uid: attributes.uid,
            gid: attributes.gid,
            nlink,
            rdev: attributes.rdev,
            size,
            blocks: bytes.div_ceil(512),
            atime: attributes.atime,
            mtime: attributes.mtime,
            ctime: attributes.ctime,
            btime: self.btime,
        }
    }

    /// Checks that it does not belong to a snapshot.
    ///
    /// # Errors
    /// EROFS.
    #[inline]
    pub(crate) fn check_changeable(&self, doing: &'static str) -> Result<()> {
        if self.is_read_only { Err(of_snapshot(doing)) } else { Ok(()) }
    }

    /// True if the inode is open.
    #[inline]
    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::SeqCst) > 0
    }
}

#[cold]
fn of_snapshot(doing: &'static str) -> Error {
    Error::Posix { doing, why: "it belongs to a snapshot, which does not change", errno: errno::EROFS }
}
