//! How a command reports.

use crate::progress::When;
use clap::Args;

/// How to report; the same for every command.
#[derive(Args, Clone, Debug)]
pub struct Output {
    /// Print the report as JSON with a format version
    #[arg(long, global = true)]
    pub json: bool,
    /// Show progress on stderr
    #[arg(long, global = true, value_enum, default_value_t = When::Auto, value_name = "WHEN")]
    pub progress: When,
}
