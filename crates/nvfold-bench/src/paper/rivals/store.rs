//! Where the nodes lie: copy-on-write places on a region of their own.
//!
//! The idea: a node never changes where it lies. Who changes one takes it, which retires its place, and puts it to a
//! new place, in DRAM first. [`Store::commit`] writes what is new, fences, and stores the word that names the root; so
//! a crash finds the tree of before or the tree of after.
//!
//! ```text
//! 0          64         128           4096
//! | head     | root     | closed      | leaves ...                | inner nodes ...          |
//!   magic,     level and  1 after an    three quarters of the rest
//!   format     place      orderly end
//! ```
//!
//! A retired place is free again once a fence has made the root that no longer needs it durable. That fence is the
//! first one of the next commit: the switch of the root is flushed, and waits for no fence of its own. (The file
//! system's own fence follows it in the same thread at once, so what it acknowledges is durable.)

use super::RivalError;
use super::node::{Node, Place, children_max, entries_max};
use pmem::{Flight, Region};

const MAGIC: u64 = u64::from_le_bytes(*b"NVRIVAL\x01");
const FORMAT_OFFSET: u64 = 8;
const ROOT_OFFSET: u64 = 64;
const CLOSED_OFFSET: u64 = 128;
const NODES_OFFSET: u64 = 4096;

/// How nodes are laid out and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bytes of a leaf.
    pub leaf_bytes: usize,
    /// Bytes of an inner node.
    pub inner_bytes: usize,
    /// Nodes are blocks: all of them are in DRAM too, and they are written whole. Otherwise leaves are read where they
    /// lie, and only lines in use are written.
    pub buffered: bool,
}

impl Format {
    fn word(self) -> u64 {
        self.leaf_bytes as u64 | (self.inner_bytes as u64) << 24 | u64::from(self.buffered) << 48
    }

    /// Most entries or children of a node of a level.
    pub fn most(self, level: u8) -> usize {
        if level == 0 { entries_max(self.leaf_bytes) } else { children_max(self.inner_bytes) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    /// As the root on the media, or one of before, knows it.
    Written,
    /// New since the last commit.
    New,
}

/// Places of one kind.
struct Places {
    start: u64,
    node_bytes: u64,
    most: u32,
    uses: Vec<Use>,
    nodes: Vec<Option<Box<Node>>>,
    free: Vec<Place>,
    new: Vec<Place>,
    retired: Vec<Place>,
    /// Retired by the last commit, whose root is not known to be durable yet.
    switched: Vec<Place>,
}

impl Places {
    fn new(start: u64, bytes: u64, node_bytes: usize) -> Places {
        let node_bytes = node_bytes as u64;
        Places {
            start,
            node_bytes,
            most: (bytes / node_bytes).min(u64::from(u32::MAX)) as u32,
            uses: Vec::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            new: Vec::new(),
            retired: Vec::new(),
            switched: Vec::new(),
        }
    }

    fn offset(&self, place: Place) -> u64 {
        self.start + u64::from(place.0 - 1) * self.node_bytes
    }

    fn available(&self) -> usize {
        self.free.len() + self.most as usize - self.uses.len()
    }

    fn grow(&mut self) -> Place {
        self.uses.push(Use::Free);
        self.nodes.push(None);
        Place(self.uses.len() as u32)
    }

    fn put(&mut self, node: Box<Node>) -> Place {
        let place = self.free.pop().unwrap_or_else(|| self.grow());
        self.uses[place.0 as usize - 1] = Use::New;
        self.nodes[place.0 as usize - 1] = Some(node);
        self.new.push(place);
        place
    }

    /// Leaves a node that is on the media to the media.
    fn forget(&mut self, place: Place) {
        let at = place.0 as usize - 1;
        if self.uses[at] == Use::Written {
            self.nodes[at] = None;
        }
    }

    fn retire(&mut self, place: Place) {
        match std::mem::replace(&mut self.uses[place.0 as usize - 1], Use::Free) {
            Use::New => self.free.push(place),
            Use::Written => self.retired.push(place),
            Use::Free => unreachable!("a node that the tree names has a place"),
        }
    }
}

/// See the module.
pub struct Store {
    region: Region,
    format: Format,
    leaves: Places,
    inners: Places,
    /// Read from the media, and in DRAM for now.
    last_leaf: Option<Place>,
    bytes: Vec<u8>,
}

impl Store {
    /// Lays an empty tree out on a region, or finds the one that is there, with what its root word says and whether it
    /// was closed in order.
    ///
    /// # Errors
    /// The region holds a tree of another format.
    pub fn open(region: Region, format: Format) -> Result<(Store, Option<(u8, Place)>, bool), RivalError> {
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
        let leaves = Places::new(NODES_OFFSET, leaf_area, format.leaf_bytes);
        let inners = Places::new(NODES_OFFSET + leaf_area, bytes - leaf_area, format.inner_bytes);
        let root = (word != 0).then_some(((word >> 32) as u8, Place(word as u32)));
        Ok((Store { region, format, leaves, inners, last_leaf: None, bytes: Vec::new() }, root, closed))
    }

    /// How nodes are laid out.
    pub fn format(&self) -> Format {
        self.format
    }

    fn places(&mut self, level: u8) -> &mut Places {
        if level == 0 { &mut self.leaves } else { &mut self.inners }
    }

    /// Whether there is room for so many more nodes of each kind.
    pub fn has_room(&self, nodes: usize) -> bool {
        self.leaves.available() >= nodes && self.inners.available() >= nodes
    }

    /// A node, to look at. A leaf that lies on the media alone is kept until another one is looked at, as the CPU's cache
    /// would: who looks at it and then changes it reads it once.
    ///
    /// # Errors
    /// It is damaged.
    pub fn read(&mut self, level: u8, place: Place) -> Result<&Node, RivalError> {
        let at = place.0 as usize - 1;
        if self.places(level).nodes[at].is_none() {
            let node = Box::new(self.read_media(level, place)?);
            if let Some(last) = self.last_leaf.replace(place) {
                self.leaves.forget(last);
            }
            self.places(level).nodes[at] = Some(node);
        }
        Ok(self.places(level).nodes[at].as_ref().expect("it is there or was just read"))
    }

    /// A node, to change it: it is to be put back, and lies elsewhere then.
    ///
    /// # Errors
    /// It is damaged.
    pub fn take(&mut self, level: u8, place: Place) -> Result<Box<Node>, RivalError> {
        let node = match self.places(level).nodes[place.0 as usize - 1].take() {
            Some(node) => node,
            None => Box::new(self.read_media(level, place)?),
        };
        self.places(level).retire(place);
        Ok(node)
    }

    /// Gives a node a place; the caller has asked for room.
    pub fn put(&mut self, node: Box<Node>) -> Place {
        self.places(node.level()).put(node)
    }

    fn read_media(&self, level: u8, place: Place) -> Result<Node, RivalError> {
        let places = if level == 0 { &self.leaves } else { &self.inners };
        let mut buffer = [0; 4096];
        let bytes = &mut buffer[..places.node_bytes as usize];
        self.region.read_into(places.offset(place), bytes);
        Node::decode(level, bytes, places.offset(place))
    }

    /// Reads a node of the tree that was found on the media, and notes that its place is in use.
    ///
    /// # Errors
    /// It is damaged, or lies where none can, or where another does.
    pub fn load(&mut self, level: u8, place: Place) -> Result<Node, RivalError> {
        let places = self.places(level);
        if place.0 == 0 || place.0 > places.most {
            return Err(RivalError::Damaged { what: "the place of a node", at: u64::from(place.0) });
        }
        while places.uses.len() < place.0 as usize {
            let unused = places.grow();
            places.free.push(unused);
        }
        if places.uses[place.0 as usize - 1] != Use::Free {
            return Err(RivalError::Damaged { what: "a node with two parents", at: places.offset(place) });
        }
        places.uses[place.0 as usize - 1] = Use::Written;
        let node = self.read_media(level, place)?;
        if level > 0 || self.format.buffered {
            self.places(level).nodes[place.0 as usize - 1] = Some(Box::new(node.clone()));
        }
        Ok(node)
    }

    /// All of the tree was loaded.
    pub fn loaded(&mut self) {
        for places in [&mut self.leaves, &mut self.inners] {
            let uses = &places.uses;
            places.free.retain(|place| uses[place.0 as usize - 1] == Use::Free);
        }
    }

    /// Writes what is new and switches to the new root. Does nothing when nothing is new.
    pub fn commit(&mut self, root: Option<(u8, Place)>) {
        let anything_new = |places: &Places| !places.new.is_empty() || !places.retired.is_empty();
        if !anything_new(&self.leaves) && !anything_new(&self.inners) {
            return;
        }
        let mut flight = Flight::new();
        write_new(&self.region, self.format, &mut self.leaves, &mut self.bytes, &mut flight);
        write_new(&self.region, self.format, &mut self.inners, &mut self.bytes, &mut flight);
        let _ = self.region.fence(flight);
        for places in [&mut self.leaves, &mut self.inners] {
            places.free.append(&mut places.switched);
            std::mem::swap(&mut places.switched, &mut places.retired);
        }
        let word = root.map_or(0, |(level, place)| u64::from(level) << 32 | u64::from(place.0));
        let _ = self.region.store_u64(ROOT_OFFSET, word).flush();
    }

    /// Waits until the root of the last commit is durable. Afterwards what it retired is free.
    pub fn settle(&mut self) {
        self.region.fence(());
        for places in [&mut self.leaves, &mut self.inners] {
            places.free.append(&mut places.switched);
        }
    }

    /// Notes an orderly end.
    pub fn close(&mut self) {
        self.settle();
        let _ = self.region.fence(self.region.store_u64(CLOSED_OFFSET, 1).flush());
    }
}

fn write_new(region: &Region, format: Format, places: &mut Places, bytes: &mut Vec<u8>, flight: &mut Flight) {
    for place in std::mem::take(&mut places.new) {
        let at = place.0 as usize - 1;
        // One that was taken again since, perhaps with another in its place that is written already.
        if places.uses[at] != Use::New {
            continue;
        }
        let node = places.nodes[at].as_ref().expect("a new node is in DRAM");
        node.encode(bytes);
        if format.buffered {
            bytes.resize(places.node_bytes as usize, 0);
            flight.add(region.stream(places.offset(place), bytes));
        } else {
            flight.add(region.write(places.offset(place), &bytes[..]).flush());
        }
        places.uses[at] = Use::Written;
        if node.level() == 0 && !format.buffered {
            places.forget(place);
        }
    }
}
