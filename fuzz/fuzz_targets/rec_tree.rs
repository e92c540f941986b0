//! Any bytes as reads, copies, mappings and forgotten files of the rec-tree, beside a naive model. The same without a fuzzer
//! is `the_rec_tree_agrees_with_a_naive_model` in tests/tests/fuzz.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvfold_tests::causality::run(bytes));
