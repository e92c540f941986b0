//! A B-tree from page numbers to the slots of their nodes (ICID 4.2).
//!
//! A tree of the library would not do, for two reasons. This one takes its branches from a reserve, so that an
//! insertion can promise not to allocate, and a branch is a few cache lines without pointers.
//!
//! A branch holds up to 32 keys; no page below child i is lower than key i. A branch is removed when it is empty, and
//! not merged before: pages come and go in runs, and Johnson and Shasha (1993) show that this loses little space.
//!
//! ```text
//!              [ 3, 40, 97 ]
//!             /      |      \
//!      [3,4,7,12] [40,41,42] [97,98]        leaves: page -> slot of its node
//! ```

/// Number of keys of a branch.
const FANOUT: usize = 32;
/// The largest number of levels. Another level takes a full root, and one of its children must be refilled by at
/// least 16 splits below it, whatever was removed in between. So this many levels take more than 2^60 insertions.
const HEIGHT_MAX: usize = 16;
const NONE: u32 = u32::MAX;

struct Branch {
    pages: [u64; FANOUT],
    /// Children, or in a leaf the slots of nodes; in a free branch, the first one is the next free branch.
    below: [u32; FANOUT],
    length: u32,
}

/// Size of a branch in bytes.
pub(crate) const BRANCH_BYTES: usize = size_of::<Branch>();

impl Branch {
    const EMPTY: Branch = Branch { pages: [0; FANOUT], below: [NONE; FANOUT], length: 0 };

    #[inline]
    fn keys(&self) -> &[u64] {
        &self.pages[..self.length as usize]
    }

    /// Returns the child that has this page below it.
    #[inline]
    fn child(&self, page: u64) -> usize {
        self.keys().partition_point(|key| *key <= page).saturating_sub(1)
    }

    fn is_full(&self) -> bool {
        self.length as usize == FANOUT
    }

    fn insert(&mut self, at: usize, page: u64, below: u32) {
        let length = self.length as usize;
        self.pages.copy_within(at..length, at + 1);
        self.below.copy_within(at..length, at + 1);
        (self.pages[at], self.below[at]) = (page, below);
        self.length += 1;
    }

    fn remove(&mut self, at: usize) {
        let length = self.length as usize;
        self.pages.copy_within(at + 1..length, at);
        self.below.copy_within(at + 1..length, at);
        self.length -= 1;
    }
}

/// A B-tree from page numbers to slots.
pub(crate) struct PageTree {
    branches: Vec<Branch>,
    /// First free branch, and the number of free branches.
    free: u32,
    free_count: usize,
    root: u32,
    /// Number of levels from the root to a leaf; 0 without a root.
    height: usize,
}

impl PageTree {
    /// Creates an empty tree without a reserve.
    pub(crate) fn new() -> PageTree {
        PageTree { branches: Vec::new(), free: NONE, free_count: 0, root: NONE, height: 0 }
    }

    /// Returns the number of branches for which there is memory.
    pub(crate) fn capacity(&self) -> usize {
        self.branches.capacity()
    }

    /// Reserves memory for `branches` more branches. Returns false if there is none.
    pub(crate) fn reserve(&mut self, branches: usize) -> bool {
        let used = self.branches.len();
        self.branches.try_reserve_exact(self.branches.capacity() - used + branches).is_ok()
    }

    /// Returns the node of a page.
    #[inline]
    pub(crate) fn find(&self, page: u64) -> Option<u32> {
        if self.height == 0 {
            return None;
        }
        let mut branch = &self.branches[self.root as usize];
        for _ in 1..self.height {
            branch = &self.branches[branch.below[branch.child(page)] as usize];
        }
        let at = branch.child(page);
        (branch.keys().get(at) == Some(&page)).then(|| branch.below[at])
    }

    /// True if there are enough branches to insert this page.
    pub(crate) fn has_room_for(&self, page: u64) -> bool {
        let spare = self.free_count + self.branches.capacity() - self.branches.len();
        if spare > self.height {
            return true;
        }
        // Each full branch on the path is split, and a full root gets a parent.
        if self.height == 0 {
            return spare > 0;
        }
        let mut branch = &self.branches[self.root as usize];
        let mut needed = usize::from(branch.is_full()) * 2;
        for _ in 1..self.height {
            branch = &self.branches[branch.below[branch.child(page)] as usize];
            needed += usize::from(branch.is_full());
        }
        spare >= needed
    }

    /// Adds a page that the tree does not have; there must be [room](PageTree::has_room_for) for it.
    pub(crate) fn insert(&mut self, page: u64, node: u32) {
        if self.height == 0 {
            self.root = self.take_branch();
            self.height = 1;
        }
        if self.branches[self.root as usize].is_full() {
            let lower = self.root;
            self.root = self.take_branch();
            self.height += 1;
            let first = self.branches[lower as usize].pages[0];
            self.branches[self.root as usize].insert(0, first, lower);
            self.split(self.root, 0, page);
        }
        let mut at = self.root;
        for _ in 1..self.height {
            let branch = &mut self.branches[at as usize];
            branch.pages[0] = branch.pages[0].min(page);
            let mut child = branch.child(page);
            if self.branches[self.branches[at as usize].below[child] as usize].is_full() {
                self.split(at, child, page);
                child = self.branches[at as usize].child(page);
            }
            at = self.branches[at as usize].below[child];
        }
        let leaf = &mut self.branches[at as usize];
        let place = leaf.keys().partition_point(|key| *key < page);
        leaf.insert(place, page, node);
    }

    /// Splits a full child in two; its parent must not be full. For a page after all others only the last key moves:
    /// pages come in ascending order, so other splits would leave half-empty branches behind.
    fn split(&mut self, parent: u32, child: usize, page: u64) {
        let lower = self.branches[parent as usize].below[child];
        let upper = self.take_branch();
        let from = &mut self.branches[lower as usize];
        let kept = if page > from.pages[FANOUT - 1] { FANOUT - 1 } else { FANOUT / 2 };
        let mut moved = Branch { length: (FANOUT - kept) as u32, ..Branch::EMPTY };
        moved.pages[..FANOUT - kept].copy_from_slice(&from.pages[kept..]);
        moved.below[..FANOUT - kept].copy_from_slice(&from.below[kept..]);
        from.length = kept as u32;
        let first = moved.pages[0];
        self.branches[upper as usize] = moved;
        self.branches[parent as usize].insert(child + 1, first, upper);
    }

    /// Removes a page, if the tree has it.
    pub(crate) fn remove(&mut self, page: u64) {
        if self.height == 0 {
            return;
        }
        let mut way = [(NONE, 0); HEIGHT_MAX];
        let mut at = self.root;
        for step in &mut way[..self.height] {
            let child = self.branches[at as usize].child(page);
            *step = (at, child);
            at = self.branches[at as usize].below[child];
        }
        let (leaf, place) = way[self.height - 1];
        if self.branches[leaf as usize].keys().get(place) != Some(&page) {
            return;
        }
        for (branch, place) in way[..self.height].iter().rev() {
            self.branches[*branch as usize].remove(*place);
            if self.branches[*branch as usize].length > 0 {
                break;
            }
            self.give_branch(*branch);
            if *branch == self.root {
                (self.root, self.height) = (NONE, 0);
            }
        }
        while self.height > 1 && self.branches[self.root as usize].length == 1 {
            let old = self.root;
            self.root = self.branches[old as usize].below[0];
            self.height -= 1;
            self.give_branch(old);
        }
    }

    fn take_branch(&mut self) -> u32 {
        if self.free == NONE {
            debug_assert!(self.branches.len() < self.branches.capacity(), "who inserts has asked for room");
            self.branches.push(Branch::EMPTY);
            return (self.branches.len() - 1) as u32;
        }
        let taken = self.free;
        self.free = self.branches[taken as usize].below[0];
        self.free_count -= 1;
        self.branches[taken as usize].length = 0;
        taken
    }

    fn give_branch(&mut self, branch: u32) {
        self.branches[branch as usize].below[0] = self.free;
        self.free = branch;
        self.free_count += 1;
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn insert(tree: &mut PageTree, page: u64, node: u32) {
        if !tree.has_room_for(page) {
            assert!(tree.reserve(tree.height + 1) && tree.has_room_for(page));
        }
        tree.insert(page, node);
    }

    /// Returns all pages by walking the branches, which must be sorted and as many levels deep as the tree says.
    fn pages(tree: &PageTree) -> Vec<(u64, u32)> {
        fn walk(tree: &PageTree, branch: u32, levels: usize, pages: &mut Vec<(u64, u32)>) {
            let branch = &tree.branches[branch as usize];
            assert!(branch.length > 0 && branch.keys().is_sorted());
            for (page, below) in branch.keys().iter().zip(&branch.below) {
                if levels > 1 { walk(tree, *below, levels - 1, pages) } else { pages.push((*page, *below)) }
            }
        }
        let mut found = Vec::new();
        if tree.height > 0 {
            walk(tree, tree.root, tree.height, &mut found);
        }
        found
    }

    #[test]
    fn ascending_pages_fill_their_branches() {
        let mut tree = PageTree::new();
        (0..10_000).for_each(|page| insert(&mut tree, page, page as u32));
        assert!((0..10_000).all(|page| tree.find(page) == Some(page as u32)));
        let branches = tree.branches.len() - tree.free_count;
        assert!(branches <= 10_000 / 29, "{branches} branches");
    }

    #[test]
    fn an_emptied_page_tree_has_freed_all_branches() {
        let mut tree = PageTree::new();
        (0..10_000).for_each(|page| insert(&mut tree, page * 7919 % 10_007, page as u32));
        (0..10_000).rev().for_each(|page| tree.remove(page * 7919 % 10_007));
        assert_eq!((tree.height, tree.free_count), (0, tree.branches.len()));
        assert_eq!((tree.find(0), tree.find(u64::MAX)), (None, None));
    }

    proptest! {
        #[test]
        fn a_tree_agrees_with_a_map_after_random_operations(changes in vec((any::<bool>(), 0..400_u64), 1..2000)) {
            let (mut tree, mut map) = (PageTree::new(), BTreeMap::new());
            for (node, (is_new, page)) in changes.into_iter().enumerate() {
                if !is_new {
                    tree.remove(page);
                    map.remove(&page);
                } else {
                    map.entry(page).or_insert_with(|| {
                        insert(&mut tree, page, node as u32);
                        node as u32
                    });
                }
                prop_assert_eq!(tree.find(page), map.get(&page).copied());
            }
            prop_assert_eq!(pages(&tree), map.into_iter().collect::<Vec<_>>());
        }
    }
}
