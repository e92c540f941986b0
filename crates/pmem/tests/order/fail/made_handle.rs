//! Nobody but pmem makes handles.

use pmem::{Clean, DeviceSpec, OpenOptions, Pm, Region};

fn main() {
    let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
    let clean = Pm::<u64, Clean>::new(&region, 64, 8);
    let _ = region.store_ptr(0, clean.ptr(), 0);
}
