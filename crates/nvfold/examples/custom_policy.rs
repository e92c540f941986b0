//! Brings a policy of its own: blocks of text are shared, and no time is spent on all others.
//!
//! A policy says which data gets a fingerprint, and which data that is there already it may use; the file system does
//! the rest, and a mistake in a policy can lose no data. `tests/tests/toy_policy/` in the repository has two more, one
//! with work in the background.
//!
//! ```sh
//! cargo run -p nvfold --example custom_policy
//! ```

use nvfold::custom_policy::{
    ChunkRef, Chunks, Dedup, Fingerprint, NewChunk, Piece, Place, Reference, Released, Transaction,
};
use nvfold::{FileKind, FileSystem, InodeNumber, MkfsOptions, MountOptions, NewInode, Policy, Result, WeakFunction};
use pmem::{DeviceSpec, OpenOptions, Region};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

const BLOCK: usize = 4096;

/// The policy. It remembers by itself which blocks there are; the file system counts who refers to them.
#[derive(Default)]
struct Text {
    blocks: Mutex<Blocks>,
}

#[derive(Default)]
struct Blocks {
    by_fingerprint: HashMap<u32, ChunkRef>,
    fingerprint_of: HashMap<ChunkRef, u32>,
}

impl Text {
    /// Takes a reference on the block with this fingerprint, if there is one. The lock is held meanwhile: the block
    /// cannot be freed and get other content, because `released` waits.
    fn share(&self, weak: u32, tx: &mut Transaction<'_>) -> Option<Reference> {
        tx.begin();
        let blocks = self.blocks.lock().expect("nobody panics with it");
        blocks.by_fingerprint.get(&weak).and_then(|block| tx.share_known(*block))
    }
}

impl Dedup for Text {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        let is_text = piece.iter().all(|byte| matches!(byte, b'\n' | b'\t' | b' '..=b'~'));
        if is_text { Fingerprint::of(piece, WeakFunction::default(), None) } else { Fingerprint::default() }
    }

    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        for piece in pieces.iter_mut().filter(|piece| piece.place == Place::Store) {
            let Some(reference) = piece.fingerprint.weak.and_then(|weak| self.share(weak, tx)) else { continue };
            // Two blocks may have one fingerprint. A reference that is taken must be used or given back.
            if tx.chunks().equal(reference.chunk(), piece.bytes) {
                piece.place = Place::Shared(reference);
            } else {
                tx.give_back(reference);
            }
        }
    }

    /// Remembers the blocks that were stored. The first one with a fingerprint stays.
    fn published(&self, new: &[NewChunk], _: &[ChunkRef], _: &Chunks) -> Vec<ChunkRef> {
        let mut blocks = self.blocks.lock().expect("nobody panics with it");
        for NewChunk { chunk, fingerprint, .. } in new {
            let Some(weak) = fingerprint.weak else { continue };
            if let Entry::Vacant(free) = blocks.by_fingerprint.entry(weak) {
                free.insert(*chunk);
                blocks.fingerprint_of.insert(*chunk, weak);
            }
        }
        Vec::new()
    }

    fn released(&self, chunk: ChunkRef, left: Released) {
        let mut blocks = self.blocks.lock().expect("nobody panics with it");
        if left == Released::Free
            && let Some(weak) = blocks.fingerprint_of.remove(&chunk)
        {
            blocks.by_fingerprint.remove(&weak);
        }
    }
}

fn main() -> Result<()> {
    let (text, other) = store_twice()?;
    println!("two copies of a block of text take {text} bytes, two copies of another block {other}");
    Ok(())
}

/// Returns how many bytes two equal blocks take: of text, and of other data.
pub(crate) fn store_twice() -> Result<(u64, u64)> {
    let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default())?;
    FileSystem::mkfs(&region, &MkfsOptions::default())?;
    let custom_policy: Option<Arc<dyn Dedup>> = Some(Arc::new(Text::default()));
    let fs = FileSystem::mount(region, MountOptions { policy: Policy::Off, custom_policy, ..MountOptions::default() })?;

    let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    let mut taken = Vec::new();
    for (name, byte) in [(&b"text"[..], b'x'), (b"other", 0xf0)] {
        let before = fs.stats().stored_bytes;
        let file = fs.open(fs.create(InodeNumber::ROOT, name, &new)?.ino)?;
        file.write_at(0, &[byte; BLOCK])?;
        file.write_at(BLOCK as u64, &[byte; BLOCK])?;
        taken.push(fs.stats().stored_bytes - before);
    }
    fs.unmount()?;
    Ok((taken[0], taken[1]))
}
