//! The origin of figures: the command that makes them, and the commit of the program.
//!
//! A figure that cannot be reproduced has no value, so every report names both.

use crate::{Doing, Result};
use std::path::Path;

/// Returns the command that is running, which is called `program`.
pub fn command(program: &str) -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    format!("{program} {}", arguments.join(" "))
}

/// Returns the commit of the program from `NVFOLD_COMMIT`, if it is set; `make bench` sets it.
pub fn commit() -> Option<String> {
    std::env::var("NVFOLD_COMMIT").ok().filter(|commit| !commit.is_empty())
}

/// Returns the heading of a table: the command, and the commit if it is known.
pub fn heading(command: &str, commit: Option<&str>) -> String {
    commit.map_or(command.into(), |commit| format!("{command}, commit {commit}"))
}

/// Writes the files of a report, given by name and text, into a folder, which it creates if necessary.
pub fn save<'n>(folder: &Path, files: impl IntoIterator<Item = (&'n str, String)>) -> Result<()> {
    std::fs::create_dir_all(folder).doing(format!("make {}", folder.display()))?;
    for (name, text) in files {
        let file = folder.join(name);
        std::fs::write(&file, text).doing(format!("write {}", file.display()))?;
    }
    Ok(())
}
