//! Any bytes as a device: mount and check must never panic or hang. `cargo +nightly fuzz run
//! arbitrary_image`. Long inputs get past the size check only as multiples of 4096 from 16 MiB on,
//! so the input is laid over a device of that size, from its start.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nvfold::media::DEVICE_BYTES_MIN;
use nvfold_tests::hostile::survive;
use nvfold_tests::scratch::Scratch;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

fuzz_target!(|bytes: &[u8]| {
    let mut image = vec![0; DEVICE_BYTES_MIN as usize];
    let len = bytes.len().min(image.len());
    image[..len].copy_from_slice(&bytes[..len]);
    survive(&image, SCRATCH.path());
});
