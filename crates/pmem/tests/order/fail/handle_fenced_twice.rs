//! What a fence took is gone: no second state of the same bytes.

use pmem::{DeviceSpec, OpenOptions, Region};

fn main() {
    let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
    let entry = region.write(64, &7u64).flush();
    let _ = region.fence(entry);
    let _ = region.fence(entry);
}
