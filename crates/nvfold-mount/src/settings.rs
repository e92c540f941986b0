//! Settings of a mount that can change while it is mounted. Each is a virtual extended attribute of every file in the
//! mount, and is not listed. Every user may read it; only root and the user who mounted the file system may set it.

use nvfold::{DedupMode, FileSystem, MethodChoice};

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The method of policy nv-dedup, or the rule by which it is chosen.
    Method,
    /// When policy denova shares.
    Mode,
    /// Whether the dedup daemon is paused: `yes` or `no`.
    Paused,
}

impl Setting {
    const ALL: [Setting; 3] = [Setting::Method, Setting::Mode, Setting::Paused];

    /// Returns the name of the attribute.
    pub fn attribute(self) -> &'static str {
        match self {
            Setting::Method => "user.nvfold.method",
            Setting::Mode => "user.nvfold.mode",
            Setting::Paused => "user.nvfold.paused",
        }
    }

    /// Returns the setting for the name of an attribute.
    pub(crate) fn named(attribute: &[u8]) -> Option<Setting> {
        Setting::ALL.into_iter().find(|setting| setting.attribute().as_bytes() == attribute)
    }

    /// Returns the value of the setting.
    pub(crate) fn get(self, fs: &FileSystem) -> String {
        match self {
            Setting::Method => fs.method().name().to_owned(),
            Setting::Mode => fs.dedup_mode().to_string(),
            Setting::Paused => yes_or_no(fs.stats().denova.is_some_and(|denova| denova.paused)).to_owned(),
        }
    }

    /// Sets the value; `None` if the value is not valid for this setting.
    pub(crate) fn set(self, fs: &FileSystem, value: &[u8]) -> Option<()> {
        let value = std::str::from_utf8(value).ok()?;
        match self {
            Setting::Method => fs.set_method(MethodChoice::from_name(value)?),
            Setting::Mode => fs.set_dedup_mode(DedupMode::parse(value)?),
            Setting::Paused => fs.pause_dedup([true, false].into_iter().find(|paused| yes_or_no(*paused) == value)?),
        }
        Some(())
    }
}

/// Returns the value of a setting that is on or off.
fn yes_or_no(on: bool) -> &'static str {
    if on { "yes" } else { "no" }
}
