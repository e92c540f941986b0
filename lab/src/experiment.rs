//! What all experiments have in common: two options, the head of a report, and where a report goes.
//!
//! An experiment measures and fills in its own report ([`Publish`]). [`Common::publish`] does the rest: `--out` gets the figures as
//! JSON, a page, and pictures; the terminal gets a table, or the JSON.

use crate::Result;
use clap::Args;
use nvfold_bench::origin::{self, save};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Name of this program in the commands of reports.
const PROGRAM: &str = "nvfold-lab";

/// Returns the command that is running.
pub(crate) fn command() -> String {
    origin::command(PROGRAM)
}

/// Options of every experiment.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Folder for the page, the figures as JSON, and pictures
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Small sizes, to test that it runs; not for figures
    #[arg(long)]
    pub smoke: bool,
}

/// The first fields of a report in JSON: what it is, and what made it.
#[derive(Debug, Serialize)]
pub(crate) struct Head {
    version: u32,
    benchmark: &'static str,
    command: String,
    commit: Option<String>,
}

impl Head {
    /// Makes the head of a report that is made now, with the name of the experiment and the version of its schema.
    pub(crate) fn new(benchmark: &'static str, version: u32) -> Head {
        Head { version, benchmark, command: command(), commit: origin::commit() }
    }

    /// Returns the heading of a table on the terminal.
    pub(crate) fn heading(&self) -> String {
        origin::heading(&self.command, self.commit.as_deref())
    }

    /// Returns the same in Markdown.
    pub(crate) fn marked_heading(&self) -> String {
        origin::heading(&format!("`{}`", self.command), self.commit.as_deref())
    }
}

/// Everything that an experiment has measured.
pub(crate) trait Publish: Serialize {
    /// Name of its page in the folder of results.
    const PAGE: &'static str = "README.md";

    /// Returns its head.
    fn head(&self) -> &Head;

    /// Returns its page, in Markdown.
    fn page(&self) -> String;

    /// Returns its tables for the terminal.
    fn table(&self) -> String;

    /// Draws its pictures into a folder.
    ///
    /// # Errors
    /// If a picture cannot be drawn or written.
    fn draw(&self, _folder: &Path) -> Result<()> {
        Ok(())
    }
}

impl Common {
    /// Writes a report into the folder that was asked for, and prints it.
    pub(crate) fn publish(&self, report: &impl Publish, json: bool) -> Result<()> {
        let text = serde_json::to_string_pretty(report).expect("numbers and strings have a JSON form");
        if let Some(folder) = &self.out {
            write(report, &text, folder)?;
        }
        println!("{}", if json { text } else { report.table() });
        Ok(())
    }
}

fn write<R: Publish>(report: &R, json: &str, folder: &Path) -> Result<()> {
    let figures = format!("{}.json", report.head().benchmark);
    save(folder, [(figures.as_str(), format!("{json}\n")), (R::PAGE, report.page())])?;
    report.draw(folder)
}
