//! A fence orders the flushes of its own thread alone.

use pmem::{DeviceSpec, OpenOptions, Region};

fn main() {
    let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
    let entry = region.write(64, &7u64).flush();
    std::thread::scope(|scope| {
        scope.spawn(|| region.fence(entry));
    });
}
