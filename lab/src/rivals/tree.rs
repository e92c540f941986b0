//! A copy-on-write B-tree from fingerprint to block and references.
//!
//! Every change copies the path from its leaf to the root ([`Store`] allocates the copies). Data that could be read
//! after a crash is never overwritten. A node that gets too full is split; one that is at most a quarter full is
//! joined with a neighbour if both together fill at most three quarters; an empty one is removed.

use super::RivalError;
use super::node::{Entry, Key, Place, middle_of, prefix};
use super::store::{Format, Store};
use pmem::Region;
use smallvec::SmallVec;

/// Maximum number of levels: a tree of 2^32 entries needs fewer.
const LEVELS_MAX: u8 = 40;

/// Inner nodes from the root down: level, place, and position of the child to follow.
type Path = SmallVec<[(u8, Place, usize); 16]>;

/// A changed node, as its parent sees it.
struct Changed {
    place: Place,
    /// Entries or children that it has now.
    length: usize,
    /// The part that was split off: separator and place.
    right: Option<(u32, Place)>,
}

/// The tree. Changes are on the media after [`Tree::commit`].
pub(super) struct Tree {
    store: Store,
    root: Option<(u8, Place)>,
}

impl Tree {
    /// Opens the tree of a region, or makes an empty one. Calls `each` for every entry. Returns whether the tree was
    /// closed in order.
    ///
    /// # Errors
    /// The region holds other data, or the tree is damaged.
    pub(super) fn open(
        region: Region,
        format: Format,
        mut each: impl FnMut(Entry),
    ) -> Result<(Tree, bool), RivalError> {
        let (mut store, root, closed) = Store::open(region, format)?;
        let mut ahead = Vec::from_iter(root);
        while let Some((level, place)) = ahead.pop() {
            if level > LEVELS_MAX {
                return Err(RivalError::Damaged { what: "the root word", at: 0 });
            }
            let node = store.load(level, place)?;
            match level {
                0 => node.entries().for_each(&mut each),
                _ => ahead.extend((0..node.len()).map(|at| (level - 1, node.child(at)))),
            }
        }
        store.loaded();
        Ok((Tree { store, root }, closed))
    }

    /// Returns the number of levels from the root to the leaves.
    pub(super) fn levels(&self) -> u8 {
        self.root.map_or(0, |(level, _)| level + 1)
    }

    /// Returns the entry of a fingerprint.
    ///
    /// # Errors
    /// A node is damaged.
    pub(super) fn find(&mut self, key: Key) -> Result<Option<Entry>, RivalError> {
        let Some((mut level, mut place)) = self.root else { return Ok(None) };
        while level > 0 {
            let node = self.store.read(level, place)?;
            (level, place) = (level - 1, node.child(node.child_of(key)));
        }
        let leaf = self.store.read(0, place)?;
        Ok(leaf.search(key).ok().map(|at| leaf.entry(at)))
    }

    /// Adds or replaces the entry of a fingerprint. Returns false if there is no space for it: on the media, or in a
    /// full leaf that cannot be split because all its fingerprints begin with the same four bytes.
    ///
    /// # Errors
    /// A node is damaged.
    pub(super) fn insert(&mut self, entry: Entry) -> Result<bool, RivalError> {
        if !self.store.has_room(2 * (usize::from(self.levels()) + 2)) {
            return Ok(false);
        }
        let (path, leaf) = self.path(entry.key)?;
        let leaf = match leaf {
            Some(leaf) => self.store.renew(0, leaf)?,
            None => self.new_leaf(&[]),
        };
        let mut node = self.store.change(0, leaf);
        let (mut right, mut entered) = (None, true);
        match node.search(entry.key) {
            Ok(at) => node.set_entry(at, entry),
            Err(at) if node.len() < node.most() => node.insert_entry(at, entry),
            Err(at) => {
                let mut entries: Vec<Entry> = node.entries().collect();
                entries.insert(at, entry);
                match middle_of(&entries) {
                    Some(middle) => {
                        node.set_entries(&entries[..middle]);
                        right = Some((prefix(entries[middle].key), self.new_leaf(&entries[middle..])));
                    }
                    None => entered = false,
                }
            }
        }
        self.copy_path(path, leaf, right)?;
        Ok(entered)
    }

    /// Removes the entry of a fingerprint, if it names this block. Returns false if there is no space for the copies
    /// of the path.
    ///
    /// # Errors
    /// A node is damaged.
    pub(super) fn remove(&mut self, key: Key, block: u32) -> Result<bool, RivalError> {
        if !self.store.has_room(usize::from(self.levels()) + 1) {
            return Ok(false);
        }
        let (path, Some(leaf)) = self.path(key)? else { return Ok(true) };
        let node = self.store.read(0, leaf)?;
        let Some(at) = node.search(key).ok().filter(|at| node.entry(*at).block == block) else { return Ok(true) };
        let leaf = self.store.renew(0, leaf)?;
        self.store.change(0, leaf).remove_entry(at);
        self.copy_path(path, leaf, None)?;
        Ok(true)
    }

    /// Writes the changes and switches the root.
    pub(super) fn commit(&mut self) {
        self.store.commit(self.root);
    }

    /// Waits until the last commit is durable; then the nodes that it replaced are free.
    pub(super) fn settle(&mut self) {
        self.store.settle();
    }

    /// Commits, and records an orderly end.
    pub(super) fn close(&mut self) {
        self.commit();
        self.store.close();
    }

    fn new_leaf(&mut self, entries: &[Entry]) -> Place {
        let place = self.store.add(0);
        self.store.change(0, place).set_entries(entries);
        place
    }

    /// Returns the inner nodes above a fingerprint's leaf, each with the child to follow, and the leaf.
    fn path(&mut self, key: Key) -> Result<(Path, Option<Place>), RivalError> {
        let mut path = Path::new();
        let Some((mut level, mut place)) = self.root else { return Ok((path, None)) };
        while level > 0 {
            let node = self.store.read(level, place)?;
            let child = node.child_of(key);
            path.push((level, place, child));
            (level, place) = (level - 1, node.child(child));
        }
        Ok((path, Some(place)))
    }

    /// Copies the nodes above a changed leaf, from the lowest to the root.
    fn copy_path(&mut self, path: Path, leaf: Place, right: Option<(u32, Place)>) -> Result<(), RivalError> {
        let mut below = Changed { place: leaf, length: self.store.change(0, leaf).len(), right };
        let mut level = 0;
        for (above, place, child) in path.into_iter().rev() {
            let place = self.store.renew(above, place)?;
            let right = self.renew_child(above, place, child, below)?;
            below = Changed { place, length: self.store.change(above, place).len(), right };
            level = above;
        }
        self.root = self.new_root(level, below)?;
        Ok(())
    }

    /// Updates the references of a new parent to a changed child: one node, two or none. Returns the part that had to
    /// be split off the parent.
    fn renew_child(
        &mut self,
        level: u8,
        parent: Place,
        child: usize,
        below: Changed,
    ) -> Result<Option<(u32, Place)>, RivalError> {
        let quarter = self.store.format().most(level - 1) / 4;
        let mut node = self.store.change(level, parent);
        node.set_child(child, below.place);
        if below.length == 0 {
            node.remove_child(child);
            self.store.retire(level - 1, below.place);
        } else if let Some((separator, right)) = below.right {
            if node.len() < node.most() {
                node.insert_child(child, separator, right);
                return Ok(None);
            }
            return Ok(Some(self.split_and_insert(level, parent, child, separator, right)));
        } else if below.length <= quarter && node.len() > 1 {
            self.join(level, parent, child)?;
        }
        Ok(None)
    }

    /// Splits a full inner node and adds a child to the half where it belongs.
    fn split_and_insert(&mut self, level: u8, full: Place, child: usize, separator: u32, new: Place) -> (u32, Place) {
        let place = self.store.add(level);
        let mut bytes = vec![0; self.store.format().inner_bytes];
        let mut left = self.store.change(level, full);
        let between = left.split_to(&mut bytes);
        let length = left.len();
        if child < length {
            left.insert_child(child, separator, new);
        }
        let mut right = self.store.change(level, place);
        right.0.copy_from_slice(&bytes);
        if child >= length {
            right.insert_child(child - length, separator, new);
        }
        (between, place)
    }

    /// Joins a nearly empty child with a neighbour, if both together fill at most three quarters of a node.
    fn join(&mut self, level: u8, parent: Place, child: usize) -> Result<(), RivalError> {
        let node = self.store.change(level, parent);
        let left = child.saturating_sub(1);
        let (separator, first, second) = (node.separator(left), node.child(left), node.child(left + 1));
        let below = level - 1;
        let together = self.store.read(below, first)?.len() + self.store.read(below, second)?.len();
        if together > self.store.format().most(below) / 4 * 3 {
            return Ok(());
        }
        let bytes = self.store.read(below, second)?.0.to_vec();
        let joined = self.store.renew(below, first)?;
        self.store.change(below, joined).absorb(separator, &bytes);
        self.store.retire(below, second);
        let mut node = self.store.change(level, parent);
        node.remove_child(left + 1);
        node.set_child(left, joined);
        Ok(())
    }

    /// Makes the topmost changed node the root; the tree grows or shrinks here.
    fn new_root(&mut self, mut level: u8, top: Changed) -> Result<Option<(u8, Place)>, RivalError> {
        if let Some((separator, right)) = top.right {
            let place = self.store.add(level + 1);
            let mut node = self.store.change(level + 1, place);
            node.set_only_child(level + 1, top.place);
            node.insert_child(0, separator, right);
            return Ok(Some((level + 1, place)));
        }
        if top.length == 0 {
            self.store.retire(level, top.place);
            return Ok(None);
        }
        let mut place = top.place;
        while level > 0 && self.store.read(level, place)?.len() == 1 {
            let only = self.store.read(level, place)?.child(0);
            self.store.retire(level, place);
            (level, place) = (level - 1, only);
        }
        Ok(Some((level, place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmem::{DeviceSpec, OpenOptions, PendingWord, Replay, StoreOrder};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const FINE: Format = super::super::FINE_GRAINED;
    const BLOCKS: Format = Format { leaf_bytes: 4096, inner_bytes: 4096, buffered: true };
    /// In DRAM like blocks, and so small that a few entries make levels.
    const SMALL: Format = Format { leaf_bytes: 128, inner_bytes: 64, buffered: true };

    type Model = BTreeMap<Key, Entry>;

    fn memory(bytes: u64, record: bool) -> Region {
        Region::create(&DeviceSpec::Memory, bytes, &OpenOptions { record, ..OpenOptions::default() }).unwrap()
    }

    fn opened(region: &Region, format: Format) -> (Tree, Model, bool) {
        let mut found = Model::new();
        let (tree, closed) = Tree::open(region.clone(), format, |entry| {
            assert!(found.insert(entry.key, entry).is_none(), "no entry is in the tree twice");
        })
        .unwrap();
        (tree, found, closed)
    }

    /// Returns a random-looking key for a number.
    fn key(number: u16) -> Key {
        let mut random = nvfold_bench::data::Random(u64::from(number));
        u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())
    }

    fn entry(number: u16, block: u32) -> Entry {
        Entry { key: key(number), block, references: 1 }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u16, u32),
        Remove(u16),
        Commit,
        /// As after a crash: uncommitted changes are lost.
        Reopen,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            12 => (0..600u16, any::<u32>()).prop_map(|(number, block)| Step::Insert(number, block)),
            8 => (0..600u16).prop_map(Step::Remove),
            2 => Just(Step::Commit),
            1 => Just(Step::Reopen),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn a_tree_agrees_with_a_map_after_random_operations(steps in prop::collection::vec(step(), 1..1500), format in 0..3usize) {
            let format = [FINE, SMALL, BLOCKS][format];
            let region = memory(16 << 20, false);
            let (mut tree, mut now) = (opened(&region, format).0, Model::new());
            let mut committed = Model::new();
            for step in steps {
                match step {
                    Step::Insert(number, block) => {
                        prop_assert!(tree.insert(entry(number, block)).unwrap());
                        now.insert(key(number), entry(number, block));
                    }
                    Step::Remove(number) => {
                        let block = now.remove(&key(number)).map_or(0, |entry| entry.block);
                        prop_assert!(tree.remove(key(number), block.wrapping_add(1)).unwrap(), "of another block");
                        prop_assert!(tree.remove(key(number), block).unwrap());
                    }
                    Step::Commit => {
                        tree.commit();
                        committed = now.clone();
                    }
                    Step::Reopen => {
                        drop(tree);
                        let (again, found, _) = opened(&region, format);
                        prop_assert_eq!(&found, &committed);
                        (tree, now) = (again, found);
                    }
                }
            }
            for number in 0..600 {
                prop_assert_eq!(tree.find(key(number)).unwrap(), now.get(&key(number)).copied());
            }
            tree.close();
            let (_, found, closed) = opened(&region, format);
            prop_assert!(closed);
            prop_assert_eq!(found, now);
        }
    }

    /// Returns the lines written per change, with as many insertions as removals in a tree of `entries` entries.
    fn lines_a_change(format: Format, entries: u64) -> f64 {
        const CHANGES: u64 = 20_000;
        let region = memory(256 << 20, false);
        let mut tree = opened(&region, format).0;
        let key = |number: u64| {
            let mut random = nvfold_bench::data::Random(number << 20);
            u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())
        };
        let mut live: Vec<u64> = (0..entries).collect();
        for number in &live {
            assert!(tree.insert(Entry { key: key(*number), block: 1, references: 1 }).unwrap());
            tree.commit();
        }
        let mut random = nvfold_bench::data::Random(3);
        let mut replace = |tree: &mut Tree, number: u64| {
            let old = &mut live[(random.next_u64() % entries) as usize];
            assert!(tree.insert(Entry { key: key(number), block: 1, references: 1 }).unwrap());
            tree.commit();
            assert!(tree.remove(key(*old), 1).unwrap());
            tree.commit();
            *old = number;
        };
        // Until nodes have their steady fill.
        (entries..3 * entries).for_each(|number| replace(&mut tree, number));
        let before = region.counters();
        (3 * entries..3 * entries + CHANGES / 2).for_each(|number| replace(&mut tree, number));
        (region.counters() - before).lines_written() as f64 / CHANGES as f64
    }

    #[test]
    fn the_node_sizes_of_the_fine_grained_tree_are_optimal() {
        let mut best = (f64::INFINITY, FINE);
        for leaf_bytes in [64, 128, 256] {
            for inner_bytes in [64, 128, 256] {
                let format = Format { leaf_bytes, inner_bytes, buffered: false };
                let lines = lines_a_change(format, 60_000);
                println!("leaf {leaf_bytes:4} B, inner {inner_bytes:4} B: {lines:5.2} lines a change");
                if lines < best.0 {
                    best = (lines, format);
                }
            }
        }
        assert_eq!(best.1, FINE);
    }

    #[test]
    fn removed_tree_nodes_are_reused() {
        for format in [FINE, SMALL, BLOCKS] {
            let region = memory(2 << 20, false);
            let mut tree = opened(&region, format).0;
            let mut random = nvfold_bench::data::Random(7);
            for change in 0..100_000u64 {
                let number = (random.next_u64() % 3000) as u16;
                let room = if random.next_u64().is_multiple_of(2) {
                    tree.insert(entry(number, 1)).unwrap()
                } else {
                    tree.remove(key(number), 1).unwrap()
                };
                assert!(room, "change {change} of {format:?}");
                if change % 20 == 0 {
                    tree.commit();
                }
            }
            (0..3000).for_each(|number| assert!(tree.remove(key(number), 1).unwrap()));
            assert_eq!(tree.levels(), 0, "an empty tree has no nodes");
            tree.close();
            assert_eq!(opened(&region, format).1.len(), 0);
        }
    }

    #[test]
    fn a_full_region_refuses_new_entries_and_keeps_the_old_ones() {
        let region = memory(64 << 10, false);
        let mut tree = opened(&region, FINE).0;
        let mut held = Model::new();
        for number in 0..5000 {
            if tree.insert(entry(number, 1)).unwrap() {
                held.insert(key(number), entry(number, 1));
            }
            tree.commit();
        }
        assert!((500..5000).contains(&held.len()), "{} entries fit", held.len());
        assert_eq!(opened(&region, FINE).1, held);
        for key in held.keys() {
            tree.commit();
            assert!(tree.remove(*key, 1).unwrap());
        }
        tree.close();
        assert_eq!(opened(&region, FINE).1.len(), 0);
    }

    #[test]
    fn a_leaf_full_of_fingerprints_with_equal_prefixes_refuses_another() {
        let mut tree = opened(&memory(1 << 20, false), FINE).0;
        let alike = |low: u128| Entry { key: 9 << 96 | low, block: 1, references: 1 };
        let entered = (0..20).filter(|low| tree.insert(alike(*low)).unwrap()).count();
        assert_eq!(entered, 2, "a leaf of one line holds two");
        assert_eq!(tree.find(alike(1).key).unwrap(), Some(alike(1)));
        assert_eq!(tree.find(alike(2).key).unwrap(), None);
        assert!(tree.insert(entry(1, 1)).unwrap(), "others find room");
    }

    #[test]
    fn after_any_crash_the_tree_is_in_one_of_its_last_states() {
        let (region, mut states) = (memory(64 << 10, true), vec![Model::new()]);
        let mut tree = opened(&region, FINE).0;
        let mut random = nvfold_bench::data::Random(11);
        let mut recording = region.take_recording();
        let opening = recording.events.len();
        let mut ends = Vec::new();
        while states.len() <= 150 {
            let change = states.len() as u32;
            let (number, mut state) = ((random.next_u64() % 60) as u16, states[states.len() - 1].clone());
            if !random.next_u64().is_multiple_of(3) {
                tree.insert(entry(number, change)).unwrap();
                state.insert(key(number), entry(number, change));
            } else if let Some(gone) = state.remove(&key(number)) {
                tree.remove(key(number), gone.block).unwrap();
            } else {
                continue; // Nothing changes, and nothing is committed.
            }
            tree.commit();
            states.push(state);
            recording.events.extend(region.take_recording().events);
            ends.push(recording.events.len());
        }
        let mut replay = Replay::new(&vec![0; 64 << 10]);
        for events in opening..=recording.events.len() {
            replay.advance(&recording, events);
            let done = ends.partition_point(|end| *end <= events);
            for _ in 0..4 {
                let image = replay.image(StoreOrder::AnyWord, |_: &PendingWord| random.next_u64().is_multiple_of(2));
                let crashed = memory(64 << 10, false);
                let _ = crashed.fence(crashed.stream(0, &image));
                let found = opened(&crashed, FINE).1;
                let possible = &states[done.saturating_sub(1)..(done + 2).min(states.len())];
                assert!(possible.contains(&found), "after event {events}, change {done}");
            }
        }
    }
}
