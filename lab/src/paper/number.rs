//! Numbers of a figure, in readable form and in JSON.
//!
//! JSON has no NaN, so a missing value is written as null and read back as NaN.

use serde::{Deserialize, Deserializer};

/// Formats a number in readable form: three significant digits, or a whole number with separators.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "-".into();
    }
    if size < 10.0 {
        return format!("{value:.2}");
    }
    if size < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{:.0}", size);
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

/// Reads a number of a JSON text; null becomes NaN.
pub(super) fn number_or_null<'a, D: Deserializer<'a>>(text: D) -> std::result::Result<f64, D::Error> {
    Ok(Option::deserialize(text)?.unwrap_or(f64::NAN))
}

/// Reads a list of numbers; null becomes NaN.
pub(super) fn numbers_or_null<'a, D: Deserializer<'a>>(list: D) -> std::result::Result<Vec<f64>, D::Error> {
    let values: Vec<Option<f64>> = Vec::deserialize(list)?;
    Ok(values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_tables_are_rounded_and_grouped() {
        for (value, text) in [(0.987, "0.99"), (12.34, "12.3"), (999.6, "1,000"), (1234567.0, "1,234,567")] {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(-1234.0), "-1,234");
    }
}
