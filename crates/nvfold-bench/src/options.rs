//! Options of `bench write`, `bench read` and `bench meta`: how much, how often, where, and what is left out.

use clap::Args;
use std::path::PathBuf;

/// How to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// MiB written or read in one pass, by all threads together
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=16384))]
    pub mebibytes: u64,
    /// Number of passes; the report gives their median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Number of files that `meta` makes
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(10..=10_000_000))]
    pub files: u64,
    /// Folder for the mounts, on tmpfs
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    pub dir: PathBuf,
    /// Leave out everything that needs a mount
    #[arg(long)]
    pub embedded_only: bool,
    /// Small sizes, to test that the benchmark runs; not for figures
    #[arg(long)]
    pub smoke: bool,
    /// Write the ratios as Markdown tables
    #[arg(long, value_name = "FILE.md")]
    pub summary: Option<PathBuf>,
}

impl Options {
    /// Returns the options with the sizes of a smoke run, if it is one.
    pub fn settled(mut self) -> Options {
        if self.smoke {
            (self.mebibytes, self.repeats, self.files) = (4, 2, 200);
        }
        self
    }
}
