//! Two words at once: cmpxchg16b where the CPU has it, else a lock that all users of the pair share.

use parking_lot::{Mutex, MutexGuard};

/// Guards the pairs on CPUs without 16-byte atomics, spread by address.
static LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

fn lock(at: *const u128) -> MutexGuard<'static, ()> {
    LOCKS[at.addr() / size_of::<u128>() % LOCKS.len()].lock()
}

/// Whether the instructions below exist. All functions ask the same question, so that all of them use either the
/// instructions or the locks.
#[inline]
fn has_instructions() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx") && is_x86_feature_detected!("cmpxchg16b");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Loads a pair.
///
/// # Safety
/// `at` is mapped, readable, and a multiple of 16; whoever writes it meanwhile uses this module.
#[inline]
pub(crate) unsafe fn load(at: *const u128) -> u128 {
    if has_instructions() {
        // SAFETY: the instructions exist, the rest is our contract.
        unsafe { wide::load(at) }
    } else {
        // SAFETY: our contract.
        unsafe { locked::load(at) }
    }
}

/// Stores `new` if the pair is `current`; returns what was there.
///
/// # Safety
/// As [`load`], and writable.
#[inline]
pub(crate) unsafe fn compare_exchange(at: *mut u128, current: u128, new: u128) -> u128 {
    if has_instructions() {
        // SAFETY: the instructions exist, the rest is our contract.
        unsafe { wide::compare_exchange(at, current, new) }
    } else {
        // SAFETY: our contract.
        unsafe { locked::compare_exchange(at, current, new) }
    }
}

/// Stores a pair.
///
/// # Safety
/// As [`compare_exchange`].
#[inline]
pub(crate) unsafe fn store(at: *mut u128, new: u128) {
    // SAFETY: our contract, here and below.
    let mut current = unsafe { load(at) };
    loop {
        // SAFETY: as above.
        let seen = unsafe { compare_exchange(at, current, new) };
        if seen == current {
            return;
        }
        current = seen;
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::asm;

    /// # Safety
    /// As [`super::load`]; needs AVX. On CPUs with AVX an aligned 16-byte load is one access (Intel SDM 3A 9.1.1, AMD
    /// APM 2 7.3.2). It is written in assembly so that the compiler cannot split it, and not as cmpxchg16b, which
    /// would fault on a read-only mapping.
    #[inline]
    pub(super) unsafe fn load(at: *const u128) -> u128 {
        let (low, high): (u64, u64);
        // SAFETY: aligned and readable by contract.
        unsafe {
            asm!(
                "vmovdqa {pair}, xmmword ptr [{at}]",
                "vmovq {low}, {pair}",
                "vpextrq {high}, {pair}, 1",
                at = in(reg) at,
                pair = out(xmm_reg) _,
                low = out(reg) low,
                high = out(reg) high,
                options(nostack, readonly, preserves_flags),
            );
        }
        u128::from(high) << 64 | u128::from(low)
    }

    /// # Safety
    /// As [`super::compare_exchange`]; needs cmpxchg16b. In assembly, for the intrinsic becomes a call into a library
    /// that is not there when the compiler inlines it into code without that target feature.
    #[inline]
    pub(super) unsafe fn compare_exchange(at: *mut u128, current: u128, new: u128) -> u128 {
        let (mut low, mut high) = (current as u64, (current >> 64) as u64);
        // SAFETY: mapped, writable and aligned by contract. The instruction takes the low half of `new` in rbx, which
        // may not be named as an operand, so it is put there and back by hand. All operands have registers by name:
        // left to choose, the compiler may choose rbx for one of them.
        unsafe {
            asm!(
                "xchg rsi, rbx",
                "lock cmpxchg16b xmmword ptr [rdi]",
                "mov rbx, rsi",
                in("rdi") at,
                inout("rsi") new as u64 => _,
                in("rcx") (new >> 64) as u64,
                inout("rax") low,
                inout("rdx") high,
                options(nostack),
            );
        }
        u128::from(high) << 64 | u128::from(low)
    }
}

#[cfg(not(target_arch = "x86_64"))]
use locked as wide;

/// The portable twin.
mod locked {
    use super::lock;

    /// # Safety
    /// As [`super::load`].
    pub(super) unsafe fn load(at: *const u128) -> u128 {
        let _held = lock(at);
        // SAFETY: mapped and aligned by contract; writers hold the same lock.
        unsafe { at.read_volatile() }
    }

    /// # Safety
    /// As [`super::compare_exchange`].
    pub(super) unsafe fn compare_exchange(at: *mut u128, current: u128, new: u128) -> u128 {
        let _held = lock(at);
        // SAFETY: mapped, writable and aligned by contract; all users hold the same lock.
        unsafe {
            let seen = at.read_volatile();
            if seen == current {
                at.write_volatile(new);
            }
            seen
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    #[repr(align(16))]
    struct Pair(UnsafeCell<u128>);
    // SAFETY: the tests touch it through the functions under test alone, which are atomic.
    unsafe impl Sync for Pair {}

    type CompareExchange = unsafe fn(*mut u128, u128, u128) -> u128;
    type Load = unsafe fn(*const u128) -> u128;

    /// Each value has the same number in both halves; a torn load or a lost update shows.
    fn count_up_together(load: Load, compare_exchange: CompareExchange) {
        const ROUNDS: u64 = 20_000;
        let pair = Pair(UnsafeCell::new(0));
        let both = |number: u64| u128::from(number) << 64 | u128::from(number);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        // SAFETY: the pair is aligned, lives long enough and is touched by this module alone.
                        let mut seen = unsafe { load((&raw const pair).cast()) };
                        loop {
                            assert_eq!((seen >> 64) as u64, seen as u64, "torn");
                            // SAFETY: as above.
                            let now = unsafe { compare_exchange(pair.0.get(), seen, both(seen as u64 + 1)) };
                            if now == seen {
                                break;
                            }
                            seen = now;
                        }
                    }
                });
            }
        });
        assert_eq!(pair.0.into_inner(), both(3 * ROUNDS));
    }

    #[test]
    fn no_update_is_lost_and_no_load_is_torn() {
        count_up_together(load, compare_exchange);
    }

    #[test]
    fn the_portable_twin_does_the_same() {
        count_up_together(locked::load, locked::compare_exchange);
    }

    #[test]
    fn a_store_replaces_both_halves() {
        let pair = Pair(UnsafeCell::new(5));
        // SAFETY: aligned, alive, and nobody else's.
        unsafe { store(pair.0.get(), u128::MAX - 7) };
        assert_eq!(pair.0.into_inner(), u128::MAX - 7);
    }
}
