//! Words of messages and reports: names that are safe on a terminal, and counts.

/// Text for a terminal: a name may hold newlines and escape sequences, which are written as `\n` and `\u{1b}`.
pub fn escaped(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(escape).collect()
}

/// Formats a count: `1 file`, `2 files`.
pub fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
