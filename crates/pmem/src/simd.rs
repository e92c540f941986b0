//! Searching for short runs of rising bytes, with the widest vectors that the CPU has.
//!
//! The problem: a chunker that looks at every byte in turn is slower than the memory whose content it cuts. The idea
//! (SeqCDC, and VectorCDC for the vectors): cut where several bytes in a row are each greater than the one before.
//! That needs no hash, and a vector finds it in 64 bytes at once by comparing them with the 64 bytes that begin one
//! byte earlier. Where many bytes fall instead, a cut is unlikely, and the search jumps over a piece of the data.
//!
//! ```text
//!   bytes      7  9  4  4  8  9 12 15 3
//!   rise          1  0  .  1  1  1  1 0       1 greater, 0 less, . equal: does not count
//!   history    ...1  0     1  1  1  1 0       what counts, the newest in the highest bit
//! ```
//!
//! The module is in this crate because intrinsics are `unsafe`, and all `unsafe` code is here. It has one safe
//! function, [`Slopes::find_rise`], which chooses the version for the CPU; tests compare each version with the
//! portable twin.

/// The rule of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlopeRule {
    rises: u32,
    falls: u32,
    jump: u32,
}

impl SlopeRule {
    /// Makes a rule: `rises` greater bytes in a row end the search; after `falls` smaller ones, in a row or not, the
    /// search skips `jump` bytes. Panics unless 4 <= rises <= 8 and falls > 0, the limits of the vectors.
    pub const fn new(rises: u32, falls: u32, jump: u32) -> SlopeRule {
        assert!(4 <= rises && rises <= 8 && falls > 0);
        SlopeRule { rises, falls, jump }
    }

    /// Returns the smallest history whose newest bits all say "rose".
    const fn least_rise(self) -> u64 {
        !(u64::MAX >> self.rises)
    }
}

/// The state of a search between calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slopes {
    /// One bit for each byte that differed from the one before, set if it rose; the newest in the highest bit.
    history: u64,
    /// Smaller bytes since the last jump.
    falls: u32,
    /// Bytes still to be skipped.
    jump: u32,
    /// The last byte.
    previous: u8,
}

impl Slopes {
    /// Starts a search behind this byte.
    pub const fn after(previous: u8) -> Slopes {
        Slopes { history: 0, falls: 0, jump: 0, previous }
    }

    /// Continues the search with `data`: returns `Some(n)` if the n-th byte completes the run of rising bytes, which
    /// ends the search. The result does not depend on how the data is split into calls.
    #[inline]
    pub fn find_rise(&mut self, rule: SlopeRule, data: &[u8]) -> Option<usize> {
        Version::detect().find_rise(self, rule, data)
    }

    /// Skips what is left of a jump; returns how many bytes of `data` it skipped.
    fn pass_over(&mut self, data: &[u8]) -> usize {
        let passed = data.len().min(self.jump as usize);
        self.jump -= passed as u32;
        if passed > 0 {
            self.previous = data[passed - 1];
        }
        passed
    }
}

/// The implementations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx512,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx2,
    Portable,
}

impl Version {
    /// Returns the best version for this CPU. The standard library caches the answers of the CPU.
    #[inline]
    fn detect() -> Version {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            // Every x86-64 processor with AVX2 has the others, but no specification promises it.
            let has_bits = is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("popcnt");
            if has_bits && is_x86_feature_detected!("avx512bw") {
                return Version::Avx512;
            }
            if has_bits && is_x86_feature_detected!("avx2") {
                return Version::Avx2;
            }
        }
        Version::Portable
    }

    #[inline]
    fn find_rise(self, slopes: &mut Slopes, rule: SlopeRule, data: &[u8]) -> Option<usize> {
        match self {
            // SAFETY: only `detect` returns these versions, on a CPU with the features that they are compiled for.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Version::Avx512 => unsafe { x86::avx512(slopes, rule, data) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Version::Avx2 => unsafe { x86::avx2(slopes, rule, data) },
            Version::Portable => portable(slopes, rule, data),
        }
    }
}

/// Searches byte by byte, without a branch on the value of a byte.
fn portable(slopes: &mut Slopes, rule: SlopeRule, data: &[u8]) -> Option<usize> {
    let mut at = slopes.pass_over(data);
    while at < data.len() {
        let (byte, previous) = (data[at], slopes.previous);
        let (rose, fell) = (u64::from(byte > previous), u64::from(byte < previous));
        at += 1;
        slopes.previous = byte;
        slopes.history = slopes.history >> (rose | fell) | rose << 63;
        slopes.falls += fell as u32;
        if rose == 1 && slopes.history >= rule.least_rise() {
            return Some(at);
        }
        if slopes.falls == rule.falls {
            *slopes = Slopes { jump: rule.jump, ..Slopes::after(byte) };
            at += slopes.pass_over(&data[at..]);
        }
    }
    None
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use super::{SlopeRule, Slopes, portable};
    use std::arch::x86_64::*;

    /// Bytes that are compared at once: a bit of a word for each.
    const LANES: usize = 64;

    /// Compares [`LANES`] bytes with the bytes one position earlier.
    trait Compare {
        /// Bit n of the first word says that `bytes[n] > bytes[n - 1]`, of the second that it is less.
        ///
        /// # Safety
        /// `bytes.sub(1)` is readable for `LANES + 1` bytes, and this CPU has the instructions.
        unsafe fn compare(bytes: *const u8) -> (u64, u64);
    }

    /// # Safety
    /// This CPU has the instructions named below.
    #[target_feature(enable = "avx512bw,bmi1,bmi2,popcnt")]
    pub(super) unsafe fn avx512(slopes: &mut Slopes, rule: SlopeRule, data: &[u8]) -> Option<usize> {
        // SAFETY: the caller vouches for the instructions.
        unsafe { find_rise::<Avx512>(slopes, rule, data) }
    }

    /// # Safety
    /// This CPU has the instructions named below.
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    pub(super) unsafe fn avx2(slopes: &mut Slopes, rule: SlopeRule, data: &[u8]) -> Option<usize> {
        // SAFETY: the caller vouches for the instructions.
        unsafe { find_rise::<Avx2>(slopes, rule, data) }
    }

    struct Avx512;
    impl Compare for Avx512 {
        #[inline(always)]
        unsafe fn compare(bytes: *const u8) -> (u64, u64) {
            // SAFETY: both loads are inside what the caller vouches for, and need no alignment.
            unsafe {
                let now = _mm512_loadu_si512(bytes.cast());
                let before = _mm512_loadu_si512(bytes.sub(1).cast());
                (_mm512_cmpgt_epu8_mask(now, before), _mm512_cmplt_epu8_mask(now, before))
            }
        }
    }

    struct Avx2;
    impl Compare for Avx2 {
        #[inline(always)]
        unsafe fn compare(bytes: *const u8) -> (u64, u64) {
            // SAFETY: the halves are inside what the caller vouches for.
            let (low, high) = unsafe { (Avx2::half(bytes), Avx2::half(bytes.add(LANES / 2))) };
            (u64::from(low.0) | u64::from(high.0) << 32, u64::from(low.1) | u64::from(high.1) << 32)
        }
    }

    impl Avx2 {
        /// # Safety
        /// `bytes.sub(1)` is readable for 33 bytes, and this CPU has AVX2.
        #[inline(always)]
        unsafe fn half(bytes: *const u8) -> (u32, u32) {
            // SAFETY: both loads are inside what the caller vouches for, and need no alignment.
            unsafe {
                // AVX2 only compares signed bytes; with the highest bit inverted, that order is the unsigned one.
                let turn = _mm256_set1_epi8(i8::MIN);
                let now = _mm256_xor_si256(_mm256_loadu_si256(bytes.cast()), turn);
                let before = _mm256_xor_si256(_mm256_loadu_si256(bytes.sub(1).cast()), turn);
                let mask = |bits| _mm256_movemask_epi8(bits) as u32;
                (mask(_mm256_cmpgt_epi8(now, before)), mask(_mm256_cmpgt_epi8(before, now)))
            }
        }
    }

    /// # Safety
    /// This CPU has the instructions of `C`, BMI1, BMI2 and POPCNT; the caller is compiled for them.
    #[inline(always)]
    unsafe fn find_rise<C: Compare>(slopes: &mut Slopes, rule: SlopeRule, data: &[u8]) -> Option<usize> {
        let mut at = slopes.pass_over(data);
        // A vector at the first byte would be compared with a byte before `data`.
        if at == 0 && !data.is_empty() {
            if portable(slopes, rule, &data[..1]).is_some() {
                return Some(1);
            }
            at = 1 + slopes.pass_over(&data[1..]);
        }
        while data.len() - at >= LANES {
            // SAFETY: `at` is at least 1, and LANES bytes from it on are in `data`. The caller has the instructions.
            let met = unsafe {
                let (up, down) = C::compare(data.as_ptr().add(at));
                judge(slopes, rule, up, down)
            };
            match met {
                Met::Nothing => at += LANES,
                Met::Rise(bit) => return Some(at + bit as usize + 1),
                Met::Falls(bit) => {
                    at += bit as usize + 1;
                    *slopes = Slopes { jump: rule.jump, ..Slopes::after(0) };
                    at += slopes.pass_over(&data[at..]);
                }
            }
        }
        if at > 0 {
            slopes.previous = data[at - 1];
        }
        portable(slopes, rule, &data[at..]).map(|count| at + count)
    }

    /// What a vector contains: the number of the byte that ends the search, or of the byte after which a jump begins.
    enum Met {
        Nothing,
        Rise(u32),
        Falls(u32),
    }

    /// # Safety
    /// This CPU has BMI1, BMI2 and POPCNT; the caller is compiled for them.
    #[inline(always)]
    unsafe fn judge(slopes: &mut Slopes, rule: SlopeRule, up: u64, down: u64) -> Met {
        let differs = up | down;
        // Equal bytes are left out, as in the history.
        // SAFETY: the caller vouches for BMI2.
        let rose = if differs == u64::MAX { up } else { unsafe { _pext_u64(up, differs) } };
        let complete = complete_runs(rose, slopes.history, rule.rises);
        let falls = slopes.falls + down.count_ones();
        if complete == 0 && falls < rule.falls {
            slopes.falls = falls;
            slopes.history = match differs.count_ones() {
                0 => slopes.history,
                count => rose << (64 - count) | slopes.history.checked_shr(count).unwrap_or(0),
            };
            return Met::Nothing;
        }
        // SAFETY: as above.
        let (rise, fall) = unsafe {
            // The lowest bit of `complete`, moved back to its position among all bytes; 64 if there is none.
            let rise = _pdep_u64(complete & complete.wrapping_neg(), differs).trailing_zeros();
            // The byte that completes the falls; 64 if there are too few.
            let missing = rule.falls - slopes.falls - 1;
            let fall = if missing < 64 { _pdep_u64(1 << missing, down).trailing_zeros() } else { 64 };
            (rise, fall)
        };
        if rise < fall { Met::Rise(rise) } else { Met::Falls(fall) }
    }

    /// Returns a mask with bit n set if a run of `rises` ones ends there, including bits before the word. `history`
    /// holds the earlier bits in its highest bits.
    #[inline(always)]
    fn complete_runs(rose: u64, history: u64, rises: u32) -> u64 {
        // Runs of two, of four, then two overlapping fours: up to eight. `by` is never 0, so no shift is by 64.
        let longer = |runs: (u64, u64), by: u32| {
            let (now, before) = runs;
            (now & (now << by | before >> (64 - by)), before & before << by)
        };
        let four = longer(longer((rose, history), 1), 2);
        if rises == 4 { four.0 } else { longer(four, rises - 4).0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn versions() -> Vec<Version> {
        let mut all = vec![Version::Portable];
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let has_bits = is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("popcnt");
            if has_bits && is_x86_feature_detected!("avx2") {
                all.push(Version::Avx2);
            }
            if has_bits && is_x86_feature_detected!("avx512bw") {
                all.push(Version::Avx512);
            }
        }
        all
    }

    /// Applies the rule as it is worded, to the whole data at once.
    fn by_the_book(rule: SlopeRule, first: u8, data: &[u8]) -> Option<usize> {
        let (mut at, mut run, mut falls) = (0, 0, 0);
        while at < data.len() {
            let before = if at == 0 { first } else { data[at - 1] };
            at += 1;
            match data[at - 1].cmp(&before) {
                std::cmp::Ordering::Equal => continue,
                std::cmp::Ordering::Greater => run += 1,
                std::cmp::Ordering::Less => (run, falls) = (0, falls + 1),
            }
            if run == rule.rises {
                return Some(at);
            }
            if falls == rule.falls {
                (at, falls) = (at + rule.jump as usize, 0);
            }
        }
        None
    }

    /// Returns the result of a version that gets the data in pieces of these lengths, in turn.
    fn in_pieces(version: Version, rule: SlopeRule, first: u8, data: &[u8], lengths: &[usize]) -> Option<usize> {
        let mut slopes = Slopes::after(first);
        let (mut at, mut lengths) = (0, lengths.iter().cycle());
        while at < data.len() {
            let end = data.len().min(at + lengths.next().unwrap());
            if let Some(count) = version.find_rise(&mut slopes, rule, &data[at..end]) {
                return Some(at + count);
            }
            at = end;
        }
        None
    }

    /// Generates bytes in stretches: random ones, ones of few values, constant ones, and ones that rise or fall
    /// slowly.
    fn mixed() -> impl Strategy<Value = Vec<u8>> {
        let stretch = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300),
            prop::collection::vec(0u8..3, 0..300),
            (any::<u8>(), 0usize..300).prop_map(|(byte, count)| vec![byte; count]),
            (1u8..4, 0usize..300)
                .prop_map(|(step, count)| (0..count).map(|at| 255 - (at as u8).wrapping_mul(step)).collect()),
            (1usize..90, 0usize..300).prop_map(|(each, count)| (0..count).map(|at| (at / each) as u8).collect()),
        ];
        prop::collection::vec(stretch, 0..6).prop_map(|stretches| stretches.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 2000 }, failure_persistence: None,
            ..ProptestConfig::default() })]

        #[test]
        fn every_version_finds_rising_runs_however_the_data_is_split(
            data in mixed(),
            first in any::<u8>(),
            rises in 4u32..=8,
            falls in 1u32..140,
            jump in prop_oneof![Just(0u32), 1u32..20, 1u32..700],
            lengths in prop::collection::vec(1usize..400, 1..4),
        ) {
            let rule = SlopeRule::new(rises, falls, jump);
            let expected = by_the_book(rule, first, &data);
            for version in versions() {
                prop_assert_eq!(in_pieces(version, rule, first, &data, &[usize::MAX >> 1]), expected, "{:?}", version);
                prop_assert_eq!(in_pieces(version, rule, first, &data, &lengths), expected, "{:?}, split", version);
            }
        }
    }

    #[test]
    fn a_rising_run_is_found_at_any_position_of_a_vector() {
        for (version, start) in versions().into_iter().flat_map(|version| (0..200).map(move |start| (version, start))) {
            let mut data = vec![9; 300];
            data[start..start + 6].copy_from_slice(&[1, 2, 3, 4, 5, 6]);
            let mut slopes = Slopes::after(9);
            let found = version.find_rise(&mut slopes, SlopeRule::new(5, 50, 100), &data);
            assert_eq!(found, Some(start + 6), "{version:?}");
        }
    }
}
