//! Parses sizes (`64M`, `1.5GiB`, `4096`) and formats them (`1.5 GiB`).
//!
//! `K M G T P E` and `KiB MiB ...` are powers of 1024, `KB MB ...` powers of 1000; without a unit, bytes. A fraction
//! is exact: `1.5G` is 1610612736, and `0.3K`, which is not a whole number of bytes, is refused.

const UNITS: &str = "KMGTPE";

/// Parses a size and returns it in bytes. The error is a sentence, as clap needs it.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        let what = if text.starts_with('-') { "a size cannot be negative" } else { "not a size" };
        return Err(format!("{what}; write 4096, 64M or 1.5GiB"));
    }
    let multiplier =
        multiplier(unit.trim()).ok_or_else(|| format!("unknown unit `{}`; write 4096, 64M or 1.5GiB", unit.trim()))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let has_digits = !whole.is_empty() || !fraction.is_empty();
    if !has_digits || fraction.contains('.') || fraction.len() > 18 {
        return Err("not a size; write 4096, 64M or 1.5GiB".into());
    }
    let too_large = || "larger than 2^64 bytes".to_owned();
    let value = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<u128>().ok() };
    let scale = 10u128.pow(fraction.len() as u32);
    let parts = value(fraction).and_then(|f| f.checked_mul(multiplier)).ok_or_else(too_large)?;
    if parts % scale != 0 {
        return Err("not a whole number of bytes".into());
    }
    let bytes = value(whole).and_then(|w| w.checked_mul(multiplier)).and_then(|w| w.checked_add(parts / scale));
    bytes.and_then(|bytes| u64::try_from(bytes).ok()).ok_or_else(too_large)
}

fn multiplier(unit: &str) -> Option<u128> {
    let upper = unit.to_ascii_uppercase();
    let (letter, base) = match upper.as_str() {
        "" | "B" => return Some(1),
        other if other.ends_with("IB") => (&other[..other.len() - 2], 1024u128),
        other if other.ends_with('B') => (&other[..other.len() - 1], 1000),
        other => (other, 1024),
    };
    let power = UNITS.find(letter).filter(|_| letter.len() == 1)? as u32 + 1;
    Some(base.pow(power))
}

/// Formats a size: exact below 1 KiB, with at least three digits above.
pub(crate) fn show(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (63 - bytes.leading_zeros()) / 10;
    let value = bytes as f64 / 1024f64.powi(power as i32);
    let decimals = if value >= 100.0 || value.fract() == 0.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    let unit = UNITS.as_bytes()[power as usize - 1] as char;
    format!("{value:.decimals$} {unit}iB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_and_without_units() {
        let cases: [(&str, u64); 14] = [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64M", 64 << 20),
            ("64MiB", 64 << 20),
            ("64mib", 64 << 20),
            ("64MB", 64_000_000),
            ("1GiB", 1 << 30),
            ("1.5G", 3 << 29),
            (".5k", 512),
            ("2 T", 2 << 40),
            ("7E", 7 << 60),
            ("18446744073709551615", u64::MAX),
            ("0.001KB", 1),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn malformed_and_overflowing_sizes_are_refused() {
        for text in
            ["", "G", ".", "1.2.3", "-1", "1X", "1GG", "16E", "18446744073709551616", "0.3K", "1e9", "0x10", "é"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_malformed_size_and_an_unknown_unit_give_different_errors() {
        assert_eq!(parse("-1").unwrap_err(), "a size cannot be negative; write 4096, 64M or 1.5GiB");
        assert_eq!(parse("many").unwrap_err(), "not a size; write 4096, 64M or 1.5GiB");
        assert_eq!(parse("1X").unwrap_err(), "unknown unit `X`; write 4096, 64M or 1.5GiB");
    }

    #[test]
    fn sizes_are_printed_with_few_digits() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (1 << 30, "1 GiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(show(bytes), text);
        }
    }
}
