//! The same for a whole flight.

use pmem::{DeviceSpec, Flight, OpenOptions, Region};

fn main() {
    let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
    let mut flight = Flight::new();
    flight.add(region.write(64, &7u64).flush());
    std::thread::scope(|scope| {
        scope.spawn(|| region.fence(flight));
    });
}
