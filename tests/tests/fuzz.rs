//! The fuzz targets without a fuzzer: the same functions, on random input that shrinks.

use nvfold_tests::model::script;
use nvfold_tests::random::soak_factor;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

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
        script::run(&[&head[..], records.as_flattened()].concat());
    }
}
