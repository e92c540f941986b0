//! The mounts of nvfold ([`nvfold_mount::mounts`]), and paths as text.

pub(crate) use nvfold_mount::mounts::{Mounted, above, all, at, of_device};
use std::os::unix::ffi::OsStrExt;

/// Converts a path to text, with a replacement character for what is not UTF-8. Messages and tables escape it with
/// [`escaped`](crate::text::escaped).
pub(crate) fn show(path: &(impl AsRef<std::ffi::OsStr> + ?Sized)) -> String {
    String::from_utf8_lossy(path.as_ref().as_bytes()).into_owned()
}

/// Returns the bytes of a path in hexadecimal if it is not UTF-8. JSON reports add them to the text.
pub(crate) fn hex(path: &(impl AsRef<std::ffi::OsStr> + ?Sized)) -> Option<String> {
    let path = path.as_ref();
    let digits = |path: &std::ffi::OsStr| path.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    path.to_str().is_none().then(|| digits(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::escaped;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn control_characters_in_names_are_escaped_without_loss() {
        let name = OsString::from_vec(b"a\nb\x1b[31m\xff".to_vec());
        assert_eq!(escaped(&show(&name)), "a\\nb\\u{1b}[31m\u{fffd}");
        assert_eq!(hex(&name).as_deref(), Some("610a621b5b33316dff"));
        assert_eq!((escaped("caf\u{e9}"), hex("caf\u{e9}")), ("caf\u{e9}".into(), None));
    }
}
