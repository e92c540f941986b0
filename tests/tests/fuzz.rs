//! The fuzz targets without a fuzzer: the same functions, on random input that shrinks.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nvfold_tests::hostile;
use nvfold_tests::model::script;
use nvfold_tests::random::soak_factor;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// How long one case may take, many times what any needs.
const HANG: Duration = Duration::from_secs(60);

/// Failing inputs are kept beside the test and tried first; `NVFOLD_SOAK` makes the run longer.
fn cases(cases: u32) -> ProptestConfig {
    let kept = FileFailurePersistence::Direct("tests/fuzz.regressions");
    ProptestConfig {
        cases: cases * soak_factor() as u32,
        failure_persistence: Some(Box::new(kept)),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(9000))]

    #[test]
    fn operation_sequences_answer_as_the_model_does(
        head in any::<[u8; script::HEAD_BYTES]>(),
        records in vec(any::<[u8; script::RECORD_BYTES]>(), 1..60),
    ) {
        watched(|| script::run(&[&head[..], records.as_flattened()].concat()));
    }
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn fsck_mount_and_repair_agree_on_damaged_images(
        head in any::<[u8; hostile::HEAD_BYTES]>(),
        records in vec(any::<[u8; hostile::damage::RECORD_BYTES]>(), 1..4),
    ) {
        watched(|| hostile::run_damaged(&[&head[..], records.as_flattened()].concat()));
    }

    #[test]
    fn fsck_mount_and_repair_agree_on_images_that_were_written_over(
        head in any::<[u8; hostile::HEAD_BYTES]>(),
        written in vec((any::<[u8; 3]>(), vec(any::<u8>(), 0..20)), 1..8),
    ) {
        let records = written.iter().map(|(at, bytes)| [&at[..], &[bytes.len() as u8], bytes].concat());
        let bytes = [&head[..], &records.collect::<Vec<_>>().concat()].concat();
        watched(|| hostile::run_arbitrary(&bytes));
    }
}

/// Runs one case. One that does not end is no failure that a test could report: it ends the process.
fn watched(case: impl FnOnce()) {
    let (done, ended) = mpsc::channel::<()>();
    let watch = thread::spawn(move || {
        if ended.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("a case is still not done after {HANG:?}; proptest prints its seed with PROPTEST_VERBOSE=2");
            std::process::abort();
        }
    });
    case();
    drop(done);
    watch.join().expect("the watch ends with the case");
}
