//! Only a fence gives a receipt.

use pmem::{DeviceSpec, Landed, OpenOptions, Region};

fn commit(region: &Region, _durable: Landed) {
    let _ = region.fence(region.store_u64(0, 1).flush());
}

fn main() {
    let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
    commit(&region, Landed(()));
}
