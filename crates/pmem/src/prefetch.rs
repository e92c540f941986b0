//! Asking for a line of memory before it is needed.

/// Asks the processor to fetch the line at an address into its caches. Any address may be asked for, mapped or not:
/// nothing is read that the program could see, and nothing faults. Does nothing where it is not known how.
#[inline]
pub fn prefetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction is a hint; with an address that is not mapped it does nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address as *const i8);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_address_may_be_asked_for() {
        let here = 7u64;
        [0, 1, usize::MAX, (&raw const here) as usize].into_iter().for_each(super::prefetch);
    }
}
