//! The two pages of help about options: `--help` has those that people use, `--help-research` those for experiments.
//!
//! An option for experiments is an argument with the heading [`RESEARCH`], hidden in `--help`, or a mount
//! option in a [`Group`] for experiments. All of them work whether they are shown or not.

use crate::dedup_options;
use crate::mount::options_lists;
use crate::option_list::{Group, RESEARCH, listed};
use clap::{Arg, Command};

/// The mount options that `-o` of a command takes.
#[derive(Default)]
pub(crate) struct MountOptions {
    /// Those that people use.
    pub common: Vec<&'static Group>,
    /// Those for experiments.
    pub research: Vec<&'static Group>,
}

impl MountOptions {
    /// Returns the options of a command; none if it has no `-o`, or one of another kind.
    pub(crate) fn of(command: &str) -> MountOptions {
        match command {
            "mount" => {
                let (common, research) = options_lists();
                MountOptions { common, research }
            }
            "import" | "dedup" | "undedup" => {
                let research = dedup_options::RESEARCH_GROUPS.iter().collect();
                MountOptions { common: vec![&dedup_options::GROUP], research }
            }
            _ => MountOptions::default(),
        }
    }
}

fn is_research(arg: &Arg) -> bool {
    arg.get_help_heading() == Some(RESEARCH)
}

/// Ends the help of each command that has options for experiments with a line about them.
pub(crate) fn with_notes(command: Command) -> Command {
    command.mut_subcommands(|command| {
        let command = with_notes(command);
        if !command.get_arguments().any(is_research) {
            return command;
        }
        let note = format!("Options for experiments: nvfold {} --help-research", command.get_name());
        let after = |text: Option<String>| text.map_or(note.clone(), |text| format!("{text}\n\n{note}"));
        let short = command.get_after_help().map(ToString::to_string);
        let long = command.get_after_long_help().map(ToString::to_string);
        let command = match long {
            Some(long) => command.after_long_help(after(Some(long))),
            None => command,
        };
        command.after_help(after(short))
    })
}

/// Returns the page of `--help-research` of a command; `cli` is the definition of the whole command line.
pub(crate) fn page(cli: Command, command: &str) -> String {
    let mut cli = cli;
    cli.build();
    let Some(found) = cli.find_subcommand(command).filter(|found| found.get_arguments().any(is_research)) else {
        return format!("nvfold {command} has no options for experiments").replace("  ", " ");
    };
    let options = match MountOptions::of(command).research {
        groups if groups.is_empty() => String::new(),
        groups => format!("Mount options (-o NAME=VALUE,...):\n\n{}", listed(groups)),
    };
    let page = found.clone().mut_args(|arg| {
        let is_hidden = !is_research(&arg);
        arg.hide(is_hidden)
    });
    let page = page.before_help("").about(format!("Options of nvfold {command} for experiments")).long_about(None);
    let mut page = page.after_help("").after_long_help(options).help_template("{about}\n\n{all-args}{after-help}");
    page.render_long_help().to_string().trim_end().to_owned()
}

/// Shows the options for experiments beside the others, for manual pages and completions.
pub(crate) fn shown(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let is_hidden = arg.is_hide_set() && !is_research(&arg);
        arg.hide(is_hidden)
    });
    command.mut_subcommands(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use crate::option_list::{COLUMN, WIDTH};
    use clap::CommandFactory;

    fn cli() -> Command {
        with_notes(Cli::command())
    }

    fn help_of(name: &str) -> String {
        let mut cli = cli();
        cli.build();
        cli.find_subcommand_mut(name).unwrap().render_long_help().to_string()
    }

    #[test]
    fn the_help_of_mount_has_what_people_use_and_the_research_page_the_rest() {
        let (help, research) = (help_of("mount"), page(cli(), "mount"));
        for option in ["size=", "policy=", "compress=", "ro, rw", "allow_other", "threads=", "--foreground"] {
            assert!(help.contains(option) && !research.contains(option), "{option}\n{help}\n{research}");
        }
        for option in [
            "weak=",
            "strong=",
            "verify=",
            "method=",
            "generators=",
            "period=",
            "reorder=",
            "guard=",
            "profile=",
            "flush=",
            "--profile",
            "--flush",
        ] {
            assert!(!help.contains(option) && research.contains(option), "{option}\n{help}\n{research}");
        }
        assert_eq!(help.trim_end().lines().last(), Some("Options for experiments: nvfold mount --help-research"));
    }

    #[test]
    fn every_command_with_research_options_points_to_their_page() {
        let cli = cli();
        for command in cli.get_subcommands() {
            let name = command.get_name();
            let has_some = command.get_arguments().any(is_research);
            let last = help_of(name).trim_end().lines().last().unwrap().to_owned();
            assert_eq!(last.ends_with(&format!("nvfold {name} --help-research")), has_some, "{name}: {last}");
            assert_eq!(page(cli.clone(), name).contains("no options for experiments"), !has_some, "{name}");
        }
    }

    #[test]
    fn options_for_experiments_are_shown_and_internal_ones_are_not() {
        let shown = shown(cli());
        let mount = shown.find_subcommand("mount").unwrap();
        assert!(mount.get_arguments().filter(|arg| is_research(arg)).all(|arg| !arg.is_hide_set()));
        assert!(mount.get_arguments().any(|arg| arg.get_id() == "background_child" && arg.is_hide_set()));
    }

    #[test]
    fn lines_of_options_are_short_and_their_texts_aligned() {
        let MountOptions { common, research } = MountOptions::of("mount");
        for line in listed(common).lines().chain(listed(research).lines()) {
            assert!(line.len() <= WIDTH && (!line.starts_with("   ") || line[..COLUMN].trim().is_empty()), "{line}");
        }
    }
}
