//! The correct sequence of stores: the file that the others in `fail/` differ from by one step.

use pmem::{DeviceSpec, Flight, Landed, OpenOptions, Region};

fn commit(region: &Region, _durable: Landed, value: u64) {
    let _ = region.fence(region.store_u64(8, value).flush());
}

pub(super) fn main() {
    let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
    let mut flight = Flight::new();
    flight.add(region.stream(1024, &[7; 64]));
    let entry = region.write(64, &7u64).flush();
    let (landed, entry) = region.fence((flight, entry));
    let _ = region.fence(region.store_ptr(0, entry.ptr(), 0).flush());
    commit(&region, landed, 1);
    // What is clean may go to another thread.
    std::thread::scope(|scope| scope.spawn(|| entry.ptr().offset()).join().unwrap());
}
