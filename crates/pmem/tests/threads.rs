//! Every access of `Region`, by several threads, to the same few lines: whatever safe calls meet, none of them races.
//!
//! The test of that is Miri (`make miri`); without it these are tests of what is seen.

use pmem::{DeviceSpec, OpenOptions, Region};

const ROUNDS: u64 = if cfg!(miri) { 4 } else { 2000 };
const BYTES: u64 = 4 * 4096;
/// A block that everybody stores to, and reads, in every way.
const BLOCK: u64 = 4096;

fn memory() -> Region {
    Region::create(&DeviceSpec::Memory, BYTES, &OpenOptions::default()).unwrap()
}

/// Stores `value` to bytes of the block, in the way that `way` says.
fn store(region: &Region, way: u64, value: u8) {
    match way % 7 {
        0 => drop(region.write(BLOCK + 3, &[value; 27])),
        1 => drop(region.write(BLOCK + 64, &[value; 64])),
        2 => drop(region.store_u64(BLOCK + 8, u64::from_ne_bytes([value; 8]))),
        3 => drop(region.store_u128(BLOCK + 16, u128::from_ne_bytes([value; 16]))),
        4 => drop(region.fence(region.stream(BLOCK + 5, &[value; 1200]))),
        5 => drop(region.fence(region.stream(BLOCK + 64, &[value; 256]))),
        _ => {
            let now = region.load_u128(BLOCK + 32);
            let _ = region.compare_exchange_u128(BLOCK + 32, now, u128::from_ne_bytes([value; 16]));
            let word = region.load_u64(BLOCK + 48);
            let _ = region.compare_exchange_u64(BLOCK + 48, word, u64::from_ne_bytes([value; 8]));
        }
    }
}

/// Reads bytes of the block, in the way that `way` says; all that were ever stored are at most `highest`.
fn read(region: &Region, way: u64, highest: u8) {
    let seen = match way % 7 {
        0 => region.to_vec(BLOCK + 1, 300),
        1 => region.read::<[u8; 64]>(BLOCK + 64).to_vec(),
        2 => region.read::<[u8; 13]>(BLOCK + 6).to_vec(),
        3 => region.load_u64(BLOCK + 8).to_ne_bytes().to_vec(),
        4 => region.load_u128(BLOCK + 16).to_ne_bytes().to_vec(),
        5 => {
            let before = region.to_vec(BLOCK, 256);
            region.equal(BLOCK, &before);
            before[..region.common_prefix(BLOCK, &before) as usize].to_vec()
        }
        _ => {
            region.scrub(BLOCK, 4096).unwrap();
            region.fetch(&[(BLOCK, 64)]);
            let mut scanned = vec![0; 100];
            region.scan_into(BLOCK + 2, &mut scanned);
            scanned
        }
    };
    assert!(seen.iter().all(|byte| *byte <= highest), "{way}: {seen:?}");
}

#[test]
fn any_two_accesses_may_run_concurrently() {
    const THREADS: u64 = 3;
    let region = memory();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let region = &region;
            scope.spawn(move || {
                for step in 0..7 * ROUNDS {
                    store(region, step + 2 * thread, thread as u8 + 1);
                    read(region, step * 3 + thread, THREADS as u8);
                }
            });
        }
    });
}

/// A word that was stored with release tells whoever loads it what was stored before.
#[test]
fn a_thread_that_sees_the_commit_sees_all_earlier_stores() {
    let region = memory();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                let data = region.stream(BLOCK, &[round as u8; 2000]);
                let entry = region.write(BLOCK + 2048, &[round as u8; 60]).flush();
                let (data, _) = region.fence((data, entry));
                let commit = region.store_u64(0, round << 16 | data.offset() & 0xFFFF).flush();
                let _ = region.fence(commit);
                while region.load_u64(8) < round {
                    std::hint::spin_loop();
                }
            }
        });
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                while region.load_u64(0) >> 16 < round {
                    std::hint::spin_loop();
                }
                assert!(region.equal(BLOCK, &[round as u8; 2000]));
                assert_eq!(region.read::<[u8; 60]>(BLOCK + 2048), [round as u8; 60]);
                let _ = region.store_u64(8, round);
            }
        });
    });
}

/// No store of a part of a word is lost beside that of another part.
#[test]
fn threads_may_write_neighbouring_bytes_concurrently() {
    let region = memory();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let region = &region;
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    let bytes = [round as u8; 5];
                    let _ = region.write(BLOCK + 1 + 5 * thread, &bytes);
                    assert!(region.equal(BLOCK + 1 + 5 * thread, &bytes), "these bytes are this thread's alone");
                }
            });
        }
    });
}
