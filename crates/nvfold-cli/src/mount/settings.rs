//! What can be changed of a mount while it works: virtual extended attributes of anything in it, which are not listed.
//! Everybody may read them; root and whoever mounted it may set them.

use crate::failure::{Failure, Outcome};
use crate::mounts;
use nvfold::{DedupMode, FileSystem, MethodChoice};
use rustix::fs::XattrFlags;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::Path;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Who chooses the method of policy nv-dedup.
    Method,
    /// When policy denova shares.
    Mode,
    /// Whether the daemon is paused: `yes` or `no`.
    Paused,
}

impl Setting {
    const ALL: [Setting; 3] = [Setting::Method, Setting::Mode, Setting::Paused];

    /// Name of the attribute.
    pub fn attribute(self) -> &'static str {
        match self {
            Setting::Method => "user.nvfold.method",
            Setting::Mode => "user.nvfold.mode",
            Setting::Paused => "user.nvfold.paused",
        }
    }

    /// The setting that an attribute is.
    pub fn named(attribute: &[u8]) -> Option<Setting> {
        Setting::ALL.into_iter().find(|setting| setting.attribute().as_bytes() == attribute)
    }

    /// Its value.
    pub fn get(self, fs: &FileSystem) -> String {
        match self {
            Setting::Method => fs.method().name().to_owned(),
            Setting::Mode => fs.dedup_mode().to_string(),
            Setting::Paused => yes_or_no(fs.stats().denova.is_some_and(|denova| denova.paused)).to_owned(),
        }
    }

    /// Takes a value in; `None` when it is none of this setting.
    pub fn set(self, fs: &FileSystem, value: &[u8]) -> Option<()> {
        let value = std::str::from_utf8(value).ok()?;
        match self {
            Setting::Method => fs.set_method(MethodChoice::from_name(value)?),
            Setting::Mode => fs.set_dedup_mode(DedupMode::parse(value)?),
            Setting::Paused => fs.pause_dedup([true, false].into_iter().find(|paused| yes_or_no(*paused) == value)?),
        }
        Some(())
    }
}

/// Asks the process that serves a mount to change a setting: the command's side.
pub fn ask(dir: &Path, setting: Setting, value: &str) -> Outcome<()> {
    let what = match setting {
        Setting::Method => "choose the method",
        Setting::Mode => "choose the mode",
        Setting::Paused => "pause or resume",
    };
    rustix::fs::setxattr(dir, setting.attribute(), value.as_bytes(), XattrFlags::empty())
        .map_err(|error| refused(dir, what, error.raw_os_error(), error))
}

/// Why a mount does not do what its managers alone may ask for.
pub fn refused(dir: &Path, what: &str, code: i32, error: impl Display) -> Failure {
    let failure = Failure::new(mounts::show(dir), format!("cannot {what} ({error})"));
    match io::Error::from_raw_os_error(code).kind() {
        ErrorKind::PermissionDenied => failure.hint("only root and whoever mounted it can"),
        ErrorKind::ReadOnlyFilesystem => failure.hint("it is mounted read-only, so nothing is stored"),
        _ => failure,
    }
}

/// Value of a setting that is on or off.
pub fn yes_or_no(on: bool) -> &'static str {
    if on { "yes" } else { "no" }
}
