//! Statistics of samples: the times of a few passes, of which some were disturbed.
//!
//! A shared machine sometimes uses a pass's time for other work. A few such passes do not change the median, but they
//! change the mean. For the same reason the spread is that of the middle half of the passes.

use crate::Result;
use std::time::Instant;

/// Returns the seconds that some work takes.
pub fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let clock = Instant::now();
    work()?;
    Ok(clock.elapsed().as_secs_f64())
}

/// Returns the middle value.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Returns the width of the middle half of the values.
pub fn middle_half(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let quarter = sorted.len() / 4;
    sorted[sorted.len() - 1 - quarter] - sorted[quarter]
}

/// Returns the smallest of the values; infinity if there are none.
pub fn smallest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Returns the largest of the values; minus infinity if there are none.
pub fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_disturbed_pass_changes_neither_the_median_nor_the_middle_half() {
        let (calm, disturbed) = ([4.0, 1.0, 3.0, 2.0, 5.0], [4.0, 1.0, 3.0, 2.0, 500.0]);
        assert_eq!((median(&calm), middle_half(&calm)), (3.0, 2.0));
        assert_eq!((median(&disturbed), middle_half(&disturbed)), (3.0, 2.0));
        assert_eq!((smallest(&disturbed), largest(&disturbed)), (1.0, 500.0));
    }
}
