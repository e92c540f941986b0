//! Atomic access to two words at once: cmpxchg16b where the CPU has it, otherwise a lock that all users of the pair
//! share.

use parking_lot::{Mutex, MutexGuard};

/// Guards the pairs on CPUs without 16-byte atomics, spread by address.
static LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

fn lock(at: *const u128) -> MutexGuard<'static, ()> {
    LOCKS[at.addr() / size_of::<u128>() % LOCKS.len()].lock()
}

/// Returns whether the instructions below exist. All functions ask the same question, so either all of them use the
/// instructions or all of them use the locks.
#[inline]
fn has_instructions() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return is_x86_feature_detected!("avx") && is_x86_feature_detected!("cmpxchg16b");
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    return false;
}

/// Loads a pair.
///
/// # Safety
/// `at` is mapped, readable, and a multiple of 16. Other accesses to its words meanwhile go through this module, or by
/// atomics of whole words (`shared`).
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

/// Stores `new` if the pair equals `current`; returns the pair that was there.
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

#[cfg(all(target_arch = "x86_64", not(miri)))]
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
    /// As [`super::compare_exchange`]; needs cmpxchg16b. It is written in assembly because the compiler turns the
    /// intrinsic into a call of a library function that does not exist when it inlines the intrinsic into code
    /// without that target feature.
    #[inline]
    pub(super) unsafe fn compare_exchange(at: *mut u128, current: u128, new: u128) -> u128 {
        let (mut low, mut high) = (current as u64, (current >> 64) as u64);
        // SAFETY: mapped, writable and aligned by contract. The instruction takes the low half of `new` in rbx, which
        // asm! does not allow as an operand, so the code swaps it in and out by hand. All operands name their
        // registers: a register chosen by the compiler could be rbx.
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

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use locked as wide;

/// The portable twin. Other code may load the words of a pair one by one at the same time, so they are atomics here
/// too. A thread that stores to one word alone while others exchange the pair may lose its store; the instructions
/// would keep it.
mod locked {
    use super::lock;
    use crate::shared::{WORD_BYTES, word};
    use std::sync::atomic::{AtomicU64, Ordering, fence};

    /// # Safety
    /// As [`super::load`].
    pub(super) unsafe fn load(at: *const u128) -> u128 {
        let _held = lock(at);
        // SAFETY: our contract.
        value(unsafe { words(at) })
    }

    /// # Safety
    /// As [`super::compare_exchange`].
    pub(super) unsafe fn compare_exchange(at: *mut u128, current: u128, new: u128) -> u128 {
        let _held = lock(at);
        // SAFETY: our contract.
        let words = unsafe { words(at) };
        let seen = value(words);
        if seen == current {
            let bytes = new.to_ne_bytes();
            let halves = bytes.as_chunks::<WORD_BYTES>().0;
            words.iter().zip(halves).for_each(|(word, half)| word.store(u64::from_ne_bytes(*half), Ordering::Release));
        }
        seen
    }

    /// # Safety
    /// As [`super::load`].
    unsafe fn words<'m>(at: *const u128) -> [&'m AtomicU64; 2] {
        // SAFETY: mapped and aligned by contract.
        unsafe { [word(at.cast()), word(at.cast::<u8>().add(WORD_BYTES))] }
    }

    fn value(words: [&AtomicU64; 2]) -> u128 {
        let mut bytes = [0; size_of::<u128>()];
        let halves = bytes.as_chunks_mut::<WORD_BYTES>().0;
        halves.iter_mut().zip(words).for_each(|(half, word)| *half = word.load(Ordering::Relaxed).to_ne_bytes());
        fence(Ordering::Acquire); // an acquiring load is not allowed on memory that is mapped read-only
        u128::from_ne_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    #[repr(align(16))]
    struct Pair(UnsafeCell<u128>);
    // SAFETY: only the functions under test touch it, and they are atomic.
    unsafe impl Sync for Pair {}

    type CompareExchange = unsafe fn(*mut u128, u128, u128) -> u128;
    type Load = unsafe fn(*const u128) -> u128;

    /// Each value has the same number in both halves, so a torn load or a lost update shows.
    fn count_up_together(load: Load, compare_exchange: CompareExchange) {
        const ROUNDS: u64 = if cfg!(miri) { 20 } else { 20_000 };
        let pair = Pair(UnsafeCell::new(0));
        let both = |number: u64| u128::from(number) << 64 | u128::from(number);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        // SAFETY: the pair is aligned, lives long enough and is touched only by this module.
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
    fn concurrent_pair_updates_are_not_lost_and_loads_not_torn() {
        count_up_together(load, compare_exchange);
    }

    #[test]
    fn the_portable_pair_store_behaves_like_the_assembly() {
        count_up_together(locked::load, locked::compare_exchange);
    }

    #[test]
    fn a_pair_store_replaces_both_words() {
        let pair = Pair(UnsafeCell::new(5));
        // SAFETY: aligned, alive, and nobody else's.
        unsafe { store(pair.0.get(), u128::MAX - 7) };
        assert_eq!(pair.0.into_inner(), u128::MAX - 7);
    }
}
