//! `nvfold man`: prints one manual page on stdout, or writes all of them into a directory.

use crate::failure::{Doing, Failure, Outcome};
use crate::report;
use clap::{Args, Command};
use std::path::PathBuf;

/// Print a manual page, or write all of them into a directory
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold man mount | man -l -")]
pub(crate) struct Man {
    /// Command of the page; by default nvfold itself
    command: Option<String>,
    /// Write nvfold.1, nvfold-mkfs.1, ... into this directory
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    into: Option<PathBuf>,
}

/// Makes the example of each command its first paragraph, because manual pages have no place before the description.
fn with_examples(command: Command) -> Command {
    let example = command.get_before_help().map(ToString::to_string);
    let about = command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string);
    let command = match (example, about) {
        (Some(example), Some(about)) => command.long_about(format!("{example}\n\n{about}")),
        _ => command,
    };
    command.mut_subcommands(with_examples)
}

/// Runs the command; `cli` is the definition of the whole command line.
pub(crate) fn run(man: &Man, mut cli: Command) -> Outcome<u8> {
    cli = with_examples(cli);
    cli.build();
    if let Some(dir) = &man.into {
        clap_mangen::generate_to(cli, dir).doing(format!("write manual pages into {}", dir.display()))?;
        return Ok(0);
    }
    let command = match &man.command {
        None => cli,
        Some(name) => {
            let found = cli.find_subcommand(name).cloned();
            let found = found.ok_or_else(|| {
                Failure::usage(name, "there is no such command").hint("`nvfold --help` lists the commands")
            })?;
            let page_name = found.get_bin_name().unwrap_or(name).replace(' ', "-");
            found.name(clap::builder::Str::from(page_name.leak() as &'static str))
        }
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).doing("write the manual page")?;
    report::print(String::from_utf8_lossy(&page).trim_end())?;
    Ok(0)
}
