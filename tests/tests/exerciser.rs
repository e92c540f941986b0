//! Every policy under random work on the content of files, with all background jobs between the operations.
//!
//! Writes, clones and copies of odd ranges within files and from other files, truncation, holes, names that are taken
//! away and used again, remounts and crashes; and between them single steps of what runs in the background: cutting at
//! seams, filling in fingerprints, sharing later, reclaiming, collecting, giving memory back; and requests to share,
//! compress and undo sharing. The byte model says what every file must contain, and fsck must find nothing
//! ([`exercise`]). A failing run prints its policy and options, its seed, and the fewest operations that still fail.

use std::cell::Cell;

use nvfold::{Policy, Victims};
use nvfold_tests::model::exercise::{self, Setup, Worked};
use nvfold_tests::model::{Op, shrink};
use nvfold_tests::random::{Seed, soak_factor};

/// Runs per policy, and operations in each.
const RUNS: u64 = 24;
const OPS: usize = 1500;

fn exercise_with(policy: Policy) {
    let seed = Seed::new("the exerciser");
    let done = Cell::new(Done::default());
    for round in 0..RUNS * soak_factor() {
        let setup = Setup::of(policy, round);
        let seed = seed.value().wrapping_add(round);
        let ops = exercise::generate(&mut fastrand::Rng::with_seed(seed), OPS);
        let asks = if soak_factor() > 1 { exercise::is_job } else { exercise::is_request };
        shrink::assert_holds(ops, |ops| {
            let worked = exercise::run(&setup, ops, &asks).map_err(|why| format!("seed {seed}, {setup:?}: {why}"))?;
            done.set(done.get().and(&worked, ops.len()));
            Ok(())
        });
    }
    done.get().check(policy);
}

/// What was done in all runs: a job that never had anything to do has not been tested.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    moved_chunks: u64,
    collected_chunks: u64,
    filled_chunks: u64,
    shared_pieces: u64,
    bytes_by_origin: u64,
    switches: u64,
    refused: u64,
    operations: u64,
}

impl Done {
    fn and(self, Worked { stats, refused }: &Worked, operations: usize) -> Done {
        Done {
            moved_chunks: self.moved_chunks + stats.reclaim.moved_chunks,
            collected_chunks: self.collected_chunks + stats.reclaim.collected_chunks,
            filled_chunks: self.filled_chunks + stats.chunks_filled,
            shared_pieces: self.shared_pieces + stats.pieces_shared,
            bytes_by_origin: self.bytes_by_origin + stats.origins.shared_bytes,
            switches: self.switches + stats.auto.as_ref().map_or(0, |auto| auto.device.switches),
            refused: self.refused + refused,
            operations: self.operations + operations as u64,
        }
    }

    fn check(self, policy: Policy) {
        println!("{}: {self:?}", policy.name());
        // What deext stores is so little that it hardly ever finds too little space.
        let meets_full = self.refused > 0 || policy.without_origins() == Policy::DeExt;
        assert!(meets_full && self.refused < self.operations / 8, "full devices are met, and seldom: {self:?}");
        assert!(self.moved_chunks > 0 && self.collected_chunks > 0 && self.shared_pieces > 0, "{self:?}");
        assert!(self.filled_chunks > 0 || policy != Policy::NvDedup, "{self:?}");
        assert!(self.bytes_by_origin > 0 || !policy.follows_origins(), "{self:?}");
        assert!(self.switches > 0 || policy != Policy::Auto, "{self:?}");
    }
}

macro_rules! exercisers {
    ($($name:ident: $policy:ident,)+) => {
        $(#[test]
        fn $name() {
            exercise_with(Policy::$policy);
        })+

        #[test]
        fn the_exerciser_has_a_test_for_every_policy() {
            assert_eq!([$(Policy::$policy),+], Policy::ALL);
        }
    };
}

exercisers! {
    nothing_changes_a_file_under_off: Off,
    nothing_changes_a_file_under_inline: Inline,
    nothing_changes_a_file_under_nv_dedup: NvDedup,
    nothing_changes_a_file_under_denova: DeNova,
    nothing_changes_a_file_under_deext: DeExt,
    nothing_changes_a_file_under_icid: Icid,
    nothing_changes_a_file_under_icid_and_inline: IcidInline,
    nothing_changes_a_file_under_icid_and_deext: IcidDeExt,
    nothing_changes_a_file_under_auto: Auto,
}

/// Runs the operations under every policy, and under every policy with one of its own for the files.
fn under_every_policy(ops: &[Op]) {
    let own = [None, Some(Policy::DeExt), Some(Policy::DeNova), Some(Policy::NvDedup)];
    for (policy, own) in Policy::ALL.into_iter().flat_map(|policy| own.map(|own| (policy, own))) {
        let given = (0..exercise::NAMES).filter(|_| own.is_some());
        let given = given.map(|name| Op::SetPolicy { path: vec![name], policy: own }).collect::<Vec<_>>();
        for round in 0..2 {
            let setup = Setup::of(policy, round);
            exercise::run(&setup, &[&given, ops].concat(), &exercise::is_job)
                .unwrap_or_else(|why| panic!("{setup:?}, files with {own:?}: {why}"));
        }
    }
}

fn write(name: u8, offset: u64, len: u64, seed: u64) -> Op {
    Op::Write { path: vec![name], offset, len, seed }
}

fn clone(from: u8, from_offset: u64, to: u8, to_offset: u64, len: u64) -> Op {
    Op::Clone { from: vec![from], from_offset, to: vec![to], to_offset, len }
}

/// All work in the background, in single steps: as often as something may be left to do.
fn steps(count: usize) -> Vec<Op> {
    let reclaim = Op::ReclaimStep { victims: Victims::All };
    let step = [Op::Rest { ms: 2000 }, Op::FillStep, Op::DrainStep, Op::ReorderStep, reclaim, Op::TrimStep];
    std::iter::repeat_n(step, count).flatten().collect()
}

#[test]
fn a_part_of_a_piece_at_the_beginning_of_a_file_is_cut_again() {
    // The part lies 8 KiB behind the beginning of its piece, and the file begins with it.
    let ops =
        [write(0, 0, 1 << 20, 1), clone(0, 237_568, 1, 0, 4096), Op::Append { path: vec![1], len: 53_248, seed: 2 }];
    under_every_policy(&[&ops[..], &steps(4)].concat());
}

#[test]
fn a_part_of_a_piece_anywhere_in_a_file_is_cut_again() {
    let parts = |to_offset| [clone(0, 20_000, 1, to_offset, 5000), write(1, to_offset + 5000, 700, 3)];
    let ops = [0, 3000, 30_000, 32_768, 70_001].map(parts).concat();
    under_every_policy(&[&[write(0, 0, 100_000, 1), write(1, 0, 60_000, 2)], &ops[..], &steps(20)].concat());
}

#[test]
fn deferred_work_ends_with_its_file() {
    // Two requests that do not follow each other leave a seam on each side, and equal data is queued to be shared.
    let work = [write(0, 0, 30_000, 1), write(0, 10_000, 9000, 2), write(1, 0, 30_000, 1)];
    let gone = [Op::Unlink { path: vec![0] }, Op::Mkdir { path: vec![0], mode: 0o755 }];
    let again = [Op::Rmdir { path: vec![0] }, Op::Create { path: vec![0], mode: 0o644 }, write(0, 0, 12_000, 3)];
    under_every_policy(&[&work[..], &gone, &steps(8)].concat());
    let anew = [Op::Unlink { path: vec![0] }, Op::Create { path: vec![0], mode: 0o644 }, write(0, 0, 12_000, 3)];
    under_every_policy(&[&work[..], &anew, &steps(8)].concat());
    under_every_policy(&[&work[..], &gone, &again, &steps(8)].concat());
}
