//! Level `file` under every policy: a power cut at any moment of a sync, and of the replay after it, leaves the device
//! as it was at the last sync that returned, or at the one under way.

use nvfold_tests::crash::SUBJECTS;
use nvfold_tests::crash::power::{PowerTally, cut_power};
use nvfold_tests::crash::workload::{Base, random};
use nvfold_tests::random::{Seed, soak_factor};
use nvfold_tests::show;

const WORKLOADS: u64 = 1;
const OPS: usize = 12;
/// Least number of power cuts in `make test`.
const CUTS_MIN: u64 = 2_500;

#[test]
fn a_power_cut_in_a_sync_leaves_a_synced_device() {
    let seed = Seed::new("power cuts");
    let mut generator = seed.generator();
    // In memory, because waiting for the disk is part of the model.
    let dir = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
    let mut total = PowerTally::default();
    for subject in &SUBJECTS {
        let base = Base::new(subject);
        for _ in 0..WORKLOADS * soak_factor() {
            let workload = random(&mut generator, OPS);
            let trace = base.trace(&if subject.grows { workload.then_growth() } else { workload });
            total +=
                cut_power(subject, &base, &trace, dir.path(), &mut generator).unwrap_or_else(|why| panic!("{why}"));
        }
    }
    let PowerTally { syncs, cuts, cuts_in_replay } = total;
    show(&format!(
        "level file, {} subjects: {syncs} syncs, {cuts} power cuts in them, {cuts_in_replay} in the replays: 0 violations",
        SUBJECTS.len()
    ));
    assert!(cuts >= CUTS_MIN, "only {cuts} power cuts");
}
