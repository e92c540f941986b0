//! Bounds of what is measured: a benchmark refuses data that cannot be, and its command fails.
//!
//! The problem: a mistake in a benchmark, or a machine that did something else meanwhile, gives figures that look like
//! results. The idea: arithmetic bounds many of them. No data is shared that is not there twice, no write is cheaper
//! than what its device charges, no part is longer than the whole. Each benchmark compares its data with such bounds
//! before it makes a figure of it. The error says what was measured, and why that cannot be.

use crate::{LabError, Result};
use pmem::{LINE_BYTES, Profile};
use std::fmt::Display;

/// Fractions are rounded; that is no contradiction.
const ROUNDING: f64 = 1e-6;

/// Refuses a value above a bound, and one that is no number. `why` says where the bound comes from.
pub(crate) fn at_most(what: impl Display, value: f64, bound: f64, unit: &str, why: &str) -> Result<()> {
    match value <= bound + bound.abs() * ROUNDING {
        true => Ok(()),
        false => Err(impossible(&what, value, unit, &format!("{why}, so it is at most {}", text(bound, unit)))),
    }
}

/// Refuses a value below a bound, and one that is no number.
pub(crate) fn at_least(what: impl Display, value: f64, bound: f64, unit: &str, why: &str) -> Result<()> {
    match value >= bound - bound.abs() * ROUNDING {
        true => Ok(()),
        false => Err(impossible(&what, value, unit, &format!("{why}, so it is at least {}", text(bound, unit)))),
    }
}

fn impossible(what: &dyn Display, value: f64, unit: &str, why: &str) -> LabError {
    LabError::Impossible { what: what.to_string(), measured: text(value, unit), why: why.into() }
}

fn text(value: f64, unit: &str) -> String {
    let value = format!("{value:.3}");
    let value = value.trim_end_matches('0').trim_end_matches('.');
    if unit.is_empty() { value.into() } else { format!("{value} {unit}") }
}

/// Returns the nanoseconds that a device charges a thread at least for storing these bytes.
pub(crate) fn write_charge_ns(profile: &Profile, bytes: f64) -> f64 {
    let at_full_bandwidth = match profile.write_mb_s {
        0 => 0.0,
        mb_s => LINE_BYTES as f64 * 1e3 / mb_s as f64,
    };
    bytes / LINE_BYTES as f64 * profile.write_line_ns.max(at_full_bandwidth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_measured_value_and_its_bound() {
        let error = at_most("blocks saved", 101.0, 100.0, "%", "only duplicates are shared").unwrap_err();
        let expected = "blocks saved: 101 % was measured, which cannot be: only duplicates are shared, so it is at \
                        most 100 %; measure again, and if it stays, the benchmark is wrong";
        assert_eq!(error.to_string(), expected);
        let error = at_least("a wait", 0.5, 250.0, "ms", "the daemon rests").unwrap_err().to_string();
        assert!(error.contains("0.5 ms") && error.contains("at least 250 ms"), "{error}");
    }

    #[test]
    fn a_value_at_its_bound_is_accepted_and_no_number_is_refused() {
        at_most("x", 100.0, 100.0, "", "").unwrap();
        at_least("x", 100.0, 100.0, "", "").unwrap();
        at_least("x", -1.0, -1.0, "", "").unwrap();
        assert!(at_most("x", f64::NAN, 100.0, "", "").is_err() && at_least("x", f64::NAN, 0.0, "", "").is_err());
    }

    #[test]
    fn a_device_charges_each_line_that_is_stored() {
        let charge = |name: &str| write_charge_ns(&name.parse().unwrap(), 4096.0);
        assert_eq!([charge("native"), charge("optane"), charge("pcm")], [0.0, 64.0 * 19.0, 64.0 * 9600.0]);
        assert_eq!(charge("custom:write_mb_s=64"), 64.0 * 1000.0, "a device without a time a line has a bandwidth");
    }
}
