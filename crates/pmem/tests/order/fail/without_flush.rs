//! A fence makes nothing durable that was not flushed.

use pmem::{DeviceSpec, OpenOptions, Region};

fn main() {
    let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
    let entry = region.fence(region.write(64, &7u64));
    let _ = region.store_ptr(0, entry.ptr(), 0);
}
