//! A valid image, damaged at its structures with the checksums put right again: mount, fsck and repair must agree,
//! and nothing may panic or hang. The same without a fuzzer is `fsck_mount_and_repair_agree_on_damaged_images` in
//! tests/tests/fuzz.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvfold_tests::hostile::run_damaged(bytes));
