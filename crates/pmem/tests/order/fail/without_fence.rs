//! What is in flight may still be lost: it gives no pointer.

use pmem::{DeviceSpec, OpenOptions, Region};

fn main() {
    let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
    let entry = region.write(64, &7u64).flush();
    let _ = region.store_ptr(0, entry.ptr(), 0);
}
