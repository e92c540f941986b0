//! Up to 4 KiB of noise over the metadata of a valid image: after a repair all that it did not lie on is there. The same
//! without a fuzzer is `files_not_hit_by_noise_survive_a_repair` in tests/tests/fuzz.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvfold_tests::hostile::run_overwritten(bytes));
