//! The proof of a fence cannot be kept for later: nobody else makes groups.

use pmem::{DeviceSpec, Group, OpenOptions, Region};

struct Thief;

impl Group for Thief {
    type Clean = pmem::Fenced;
    fn landed(self, fenced: pmem::Fenced) -> pmem::Fenced {
        fenced
    }
}

fn main() {
    let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
    let _ = region.fence(Thief);
}
