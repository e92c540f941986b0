//! Storage of the nodes: copy-on-write places on a separate region.
//!
//! The idea: a node that is on the media never changes in place. To change it, the tree renews it: it copies the node
//! to a new place, first in DRAM, and retires the old one. [`Store::commit`] writes the new nodes, fences, and stores
//! the word that points to the root. So after a crash the media has either the old tree or the new one.
//!
//! ```text
//! 0          64         128           4096
//! | head     | root     | closed      | leaves ...                | inner nodes ...          |
//!   magic,     level and  1 after an    three quarters of the rest
//!   format     place      orderly end
//! ```
//!
//! A retired place is free again once the root that no longer needs it is durable. That takes until the first fence of
//! the next commit, because the switch of the root is flushed but not followed by a fence. (The file system's own
//! fence follows at once in the same thread, so acknowledged data is durable.)

use super::RivalError;
use super::node::{self, Node, Place};
use pmem::{Flight, Region};

const MAGIC: u64 = u64::from_le_bytes(*b"NVRIVAL\x01");
const FORMAT_OFFSET: u64 = 8;
const ROOT_OFFSET: u64 = 64;
const CLOSED_OFFSET: u64 = 128;
const NODES_OFFSET: u64 = 4096;

/// How nodes are laid out and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    /// Bytes of a leaf.
    pub leaf_bytes: usize,
    /// Bytes of an inner node.
    pub inner_bytes: usize,
    /// True if nodes are blocks: all of them are in DRAM too, and they are written completely. Otherwise leaves are
    /// read in place, and only lines in use are written.
    pub buffered: bool,
}

impl Format {
    fn word(self) -> u64 {
        self.leaf_bytes as u64 | (self.inner_bytes as u64) << 24 | u64::from(self.buffered) << 48
    }

    /// Returns the maximum number of entries or children of a node of a level.
    pub(super) fn most(self, level: u8) -> usize {
        node::most(level, if level == 0 { self.leaf_bytes } else { self.inner_bytes })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    /// Reachable from the root on the media, or from an earlier root.
    Written,
    /// New since the last commit.
    New,
}

/// Nodes in DRAM.
enum Copies {
    /// All of them, by place.
    All(Vec<u8>),
    /// The new ones, and the one that was read last, as in the CPU's cache.
    Few(Vec<(Place, Box<[u8]>)>),
}

/// Places of one kind.
struct Places {
    start: u64,
    node_bytes: usize,
    most: u32,
    uses: Vec<Use>,
    copies: Copies,
    free: Vec<Place>,
    new: Vec<Place>,
    retired: Vec<Place>,
    /// Retired by the last commit, whose root may not be durable yet.
    switched: Vec<Place>,
}

impl Places {
    fn new(start: u64, bytes: u64, node_bytes: usize, copies: Copies) -> Places {
        Places {
            start,
            node_bytes,
            most: (bytes / node_bytes as u64).min(u64::from(u32::MAX)) as u32,
            uses: Vec::new(),
            copies,
            free: Vec::new(),
            new: Vec::new(),
            retired: Vec::new(),
            switched: Vec::new(),
        }
    }

    fn offset(&self, place: Place) -> u64 {
        self.start + u64::from(place.0 - 1) * self.node_bytes as u64
    }

    fn available(&self) -> usize {
        self.free.len() + self.most as usize - self.uses.len()
    }

    fn is(&self, place: Place) -> Use {
        self.uses[place.0 as usize - 1]
    }

    fn set(&mut self, place: Place, now: Use) {
        self.uses[place.0 as usize - 1] = now;
    }

    fn grow(&mut self) -> Place {
        self.uses.push(Use::Free);
        if let Copies::All(bytes) = &mut self.copies {
            bytes.resize(self.uses.len() * self.node_bytes, 0);
        }
        Place(self.uses.len() as u32)
    }

    fn allocate(&mut self) -> Place {
        let place = self.free.pop().unwrap_or_else(|| self.grow());
        self.set(place, Use::New);
        self.new.push(place);
        if let Copies::Few(few) = &mut self.copies
            && !few.iter().any(|(of, _)| *of == place)
        {
            few.push((place, vec![0; self.node_bytes].into()));
        }
        place
    }

    fn retire(&mut self, place: Place) {
        match self.is(place) {
            Use::New => self.free.push(place),
            Use::Written => self.retired.push(place),
            Use::Free => unreachable!("a node that the tree names has a place"),
        }
        self.set(place, Use::Free);
    }

    fn node(&self, place: Place) -> Option<&[u8]> {
        match &self.copies {
            Copies::All(bytes) => bytes[(place.0 as usize - 1) * self.node_bytes..].get(..self.node_bytes),
            Copies::Few(few) => few.iter().find(|(of, _)| *of == place).map(|(_, bytes)| &**bytes),
        }
    }

    fn node_mut(&mut self, place: Place) -> &mut [u8] {
        debug_assert!(self.is(place) == Use::New, "a node on the media is never changed in place");
        match &mut self.copies {
            Copies::All(bytes) => &mut bytes[(place.0 as usize - 1) * self.node_bytes..][..self.node_bytes],
            Copies::Few(few) => {
                let found = few.iter_mut().find(|(of, _)| *of == place);
                &mut found.expect("a new node is in DRAM").1
            }
        }
    }

    /// Reads a node of the media into DRAM.
    fn fetch(&mut self, region: &Region, level: u8, place: Place) -> Result<(), RivalError> {
        let (offset, uses) = (self.offset(place), &self.uses);
        let bytes = match &mut self.copies {
            Copies::All(bytes) => &mut bytes[(place.0 as usize - 1) * self.node_bytes..][..self.node_bytes],
            Copies::Few(few) => {
                few.retain(|(of, _)| uses[of.0 as usize - 1] == Use::New);
                let mut bytes = vec![0; self.node_bytes];
                region.read_into(offset, &mut bytes);
                Node(&bytes[..]).check(level, offset)?;
                few.push((place, bytes.into()));
                return Ok(());
            }
        };
        region.read_into(offset, bytes);
        Node(&*bytes).check(level, offset)
    }

    /// Writes the new nodes, and clears their list.
    fn write_new(&mut self, region: &Region, whole: bool, flight: &mut Flight) {
        for place in std::mem::take(&mut self.new) {
            // A node that was retired again, or that is in the list twice and is already written.
            if self.is(place) != Use::New {
                continue;
            }
            let bytes = self.node(place).expect("a new node is in DRAM");
            if whole {
                flight.add(region.stream(self.offset(place), bytes));
            } else {
                let used = &bytes[..Node(bytes).used_bytes()];
                flight.add(region.write(self.offset(place), used).flush());
            }
            self.set(place, Use::Written);
        }
        if let Copies::Few(few) = &mut self.copies {
            few.clear();
        }
    }
}

/// See the module.
pub(super) struct Store {
    region: Region,
    format: Format,
    leaves: Places,
    inners: Places,
}

impl Store {
    /// Makes an empty tree on a region, or opens the existing one; returns it with its root word and whether it was
    /// closed in order.
    ///
    /// # Errors
    /// The region holds a tree of another format.
    pub(super) fn open(region: Region, format: Format) -> Result<(Store, Option<(u8, Place)>, bool), RivalError> {
        let is_new = region.load_u64(0) == 0;
        if is_new {
            let word = region.store_u64(FORMAT_OFFSET, format.word()).flush();
            let _ = region.fence((word, region.store_u64(0, MAGIC).flush()));
        } else if region.load_u64(0) != MAGIC || region.load_u64(FORMAT_OFFSET) != format.word() {
            return Err(RivalError::Foreign(region.name().into()));
        }
        let word = region.load_u64(ROOT_OFFSET);
        let closed = is_new || region.load_u64(CLOSED_OFFSET) == 1;
        let _ = region.fence(region.store_u64(CLOSED_OFFSET, 0).flush());
        let bytes = region.len_bytes() - NODES_OFFSET;
        let leaf_area = (bytes / 4 * 3).next_multiple_of(4096);
        let leaf_copies = if format.buffered { Copies::All(Vec::new()) } else { Copies::Few(Vec::new()) };
        let leaves = Places::new(NODES_OFFSET, leaf_area, format.leaf_bytes, leaf_copies);
        let inner_copies = Copies::All(Vec::new());
        let inners = Places::new(NODES_OFFSET + leaf_area, bytes - leaf_area, format.inner_bytes, inner_copies);
        let root = (word != 0).then_some(((word >> 32) as u8, Place(word as u32)));
        Ok((Store { region, format, leaves, inners }, root, closed))
    }

    /// Returns the layout of nodes.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    fn places(&self, level: u8) -> &Places {
        if level == 0 { &self.leaves } else { &self.inners }
    }

    fn places_mut(&mut self, level: u8) -> &mut Places {
        if level == 0 { &mut self.leaves } else { &mut self.inners }
    }

    /// Returns whether there is space for `nodes` more nodes of each kind.
    pub(super) fn has_room(&self, nodes: usize) -> bool {
        self.leaves.available() >= nodes && self.inners.available() >= nodes
    }

    fn fetch(&mut self, level: u8, place: Place) -> Result<(), RivalError> {
        let places = if level == 0 { &mut self.leaves } else { &mut self.inners };
        places.fetch(&self.region, level, place)
    }

    /// Returns a node for reading.
    ///
    /// # Errors
    /// The node is damaged.
    pub(super) fn read(&mut self, level: u8, place: Place) -> Result<Node<&[u8]>, RivalError> {
        if self.places(level).node(place).is_none() {
            self.fetch(level, place)?;
        }
        Ok(Node(self.places(level).node(place).expect("it is in DRAM now")))
    }

    /// Copies a node to a place where it can be changed, unless it is new; returns its new place.
    ///
    /// # Errors
    /// The node is damaged.
    pub(super) fn renew(&mut self, level: u8, place: Place) -> Result<Place, RivalError> {
        if self.places(level).is(place) == Use::New {
            return Ok(place);
        }
        self.read(level, place)?;
        let places = self.places_mut(level);
        let renewed = places.allocate();
        match &mut places.copies {
            Copies::All(bytes) => {
                let start = |place: Place| (place.0 as usize - 1) * places.node_bytes;
                bytes.copy_within(start(place)..start(place) + places.node_bytes, start(renewed));
            }
            Copies::Few(few) => {
                let old = few.iter().position(|(of, _)| *of == place).expect("just read");
                let new = few.iter().position(|(of, _)| *of == renewed).expect("just allocated");
                let [(_, old), (_, new)] = few.get_disjoint_mut([old, new]).expect("two places");
                new.copy_from_slice(old);
            }
        }
        places.retire(place);
        Ok(renewed)
    }

    /// Allocates a new node for the caller to fill; the caller has checked that there is space.
    pub(super) fn add(&mut self, level: u8) -> Place {
        self.places_mut(level).allocate()
    }

    /// Frees a node that the tree no longer references.
    pub(super) fn retire(&mut self, level: u8, place: Place) {
        self.places_mut(level).retire(place);
    }

    /// Returns a new node for changing it.
    pub(super) fn change(&mut self, level: u8, place: Place) -> Node<&mut [u8]> {
        Node(self.places_mut(level).node_mut(place))
    }

    /// Reads a node of a tree that was found on the media, and marks its place as used.
    ///
    /// # Errors
    /// The node is damaged, or its place is invalid or used twice.
    pub(super) fn load(&mut self, level: u8, place: Place) -> Result<Node<&[u8]>, RivalError> {
        let places = self.places_mut(level);
        if place.0 == 0 || place.0 > places.most {
            return Err(RivalError::Damaged { what: "the place of a node", at: u64::from(place.0) });
        }
        while places.uses.len() < place.0 as usize {
            let unused = places.grow();
            places.free.push(unused);
        }
        if places.is(place) != Use::Free {
            return Err(RivalError::Damaged { what: "a node with two parents", at: places.offset(place) });
        }
        places.set(place, Use::Written);
        self.fetch(level, place)?;
        self.read(level, place)
    }

    /// Ends the loading of a tree.
    pub(super) fn loaded(&mut self) {
        for places in [&mut self.leaves, &mut self.inners] {
            let uses = &places.uses;
            places.free.retain(|place| uses[place.0 as usize - 1] == Use::Free);
        }
    }

    /// Writes the new nodes and switches to the new root. Does nothing if there are no new nodes.
    pub(super) fn commit(&mut self, root: Option<(u8, Place)>) {
        let anything_new = |places: &Places| !places.new.is_empty() || !places.retired.is_empty();
        if !anything_new(&self.leaves) && !anything_new(&self.inners) {
            return;
        }
        let mut flight = Flight::new();
        self.leaves.write_new(&self.region, self.format.buffered, &mut flight);
        self.inners.write_new(&self.region, self.format.buffered, &mut flight);
        let _ = self.region.fence(flight);
        for places in [&mut self.leaves, &mut self.inners] {
            places.free.append(&mut places.switched);
            std::mem::swap(&mut places.switched, &mut places.retired);
        }
        let word = root.map_or(0, |(level, place)| u64::from(level) << 32 | u64::from(place.0));
        let _ = self.region.store_u64(ROOT_OFFSET, word).flush();
    }

    /// Waits until the root of the last commit is durable. Then the places that it retired are free.
    pub(super) fn settle(&mut self) {
        self.region.fence(());
        for places in [&mut self.leaves, &mut self.inners] {
            places.free.append(&mut places.switched);
        }
    }

    /// Records an orderly end.
    pub(super) fn close(&mut self) {
        self.settle();
        let _ = self.region.fence(self.region.store_u64(CLOSED_OFFSET, 1).flush());
    }
}
