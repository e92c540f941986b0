//! A number is no pointer, even that of a handle.

use pmem::{DeviceSpec, OpenOptions, Region};

fn main() {
    let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
    let entry = region.write(64, &7u64);
    let _ = region.store_ptr(0, entry.offset(), 0);
}
