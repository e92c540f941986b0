//! A stream past the cache is in flight at once, and no further.

use pmem::{DeviceSpec, OpenOptions, Region};

fn main() {
    let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
    let data = region.stream(1024, &[7; 64]);
    let _ = region.store_ptr(0, data.end(), 0);
}
