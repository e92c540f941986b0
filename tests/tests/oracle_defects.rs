//! The oracle of the crash states detects what it claims to detect: each seeded defect is caught, and nothing else is
//! reported.

use nvfold_tests::crash::workload::{Workload, singles};
use nvfold_tests::crash::{Bounds, Effort, SUBJECTS, defect};
use nvfold_tests::show;

fn workload(name: &str) -> Workload {
    singles().into_iter().find(|workload| workload.name == name).expect("it is one of the workloads")
}

#[test]
fn every_seeded_defect_is_detected_and_a_correct_state_passes() {
    let (judgements, wrong) = defect::try_all(&workload("write of a few bytes"));
    show(&format!("{} defects, {judgements} judgements with one", defect::defects().len()));
    assert!(wrong.is_empty(), "{} judgements are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn memory_punched_too_early_is_detected() {
    let bounds = Bounds { exhaustive: 3, each_max: 4, subsets: 4, torn: 0 };
    let effort = Effort { bounds, in_recovery: &[], busy_recoveries: 1, idle_recoveries: 1 };
    let subjects: Vec<usize> = (0..SUBJECTS.len()).collect();
    let missed = defect::try_early_punch(&workload("unlink of all, then trim"), &subjects, &effort);
    assert_eq!(missed, Vec::<&str>::new(), "blocks given back before they are free");
    // After an unreconciled crash there is no saved state that could be given back.
    let missed = defect::try_early_punch(&workload("unmount and mount"), &subjects, &effort);
    assert_eq!(missed, Vec::<&str>::new(), "the saved state given back while the superblock names it");
}
