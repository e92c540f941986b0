//! Up to 4 KiB of noise over the metadata of a valid image: after a repair all that it did not lie on is there. The same
//! without a fuzzer is `what_noise_did_not_lie_on_is_there_after_a_repair` in tests/tests/fuzz.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvfold_tests::hostile::run_overwritten(bytes));
