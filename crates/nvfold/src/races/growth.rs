//! Races of growth: against writers that find no space, readers, and background work.

use super::*;

const GROWN_BYTES: u64 = 24 << 20;

/// A file system on a longer device, without a free block for content, and a file on it.
fn full(policy: Policy) -> (Device, File) {
    let small = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&small, &MkfsOptions::default()).unwrap();
    let region = Region::create(&DeviceSpec::Memory, GROWN_BYTES, &OpenOptions::default()).unwrap();
    for range in small.allocated_ranges(0, DEVICE_BYTES) {
        let _ = region.fence(region.stream(range.start, &small.to_vec(range.start, range.end - range.start)));
    }
    let fs = FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }).unwrap();
    let device = Device { region, fs };
    let (file, rest) = (device.file("file"), device.file("rest"));
    file.write_at(0, &block(1)).unwrap();
    let free = device.fs.statfs().blocks_available;
    // Logs take some, too.
    let reserved = (free - 8) * BLOCK_BYTES;
    rest.allocate(0, reserved, AllocateMode::Reserve).unwrap();
    (device, file)
}

/// Writes until there is no space, which is no failure.
fn write_some(file: &File, byte: u8) -> u64 {
    let is_written = |at: &u64| match file.write_at(at * BLOCK_BYTES, &block(byte.wrapping_add(*at as u8))) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.errno(), errno::ENOSPC, "{error}");
            false
        }
    };
    (0..12).take_while(is_written).count() as u64
}

fn grow(device: &Device) -> Task {
    let fs = device.fs.clone();
    task(move || {
        let grown = fs.grow(None).unwrap();
        assert_eq!((grown.before_bytes, grown.after_bytes), (DEVICE_BYTES, GROWN_BYTES));
    })
}

/// All that was acknowledged is there, more can be written, and fsck finds nothing.
fn settle(device: Device, files: &[(File, u8)]) {
    for (file, byte) in files {
        let bytes = content(file);
        for (at, found) in bytes.chunks(BLOCK).enumerate() {
            assert!(found == block(byte.wrapping_add(at as u8)), "block {at}");
        }
    }
    let more = device.file("more");
    more.write_at(0, &[9; 1 << 20]).unwrap();
    assert!(content(&more) == [9; 1 << 20]);
    assert!(device.fs.usage().unwrap().expect("nothing is being recovered").adds_up());
    assert_eq!(device.fs.stats().device_bytes, GROWN_BYTES);
    device.fs.clone().unmount().unwrap();
    let report = check(&device.region, &CheckOptions::default()).unwrap();
    assert!(report.clean && report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn writers_without_space_and_growth() {
    for policy in [Policy::Off, Policy::Inline, Policy::DeExt] {
        explore(move || {
            let (device, file) = full(policy);
            let other = device.file("other");
            let writers = [(file.clone(), 1), (other.clone(), 100)].map(|(file, byte)| {
                task(move || {
                    write_some(&file, byte);
                })
            });
            let [one, two] = writers;
            race([grow(&device), one, two]);
            settle(device, &[(file, 1), (other, 100)]);
        });
    }
}

#[test]
fn readers_background_work_and_growth() {
    for policy in [Policy::Inline, Policy::DeNova, Policy::DeExt] {
        explore(move || {
            let (device, file) = full(policy);
            let (fs, read) = (device.fs.clone(), file.clone());
            let work = task(move || {
                fs.unlink(ROOT, b"rest").unwrap();
                let _ = (fs.drain_step().unwrap(), fs.fill_step().unwrap(), fs.trim_step().unwrap());
                let _ = (fs.trim().unwrap(), fs.reclaim_step(Victims::All).unwrap(), fs.stats());
            });
            let reader = task(move || assert!(content(&read) == block(1)));
            race([grow(&device), work, reader]);
            settle(device, &[(file, 1)]);
        });
    }
}

#[test]
fn only_one_of_two_growths_adds_a_zone() {
    explore(|| {
        let (device, file) = full(Policy::Inline);
        let grow = || {
            let fs = device.fs.clone();
            task(move || assert_eq!(fs.grow(None).unwrap().after_bytes, GROWN_BYTES))
        };
        race([grow(), grow()]);
        assert_eq!(device.fs.growth(), (crate::media::zone::ZONES_MAX - 1, false));
        settle(device, &[(file, 1)]);
    });
}
