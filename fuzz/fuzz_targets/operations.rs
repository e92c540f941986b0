//! Any bytes as a sequence of operations on the smallest device, beside the model: answers, bytes, attributes and
//! fsck must agree, also after a remount, a crash and on a full device. The same without a fuzzer is
//! `random_operations_give_the_results_of_the_model` in tests/tests/fuzz.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvfold_tests::model::script::run(bytes));
