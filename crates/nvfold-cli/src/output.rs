//! How a command reports.

use crate::progress::When;
use clap::{ArgAction, Args};

/// How to report; the same for every command.
#[derive(Args, Clone, Debug)]
pub(crate) struct Output {
    /// Print the report as JSON with a format version
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
    /// Print only what was asked for, and errors: no progress, and nothing when work is done
    #[arg(short, long, global = true, help_heading = "Output")]
    pub quiet: bool,
    /// Show progress on stderr
    #[arg(long, global = true, value_enum, default_value_t = When::Auto, value_name = "WHEN", help_heading = "Output")]
    pub progress: When,
    /// Print the options for experiments
    #[arg(long, global = true, hide = true, action = ArgAction::Help)]
    help_research: Option<bool>,
}
