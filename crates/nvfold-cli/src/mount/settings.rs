//! Asks the server of a mount to change a setting ([`nvfold_mount::Setting`]), from a command.

use crate::bounded;
use crate::failure::{Failure, Outcome};
use crate::mounts;
pub(crate) use nvfold_mount::Setting;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Changes a setting of the mount on a directory.
pub(crate) fn ask(dir: &Path, setting: Setting, value: &str) -> Outcome<()> {
    let what = match setting {
        Setting::Method => "choose the method",
        Setting::Mode => "choose the mode",
        Setting::Paused => "pause or resume",
    };
    bounded::set(dir, setting.attribute(), value)
        .map_err(|error| refused(dir, what, error.raw_os_error().unwrap_or_default(), error))
}

/// Explains why the server refused something that only root and the user who mounted it may ask for.
pub(crate) fn refused(dir: &Path, what: &str, code: i32, error: impl Display) -> Failure {
    let failure = Failure::new(mounts::show(dir), format!("cannot {what} ({error})")).because_of(code);
    match io::Error::from_raw_os_error(code).kind() {
        ErrorKind::PermissionDenied => failure.hint("only root and whoever mounted it can"),
        ErrorKind::ReadOnlyFilesystem => failure.hint("it is mounted read-only, so nothing is stored"),
        _ => failure,
    }
}

/// Returns the value of a setting that is on or off.
pub(crate) fn yes_or_no(on: bool) -> &'static str {
    if on { "yes" } else { "no" }
}
