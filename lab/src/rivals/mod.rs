//! The competitors of NV-Dedup 5.2, behind the same trait as the policies of nvfold.
//!
//! The problem: it is easy to build weak competitors. The idea: both use the same tree and differ only where the paper
//! says so; each is tuned; and every choice that the paper leaves open was made in their favour. Both fingerprint every
//! block with one strong function (MD5 by default) and trust it, as the paper does.
//!
//! | | `Dedup_block` | `Dedup_fine_grained` |
//! |---|---|---|
//! | model | Dmdedup | a copy-on-write B-tree in NVM |
//! | nodes | blocks of 4 KiB: 170 entries, 512 children | one line each: 2 entries, 8 children |
//! | place | in DRAM, written to new places at a sync | on the media; inner nodes in DRAM as well, for reading |
//! | durable | every 1,000 blocks received | every change |
//! | cost of a change | nothing until the sync; then each changed node, completely | the lines in use of the path from leaf to root, a fence, the root |
//!
//! The tree maps a fingerprint to its block and references. Deletion needs the reverse, from block to fingerprint: an
//! array in DRAM, which is filled when the tree is opened, so it needs no writes. (Dmdedup finds dead fingerprints by
//! walking its index in the background.)
//!
//! **Tuned**, and in their favour:
//! * Inner nodes hold four bytes of each fingerprint that separates two children, so a line holds eight children.
//! * One fence per change: the switch of the root is flushed, and the file system's own next fence covers it.
//! * Reading an inner node costs no time of the medium, and neither does reading a leaf twice in a row: the CPU's cache
//!   would have them. Reading a leaf for the first time costs one read.
//! * The metadata is on a separate device, with the profile of the data's: its writes do not wait for data.
//! * Fine-grained nodes have the size that writes the fewest lines per change, including the switch of the root. The
//!   table has the lines per change by number of entries, with as many insertions as removals:
//!
//!   | leaf, inner node | 20,000 entries | 60,000 | 262,144 |
//!   |---|---|---|---|
//!   | 64 B, 64 B | 8.0 | 8.0 | 9.0 |
//!   | 128 B, 64 B | 7.8 | 8.8 | 9.8 |
//!   | 64 B, 128 B | 9.4 | 10.2 | 11.3 |
//!   | 128 B, 128 B | 9.3 | 10.3 | 11.3 |
//!   | 256 B, 128 B | 10.5 | 10.4 | 12.1 |
//!   | 256 B, 256 B | 11.4 | 13.4 | 15.1 |
//!
//!   A test checks this choice; `cargo test -p nvfold-lab node_sizes -- --nocapture` prints the second column.
//! * A node in DRAM is its bytes on the media, so a level of the fine-grained tree is one line to read and to copy.
//!
//! **Against them**: with every policy, nvfold counts references of shared blocks in its own chunk table. This costs
//! them about two lines per request, which a file system made only for them would not write. These lines go to the data
//! device, so they are not in the values for the competitors' metadata, which are counted on the metadata device.
//!
//! Also against `Dedup_fine_grained`: it copies the whole path, as the paper says of its version (5.3: "adjusted from
//! leaf node to root"). The paper's version flushes about twice as much as NV-Dedup, which is too little for a whole
//! path. A tree that copied only the leaf and switched the pointer to it in place would flush that much.
//!
//! **Threads**: one lock protects the tree. A copy-on-write B-tree with one root allows no more concurrency, because
//! each change replaces the root. Fingerprints are computed outside the lock.
//!
//! **Crashes**: after a crash the tree may be older than the file system (`Dedup_block` by 1,000 blocks), and may
//! reference a block whose content has changed. So a tree that was not closed cleanly is no longer trusted:
//! candidates are compared byte by byte. A tree belongs to one file system, which is mounted only with this
//! competitor.

mod node;
mod store;
mod tree;

use node::{Entry, Key};
use nvfold::StrongFunction;
use nvfold::custom_policy::{ChunkRef, Chunks, Dedup, Fingerprint, NewChunk, Piece, Place, Released, Transaction};
use nvfold::internals::fingerprint::Strong;
use nvfold::internals::media::BlockNumber;
use parking_lot::Mutex;
use pmem::Region;
use store::Format;
use tree::Tree;

/// Blocks received between two syncs of `Dedup_block` (NV-Dedup 5.2, Dmdedup).
const BLOCKS_A_SYNC: u64 = 1000;

const IN_BLOCKS: Format = Format { leaf_bytes: 4096, inner_bytes: 4096, buffered: true };
const FINE_GRAINED: Format = Format { leaf_bytes: 64, inner_bytes: 64, buffered: false };

/// The competitors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// `Dedup_block`.
    Block,
    /// `Dedup_fine_grained`.
    FineGrained,
}

/// The reason why the metadata of a competitor cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RivalError {
    /// The region holds other data.
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

/// A competitor with its metadata. It is for [`nvfold::MountOptions::custom_policy`]; `nv_dedup.strong` of the mount must
/// be its strong function.
pub(crate) struct Rival {
    strong: StrongFunction,
    /// Whether a strong fingerprint is trusted.
    trusted: bool,
    table: Mutex<Table>,
}

/// The data that the lock protects.
struct Table {
    kind: Kind,
    tree: Tree,
    /// Fingerprint of each block in the tree, by block number; 0 if it is absent.
    keys: Vec<Key>,
    received: u64,
    /// Set after a failure; from then on nothing is shared.
    failure: Option<RivalError>,
}

impl Kind {
    fn format(self) -> Format {
        match self {
            Kind::Block => IN_BLOCKS,
            Kind::FineGrained => FINE_GRAINED,
        }
    }

    /// Returns the size of a metadata region for `data_blocks` blocks of data in bytes: more than the tree ever uses.
    pub(crate) fn region_bytes(self, data_blocks: u64) -> u64 {
        let leaves = match self {
            // A leaf per 32 blocks is a leaf that is a fifth full; twice, for old and new places.
            Kind::Block => 2 * (data_blocks / 32 + 64) * 4096,
            // Leaves of one entry.
            Kind::FineGrained => (data_blocks + 1024) * 128,
        };
        (leaves / 3 * 4 + (64 << 10)).next_multiple_of(4096)
    }
}

impl Rival {
    /// Opens the metadata of a region, or creates them on an empty one.
    ///
    /// # Errors
    /// The region holds other data, or its metadata is damaged.
    pub(crate) fn open(kind: Kind, strong: StrongFunction, metadata: Region) -> Result<Rival, RivalError> {
        let mut keys = Vec::new();
        let (tree, closed) = Tree::open(metadata, kind.format(), |entry| note(&mut keys, entry.block, entry.key))?;
        let table = Table { kind, tree, keys, received: 0, failure: None };
        Ok(Rival { strong, trusted: closed, table: Mutex::new(table) })
    }

    /// Makes the whole tree durable, and records an orderly end: for a file system that is unmounted.
    ///
    /// # Errors
    /// A failure since the opening; from then on nothing was shared.
    pub(crate) fn close(&self) -> Result<(), RivalError> {
        let mut table = self.table.lock();
        self.check_locked(&table)?;
        table.tree.close();
        Ok(())
    }

    /// Returns whether there was no failure since the opening.
    ///
    /// # Errors
    /// The failure; from then on nothing was shared.
    pub(crate) fn check(&self) -> Result<(), RivalError> {
        self.check_locked(&self.table.lock())
    }

    fn check_locked(&self, table: &Table) -> Result<(), RivalError> {
        table.failure.clone().map_or(Ok(()), Err)
    }
}

impl Rival {
    fn place_one(&self, piece: &Piece<'_>, tx: &mut Transaction<'_>) -> Place {
        let Some(key) = piece.fingerprint.strong.as_ref().and_then(key_of) else { return Place::Store };
        // Before the lock: a thread that waits for a generator must not keep others from the tree.
        tx.begin();
        let mut table = self.table.lock();
        table.receive();
        let Some(entry) = table.find(key) else { return Place::Store };
        let block = BlockNumber(u64::from(entry.block));
        let Some(reference) = tx.share_known(block) else {
            // The block is being freed, or has the maximum number of references: the new block replaces it.
            table.remove(key, entry.block);
            return Place::Store;
        };
        table.set(Entry { references: entry.references.saturating_add(1), ..entry });
        if !self.trusted && !tx.chunks().equal(block, piece.bytes) {
            tx.give_back(reference);
            return Place::Store;
        }
        Place::Shared(reference)
    }
}

impl Rival {
    /// Enters a chunk, unless an unknown one has its fingerprint; returns whether none has.
    fn enters(&self, new: &NewChunk, known: &[ChunkRef]) -> bool {
        let Some(key) = new.fingerprint.strong.as_ref().and_then(key_of) else { return true };
        // The tree is offered only blocks.
        let Some(Ok(number)) = new.chunk.block().map(|block| u32::try_from(block.0)) else { return true };
        let mut table = self.table.lock();
        match table.find(key) {
            Some(entry) if entry.block != number => known.contains(&BlockNumber(u64::from(entry.block)).into()),
            _ => {
                table.enter(key, number);
                true
            }
        }
    }
}

impl Dedup for Rival {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        Fingerprint { weak: None, strong: Some(self.strong.of(piece)) }
    }

    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        pieces.iter_mut().for_each(|piece| piece.place = self.place_one(piece, tx));
    }

    fn published(&self, new: &[NewChunk], known: &[ChunkRef], _: &Chunks) -> Vec<ChunkRef> {
        new.iter().filter(|new| !self.enters(new, known)).map(|new| new.chunk).collect()
    }

    fn released(&self, chunk: ChunkRef, left: Released) {
        let Some(block) = chunk.block() else { return };
        let mut table = self.table.lock();
        match left {
            Released::Kept => {
                if let Some(entry) = table.entry_of(block) {
                    table.set(Entry { references: entry.references.saturating_sub(1).max(1), ..entry });
                }
            }
            Released::Free => {
                if let Some((key, number)) = table.key_of(block) {
                    table.keys[number as usize] = 0;
                    table.remove(key, number);
                }
            }
        }
    }
}

impl Table {
    /// Counts one more received block.
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

    /// Adds a block that is new in the tree.
    fn enter(&mut self, key: Key, block: u32) {
        // A tree that is older than the file system may still have the previous content of the block.
        if let Some((old, number)) = self.key_of(BlockNumber(u64::from(block))).filter(|(old, _)| *old != key) {
            self.remove(old, number);
        }
        if self.set(Entry { key, block, references: 1 }) {
            note(&mut self.keys, block, key);
        }
    }

    /// Writes an entry. Returns false if there is no space for it: its block is then not shared.
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
            // A sync frees old places.
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

    /// Returns the fingerprint of a block in the tree, and its number in the tree.
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

/// Returns the key of a strong fingerprint. `None` for the key that stands for "absent" in the array.
fn key_of(strong: &Strong) -> Option<Key> {
    let first: [u8; 16] = strong[..16].try_into().expect("a strong fingerprint has 20 bytes");
    Some(Key::from_be_bytes(first)).filter(|key| *key != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold::check::{CheckOptions, check};
    use nvfold::internals::media::chunk_entry::ChunkEntry;
    use nvfold::{
        File, FileKind, FileSystem, InodeNumber, MkfsOptions, MountOptions, NewInode, NvDedupOptions, Policy,
    };
    use nvfold_bench::data::Random;
    use pmem::{DeviceSpec, OpenOptions};
    use std::collections::HashMap;
    use std::sync::Arc;

    const BLOCK: usize = 4096;
    const DEVICE_BYTES: u64 = 32 << 20;
    const KINDS: [Kind; 2] = [Kind::Block, Kind::FineGrained];

    /// A file system with a competitor.
    struct Bed {
        kind: Kind,
        region: Region,
        metadata: Region,
        rival: Arc<Rival>,
        fs: FileSystem,
    }

    fn memory(bytes: u64) -> Region {
        Region::create(&DeviceSpec::Memory, bytes, &OpenOptions::default()).unwrap()
    }

    impl Bed {
        fn new(kind: Kind) -> Bed {
            let (region, metadata) = (memory(DEVICE_BYTES), memory(kind.region_bytes(DEVICE_BYTES / 4096)));
            FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
            Bed::mount(kind, region, metadata)
        }

        fn mount(kind: Kind, region: Region, metadata: Region) -> Bed {
            let strong = StrongFunction::Md5;
            let rival = Arc::new(Rival::open(kind, strong, metadata.clone()).unwrap());
            let custom_policy: Option<Arc<dyn Dedup>> = Some(rival.clone());
            let nv_dedup = NvDedupOptions { strong: Some(strong), ..NvDedupOptions::default() };
            let options = MountOptions { policy: Policy::Off, nv_dedup, custom_policy, ..MountOptions::default() };
            let fs = FileSystem::mount(region.clone(), options).unwrap();
            Bed { kind, region, metadata, rival, fs }
        }

        fn file(&self, name: &str) -> File {
            let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
            let made = self.fs.create(InodeNumber::ROOT, name.as_bytes(), &new);
            let ino = made.or_else(|_| self.fs.lookup(InodeNumber::ROOT, name.as_bytes())).unwrap().ino;
            self.fs.open(ino).unwrap()
        }

        /// Remounts in order.
        fn remount(self) -> Bed {
            let Bed { kind, region, metadata, rival, fs } = self;
            fs.unmount().unwrap();
            rival.close().unwrap();
            let report = check(&region, &CheckOptions::default()).unwrap();
            assert!(report.is_consistent(), "{report:?}");
            drop(rival);
            Bed::mount(kind, region, metadata)
        }

        /// Checks that every entry names a block with that content, and the file system's number of references.
        fn assert_exact(&self) {
            let (_, geometry) = nvfold::read_superblock(&self.region).unwrap();
            let mut table = self.rival.table.lock();
            let blocks: Vec<u64> = (0..table.keys.len() as u64).filter(|at| table.keys[*at as usize] != 0).collect();
            for number in &blocks {
                let block = BlockNumber(*number);
                let entry = table.entry_of(block).expect("what is in the way back is in the tree");
                let content: [u8; BLOCK] = self.region.read(block.address());
                assert_eq!(key_of(&StrongFunction::Md5.of(&content)), Some(entry.key));
                let counted = self.region.read::<ChunkEntry>(geometry.chunk_entry_offset(block)).count;
                assert_eq!(entry.references, counted, "block {number}");
            }
            let stats = self.fs.stats();
            assert_eq!((blocks.len() as u64, stats.chunks), (stats.data_blocks, stats.data_blocks));
        }
    }

    fn content(number: u64) -> Vec<u8> {
        let mut random = Random(number);
        (0..BLOCK / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
    }

    #[test]
    fn a_rival_stores_equal_blocks_once_and_frees_them_with_the_last_user() {
        for kind in KINDS {
            let mut bed = Bed::new(kind);
            let mut random = Random(5);
            let mut model: HashMap<(u64, u64), u64> = HashMap::new();
            for step in 0..6000 {
                let (name, at) = (random.next_u64() % 3, random.next_u64() % 400);
                let number = random.next_u64() % 300;
                bed.file(&format!("file{name}")).write_at(at * BLOCK as u64, &content(number)).unwrap();
                model.insert((name, at), number);
                if step % 2500 == 2499 {
                    bed.assert_exact();
                    bed = bed.remount();
                }
            }
            let distinct: std::collections::HashSet<u64> = model.values().copied().collect();
            assert_eq!(bed.fs.stats().data_blocks, distinct.len() as u64, "{kind:?}");
            let mut buffer = vec![0; BLOCK];
            for ((name, at), number) in &model {
                bed.file(&format!("file{name}")).read_at(at * BLOCK as u64, &mut buffer).unwrap();
                assert_eq!(buffer, content(*number));
            }
            bed.assert_exact();
            for name in 0..3 {
                bed.fs.unlink(InodeNumber::ROOT, format!("file{name}").as_bytes()).unwrap();
            }
            assert_eq!(bed.rival.table.lock().tree.levels(), 0, "{kind:?}");
            bed.remount();
        }
    }

    #[test]
    fn large_and_concurrent_writes_share_equal_blocks() {
        for kind in KINDS {
            let bed = Bed::new(kind);
            std::thread::scope(|scope| {
                for thread in 0..4u64 {
                    let bed = &bed;
                    scope.spawn(move || {
                        let (file, mut random) = (bed.file(&format!("file{thread}")), Random(thread));
                        for _ in 0..500 {
                            let blocks = 1 + random.next_u64() % 4;
                            let data: Vec<u8> = (0..blocks).flat_map(|_| content(random.next_u64() % 40)).collect();
                            file.write_at(random.next_u64() % 200 * BLOCK as u64, &data).unwrap();
                        }
                    });
                }
            });
            let stats = bed.fs.stats();
            assert!((1..=60).contains(&stats.data_blocks), "{kind:?}: {} blocks for 40 contents", stats.data_blocks);
            assert!(stats.logical_bytes > 400 * BLOCK as u64);
            bed.assert_exact();
            bed.rival.check().unwrap();
            bed.remount();
        }
    }

    #[test]
    fn a_rival_does_not_trust_a_tree_that_was_not_closed() {
        for kind in KINDS {
            let bed = Bed::new(kind);
            let file = bed.file("file");
            (0..1200).for_each(|at| file.write_at(at * BLOCK as u64, &content(at)).unwrap());
            let kept = bed.metadata.clone();
            // The file system continues with other contents; the tree stays as a crash would leave it.
            let old = memory(kept.len_bytes());
            let _ = old.fence(old.stream(0, &kept.to_vec(0, kept.len_bytes())));
            (0..1200).for_each(|at| file.write_at(at * BLOCK as u64, &content(5000 + at)).unwrap());
            let region = bed.region.clone();
            drop(file);
            bed.fs.unmount().unwrap();
            let bed = Bed::mount(kind, region, old);
            let file = bed.file("again");
            (0..1200).for_each(|at| file.write_at(at * BLOCK as u64, &content(at)).unwrap());
            let mut buffer = vec![0; BLOCK];
            for at in 0..1200 {
                file.read_at(at * BLOCK as u64, &mut buffer).unwrap();
                assert!(buffer == content(at), "block {at} of {kind:?}");
            }
        }
    }

    #[test]
    fn a_rival_refuses_a_region_of_another_kind() {
        let metadata = memory(1 << 20);
        let _ = Rival::open(Kind::Block, StrongFunction::Md5, metadata.clone()).unwrap();
        let error = Rival::open(Kind::FineGrained, StrongFunction::Md5, metadata).err().unwrap();
        assert_eq!(error, RivalError::Foreign("mem:".into()));
    }
}
