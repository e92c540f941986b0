//! What to do about an error of the library: the hint of a failure.
//!
//! The library's errors say what failed and why. What helps depends on the command: `fsck` does not advise to run
//! `fsck`. So a failure keeps the cause, which is taken from the type of the error, and the hint is chosen when it is
//! printed.

use crate::mounts;
use nvfold::{Error, host};
use pmem::PmemError;
use std::any::Any;
use std::io::ErrorKind;
use std::path::Path;

/// A cause for which there is advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No superblock begins with the magic.
    NotNvfold,
    /// All superblocks are damaged.
    NoSuperblock,
    /// The device is shorter than its file system.
    Truncated { whole_bytes: u64 },
    /// A repair did not finish.
    RepairInterrupted,
    /// The pm index is not whole.
    PmIndexDamaged,
    /// Any other damage.
    Damaged,
    /// Bad memory.
    BadMemory,
    /// Made by a newer version.
    Newer,
    /// Made by an older version.
    Older,
    /// Made on a machine of the other byte order.
    OtherByteOrder,
    /// No such device.
    Missing,
    /// The device is an empty file.
    Empty,
    /// Another process owns the device.
    Busy { device: String },
    /// The caller may not write the device.
    ReadOnlyFile,
    /// The journal of the device cannot be replayed.
    Replay,
}

impl Cause {
    /// Returns the cause of an error; `None` if there is no advice about it.
    pub(crate) fn of(error: &dyn Any) -> Option<Cause> {
        if let Some(error) = error.downcast_ref::<Error>() {
            Cause::of_file_system(error)
        } else if let Some(error) = error.downcast_ref::<PmemError>() {
            Cause::of_device(error)
        } else {
            match error.downcast_ref::<host::TreeError>()? {
                host::TreeError::FileSystem { source, .. } | host::TreeError::Full { source, .. } => {
                    Cause::of_file_system(source)
                }
                _ => None,
            }
        }
    }

    fn of_file_system(error: &Error) -> Option<Cause> {
        Some(match error {
            Error::NotNvfold { .. } => Cause::NotNvfold,
            Error::NoSuperblock { .. } => Cause::NoSuperblock,
            Error::Truncated { whole_bytes, .. } => Cause::Truncated { whole_bytes: *whole_bytes },
            Error::RepairInterrupted => Cause::RepairInterrupted,
            Error::PmIndexDamaged { .. } => Cause::PmIndexDamaged,
            Error::Corrupt { .. } => Cause::Damaged,
            Error::BadMemory { .. } => Cause::BadMemory,
            Error::Newer { .. } => Cause::Newer,
            Error::Older { .. } => Cause::Older,
            Error::OtherByteOrder => Cause::OtherByteOrder,
            Error::Device(error) => return Cause::of_device(error),
            _ => return None,
        })
    }

    fn of_device(error: &PmemError) -> Option<Cause> {
        Some(match error {
            PmemError::Io { doing: "open", source, .. } if source.kind() == ErrorKind::NotFound => Cause::Missing,
            PmemError::Size { bytes: 0, .. } => Cause::Empty,
            PmemError::Busy { device, .. } => Cause::Busy { device: device.clone() },
            PmemError::ReadOnlyFile { .. } => Cause::ReadOnlyFile,
            PmemError::Replay { .. } => Cause::Replay,
            PmemError::BadMemory { .. } => Cause::BadMemory,
            _ => return None,
        })
    }

    /// Returns what a user of `command` can do about it.
    pub(crate) fn hint(&self, command: &str) -> Option<String> {
        let is_fsck = command == "fsck";
        let hint = match self {
            Cause::NotNvfold => {
                "check the name. If this was an nvfold device, its superblocks were overwritten: restore it from a copy. \
                 Only a new device is formatted with `nvfold mkfs`, which erases what it holds"
            }
            Cause::NoSuperblock => {
                "restore the device from a copy: no command can repair it without a superblock, and `nvfold mkfs` would \
                 erase it"
            }
            Cause::Truncated { whole_bytes } => {
                let repair = if is_fsck { "-y saves" } else { "`nvfold fsck --repair` saves" };
                return Some(format!("make it as long again with `truncate -s {whole_bytes}`; then {repair} the rest"));
            }
            Cause::RepairInterrupted if is_fsck => "-y repeats the repair",
            Cause::RepairInterrupted => {
                "`nvfold fsck --repair` repeats it; `nvfold mount -o ro` and `nvfold export` read what is there"
            }
            Cause::PmIndexDamaged if command == "tune" => "--index dram replaces the index",
            Cause::PmIndexDamaged => "`nvfold tune --index dram` replaces the index",
            Cause::Damaged if is_fsck => "copy what can be read with `nvfold export`",
            Cause::Damaged => "`nvfold fsck` on the unmounted device shows what can be repaired",
            Cause::BadMemory if is_fsck => return None,
            Cause::BadMemory => "`nvfold fsck` on the unmounted device lists the files that it damages",
            Cause::Newer => "use the nvfold that made it, or a newer one",
            Cause::Older => "export its files with the nvfold that made it, and import them into a new device",
            Cause::OtherByteOrder => "export its files on such a machine, and import them into a new device",
            Cause::Missing if ["mount", "import", "run", "serve"].contains(&command) => {
                "`nvfold mkfs DEVICE --size 1G` makes a device"
            }
            Cause::Missing => return None,
            Cause::Empty => "`nvfold mkfs DEVICE --size 1G` makes a device of it",
            Cause::Busy { device } => return Some(busy(device)),
            Cause::ReadOnlyFile if ["mount", "serve"].contains(&command) => {
                "option ro mounts it read-only; to write, change its permissions"
            }
            Cause::ReadOnlyFile => "change its permissions, or run the command as its owner",
            Cause::Replay => {
                "`nvfold mount -o ro` and `nvfold export` read it as it is; if its disk is full, free some space there"
            }
        };
        Some(hint.to_owned())
    }
}

/// Advises on a device that another process owns.
fn busy(device: &str) -> String {
    match mounts::of_device(Path::new(device)) {
        Some(mounted) => {
            let dir = mounted.dir.display();
            format!("it is mounted on {dir}: use it there, or unmount it with `nvfold umount {dir}`")
        }
        None => "wait until that process has ended, or end it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every cause, and the commands of which one could be advised to run itself.
    #[test]
    fn no_command_is_advised_to_run_itself() {
        let causes = [
            Cause::NotNvfold,
            Cause::NoSuperblock,
            Cause::Truncated { whole_bytes: 1 << 30 },
            Cause::RepairInterrupted,
            Cause::PmIndexDamaged,
            Cause::Damaged,
            Cause::BadMemory,
            Cause::Newer,
            Cause::Older,
            Cause::OtherByteOrder,
            Cause::Missing,
            Cause::Empty,
            Cause::Busy { device: "/none".into() },
            Cause::ReadOnlyFile,
        ];
        for cause in causes {
            for command in ["fsck", "tune", "info"] {
                let hint = cause.hint(command).unwrap_or_default();
                assert!(!hint.contains(&format!("nvfold {command}")), "{command}: {hint}");
            }
        }
    }

    #[test]
    fn formatting_is_never_the_remedy_for_a_device_that_may_hold_data() {
        for cause in [Cause::NotNvfold, Cause::NoSuperblock] {
            for command in ["fsck", "mount", "info", "import"] {
                let hint = cause.hint(command).unwrap();
                assert!(hint.contains("restore") && hint.contains("erase"), "{hint}");
            }
        }
    }

    #[test]
    fn the_cause_is_found_within_wrapping_errors() {
        let corrupt = || Error::Corrupt { what: "inode 7".into(), at: 0 };
        let missing = || std::io::Error::from(ErrorKind::NotFound);
        let absent = |doing| PmemError::Io { doing, device: "pool".into(), source: missing() };
        assert_eq!(Cause::of(&corrupt()), Some(Cause::Damaged));
        assert_eq!(Cause::of(&Error::Device(absent("open"))), Some(Cause::Missing));
        assert_eq!(Cause::of(&absent("create")), None, "its directory is missing");
        let of_tree = host::TreeError::FileSystem { doing: "export", path: "/".into(), source: corrupt() };
        assert_eq!(Cause::of(&of_tree), Some(Cause::Damaged));
        assert_eq!(Cause::of(&missing()), None);
    }
}
