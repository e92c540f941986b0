//! A valid image, damaged at its structures with the checksums put right again: mount, walk, change
//! and check must never panic or hang. `cargo +nightly fuzz run damaged_image`; the same without
//! a fuzzer is `damaged_metadata_never_panics_or_hangs` in tests/tests/badinput.rs.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nvfold_tests::hostile::{Damage, Image, survive};
use nvfold_tests::scratch::Scratch;

static IMAGES: LazyLock<[Image; 2]> = LazyLock::new(|| [Image::make(false), Image::make(true)]);
static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, rest)) = bytes.split_first() else { return };
    let image = IMAGES[usize::from(first) % 2].damaged(&Damage::list(rest));
    survive(&image, SCRATCH.path());
});
