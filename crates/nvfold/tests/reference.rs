//! References as types: each file in `reference/fail/` forgets, doubles or forges one, and the compiler says so. Beside it
//! lies what it says (`refused.rs` of pmem's tests).
//!
//! What the compiler does not see, a reference that is dropped by name, is a panic in builds with assertions.

mod policy;

use crate::refused::all_are_refused;
use nvfold::custom_policy::{ChunkRef, Chunks, Dedup, Fingerprint, NewChunk, Piece, Transaction};
use nvfold::{FileKind, FileSystem, InodeNumber, MkfsOptions, MountOptions, NewInode, StrongFunction};
use pmem::{DeviceSpec, OpenOptions, Region};
use std::sync::{Arc, Mutex};

#[test]
fn a_policy_that_uses_every_reference_once_compiles_and_runs() {
    policy::main();
}

#[test]
fn a_reference_that_is_forgotten_doubled_or_forged_does_not_compile() {
    all_are_refused("nvfold", "tests/reference/fail");
}

/// Takes a reference on the last block that was stored, and forgets it.
#[derive(Default)]
struct Forgetful {
    last: Mutex<Option<ChunkRef>>,
}

impl Dedup for Forgetful {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        Fingerprint { weak: None, strong: Some(StrongFunction::default().of(piece)) }
    }

    fn place(&self, _: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        if let Some(last) = *self.last.lock().unwrap() {
            drop(tx.share_known(last));
        }
    }

    fn published(&self, new: &[NewChunk], _: &[ChunkRef], _: &Chunks) -> Vec<ChunkRef> {
        *self.last.lock().unwrap() = new.last().map(|new| new.chunk);
        Vec::new()
    }
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "was forgotten")]
fn a_reference_that_is_dropped_panics() {
    let region = Region::create(&DeviceSpec::Memory, 16 << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let options = MountOptions { custom_policy: Some(Arc::new(Forgetful::default())), ..MountOptions::default() };
    let fs = FileSystem::mount(region, options).unwrap();
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &new).unwrap().ino).unwrap();
    file.write_at(0, &[1; 4096]).unwrap();
    file.write_at(4096, &[2; 4096]).unwrap();
}
