//! Where figures come from: the command that makes them, and the commit of the program.
//!
//! A figure that cannot be made again is a rumour, so every report names both.

use crate::{Doing, Result};
use std::path::Path;

/// The command that runs.
pub fn command() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    format!("nvfold {}", arguments.join(" "))
}

/// Commit of the program, where the environment tells it in `NVFOLD_COMMIT`; `make bench` does.
pub fn commit() -> Option<String> {
    std::env::var("NVFOLD_COMMIT").ok().filter(|commit| !commit.is_empty())
}

/// What goes above a table: the command, and the commit if it is known.
pub fn heading(command: &str, commit: Option<&str>) -> String {
    commit.map_or(command.into(), |commit| format!("{command}, commit {commit}"))
}

/// Writes a report into a folder, which is made if need be: names of files, and what is in them.
pub fn save<'n>(folder: &Path, files: impl IntoIterator<Item = (&'n str, String)>) -> Result<()> {
    std::fs::create_dir_all(folder).doing(format!("make {}", folder.display()))?;
    for (name, text) in files {
        let file = folder.join(name);
        std::fs::write(&file, text).doing(format!("write {}", file.display()))?;
    }
    Ok(())
}
