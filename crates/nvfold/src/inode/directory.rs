//! The names of one directory, found by hash and listed in the order of their cookies.
//!
//! The names stay on the media, in the directory's log; DRAM holds 32 bytes for each name. A cookie is used only
//! once, so a listing can continue where it stopped, whatever was added or removed in between.
//!
//! **Damage costs a name, not its directory.** A name on the media that no directory can have (`..`, `a/b`), and the
//! second entry of a name that is there twice, are kept apart: they are counted, because their inodes have names, but
//! never found or listed. A name that is there twice cannot be used at all until fsck has decided.

use crate::media::log_entry::{NAME_OFFSET, name_lines};
use crate::words::FileKind;
use hashbrown::HashTable;
use pmem::Region;
use std::collections::{BTreeMap, BTreeSet};
use twox_hash::XxHash3_64;

/// One name: the position of its log entry, and the inode that it refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameSlot {
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
    pub(crate) fn kind(&self) -> FileKind {
        FileKind::from_byte((self.position_kind & 63) as u8).unwrap_or(FileKind::Regular)
    }

    /// Reads the bytes of the name from the log.
    pub(crate) fn name(&self, region: &Region) -> Vec<u8> {
        let mut name = vec![0; usize::from(self.name_bytes)];
        region.read_into(self.name_address(), &mut name);
        name
    }

    fn is(&self, name: &[u8], region: &Region) -> bool {
        usize::from(self.name_bytes) == name.len() && region.equal(self.name_address(), name)
    }

    /// Returns the position of its log entry.
    pub(crate) fn position(&self) -> u64 {
        self.position_kind & !63
    }

    fn name_address(&self) -> u64 {
        self.position() + NAME_OFFSET
    }
}

/// The names of one directory.
#[derive(Default)]
pub(crate) struct Directory {
    /// In the order of cookies. Removed ones stay until they are the majority.
    slots: Vec<NameSlot>,
    dead: usize,
    by_name: HashTable<u32>,
    subdirectories: u32,
    last_cookie: u64,
    /// Lines of the log entries of its names.
    lines: u64,
    /// What is known of names that are damage. Nearly no directory has any, and every inode has room for a directory.
    damaged: Option<Box<Damaged>>,
}

/// The names of a directory that are damage.
#[derive(Default)]
struct Damaged {
    /// By their cookies.
    names: BTreeMap<u64, Damage>,
    repeated: Repeated,
}

/// The names that are there more than once. Each is a group, known by the cookie of its first entry. The oldest entry
/// that is left can be found; the others are damage.
#[derive(Default)]
struct Repeated {
    /// The group of each entry that can be found.
    groups: BTreeMap<u64, u64>,
    /// The cookies of each group: of the entry that can be found, and of the others.
    members: BTreeMap<u64, (u64, BTreeSet<u64>)>,
}

impl Repeated {
    /// Adds an entry to the group of the one that can be found; returns the group.
    fn add(&mut self, found: u64, cookie: u64) -> u64 {
        let group = *self.groups.entry(found).or_insert(found);
        self.members.entry(group).or_insert((found, BTreeSet::new())).1.insert(cookie);
        group
    }

    /// Removes an entry that is damage.
    fn remove(&mut self, group: u64, cookie: u64) {
        let Some((found, others)) = self.members.get_mut(&group) else { return };
        others.remove(&cookie);
        if others.is_empty() {
            self.groups.remove(found);
            self.members.remove(&group);
        }
    }

    /// Removes an entry that can be found; returns the one of its group that can be found now.
    fn remove_found(&mut self, cookie: u64) -> Option<u64> {
        let group = self.groups.remove(&cookie)?;
        let (found, others) = self.members.get_mut(&group)?;
        *found = others.pop_first()?;
        let found = *found;
        self.groups.insert(found, group);
        self.remove(group, found);
        Some(found)
    }
}

/// Why an entry of a directory, known by its cookie, is damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// No directory can have this name.
    BadName,
    /// An older entry has the same name; the cookie of the oldest there has been.
    Repeats(u64),
}

/// Returns a name of the media for a message: it may hold anything.
pub(crate) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).escape_debug().to_string()
}

fn hash(name: &[u8]) -> u32 {
    XxHash3_64::oneshot(name) as u32
}

impl Directory {
    /// Returns the number of names.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.dead
    }

    /// True if it has no names.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of subdirectories.
    pub(crate) fn subdirectories(&self) -> u32 {
        self.subdirectories
    }

    /// Returns the number of lines that the log entries of its names take.
    pub(crate) fn lines(&self) -> u64 {
        self.lines
    }

    /// Returns a cookie that was never used.
    pub(crate) fn next_cookie(&self) -> u64 {
        self.last_cookie + 1
    }

    /// Returns the slot of a name.
    pub(crate) fn find(&self, name: &[u8], region: &Region) -> Option<NameSlot> {
        let hash = hash(name);
        let same = |at: &u32| {
            let slot = &self.slots[*at as usize];
            slot.hash == hash && slot.is(name, region)
        };
        self.by_name.find(u64::from(hash) << 32 | u64::from(hash), same).map(|at| self.slots[*at as usize])
    }

    /// Adds a name whose log entry is at `position`. The caller has checked that the name does not exist (or was noted
    /// to be damage), and that the cookie is larger than all others.
    pub(crate) fn add(&mut self, name: &[u8], ino: u64, kind: FileKind, cookie: u64, position: u64) {
        let (position_kind, name_bytes) = (position | kind as u64, name.len() as u8);
        self.push(NameSlot { cookie, ino, position_kind, hash: hash(name), name_bytes, live: true });
    }

    /// Adds a name that no directory can have, whose log entry is at `position`.
    pub(crate) fn add_bad(&mut self, name_bytes: u8, ino: u64, kind: FileKind, cookie: u64, position: u64) {
        self.damaged.get_or_insert_default().names.insert(cookie, Damage::BadName);
        self.push(NameSlot { cookie, ino, position_kind: position | kind as u64, hash: 0, name_bytes, live: true });
    }

    /// Notes that the name that is about to be added under this cookie is damage, if it is there already.
    pub(crate) fn note_if_double(&mut self, name: &[u8], cookie: u64, region: &Region) {
        if let Some(found) = self.find(name, region) {
            let damaged = self.damaged.get_or_insert_default();
            let group = damaged.repeated.add(found.cookie, cookie);
            damaged.names.insert(cookie, Damage::Repeats(group));
        }
    }

    /// Returns why an entry is damage; `None` if it is sound.
    pub(crate) fn damage(&self, cookie: u64) -> Option<Damage> {
        self.damaged.as_ref()?.names.get(&cookie).copied()
    }

    /// Returns the number of entries that are damage. A log that holds one is not rewritten.
    pub(crate) fn damaged_names(&self) -> usize {
        self.damaged.as_ref().map_or(0, |damaged| damaged.names.len())
    }

    /// True if other entries have the same name as this one.
    #[inline]
    pub(crate) fn is_repeated(&self, slot: &NameSlot) -> bool {
        self.damaged.as_ref().is_some_and(|damaged| damaged.repeated.groups.contains_key(&slot.cookie))
    }

    fn push(&mut self, slot: NameSlot) {
        self.slots.push(slot);
        self.hash_in(self.slots.len() - 1);
        self.last_cookie = slot.cookie;
        self.lines += name_lines(usize::from(slot.name_bytes));
        self.subdirectories += u32::from(slot.kind() == FileKind::Directory);
    }

    /// Removes the name with this cookie. Returns false if there is none.
    pub(crate) fn remove(&mut self, cookie: u64) -> bool {
        let Ok(at) = self.slots.binary_search_by_key(&cookie, |slot| slot.cookie) else { return false };
        let slot = self.slots[at];
        if !slot.live {
            return false;
        }
        let key = u64::from(slot.hash) << 32 | u64::from(slot.hash);
        if let Ok(entry) = self.by_name.find_entry(key, |found| *found as usize == at) {
            entry.remove();
        }
        self.remove_damage(cookie);
        self.slots[at].live = false;
        self.dead += 1;
        self.lines -= name_lines(usize::from(slot.name_bytes));
        self.subdirectories -= u32::from(slot.kind() == FileKind::Directory);
        if self.dead > 32 && self.dead * 2 > self.slots.len() {
            self.rebuild();
        }
        true
    }

    /// Removes what is noted of an entry that goes. If it was found by a name that is there more than once, the next
    /// entry of this name can be found now.
    fn remove_damage(&mut self, cookie: u64) {
        let Some(damaged) = &mut self.damaged else { return };
        match damaged.names.remove(&cookie) {
            Some(Damage::Repeats(group)) => damaged.repeated.remove(group, cookie),
            Some(Damage::BadName) => {}
            None => {
                let Some(next) = damaged.repeated.remove_found(cookie) else { return };
                damaged.names.remove(&next);
                if let Ok(at) = self.slots.binary_search_by_key(&next, |slot| slot.cookie) {
                    self.hash_in(at);
                }
            }
        }
    }

    /// Returns the names after `cookie` that can be shown, in order.
    pub(crate) fn listed_after(&self, cookie: u64) -> impl Iterator<Item = &NameSlot> {
        self.after(cookie).filter(|slot| self.damage(slot.cookie).is_none())
    }

    /// Returns the names after `cookie`, in order, with those that are damage.
    pub(crate) fn after(&self, cookie: u64) -> impl Iterator<Item = &NameSlot> {
        let from = self.slots.partition_point(|slot| slot.cookie <= cookie);
        self.slots[from..].iter().filter(|slot| slot.live)
    }

    /// Returns the number of bytes that it takes in DRAM.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let damage = self.damaged_names() * 128;
        (self.slots.capacity() * size_of::<NameSlot>() + self.by_name.capacity() * 5 + damage) as u64
    }

    /// Makes a name findable, unless it is damage.
    fn hash_in(&mut self, at: usize) {
        let slots = &self.slots;
        if self.damage(slots[at].cookie).is_some() {
            return;
        }
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
