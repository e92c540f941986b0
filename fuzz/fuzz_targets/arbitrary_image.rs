//! Any bytes anywhere over a valid image: mount, fsck and repair must agree, and nothing may panic or hang. The same
//! without a fuzzer is `fsck_mount_and_repair_agree_on_partly_overwritten_images` in tests/tests/fuzz.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvfold_tests::hostile::run_arbitrary(bytes));
