//! Devices: what is refused, what is owned, what takes memory, what is counted.

use pmem::{Counters, DeviceSpec, FlushMode, OpenOptions, PersistenceLevel, PmemError, Profile, Region, Trust};
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

fn spec(path: &Path) -> DeviceSpec {
    DeviceSpec::Path(path.into())
}

const READ_ONLY: OpenOptions = OpenOptions {
    read_only: true,
    opened_by: None,
    profile: Profile::NATIVE,
    flush: FlushMode::Auto,
    counts_only: false,
    track_wear: false,
    track_lines: false,
    record: false,
    huge_pages: false,
    can_grow: false,
    as_file: false,
    record_host: false,
    descriptor_min: 0,
    trust: Trust::Any,
};

fn create(path: &Path, bytes: u64) -> Result<Region, PmemError> {
    Region::create(&spec(path), bytes, &OpenOptions::default())
}

fn memory(bytes: u64) -> Region {
    Region::create(&DeviceSpec::Memory, bytes, &OpenOptions::default()).unwrap()
}

#[test]
fn a_file_that_cannot_be_a_device_is_refused_with_the_reason() {
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
fn only_files_and_dax_nodes_are_devices() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, what) in [(fifo.as_path(), "fifo"), (&socket, "socket"), (Path::new("/dev/null"), "character device")] {
        for open in [Region::open(&spec(path), &OpenOptions::default()), create(path, 8192)] {
            let error = open.unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
            assert_eq!(error.errno(), 22);
        }
    }
}

#[test]
fn a_read_only_file_is_refused_only_to_writers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    fs::write(&path, [7; 4096]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = || {
        if rustix::process::geteuid().is_root() {
            // Permissions do not bind root: this thread, and no other, becomes nobody.
            let nobody = rustix::thread::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        let error = Region::open(&spec(&path), &OpenOptions::default()).unwrap_err();
        assert!(matches!(error, PmemError::ReadOnlyFile { .. }), "{error}");
        assert_eq!(error.errno(), 30);
        let region = Region::open(&spec(&path), &READ_ONLY).unwrap();
        assert!(region.equal(0, &[7; 4096]));
        assert!(!region.can_punch());
        assert_eq!(region.load_u128(16), u128::from_le_bytes([7; 16]), "no instruction that writes");
        region
    };
    std::thread::scope(|scope| drop(scope.spawn(as_nobody).join().unwrap()));
}

#[test]
#[should_panic(expected = "read-only device")]
fn writing_to_a_read_only_region_panics() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    drop(create(&path, 4096).unwrap());
    let _ = Region::open(&spec(&path), &READ_ONLY).unwrap().store_u64(0, 1);
}

#[test]
fn written_data_is_there_when_the_device_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let region = create(&path, 1 << 20).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "a device holds the files of many users");
    let _ = region.fence(region.stream(5000, &[7; 9000]));
    region.sync().unwrap();
    assert_eq!(fs::read(&path).unwrap()[5000..14000], [7; 9000]);
    drop(region);
    let region = create(&path, 2 << 20).unwrap();
    assert_eq!(region.len_bytes(), 2 << 20);
    assert!(region.equal(5000, &[7; 9000]), "growing keeps the content");
    drop(region);
    let region = create(&path, 8192).unwrap();
    assert_eq!((region.len_bytes(), fs::metadata(&path).unwrap().len()), (8192, 8192));
}

#[test]
fn a_device_has_one_owner_and_the_error_contains_its_process() {
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
fn a_large_fresh_device_takes_no_memory_and_punching_frees_memory() {
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
fn a_scan_reads_the_same_bytes_as_loads_and_skips_holes() {
    let region = memory(1 << 30);
    let _ = region.fence(region.stream(5000, &[7; 5000]));
    let allocated = region.allocated_bytes();
    let mut scanned = vec![1; 1 << 20];
    region.scan_into(4096, &mut scanned);
    assert_eq!(region.allocated_bytes(), allocated, "a hole stays a hole");
    assert_eq!(scanned, region.to_vec(4096, 1 << 20));
    region.scan_into((1 << 30) - 10, &mut scanned[..10]);
    assert_eq!(scanned[..10], [0; 10]);
}

#[test]
fn holes_are_reported_between_written_ranges() {
    let region = memory(1 << 30);
    for at in [0, 1 << 20, (1 << 30) - 4096] {
        let _ = region.fence(region.store_u64(at, 1).flush());
    }
    let ranges = region.allocated_ranges(0, 1 << 30);
    assert_eq!(ranges, [0..4096, 1 << 20..(1 << 20) + 4096, (1 << 30) - 4096..1 << 30]);
    assert_eq!(region.allocated_ranges(4096, 1 << 20), ranges[1..2]);
    assert!(region.is_hole(4096, (1 << 20) - 4096) && !region.is_hole(4096, 1 << 20));
    assert_eq!(region.allocated_bytes(), 3 * 4096);
    region.populate(1 << 21, 1 << 20);
    assert_eq!(region.allocated_bytes(), 3 * 4096 + (1 << 20));
}

#[test]
fn zeros_are_streamed_over_exactly_the_range() {
    let region = memory(256 << 10);
    for (offset, length) in [(0, 256 << 10), (1, 63), (63, 2), (100, 50_000), (4096, 0), (64, 128 << 10), (7, 100_001)]
    {
        let _ = region.fence(region.write(0, &vec![0xFFu8; 256 << 10][..]).flush());
        let before = region.counters();
        let _ = region.fence(region.stream_zeros(offset, length));
        let bytes = region.to_vec(0, 256 << 10);
        let (start, end) = (offset as usize, (offset + length) as usize);
        assert!(bytes[start..end].iter().all(|byte| *byte == 0), "{offset} {length}");
        assert!(bytes[..start].iter().chain(&bytes[end..]).all(|byte| *byte == 0xFF), "{offset} {length}");
        let lines = if length == 0 { 0 } else { (offset + length).div_ceil(64) - offset / 64 };
        assert_eq!((region.counters() - before).lines_written(), lines, "each line once");
    }
}

#[test]
fn reads_are_charged_only_on_emulated_devices() {
    let options = OpenOptions {
        profile: "custom:read_latency_ns=100,read_line_ns=10".parse().unwrap(),
        ..OpenOptions::default()
    };
    let slow = Region::create(&DeviceSpec::Memory, 1 << 20, &options).unwrap();
    let _: [u8; 64] = slow.read(32); // two lines
    slow.read_into(8192, &mut [0; 4096]);
    let _: u8 = slow.read(0); // read a moment ago
    assert!(slow.equal(0, &[0; 256])); // two of four were
    let counters = slow.counters();
    assert_eq!((counters.lines_read, counters.charged_ns()), (2 + 64 + 2, 3 * 100 + 68 * 10));
    let native = memory(1 << 20);
    native.read_into(0, &mut [0; 4096]);
    assert_eq!(native.counters(), Counters::default());
    assert_eq!(native.wear(), None);
}

#[test]
fn ranges_prefetched_together_wait_once_for_the_remaining_latency() {
    let profile = "custom:read_latency_ns=100,read_line_ns=10,write_line_ns=30".parse().unwrap();
    let options = OpenOptions { profile, track_wear: true, ..OpenOptions::default() };
    let region = Region::create(&DeviceSpec::Memory, 1 << 20, &options).unwrap();
    let read = || (region.counters().lines_read, region.counters().charged_ns());
    region.fetch(&[(64, 64), (8192, 200), (4096, 0)]);
    assert_eq!(read(), (5, 50));
    let _: [u8; 200] = region.read(8192);
    assert_eq!(read(), (5, 150));
    let _: [u8; 64] = region.read(64);
    region.fetch(&[(64, 1)]);
    region.fetch(&[]);
    assert_eq!(read(), (5, 150), "they are there");
    region.fetch(&[(16384, 64)]);
    let _ = region.fence(region.stream(32768, &[7; 128]));
    assert_eq!(read(), (6, 150 + 10 + 2 * 30));
    let _: [u8; 64] = region.read(16384);
    assert_eq!(read(), (6, 220 + 40), "most of the latency passed while something was written");
    assert_eq!((region.lines_read_in(0, 4096), region.lines_read_in(8192, 4096)), (Some(1), Some(4)));
    memory(1 << 20).fetch(&[(0, 1 << 20)]);
}

#[test]
fn written_lines_are_counted_individually_on_request() {
    let options = OpenOptions { track_lines: true, ..OpenOptions::default() };
    let region = Region::create(&DeviceSpec::Memory, 1 << 20, &options).unwrap();
    for value in 0..3u64 {
        let _ = region.fence(region.write(4160, &value).flush());
    }
    let _ = region.fence(region.stream(4096, &[7; 256]));
    let wear = region.line_wear(4096, 4096).unwrap();
    assert_eq!((wear.lines, wear.lines_written, wear.writes), (64, 4, 3 + 4));
    assert_eq!((wear.hottest_writes, wear.hottest_at), (4, 4160));
    assert_eq!(region.line_wear(0, 4096).unwrap().writes, 0);
    assert_eq!(region.line_wear(0, 1 << 20).unwrap().writes, region.counters().lines_written());
    assert_eq!((region.wear(), memory(1 << 20).line_wear(0, 64)), (None, None), "nothing else is counted");
}

#[test]
fn words_and_pairs_are_charged_like_any_other_read() {
    let profile = "custom:read_latency_ns=100,read_line_ns=10".parse().unwrap();
    let options = OpenOptions { profile, track_wear: true, ..OpenOptions::default() };
    let region = Region::create(&DeviceSpec::Memory, 1 << 20, &options).unwrap();
    let charged = |work: &dyn Fn()| {
        let before = region.counters();
        work();
        (region.counters() - before).charged_ns()
    };
    assert_eq!(charged(&|| assert_eq!(region.load_u64(64), 0)), 110);
    assert_eq!(charged(&|| assert_eq!(region.load_u64(72), 0)), 0, "the same line");
    assert_eq!(charged(&|| assert_eq!(region.load_u128(128), 0)), 110);
    assert_eq!(charged(&|| assert!(region.compare_exchange_u64(4096, 0, 1).is_ok())), 110);
    assert_eq!(charged(&|| assert!(region.compare_exchange_u128(4160, 5, 1).is_err())), 110);
    assert_eq!(charged(&|| drop(region.store_u64(8192, 7))), 0, "a store is charged when it is flushed");
    assert_eq!(charged(&|| assert_eq!(region.read::<u64>(8192), 7)), 0, "and its line is in the cache");
    let counters = region.counters();
    assert_eq!((counters.lines_read, counters.exchanges), (4, 2));
    assert_eq!((region.lines_read_in(0, 1), region.lines_read_in(4096, 1)), (Some(2), Some(2)));
    assert_eq!(region.lines_read_in(8192, 4096), Some(0));
}

/// Repeats a measurement until one shows what is claimed: a loaded machine may spoil some, and a clock that counts
/// wrongly spoils all.
fn one_of_many(claim: &str, mut measure: impl FnMut() -> Result<(), String>) {
    let mut spoilt = Vec::new();
    while let Err(measured) = measure() {
        spoilt.push(measured);
        assert!(spoilt.len() < 200, "{claim}: {spoilt:?}");
    }
}

#[test]
fn a_thread_that_does_not_wait_accumulates_its_charge_as_debt() {
    let options = OpenOptions { profile: "nvdimm-8x".parse().unwrap(), counts_only: true, ..OpenOptions::default() };
    let block = [1; 4096];
    one_of_many("most of the charge is owed", || {
        let region = Region::create(&DeviceSpec::Memory, 8 << 20, &options).unwrap();
        let (cost, epoch) = (pmem::clock::cost_ns(), std::time::Instant::now());
        (0..2000).for_each(|at| drop(region.fence(region.stream(at * 4096, &block))));
        let charged = region.counters().charged_ns() as f64;
        assert_eq!(charged, 2000.0 * (63.0 * 144.0 + 600.0));
        let (cost, device_ns) = (pmem::clock::cost_ns() - cost, pmem::clock::device_ns(epoch) as f64);
        // Less what the host took for the copies, which is processor time unless the thread was interrupted in one.
        let is_owed = cost > charged / 4.0 && device_ns > charged / 4.0;
        is_owed.then_some(()).ok_or(format!("{cost} and {device_ns} of {charged}"))
    });
}

#[test]
fn spun_device_time_is_not_counted_as_processor_time() {
    let profile: Profile = "custom:fence_ns=5000".parse().unwrap();
    let options = OpenOptions { profile, ..OpenOptions::default() };
    let region = Region::create(&DeviceSpec::Memory, 4096, &options).unwrap();
    one_of_many("the charge is counted once", || {
        let (cost, epoch) = (pmem::clock::cost_ns(), std::time::Instant::now());
        (0..2000).for_each(|at| drop(region.fence(region.store_u64(0, at).flush())));
        let waited = epoch.elapsed().as_nanos() as f64;
        let cost = pmem::clock::cost_ns() - cost;
        assert!(waited >= 2000.0 * 5000.0 - 1000.0, "{waited}");
        // Counted twice it would be more than 20 ms; without the charges next to nothing.
        (10e6..20e6).contains(&cost).then_some(()).ok_or(format!("{cost}"))
    });
}

#[test]
fn the_common_prefix_ends_at_the_first_difference() {
    let region = memory(4096);
    let mut bytes: Vec<u8> = (0..1000u32).map(|at| (at * 7) as u8).collect();
    let _ = region.fence(region.stream(33, &bytes));
    for length in [0, 1, 255, 256, 257, 512, 1000] {
        assert_eq!(region.common_prefix(33, &bytes[..length]), length as u64);
    }
    for at in [0, 1, 255, 256, 511, 999] {
        bytes[at] ^= 1;
        assert_eq!(region.common_prefix(33, &bytes), at as u64);
        assert!(!region.equal(33, &bytes));
        bytes[at] ^= 1;
    }
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
    assert_eq!(counters.charged_ns(), 66 * 64 * 150, "DeEXT: 150 ns a byte");
    let wear = region.wear().unwrap();
    assert_eq!((wear.lines_written, wear.blocks_written, wear.lines_written_max), (66, 2, 64));
    assert!((region.profile().joules(&counters).unwrap() - 66.0 * 64.0 * 6.0 / 1e9).abs() < 1e-12);
}

#[test]
fn flushing_always_or_only_if_needed_stores_the_same_bytes() {
    for flush in [FlushMode::Auto, FlushMode::Always] {
        let region =
            Region::create(&DeviceSpec::Memory, 8192, &OpenOptions { flush, ..OpenOptions::default() }).unwrap();
        let _ = region.fence((region.write(3, b"abc").flush(), region.stream(100, &[9; 1000])));
        assert!(region.equal(3, b"abc") && region.equal(100, &[9; 1000]));
        assert!(!region.equal(100, &[9; 1001]));
    }
}

#[test]
fn a_pair_of_words_changes_atomically() {
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
    let _ = region.store_u128(32, u128::MAX - 5).flush();
    assert_eq!((region.load_u128(32), region.load_u64(32)), (u128::MAX - 5, u64::MAX - 5));
}

#[test]
#[should_panic(expected = "outside the device")]
fn a_range_past_the_end_panics() {
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
