//! Only a fence makes a handle clean.

use pmem::{Clean, DeviceSpec, OpenOptions, Pm, Region};

fn main() {
    let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
    let clean: Pm<'_, u64, Clean> =
        Pm { region: &region, offset: 64, length: 8, value: Default::default(), state: Default::default() };
    let _ = region.store_ptr(0, clean.ptr(), 0);
}
