//! Nor does it when the rest of the group was.

use pmem::{DeviceSpec, OpenOptions, Region};

fn main() {
    let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
    let flushed = region.write(64, &7u64).flush();
    let _ = region.fence((flushed, region.write(128, &7u64)));
}
