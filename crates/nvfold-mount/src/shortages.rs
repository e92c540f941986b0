//! What runs short: space on the device, and what limited trees may hold. Each is told once, until there is room again.
//!
//! A request that lacks room only leaves a mark. Housekeeping looks at the marks once a second, and at how full the device
//! is. Room counts as found again when a hundredth of the device, or of the limit, was freed since it was told; so a device
//! at its limit, where each byte that is freed is written at once, is told of once.

use crate::events::{Event, Events, Room};
use nvfold::{FileSystem, InodeNumber, LimitedTree, StatFs};
use nvfold_fuse::Errno;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Of the space for files: used from here on, the device is nearly full; below the second one it is not any more.
const NEARLY_FULL_PERCENT: u64 = 90;
const NOT_FULL_PERCENT: u64 = 85;
/// Room counts as found again when this part of the whole was freed.
const FREED_PART: u64 = 100;
/// The largest number of inodes whose trees are looked for in one look, and of trees that are remembered.
const TREES_MAX: usize = 256;

/// What requests leave for housekeeping.
#[derive(Default)]
pub(crate) struct Shortages {
    lacked_space: AtomicBool,
    /// Inodes that could not grow because of a limit.
    limited: Mutex<BTreeSet<u64>>,
    /// One of the files whose cached data could not be stored, 0 if there was none.
    unstored: AtomicU64,
}

/// What was told, and what there was then.
#[derive(Default)]
pub(crate) struct ShortagesTold {
    is_nearly_full: bool,
    no_space: Option<Room>,
    is_unstored: bool,
    trees: BTreeMap<u64, LimitedTree>,
}

impl Shortages {
    /// Takes note that a request got ENOSPC.
    pub(crate) fn has_lacked_space(&self) {
        self.lacked_space.store(true, Ordering::Relaxed);
    }

    /// Takes note that a request got EDQUOT.
    pub(crate) fn has_reached_limit(&self, inode: Option<InodeNumber>) {
        let mut limited = self.limited.lock();
        if limited.len() < TREES_MAX {
            limited.extend(inode.map(|inode| inode.0));
        }
    }

    /// Takes note that what the kernel had taken from programs could not be stored: ENOSPC or EDQUOT.
    pub(crate) fn has_not_stored(&self, inode: InodeNumber, errno: Errno) {
        self.unstored.store(inode.0, Ordering::Relaxed);
        match errno {
            Errno::EDQUOT => self.has_reached_limit(Some(inode)),
            _ => self.has_lacked_space(),
        }
    }
}

impl ShortagesTold {
    /// Tells what is new.
    pub(crate) fn tell(&mut self, noted: &Shortages, fs: &FileSystem, events: &Events) {
        let room = Room::of(&fs.statfs());
        self.tell_how_full(room, events);
        self.tell_space(noted.lacked_space.swap(false, Ordering::Relaxed), room, events);
        let limited = mem::take(&mut *noted.limited.lock());
        let trees = limited.into_iter().filter_map(|inode| fs.limited_tree(InodeNumber(inode)).ok().flatten());
        let reached: Vec<LimitedTree> = trees.collect();
        self.tell_below(fs, events);
        reached.into_iter().for_each(|tree| self.tell_reached(tree, fs, events));
        self.tell_unstored(noted.unstored.swap(0, Ordering::Relaxed), events);
    }

    /// Told once, until there is room again for all that lacked it.
    fn tell_unstored(&mut self, inode: u64, events: &Events) {
        let lacks_room = self.no_space.is_some() || !self.trees.is_empty();
        if inode != 0 && !self.is_unstored {
            events(Event::NotStored { inode: InodeNumber(inode) });
        }
        self.is_unstored = lacks_room && (self.is_unstored || inode != 0);
    }

    fn tell_how_full(&mut self, room: Room, events: &Events) {
        let percent = room.used_percent();
        if !self.is_nearly_full && percent >= NEARLY_FULL_PERCENT {
            self.is_nearly_full = true;
            events(Event::NearlyFull(room));
        } else if self.is_nearly_full && percent < NOT_FULL_PERCENT {
            self.is_nearly_full = false;
            events(Event::NotNearlyFull(room));
        }
    }

    fn tell_space(&mut self, was_lacked: bool, room: Room, events: &Events) {
        match self.no_space {
            None if was_lacked => {
                self.no_space = Some(room);
                events(Event::NoSpace(room));
            }
            Some(then) if room.has_more_than(&then) => {
                self.no_space = None;
                events(Event::SpaceAgain(room));
            }
            _ => {}
        }
    }

    fn tell_reached(&mut self, tree: LimitedTree, fs: &FileSystem, events: &Events) {
        if !self.trees.contains_key(&tree.top.0) && self.trees.len() < TREES_MAX {
            self.trees.insert(tree.top.0, tree);
            events(Event::LimitReached { tree, path: fs.directory_path(tree.top).ok() });
        }
    }

    fn tell_below(&mut self, fs: &FileSystem, events: &Events) {
        if self.trees.is_empty() {
            return;
        }
        self.trees.retain(|top, then| {
            let tree = fs.limited_tree(InodeNumber(*top)).ok().flatten().filter(|tree| tree.top.0 == *top);
            let Some(now) = tree else { return false };
            let has_room = has_room_again(then, &now);
            if has_room {
                events(Event::BelowLimit { tree: now, path: fs.directory_path(now.top).ok() });
            }
            !has_room
        });
    }
}

/// Returns whether a tree has room that it did not have.
fn has_room_again(then: &LimitedTree, now: &LimitedTree) -> bool {
    let left = |limit: Option<u64>, used: u64| limit.map_or(u64::MAX, |limit| limit.saturating_sub(used));
    let more = |then: u64, now: u64, limit: Option<u64>| now > then.saturating_add(limit.unwrap_or(0) / FREED_PART);
    let bytes = |tree: &LimitedTree| left(tree.limits.logical_bytes, tree.logical_bytes);
    let inodes = |tree: &LimitedTree| left(tree.limits.inodes, tree.inodes);
    more(bytes(then), bytes(now), now.limits.logical_bytes) || more(inodes(then), inodes(now), now.limits.inodes)
}

impl Room {
    fn of(space: &StatFs) -> Room {
        let bytes = |blocks: u64| blocks * u64::from(space.block_bytes);
        Room {
            bytes: bytes(space.blocks),
            available_bytes: bytes(space.blocks_available),
            inodes: space.inodes,
            inodes_free: space.inodes_free,
        }
    }

    /// Returns which part of the space is in use.
    pub fn used_percent(&self) -> u64 {
        let used = self.bytes.saturating_sub(self.available_bytes);
        (u128::from(used) * 100 / u128::from(self.bytes.max(1))) as u64
    }

    fn has_more_than(&self, then: &Room) -> bool {
        self.available_bytes > then.available_bytes + self.bytes / FREED_PART
            || then.inodes_free == 0 && self.inodes_free > self.inodes / FREED_PART
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold::Limits;
    use std::sync::Arc;

    const MIB: u64 = 1 << 20;

    fn room(available_mib: u64) -> Room {
        Room { bytes: 1000 * MIB, available_bytes: available_mib * MIB, inodes: 1000, inodes_free: 500 }
    }

    /// Returns what was told of a sequence of (whether space was lacked, available MiB).
    fn told(looks: &[(bool, u64)]) -> Vec<String> {
        let all = Arc::new(Mutex::new(Vec::new()));
        let kept = all.clone();
        let events: Events = Arc::new(move |event| {
            let name = format!("{event:?}");
            kept.lock().push(name.split('(').next().unwrap_or_default().to_owned());
        });
        let mut told = ShortagesTold::default();
        for (was_lacked, available_mib) in looks {
            told.tell_how_full(room(*available_mib), &events);
            told.tell_space(*was_lacked, room(*available_mib), &events);
        }
        drop(events);
        Arc::into_inner(all).unwrap().into_inner()
    }

    #[test]
    fn a_full_device_is_reported_once_until_space_was_freed() {
        assert_eq!(told(&[(true, 200), (true, 200), (false, 200), (true, 205)]), ["NoSpace"]);
        assert_eq!(told(&[(true, 200), (false, 211), (true, 200)]), ["NoSpace", "SpaceAgain", "NoSpace"]);
    }

    #[test]
    fn a_device_that_swings_about_a_bound_is_reported_once() {
        assert_eq!(told(&[(false, 101), (false, 100), (false, 101), (false, 100), (false, 150)]), ["NearlyFull"]);
        assert_eq!(told(&[(false, 100), (false, 160), (false, 100)]), ["NearlyFull", "NotNearlyFull", "NearlyFull"]);
        assert!(told(&[(false, 1000), (false, 101)]).is_empty());
    }

    #[test]
    fn a_tree_has_room_again_when_some_of_its_limit_was_freed_or_the_limit_was_raised() {
        let tree = |limit: Option<u64>, used: u64, inodes: u64| LimitedTree {
            top: InodeNumber(7),
            limits: Limits { logical_bytes: limit, inodes: Some(100), expires: None },
            logical_bytes: used,
            inodes,
            is_being_charged: false,
        };
        let then = tree(Some(1000), 1000, 50);
        assert!(!has_room_again(&then, &tree(Some(1000), 995, 50)));
        assert!(has_room_again(&then, &tree(Some(1000), 980, 50)));
        assert!(has_room_again(&then, &tree(Some(2000), 1000, 50)));
        assert!(has_room_again(&then, &tree(None, 1000, 50)));
        assert!(!has_room_again(&tree(None, 5, 100), &tree(None, 5, 100)));
        assert!(has_room_again(&tree(None, 5, 100), &tree(None, 5, 90)));
    }
}
