//! Devices: what is refused, what is owned, what takes memory, what is counted.

use pmem::{Counters, DeviceSpec, FlushMode, OpenOptions, PersistenceLevel, PmemError, Region};
use proptest::prelude::*;
use std::fs;
use std::path::Path;

fn spec(path: &Path) -> DeviceSpec {
    DeviceSpec::Path(path.into())
}

fn memory(bytes: u64) -> Region {
    Region::create(&DeviceSpec::Memory, bytes, &OpenOptions::default()).unwrap()
}

#[test]
fn what_cannot_be_a_device_is_refused_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let options = OpenOptions::default();
    let open = |name: &str| Region::open(&spec(&dir.path().join(name)), &options).err().unwrap();
    assert_eq!(open("absent").errno(), 2);
    assert!(matches!(
        Region::open(&spec(dir.path()), &options),
        Err(PmemError::NotADevice { what: "a directory", .. })
    ));
    fs::write(dir.path().join("empty"), b"").unwrap();
    assert!(matches!(open("empty"), PmemError::Size { bytes: 0, .. }));
    fs::write(dir.path().join("odd"), [0; 5000]).unwrap();
    assert!(matches!(open("odd"), PmemError::Size { bytes: 5000, .. }));
    assert!(matches!(Region::open(&DeviceSpec::Memory, &options), Err(PmemError::MemoryNeedsSize)));
    for bytes in [0, 1, 4097, (1 << 44) + 4096, u64::MAX] {
        assert!(matches!(Region::create(&DeviceSpec::Memory, bytes, &options), Err(PmemError::Size { .. })), "{bytes}");
    }
}

#[test]
fn one_owner_at_a_time_and_the_error_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let device = spec(&dir.path().join("device"));
    let owner = Region::create(&device, 8192, &OpenOptions::default()).unwrap();
    let error = Region::open(&device, &OpenOptions::default()).err().unwrap();
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    assert_eq!(error.errno(), 16);
    drop(owner);
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let first = Region::open(&device, &read_only).unwrap();
    let _second = Region::open(&device, &read_only).unwrap();
    assert!(Region::open(&device, &OpenOptions::default()).is_err(), "a writer waits for the readers to go");
    assert!(first.is_read_only());
}

#[test]
fn a_large_fresh_device_takes_no_memory_and_punching_gives_it_back() {
    let region = memory(1 << 40);
    assert_eq!(region.level(), PersistenceLevel::Memory);
    assert_eq!(region.allocated_bytes(), 0);
    assert!(region.allocated_ranges(0, 1 << 40).is_empty());
    let _ = region.fence(region.stream(1 << 30, &[7; 8192]));
    let expected = 1 << 30..(1 << 30) + 8192;
    assert_eq!(region.allocated_ranges(0, 1 << 40), std::slice::from_ref(&expected));
    region.punch(1 << 30, 8192).unwrap();
    assert_eq!(region.allocated_bytes(), 0);
    let mut bytes = [1; 16];
    region.read_into(1 << 30, &mut bytes);
    assert_eq!(bytes, [0; 16]);
}

#[test]
fn traffic_is_counted_and_charged() {
    let before = Counters::default();
    let options = OpenOptions { profile: "pcm".parse().unwrap(), track_wear: true, ..OpenOptions::default() };
    let region = Region::create(&DeviceSpec::Memory, 1 << 20, &options).unwrap();
    let stored = region.write(4096 + 60, &[1u8; 8]).flush();
    let streamed = region.stream(8192, &[2; 4096]);
    let _ = region.fence((stored, streamed));
    let counters = region.counters() - before;
    assert_eq!((counters.bytes_stored, counters.lines_flushed), (8, 2));
    assert_eq!((counters.bytes_streamed, counters.fences, counters.lines_written()), (4096, 1, 66));
    assert_eq!(counters.charged_ns, 66 * 64 * 150, "DeEXT: 150 ns a byte");
    let wear = region.wear().unwrap();
    assert_eq!((wear.lines_written, wear.blocks_written, wear.lines_written_max), (66, 2, 64));
    assert!((region.profile().joules(&counters).unwrap() - 66.0 * 64.0 * 6.0 / 1e9).abs() < 1e-12);
}

#[test]
fn flushing_always_and_only_where_it_matters_store_the_same() {
    for flush in [FlushMode::Auto, FlushMode::Always] {
        let region =
            Region::create(&DeviceSpec::Memory, 8192, &OpenOptions { flush, ..OpenOptions::default() }).unwrap();
        let _ = region.fence((region.write(3, b"abc").flush(), region.stream(100, &[9; 1000])));
        assert!(region.equal(3, b"abc") && region.equal(100, &[9; 1000]));
        assert!(!region.equal(100, &[9; 1001]));
    }
}

#[test]
fn sixteen_bytes_change_at_once() {
    let region = memory(4096);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let mut seen = region.load_u128(64);
                    loop {
                        assert_eq!(seen as u64, (seen >> 64) as u64, "torn");
                        let next = seen + 1 + (1 << 64);
                        match region.compare_exchange_u128(64, seen, next) {
                            Ok(_) => break,
                            Err(now) => seen = now,
                        }
                    }
                }
            });
        }
    });
    assert_eq!(region.load_u128(64) as u64, 80_000);
    assert!(region.compare_exchange_u64(64, 1, 2).is_err());
    assert!(region.compare_exchange_u64(64, 80_000, 2).is_ok());
}

#[test]
#[should_panic(expected = "outside the device")]
fn a_range_past_the_end_is_a_mistake_of_the_caller() {
    memory(4096).read_into(4090, &mut [0; 7]);
}

proptest! {
    #[test]
    fn streams_and_stores_of_any_range_change_exactly_that_range(offset in 0usize..300, length in 0usize..2000, stream: bool) {
        let region = memory(4096);
        let bytes: Vec<u8> = (0..length).map(|at| at as u8 | 1).collect();
        if stream {
            let _ = region.fence(region.stream(offset as u64, &bytes));
        } else {
            let _ = region.fence(region.write(offset as u64, &bytes[..]).flush());
        }
        let mut all = vec![0; 4096];
        region.read_into(0, &mut all);
        prop_assert_eq!(&all[offset..offset + length], &bytes[..]);
        prop_assert!(all[..offset].iter().chain(&all[offset + length..]).all(|byte| *byte == 0));
    }
}
