//! Random operations on names and data, compared with a model that is too simple to be wrong.
//!
//! The library is compared with the oracle. The mount is compared with the oracle and tmpfs; tmpfs checks the oracle
//! itself against Linux.

use nvfold_tests::device::POLICIES;
use nvfold_tests::model::{self, Op, Subject, library::Library, op, posix::Posix, shrink};
use nvfold_tests::mount::Mount;
use nvfold_tests::random::{Seed, soak_factor};
use nvfold_tests::requires;
use nvfold_tests::scratch::Scratch;

/// Sequences per policy through the library, and operations in each.
const LIBRARY_SEQUENCES: u64 = 100;
const LIBRARY_OPS: usize = 2500;
/// The same through system calls.
const MOUNT_SEQUENCES: u64 = 15;
const MOUNT_OPS: usize = 2500;
/// Device size: far more than the model ever holds.
const DEVICE_MIB: u64 = 512;

fn sequence(seed: u64, ops: usize, remount_every: usize) -> Vec<Op> {
    op::generate(&mut fastrand::Rng::with_seed(seed), ops, remount_every)
}

#[test]
fn random_operations_of_the_library_match_the_model() {
    for policy in POLICIES {
        let seed = Seed::new("the library against the model");
        for round in 0..LIBRARY_SEQUENCES * soak_factor() {
            let mut random = fastrand::Rng::with_seed(seed.value().wrapping_add(round));
            let ops = op::generate_with_trees(&mut random, LIBRARY_OPS, 300);
            shrink::assert_holds(ops, |ops| {
                let mut library = Library::fresh(DEVICE_MIB, policy);
                let compared = model::compare(ops, &mut [&mut library]);
                compared.inspect(|()| {
                    library.apply(&Op::Remount);
                })
            });
        }
    }
}

#[test]
fn random_operations_of_the_mount_match_tmpfs_and_the_model() {
    requires!(root, fuse);
    for policy in ["denova", "inline"] {
        let seed = Seed::new("the mount against tmpfs and the model");
        for round in 0..MOUNT_SEQUENCES * soak_factor() {
            let mut ops = sequence(seed.value().wrapping_add(round), MOUNT_OPS, 1200);
            // tmpfs does not copy a policy to files made in a directory.
            ops.retain(|op| !matches!(op, Op::SetPolicy { .. } | Op::GetPolicy { .. }));
            shrink::assert_holds(ops, |ops| {
                let tmpfs = Scratch::new();
                let mut mount = Posix::mounted(Mount::fresh(DEVICE_MIB, policy));
                let mut tmpfs = Posix::tmpfs(tmpfs.path());
                model::compare(ops, &mut [&mut mount, &mut tmpfs])
            });
        }
    }
}
