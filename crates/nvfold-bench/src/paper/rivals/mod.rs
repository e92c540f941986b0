//! The competitors of NV-Dedup 5.2, behind the same trait as the policies of nvfold.
//!
//! The problem: a paper's competitors are easily built so that they lose. The idea: they are one tree, and differ only
//! in what the paper says of them; each is tuned; and where a choice had to be made it was made in their favour. Both
//! fingerprint every block with one strong function (MD5 unless asked otherwise) and trust it, as the paper does.
//!
//! | | `Dedup_block` | `Dedup_fine_grained` |
//! |---|---|---|
//! | as | Dmdedup | a copy-on-write B-tree in NVM |
//! | nodes | blocks of 4 KiB: 170 entries, 512 children | leaves of two lines: 5 entries; inner nodes of one: 8 children |
//! | where | in DRAM, written to new places at a sync | on the media; inner nodes in DRAM as well, for reading |
//! | durable | every 1,000 blocks received | every change |
//! | what a change costs | nothing until the sync; then each node that changed, whole | the lines in use of the path from leaf to root, a fence, the root |
//!
//! The tree leads from fingerprint to block and references. Deletion needs the way back, from block to fingerprint:
//! that is an array in DRAM, filled again when the tree is opened, so it costs no write at all. (Dmdedup finds dead
//! fingerprints by walking its index in the background.)
//!
//! **Tuned**, and in their favour:
//! * Inner nodes hold four bytes of each fingerprint that separates two children, so a line holds eight children.
//! * One fence a change: the switch of the root is flushed and rides on the next fence, which is the file system's own.
//! * Reading an inner node costs no time of the medium, and neither does reading a leaf twice in a row; that is what the
//!   CPU's cache would do. Reading a leaf for the first time costs one read.
//! * The metadata lie on a device of their own, with the profile of the data's: their writes wait for no data.
//! * The sizes of the fine-grained nodes are those that flush fewest lines a change: `node_sizes` in the tests below
//!   measures them (`cargo test --release -p nvfold-bench node_sizes -- --ignored --nocapture`), and a test holds the
//!   choice to it.
//!
//! **Against them**: nvfold counts the references of shared blocks in its own chunk table for every policy, so a
//! request costs them about two lines there, which a file system made for them alone would not write. These lines lie
//! on the data's device, and are not in the figures of the competitors' metadata: those are the counters of the
//! metadata's region, and nothing else is stored there.
//!
//! **Threads**: one lock around the tree. That is what a copy-on-write B-tree with one root allows: each change of
//! either is a change of the root. Fingerprints are made outside it.
//!
//! **Crashes**: the tree may then be older than the file system (`Dedup_block` by 1,000 blocks), and may name a block
//! that holds something else by now. One that was not closed in order is therefore believed no more: candidates are
//! compared byte by byte. A tree belongs to one file system, mounted with this competitor only.

mod node;
mod store;
mod tree;

use node::{Entry, Key};
use nvfold::chunk::Chunks;
use nvfold::chunk::transaction::Transaction;
use nvfold::dedup::{Dedup, Place};
use nvfold::fingerprint::{Fingerprint, Strong, StrongFunction};
use nvfold::media::BlockNumber;
use parking_lot::Mutex;
use pmem::Region;
use store::Format;
use tree::Tree;

/// Blocks received between two syncs of `Dedup_block` (NV-Dedup 5.2, Dmdedup).
const BLOCKS_A_SYNC: u64 = 1000;

const IN_BLOCKS: Format = Format { leaf_bytes: 4096, inner_bytes: 4096, buffered: true };
const FINE_GRAINED: Format = Format { leaf_bytes: 128, inner_bytes: 64, buffered: false };

/// Which competitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `Dedup_block`.
    Block,
    /// `Dedup_fine_grained`.
    FineGrained,
}

/// Why the metadata of a competitor cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RivalError {
    /// The region holds something else.
    #[error("{0} holds other metadata; give it a new region")]
    Foreign(String),
    /// Bytes that no competitor wrote.
    #[error("{what} at {at:#x} of the metadata is damaged; format the device and its metadata anew")]
    Damaged {
        /// The structure.
        what: &'static str,
        /// Offset in the region, bytes.
        at: u64,
    },
}

/// A competitor at work on its metadata region.
pub struct Rival {
    strong: StrongFunction,
    /// Whether a strong fingerprint is believed.
    trusted: bool,
    table: Mutex<Table>,
}

/// What the lock is for.
struct Table {
    kind: Kind,
    tree: Tree,
    /// Fingerprint of each block that is in the tree, by block number; 0: it is not.
    keys: Vec<Key>,
    received: u64,
    /// After a failure nothing is shared any more.
    failure: Option<RivalError>,
}

impl Kind {
    fn format(self) -> Format {
        match self {
            Kind::Block => IN_BLOCKS,
            Kind::FineGrained => FINE_GRAINED,
        }
    }

    /// Size of a metadata region for so many blocks of data, bytes: more than ever is used of it at once.
    pub fn region_bytes(self, data_blocks: u64) -> u64 {
        let leaves = match self {
            // A leaf in 32 blocks is a leaf that is a fifth full; twice, for old and new places.
            Kind::Block => 2 * (data_blocks / 32 + 64) * 4096,
            // Leaves of one entry.
            Kind::FineGrained => (data_blocks + 1024) * 128,
        };
        (leaves / 3 * 4 + (64 << 10)).next_multiple_of(4096)
    }
}

impl Rival {
    /// Opens the metadata of a region, or makes them on an empty one.
    ///
    /// # Errors
    /// The region holds something else, or what is there is damaged.
    pub fn open(kind: Kind, strong: StrongFunction, metadata: Region) -> Result<Rival, RivalError> {
        let mut keys = Vec::new();
        let (tree, closed) = Tree::open(metadata, kind.format(), |entry| note(&mut keys, entry.block, entry.key))?;
        let table = Table { kind, tree, keys, received: 0, failure: None };
        Ok(Rival { strong, trusted: closed, table: Mutex::new(table) })
    }

    /// Makes all of it durable, and notes an orderly end: for a file system that is unmounted.
    ///
    /// # Errors
    /// What failed since it was opened: from then on nothing was shared.
    pub fn close(&self) -> Result<(), RivalError> {
        let mut table = self.table.lock();
        self.check_locked(&table)?;
        table.tree.close();
        Ok(())
    }

    /// Whether all went well since it was opened.
    ///
    /// # Errors
    /// What failed: from then on nothing was shared.
    pub fn check(&self) -> Result<(), RivalError> {
        self.check_locked(&self.table.lock())
    }

    fn check_locked(&self, table: &Table) -> Result<(), RivalError> {
        table.failure.clone().map_or(Ok(()), Err)
    }
}

impl Dedup for Rival {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        Fingerprint { weak: None, strong: Some(self.strong.of(piece)) }
    }

    fn place(&self, piece: &[u8], fingerprint: &mut Fingerprint, tx: &mut Transaction<'_>) -> Place {
        let Some(key) = fingerprint.strong.as_ref().and_then(key_of) else { return Place::New };
        // Before our lock: whoever waits for a generator must not keep others from the tree.
        tx.begin();
        let mut table = self.table.lock();
        table.receive();
        let Some(entry) = table.find(key) else { return Place::New };
        let block = BlockNumber(u64::from(entry.block));
        if !tx.share_known(block) {
            // On its way out, or named as often as can be counted: the new block takes its place.
            table.remove(key, entry.block);
            return Place::New;
        }
        table.set(Entry { references: entry.references.saturating_add(1), ..entry });
        if !self.trusted && !tx.chunks().equal(block, piece) {
            tx.let_go(block);
            return Place::New;
        }
        Place::Shared(block)
    }

    fn committed(&self, block: BlockNumber, fingerprint: &Fingerprint, known: &[BlockNumber], _: &Chunks) -> bool {
        let Some(key) = fingerprint.strong.as_ref().and_then(key_of) else { return true };
        let Ok(number) = u32::try_from(block.0) else { return true };
        let mut table = self.table.lock();
        match table.find(key) {
            Some(entry) if entry.block != number => known.contains(&BlockNumber(u64::from(entry.block))),
            _ => {
                table.enter(key, number);
                true
            }
        }
    }

    fn unshared(&self, block: BlockNumber) {
        let mut table = self.table.lock();
        if let Some(entry) = table.entry_of(block) {
            table.set(Entry { references: entry.references.saturating_sub(1).max(1), ..entry });
        }
    }

    fn released(&self, block: BlockNumber) {
        let mut table = self.table.lock();
        if let Some((key, number)) = table.key_of(block) {
            table.keys[number as usize] = 0;
            table.remove(key, number);
        }
    }
}

impl Table {
    /// One more block came in.
    fn receive(&mut self) {
        self.received += 1;
        if self.kind == Kind::Block && self.received.is_multiple_of(BLOCKS_A_SYNC) {
            self.sync();
        }
    }

    fn sync(&mut self) {
        self.tree.commit();
        self.tree.settle();
    }

    fn find(&mut self, key: Key) -> Option<Entry> {
        let found = self.tree.find(key);
        self.sound(found).flatten()
    }

    /// A block that is new in the tree.
    fn enter(&mut self, key: Key, block: u32) {
        // A tree that is older than the file system may still have the block's last content.
        if let Some((old, number)) = self.key_of(BlockNumber(u64::from(block))).filter(|(old, _)| *old != key) {
            self.remove(old, number);
        }
        if self.set(Entry { key, block, references: 1 }) {
            note(&mut self.keys, block, key);
        }
    }

    /// Writes an entry. False when there is no room for it: its block is not shared then.
    fn set(&mut self, entry: Entry) -> bool {
        self.change(|tree| tree.insert(entry))
    }

    fn remove(&mut self, key: Key, block: u32) {
        self.change(|tree| tree.remove(key, block));
    }

    fn change(&mut self, mut change: impl FnMut(&mut Tree) -> Result<bool, RivalError>) -> bool {
        if self.failure.is_some() {
            return false;
        }
        let mut done = change(&mut self.tree);
        if done == Ok(false) {
            // Old places become free at a sync.
            self.sync();
            done = change(&mut self.tree);
        }
        let done = self.sound(done) == Some(true);
        if self.kind == Kind::FineGrained && self.failure.is_none() {
            self.tree.commit();
        }
        done
    }

    fn sound<T>(&mut self, result: Result<T, RivalError>) -> Option<T> {
        result.map_err(|error| self.failure = Some(error)).ok()
    }

    /// Fingerprint of a block that is in the tree, and its number as the tree has it.
    fn key_of(&self, block: BlockNumber) -> Option<(Key, u32)> {
        let number = u32::try_from(block.0).ok()?;
        let key = self.keys.get(number as usize).copied().filter(|key| *key != 0)?;
        Some((key, number))
    }

    fn entry_of(&mut self, block: BlockNumber) -> Option<Entry> {
        let (key, number) = self.key_of(block)?;
        self.find(key).filter(|entry| entry.block == number)
    }
}

fn note(keys: &mut Vec<Key>, block: u32, key: Key) {
    if keys.len() <= block as usize {
        keys.resize(block as usize + 1, 0);
    }
    keys[block as usize] = key;
}

/// What the tree keeps of a strong fingerprint. None for the one that stands for "none" in the way back.
fn key_of(strong: &Strong) -> Option<Key> {
    let first: [u8; 16] = strong[..16].try_into().expect("a strong fingerprint has 20 bytes");
    Some(Key::from_be_bytes(first)).filter(|key| *key != 0)
}
