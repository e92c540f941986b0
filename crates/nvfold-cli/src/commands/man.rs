//! `nvfold man`: prints one manual page on stdout, or writes all of them into a directory.
//!
//! | page | content |
//! |---|---|
//! | nvfold(1) | all commands |
//! | nvfold-mount(1), nvfold-snapshot-list(1), ... | a command, or a command of a command |
//! | mount.nvfold(8), mkfs.nvfold(8), ... | the same as the command that the helper program stands for |
//!
//! clap_mangen writes what clap knows of a command. Mount options are values of `-o` to clap, so their lists are
//! written here.

use crate::failure::{Doing, Failure, Outcome};
use crate::helpers::HELPERS;
use crate::option_list::Group;
use crate::report;
use crate::research::MountOptions;
use clap::{Args, Command};
use clap_mangen::Man as Generator;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use std::path::{Path, PathBuf};

/// Print a manual page, or write all of them into a directory
///
/// With --into, the pages of helper programs of mount(8), umount(8), mkfs(8) and fsck(8) are written too: they are
/// those of the commands.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold man mount | man -l -")]
pub(crate) struct Man {
    /// Command of the page, for example: snapshot list; by default nvfold itself
    command: Vec<String>,
    /// Write man1/nvfold.1, man1/nvfold-mkfs.1, man8/mkfs.nvfold.8, ... into this directory
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    into: Option<PathBuf>,
}

/// Runs the command; `cli` is the definition of the whole command line.
pub(crate) fn run(man: &Man, cli: Command) -> Outcome<u8> {
    let mut cli = cli.disable_help_subcommand(true);
    cli.build();
    if let Some(dir) = &man.into {
        write_all(&cli, dir).doing(format!("write manual pages into {}", dir.display()))?;
        return Ok(0);
    }
    let found = man.command.iter().try_fold(&cli, |command, name| command.find_subcommand(name));
    let found = found.filter(|command| !command.is_hide_set()).ok_or_else(|| {
        let why = "there is no such command";
        Failure::usage(man.command.join(" "), why).hint("`nvfold --help` lists the commands")
    })?;
    report::print(page(found).doing("write the manual page")?.trim_end())?;
    Ok(0)
}

/// Writes the pages of a command line into the folders of their sections.
fn write_all(cli: &Command, dir: &Path) -> std::io::Result<()> {
    let folder = |section: &str| {
        let folder = dir.join(format!("man{section}"));
        std::fs::create_dir_all(&folder).map(|()| folder)
    };
    let (commands, helpers) = (folder("1")?, folder("8")?);
    write_pages(cli, &commands)?;
    for (helper, command) in HELPERS {
        std::fs::write(helpers.join(format!("{helper}.8")), format!(".so man1/nvfold-{command}.1\n"))?;
    }
    Ok(())
}

/// Writes the pages of a command and of all below it.
fn write_pages(command: &Command, dir: &Path) -> std::io::Result<()> {
    std::fs::write(dir.join(format!("{}.1", name_of(command))), page(command)?)?;
    command.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| write_pages(below, dir))
}

/// Returns the name of the page of a command, such as nvfold-mount.
fn name_of(command: &Command) -> String {
    command.get_bin_name().unwrap_or(command.get_name()).replace(' ', "-")
}

/// Returns the page of a command in roff.
fn page(command: &Command) -> std::io::Result<String> {
    let options = MountOptions::of(command.get_name());
    let name = name_of(command);
    // The version without the commit, which is no part of a manual.
    let source = format!("nvfold {}", env!("CARGO_PKG_VERSION"));
    let man = Generator::new(described(command)).title(name.to_uppercase()).source(source).manual("nvfold manual");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    section("NAME", |roff| name_line(roff, command, &name)).to_writer(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if !options.common.is_empty() {
        section("MOUNT OPTIONS", |roff| list(roff, &options.common)).to_writer(&mut text)?;
        section("MOUNT OPTIONS FOR EXPERIMENTS", |roff| list(roff, &options.research)).to_writer(&mut text)?;
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    // That of commands with mount options is the list.
    if let Some(after) = command.get_after_help().filter(|_| options.common.is_empty()) {
        section("NOTES", |roff| paragraphs(roff, &after.to_string())).to_writer(&mut text)?;
    }
    section("SEE ALSO", |roff| see_also(roff, command, &name)).to_writer(&mut text)?;
    Ok(String::from_utf8(text).expect("all of it is text"))
}

/// Makes the example of a command the last paragraph of its description, because manual pages have no place before
/// that.
fn described(command: &Command) -> Command {
    let example = command.get_before_help().map(ToString::to_string);
    let about = command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string);
    match (example, about) {
        (Some(example), Some(about)) => command.clone().long_about(format!("{about}\n\n{example}")),
        _ => command.clone(),
    }
}

fn section(heading: &str, content: impl FnOnce(&mut Roff)) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    content(&mut roff);
    roff
}

/// Writes the line by which whatis(1) and apropos(1) find the page.
fn name_line(roff: &mut Roff, command: &Command, name: &str) {
    let helpers = helpers_of(command).map(|helper| format!(", {helper}")).collect::<String>();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    roff.text([roman(format!("{name}{helpers} - {about}"))]);
}

/// Returns the helper programs that stand for a command.
fn helpers_of(command: &Command) -> impl Iterator<Item = &'static str> {
    let bin_name = command.get_bin_name().unwrap_or_default().to_owned();
    HELPERS.iter().filter(move |(_, verb)| bin_name == format!("nvfold {verb}")).map(|(helper, _)| *helper)
}

/// Writes groups of mount options, an item for each option.
fn list(roff: &mut Roff, groups: &[&Group]) {
    for group in groups {
        roff.control("SS", [group.heading]);
        for (syntax, text) in group.options {
            roff.control("TP", []);
            roff.text([bold(*syntax)]);
            for (at, line) in text.split('\n').enumerate() {
                let new_line = (at > 0).then_some(Inline::LineBreak);
                roff.text(new_line.into_iter().chain([roman(line)]).collect::<Vec<_>>());
            }
        }
    }
}

fn paragraphs(roff: &mut Roff, text: &str) {
    for line in text.lines() {
        match line.trim().is_empty() {
            true => roff.control("PP", []),
            false => roff.text([roman(line)]),
        };
    }
}

/// Names the page of the command above, and the pages of the programs that call the helpers.
fn see_also(roff: &mut Roff, command: &Command, name: &str) {
    let above = name.rsplit_once('-').map(|(above, _)| match above {
        // Names of commands may have a hyphen.
        "nvfold" => format!("{above}(1)"),
        _ => command
            .get_bin_name()
            .and_then(|words| words.rsplit_once(' '))
            .map_or_else(String::new, |(above, _)| format!("{}(1)", above.replace(' ', "-"))),
    });
    let callers = helpers_of(command).filter_map(|helper| helper.split('.').next());
    let mut pages: Vec<String> = above.into_iter().chain(callers.map(|caller| format!("{caller}(8)"))).collect();
    pages.dedup();
    if pages.is_empty() {
        pages = ["mount", "umount", "mkfs", "fsck"].map(|caller| format!("{caller}(8)")).to_vec();
    }
    roff.text([roman(pages.join(", "))]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use crate::research::shown;
    use clap::CommandFactory;

    fn cli() -> Command {
        let mut cli = shown(Cli::command()).disable_help_subcommand(true);
        cli.build();
        cli
    }

    fn pages() -> Vec<(String, String)> {
        let dir = tempfile::tempdir().unwrap();
        write_all(&cli(), dir.path()).unwrap();
        let files = ["man1", "man8"].map(|folder| std::fs::read_dir(dir.path().join(folder)).unwrap());
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let paths = files.into_iter().flatten().map(|entry| entry.unwrap().path());
        paths.map(|path| (name(&path), std::fs::read_to_string(&path).unwrap())).collect()
    }

    #[test]
    fn pages_describe_commands_and_nothing_else() {
        let pages = pages();
        assert!(pages.len() > 40, "{}", pages.len());
        for (name, text) in &pages {
            assert!(!name.contains("-help") && !name.contains("bounded"), "{name} is no command for people");
            if let Some(target) = text.strip_prefix(".so man1/") {
                assert!(
                    name.ends_with(".8") && pages.iter().any(|(other, _)| other == target.trim()),
                    "{name}: {text}"
                );
            } else {
                assert!(text.contains(".SH DESCRIPTION") && text.contains(" \\- ") || text.contains(" - "), "{name}");
                assert!(text.contains("Example: nvfold"), "{name}");
            }
        }
    }

    #[test]
    fn each_mount_option_is_an_item_of_the_pages_that_take_it() {
        let pages = pages();
        for (command, name) in [("mount", "nvfold-mount.1"), ("import", "nvfold-import.1"), ("dedup", "nvfold-dedup.1")]
        {
            let text = &pages.iter().find(|(page, _)| page == name).unwrap().1;
            let MountOptions { common, research } = MountOptions::of(command);
            for (syntax, _) in common.into_iter().chain(research).flat_map(|group| group.options) {
                let item = format!(".TP\n\\fB{}\\fR\n", syntax.replace('-', "\\-"));
                assert!(text.contains(&item), "{name}: {syntax}\n{text}");
            }
        }
    }

    #[test]
    fn a_page_of_a_command_names_the_helpers_that_stand_for_it() {
        let mkfs = page(cli().find_subcommand("mkfs").unwrap()).unwrap();
        assert!(mkfs.contains("nvfold\\-mkfs, mkfs.nvfold \\- Make"), "{mkfs}");
        assert!(mkfs.contains("nvfold(1), mkfs(8)"), "{mkfs}");
    }
}
