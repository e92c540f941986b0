//! Only a clean handle makes a pointer.

use pmem::{DeviceSpec, OpenOptions, PmPtr, Region};

fn main() {
    let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
    let pointer: PmPtr<u64> = PmPtr { offset: 64, pointee: std::marker::PhantomData };
    let _ = region.store_ptr(0, pointer, 0);
}
