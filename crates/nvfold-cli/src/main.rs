//! The `nvfold` command: makes the library available on the command line.
//!
//! | module | content |
//! |---|---|
//! | [`cli`], [`commands`] | the command line; one file for each command |
//! | [`research`], [`option_list`] | which options `--help` shows, and which `--help-research`; lists of mount options |
//! | [`names`], [`helpers`] | other names of the program: mkfs.nvfold, mount.fuse.nvfold, fsck.nvfold, ... |
//! | [`mount`] | serving a mount, with `nvfold_mount`; what commands ask of one |
//! | [`service`] | a mount as a service: its file, its steps, the service manager |
//! | [`stored`] | access to stored files, through a mount or on a device |
//! | [`descent`] | walks over trees, of a device or of the host |
//! | [`statistics`], [`traffic`] | the facts in reports; traffic and wear |
//! | [`device`], [`dedup_options`] | opening devices; the options for deduplication |
//! | [`mounts`], [`utab`], [`size`] | the kernel's mount table and umount(8)'s; sizes |
//! | [`server`], [`bounded`] | the process that serves a mount; calls to it that are given up after a time |
//! | [`unmount`] | unmounting |
//! | [`output`], [`report`], [`progress`], [`problems`], [`text`] | output on stdout and stderr |
//! | [`log`], [`metrics`] | what a mount logs, and where to; its figures for monitoring |
//! | [`failure`], [`remedy`], [`errno_names`] | errors of a command; what to do about errors of the library |
//! | [`stop`] | signals that end long work cleanly |
//! | `pages` | test: the commands in the pages of the repository |
#![forbid(unsafe_code)]

#[cfg(panic = "abort")]
compile_error!("a mount contains panics in background work, which needs panic=unwind");

mod bounded;
mod cli;
mod commands;
mod dedup_options;
mod descent;
mod device;
mod errno_names;
mod failure;
mod helpers;
mod log;
mod metrics;
mod mount;
mod mounts;
mod names;
mod option_list;
mod output;
#[cfg(test)]
mod pages;
mod problems;
mod progress;
mod remedy;
mod report;
mod research;
mod server;
mod service;
mod size;
mod statistics;
mod stop;
mod stored;
mod text;
mod traffic;
mod unmount;
mod utab;

use clap::error::ErrorKind;
use clap::{Command as Definition, CommandFactory, FromArgMatches};
use cli::{Cli, Command};
use commands::*;
use failure::Outcome;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = names::as_nvfold(std::env::args_os().collect());
    if arguments.len() < 2 {
        failure::eprint_line(cli::FIRST_STEPS);
        return ExitCode::from(failure::USAGE);
    }
    let name = names::command_in(&arguments);
    let is_fsck = name == "fsck";
    if arguments.iter().any(|argument| argument == "--json") {
        failure::report_as_json();
    }
    let asks_for_research = arguments.iter().any(|argument| argument == "--help-research");
    let parsed = definition().try_get_matches_from(arguments).and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli.with_quiet(),
        Err(error) if error.kind() == ErrorKind::DisplayHelp && asks_for_research => {
            let _ = report::print(&research::page(definition(), &name));
            return ExitCode::SUCCESS;
        }
        Err(error) => return wrong_usage(&error, &name, is_fsck),
    };
    let code = run(&cli).unwrap_or_else(|failure| {
        let failure = if is_fsck { failure.exits_with(fsck::OPERATIONAL) } else { failure };
        failure.report(&name);
        if let Some(signal) = failure.signal {
            stop::end_by(signal);
        }
        failure.code
    });
    ExitCode::from(code)
}

/// Prints help, or what is wrong with a command line.
fn wrong_usage(error: &clap::Error, command: &str, is_fsck: bool) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let code = if is_fsck { fsck::USAGE } else { failure::USAGE };
    if failure::is_as_json() {
        let text = error.render().to_string();
        let why = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        failure::Failure::usage("", why).exits_with(code).report(command);
    } else {
        let _ = error.print();
    }
    ExitCode::from(code)
}

/// Returns the definition of the whole command line.
fn definition() -> Definition {
    research::with_notes(Cli::command())
}

fn run(cli: &Cli) -> Outcome<u8> {
    let output = &cli.output;
    match &cli.command {
        Command::Mkfs(command) => mkfs::run(command, output),
        Command::Mount(command) => commands::mount::run(command, output),
        Command::Umount(command) => umount::run(command, output),
        Command::Serve(command) => serve::run(command, output),
        Command::Sync(command) => sync::run(command, output),
        Command::Info(command) => info::run(command, output),
        Command::Df(command) => df::run(command, output),
        Command::Du(command) => du::run(command, output),
        Command::Stats(command) => stats::run(command, output),
        Command::DedupStats(command) => dedup_stats::run(command, output),
        Command::Top(command) => top::run(command, output),
        Command::Metrics(command) => commands::metrics::run(command, output),
        Command::Clone(command) => commands::clone::run(command, output),
        Command::Snapshot(command) => snapshot::run(command, output),
        Command::Dedup(command) => dedup::dedup(command, output),
        Command::Undedup(command) => dedup::undedup(command, output),
        Command::Reclaim(command) => reclaim::run(command, output),
        Command::Remove(command) => remove::run(command, output),
        Command::Set(command) => limits::set(command, output),
        Command::Get(command) => limits::get(command, output),
        Command::Policy(command) => policy::run(command, output),
        Command::Tune(command) => tune::run(command, output),
        Command::Resize(command) => resize::run(command, output),
        Command::Fsck(command) => fsck::run(command, output),
        Command::Backup(command) => backup::run(command, output),
        Command::Import(command) => import::run(command, output),
        Command::Export(command) => export::run(command, output),
        Command::Verify(command) => verify::run(command, output),
        Command::Estimate(command) => estimate::run(command, output),
        Command::Run(command) => commands::run::run(command).map(|never| match never {}),
        Command::Bench(command) => commands::bench::run(command, output),
        Command::Completions(command) => completions::run(command, research::shown(Cli::command())),
        Command::BoundedCall(call) => bounded::run(call),
        Command::Man(command) => man::run(command, research::shown(Cli::command())),
    }
}
