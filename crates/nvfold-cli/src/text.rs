//! Helpers for the text of messages and reports.

/// Escapes control characters for a terminal. A name may contain newlines and escape sequences; they become `\n` and
/// `\u{1b}`.
pub(crate) fn escaped(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(escape).collect()
}

/// Formats a count: `1 file`, `2 files`.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
