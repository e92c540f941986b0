//! The `nvfold` command that is measured: named by `NVFOLD_BIN`, or the one that cargo has put beside this program.

use crate::{Doing, Result};
use nvfold_bench::process::own_program;
use std::path::PathBuf;

/// Returns the path of the `nvfold` command.
pub(crate) fn nvfold() -> Result<PathBuf> {
    let path = match std::env::var_os("NVFOLD_BIN") {
        Some(path) => path.into(),
        None => own_program()?.with_file_name("nvfold"),
    };
    std::fs::metadata(&path).doing(format!("find the command {} (NVFOLD_BIN names another one)", path.display()))?;
    Ok(path)
}
