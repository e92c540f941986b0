//! The raw limit: what streaming copy and fence cost here, bare and through `Region`, and what the small operations
//! cost. Prints the best of several rounds in nanoseconds.
//!
//! `cargo run --release -p nvfold-pmem --example raw_limit [DEVICE]` (default `mem:`)

use pmem::{DeviceSpec, Flight, FlushMode, OpenOptions, Region};
use std::hint::black_box;
use std::time::Instant;

const DEVICE_BYTES: u64 = 512 << 20;
const ROUNDS: usize = 7;

fn main() -> Result<(), pmem::PmemError> {
    let spec: DeviceSpec = std::env::args().nth(1).as_deref().unwrap_or("mem:").parse().unwrap_or(DeviceSpec::Memory);
    let region = Region::create(&spec, DEVICE_BYTES, &OpenOptions::default())?;
    region.stream_zeros(0, DEVICE_BYTES).offset();
    println!("device {spec}, level {}, {} MiB", region.level(), DEVICE_BYTES >> 20);

    let source: Vec<u8> = (0..128 << 10).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for bytes in [64, 128, 256, 512, 4096, 128 << 10] {
        streams(&region, &source[..bytes]);
    }
    small_operations(&region, &source);
    reads(&region, &source);
    drop(region);
    if spec == DeviceSpec::Memory {
        let options = OpenOptions { flush: FlushMode::Always, ..OpenOptions::default() };
        let region = Region::create(&spec, DEVICE_BYTES, &options)?;
        region.stream_zeros(0, DEVICE_BYTES).offset();
        println!("the same with flushes issued, as on DAX");
        small_operations(&region, &source);
    }
    Ok(())
}

/// Best nanoseconds a call of several rounds over the device.
fn best(name: &str, step: u64, mut operation: impl FnMut(u64)) {
    let count = (DEVICE_BYTES / step).min(200_000);
    let round = |operation: &mut dyn FnMut(u64)| {
        let start = Instant::now();
        (0..count).for_each(|at| operation(at * step));
        start.elapsed().as_nanos() as f64 / count as f64
    };
    let best = (0..ROUNDS).map(|_| round(&mut operation)).fold(f64::INFINITY, f64::min);
    println!("  {name:<44} {best:>10.1} ns");
}

fn streams(region: &Region, data: &[u8]) {
    let bytes = data.len() as u64;
    println!("{bytes} bytes and a fence");
    #[cfg(target_arch = "x86_64")]
    bare::all(region.len_bytes(), data);
    best("Region::stream + fence", bytes, |at| {
        let _ = region.fence(region.stream(at, black_box(data)));
    });
    best("Region::write + flush + fence", bytes, |at| {
        let _ = region.fence(region.write(at, black_box(data)).flush());
    });
}

fn small_operations(region: &Region, source: &[u8]) {
    println!("small operations");
    let line: [u64; 8] = std::array::from_fn(|at| at as u64);
    best("write 64 B + flush, same 4 KiB", 64, |at| {
        let _ = region.write(at % 4096, black_box(&line)).flush();
    });
    best("write 64 B + flush + fence, same 4 KiB", 64, |at| {
        let _ = region.fence(region.write(at % 4096, black_box(&line)).flush());
    });
    best("store_u64 + flush + fence, same line", 64, |at| {
        let _ = region.fence(region.store_u64(0, at).flush());
    });
    best("compare_exchange_u128, same line", 64, |_| {
        let now = region.load_u128(64);
        let _ = region.compare_exchange_u128(64, now, now.wrapping_add(1)).map(|pair| pair.flush());
    });
    best("4 KiB stream + 64 B write, fence, u64, fence", 4096, |at| {
        let mut flight = Flight::new();
        flight.add(region.stream(at, black_box(&source[..4096])));
        flight.add(region.write(64, black_box(&line)).flush());
        let _ = region.fence(flight);
        let _ = region.fence(region.store_u64(0, at).flush());
    });
}

fn reads(region: &Region, source: &[u8]) {
    println!("reads");
    let mut buffer = vec![0; 128 << 10];
    for bytes in [64, 4096, 128 << 10] {
        best(&format!("read_into {bytes}"), bytes as u64, |at| region.read_into(at, black_box(&mut buffer[..bytes])));
        best(&format!("read_into {bytes}, same 256 KiB"), bytes as u64, |at| {
            region.read_into(at % (256 << 10), black_box(&mut buffer[..bytes]));
        });
    }
    best("read of 64 B, same 4 KiB", 64, |at| {
        black_box(region.read::<[u64; 8]>(at % 4096));
    });
    for bytes in [64, 4096, 128 << 10] {
        (0..256 << 10).step_by(bytes).for_each(|at| drop(region.stream(at as u64, &source[..bytes])));
        region.fence(());
        best(&format!("equal {bytes}, same 256 KiB"), bytes as u64, |at| {
            assert!(region.equal(at % (256 << 10), black_box(&source[..bytes])));
        });
        let same = source[..bytes].repeat((256 << 10) / bytes);
        best(&format!("memcmp {bytes}, same 256 KiB"), bytes as u64, |at| {
            let at = (at % (256 << 10)) as usize;
            assert!(black_box(&same[at..at + bytes]) == black_box(&source[..bytes]));
        });
        best(&format!("memcpy {bytes}, same 256 KiB"), bytes as u64, |at| {
            let at = (at % (256 << 10)) as usize;
            black_box(&mut buffer[..bytes]).copy_from_slice(black_box(&same[at..at + bytes]));
        });
    }
}

/// The loops that nothing can beat, over memory of the same size.
#[cfg(target_arch = "x86_64")]
mod bare {
    use super::best;
    use std::arch::x86_64::*;
    use std::cell::RefCell;

    /// As a mapping is aligned: a few bytes of offset between source and target can double the time of wide loads.
    const PAGE: usize = 4096;

    thread_local!(static TARGET: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });

    pub(crate) fn all(device_bytes: u64, data: &[u8]) {
        TARGET.with_borrow_mut(|target| {
            target.resize(device_bytes as usize + PAGE, 1);
            let aligned = target.as_ptr().align_offset(PAGE);
            let target = &mut target[aligned..aligned + device_bytes as usize];
            let step = data.len() as u64;
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: AVX-512 was detected; offsets and lengths are multiples of 64 within the target.
                best("bare AVX-512", step, |at| unsafe { avx512(&mut target[at as usize..], data) });
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: AVX2 was detected; as above.
                best("bare AVX2", step, |at| unsafe { avx2(&mut target[at as usize..], data) });
            }
            // SAFETY: as above.
            best("bare SSE2", step, |at| unsafe { sse2(&mut target[at as usize..], data) });
        });
    }

    /// # Safety
    /// Needs AVX-512; `to` is aligned to 64 and as long as `from`, whose length is a multiple of 64.
    #[target_feature(enable = "avx512f")]
    unsafe fn avx512(to: &mut [u8], from: &[u8]) {
        for at in (0..from.len()).step_by(64) {
            // SAFETY: in range and aligned by contract.
            unsafe {
                _mm512_stream_si512(to.as_mut_ptr().add(at).cast(), _mm512_loadu_si512(from.as_ptr().add(at).cast()))
            };
        }
        _mm_sfence();
    }

    /// # Safety
    /// As [`avx512`] with AVX2.
    #[target_feature(enable = "avx2")]
    unsafe fn avx2(to: &mut [u8], from: &[u8]) {
        for at in (0..from.len()).step_by(32) {
            // SAFETY: in range and aligned by contract.
            unsafe {
                _mm256_stream_si256(to.as_mut_ptr().add(at).cast(), _mm256_loadu_si256(from.as_ptr().add(at).cast()))
            };
        }
        _mm_sfence();
    }

    /// # Safety
    /// As [`avx512`] with SSE2.
    unsafe fn sse2(to: &mut [u8], from: &[u8]) {
        for at in (0..from.len()).step_by(16) {
            // SAFETY: in range and aligned by contract.
            unsafe { _mm_stream_si128(to.as_mut_ptr().add(at).cast(), _mm_loadu_si128(from.as_ptr().add(at).cast())) };
        }
        // SAFETY: every x86-64 has it.
        unsafe { _mm_sfence() };
    }
}
