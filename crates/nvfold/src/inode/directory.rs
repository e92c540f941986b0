//! The names of one directory, found by hash and listed in the order of their cookies.
//!
//! The names stay on the media, in the directory's log; DRAM holds 32 bytes for each name. A cookie is used only
//! once, so a listing can continue where it stopped, whatever was added or removed in between.

use crate::media::log_entry::{NAME_OFFSET, name_lines};
use crate::words::FileKind;
use hashbrown::HashTable;
use pmem::Region;
use twox_hash::XxHash3_64;

/// One name: the position of its log entry, and the inode that it refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameSlot {
    /// Position in the listing order; never 0.
    pub cookie: u64,
    /// The inode that it refers to.
    pub ino: u64,
    /// Position of its log entry, and the kind of inode in the low bits (positions are multiples of 64).
    position_kind: u64,
    hash: u32,
    name_bytes: u8,
    live: bool,
}

impl NameSlot {
    /// Returns the kind of inode that it refers to.
    pub fn kind(&self) -> FileKind {
        FileKind::from_byte((self.position_kind & 63) as u8).unwrap_or(FileKind::Regular)
    }

    /// Reads the bytes of the name from the log.
    pub fn name(&self, region: &Region) -> Vec<u8> {
        let mut name = vec![0; usize::from(self.name_bytes)];
        region.read_into(self.name_address(), &mut name);
        name
    }

    fn is(&self, name: &[u8], region: &Region) -> bool {
        usize::from(self.name_bytes) == name.len() && region.equal(self.name_address(), name)
    }

    fn name_address(&self) -> u64 {
        (self.position_kind & !63) + NAME_OFFSET
    }
}

/// The names of one directory.
#[derive(Default)]
pub struct Directory {
    /// In the order of cookies. Removed ones stay until they are the majority.
    slots: Vec<NameSlot>,
    dead: usize,
    by_name: HashTable<u32>,
    subdirectories: u32,
    last_cookie: u64,
    /// Lines of the log entries of its names.
    lines: u64,
}

fn hash(name: &[u8]) -> u32 {
    XxHash3_64::oneshot(name) as u32
}

impl Directory {
    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.slots.len() - self.dead
    }

    /// True if it has no names.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of subdirectories.
    pub fn subdirectories(&self) -> u32 {
        self.subdirectories
    }

    /// Returns the number of lines that the log entries of its names take.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Returns a cookie that was never used.
    pub fn next_cookie(&self) -> u64 {
        self.last_cookie + 1
    }

    /// Returns the slot of a name.
    pub fn find(&self, name: &[u8], region: &Region) -> Option<NameSlot> {
        let hash = hash(name);
        let same = |at: &u32| {
            let slot = &self.slots[*at as usize];
            slot.hash == hash && slot.is(name, region)
        };
        self.by_name.find(u64::from(hash) << 32 | u64::from(hash), same).map(|at| self.slots[*at as usize])
    }

    /// Adds a name whose log entry is at `position`. The caller has checked that the name does not exist, and that
    /// the cookie is larger than all others.
    pub fn add(&mut self, name: &[u8], ino: u64, kind: FileKind, cookie: u64, position: u64) {
        let hash = hash(name);
        let slot = NameSlot {
            cookie,
            ino,
            position_kind: position | kind as u64,
            hash,
            name_bytes: name.len() as u8,
            live: true,
        };
        self.slots.push(slot);
        self.hash_in(self.slots.len() - 1);
        self.last_cookie = cookie;
        self.lines += name_lines(name.len());
        self.subdirectories += u32::from(kind == FileKind::Directory);
    }

    /// Removes the name with this cookie. Returns false if there is none.
    pub fn remove(&mut self, cookie: u64) -> bool {
        let Ok(at) = self.slots.binary_search_by_key(&cookie, |slot| slot.cookie) else { return false };
        let slot = self.slots[at];
        if !slot.live {
            return false;
        }
        let key = u64::from(slot.hash) << 32 | u64::from(slot.hash);
        if let Ok(entry) = self.by_name.find_entry(key, |found| *found as usize == at) {
            entry.remove();
        }
        self.slots[at].live = false;
        self.dead += 1;
        self.lines -= name_lines(usize::from(slot.name_bytes));
        self.subdirectories -= u32::from(slot.kind() == FileKind::Directory);
        if self.dead > 32 && self.dead * 2 > self.slots.len() {
            self.rebuild();
        }
        true
    }

    /// Returns the names after `cookie`, in order.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = &NameSlot> {
        let from = self.slots.partition_point(|slot| slot.cookie <= cookie);
        self.slots[from..].iter().filter(|slot| slot.live)
    }

    /// Returns the number of bytes that it takes in DRAM.
    pub fn dram_bytes(&self) -> u64 {
        (self.slots.capacity() * size_of::<NameSlot>() + self.by_name.capacity() * 5) as u64
    }

    fn hash_in(&mut self, at: usize) {
        let slots = &self.slots;
        let key = |at: &u32| u64::from(slots[*at as usize].hash) << 32 | u64::from(slots[*at as usize].hash);
        self.by_name.insert_unique(key(&(at as u32)), at as u32, key);
    }

    fn rebuild(&mut self) {
        self.slots.retain(|slot| slot.live);
        self.dead = 0;
        self.by_name = HashTable::with_capacity(self.slots.len());
        (0..self.slots.len()).for_each(|at| self.hash_in(at));
    }
}
