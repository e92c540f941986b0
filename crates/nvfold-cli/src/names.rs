//! The other names of this program, and the commands that they stand for.
//!
//! mkfs(8), mount(8), umount(8) and fsck(8) look for a program named after the file system type; a link with that
//! name to `nvfold` serves as that program. If mount(8) finds only libfuse's mount.fuse, that runs `nvfold DEVICE DIR
//! -o OPTIONS`.

use crate::cli::Cli;
use crate::helpers::HELPERS;
use clap::CommandFactory;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Returns the arguments of the equivalent call of `nvfold`.
pub(crate) fn as_nvfold(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let called = arguments.first().map(Path::new).and_then(Path::file_name).unwrap_or_default().to_owned();
    let helper = HELPERS.iter().find(|(helper, _)| called == *helper).map(|(_, command)| *command);
    let is_call_of_mount = helper.is_none() && is_mount_helper_call(&arguments);
    let stands_for: &[&str] = match helper.or(is_call_of_mount.then_some("mount")) {
        // Like mount(8) and umount(8), these print nothing on success.
        Some("mount") => &["mount", "--quiet"],
        Some("umount") => &["umount", "--quiet"],
        Some("mkfs") => &["mkfs"],
        Some("fsck") => &["fsck"],
        _ => &[],
    };
    if !stands_for.is_empty() {
        let words = std::iter::once("nvfold").chain(stands_for.iter().copied()).map(OsString::from);
        arguments.splice(..1.min(arguments.len()), words);
    }
    if arguments.get(1).is_some_and(|command| command == "mount") {
        arguments.iter_mut().filter(|argument| *argument == "-f").for_each(|argument| {
            // mount(8) passes `-f` for "fake" to a helper; for `nvfold mount` itself, `-f` means foreground.
            if !stands_for.is_empty() {
                *argument = "--fake".into();
            }
        });
    }
    arguments
}

/// Returns the name of the command among the arguments; empty if there is none.
pub(crate) fn command_in(arguments: &[OsString]) -> String {
    let cli = Cli::command();
    let is_command = |word: &&str| {
        cli.get_subcommands().any(|command| command.get_name_and_visible_aliases().iter().any(|name| name == word))
    };
    arguments.iter().skip(1).filter_map(|word| word.to_str()).find(is_command).unwrap_or_default().to_owned()
}

/// Returns true for the call `nvfold DEVICE DIR -o ...` from mount.fuse.
fn is_mount_helper_call(arguments: &[OsString]) -> bool {
    let [_, device, dir, option, ..] = arguments else { return false };
    let is_word = |argument: &OsStr| !argument.as_encoded_bytes().starts_with(b"-");
    let is_command = Cli::command()
        .get_subcommands()
        .any(|command| command.get_name_and_visible_aliases().iter().any(|name| *name == device) || device == "help");
    is_word(device) && is_word(dir) && option == "-o" && !is_command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(arguments: &[&str]) -> Vec<String> {
        let arguments = arguments.iter().map(OsString::from).collect();
        as_nvfold(arguments).into_iter().map(|argument| argument.into_string().unwrap()).collect()
    }

    #[test]
    fn names_of_helper_programs_select_their_command() {
        assert_eq!(called(&["/sbin/mkfs.nvfold", "dev"]), ["nvfold", "mkfs", "dev"]);
        assert_eq!(called(&["fsck.nvfold", "-a", "dev"]), ["nvfold", "fsck", "-a", "dev"]);
        assert_eq!(called(&["umount.fuse.nvfold", "/mnt"]), ["nvfold", "umount", "--quiet", "/mnt"]);
        assert_eq!(
            called(&["mount.fuse.nvfold", "dev", "/mnt", "-f"]),
            ["nvfold", "mount", "--quiet", "dev", "/mnt", "--fake"]
        );
    }

    #[test]
    fn a_call_by_the_own_name_is_left_unchanged() {
        assert_eq!(called(&["nvfold", "mount", "dev", "/mnt", "-f"]), ["nvfold", "mount", "dev", "/mnt", "-f"]);
        assert_eq!(called(&["nvfold", "import", "dev", "-o", "x"]), ["nvfold", "import", "dev", "-o", "x"]);
        assert_eq!(called(&["nvfold"]), ["nvfold"]);
    }

    #[test]
    fn the_verb_is_found_after_global_options() {
        let command = |words: &[&str]| command_in(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(command(&["nvfold", "--json", "info", "df"]), "info");
        assert_eq!(command(&["nvfold", "--progress", "never", "unmount", "dir"]), "unmount");
        assert_eq!(command(&["nvfold", "frobnicate"]), "");
    }

    #[test]
    fn a_call_by_libfuse_with_device_and_directory_becomes_mount() {
        assert_eq!(
            called(&["nvfold", "/dev/x", "/mnt", "-o", "rw"]),
            ["nvfold", "mount", "--quiet", "/dev/x", "/mnt", "-o", "rw"]
        );
    }
}
