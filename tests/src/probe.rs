//! Small C programs of `tests/programs`, for system calls that safe Rust lacks. Each is compiled where it is used.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::requires::tool;
use crate::run;

/// Compiles `tests/programs/NAME.c` into a directory. Tests that use it name `tool("cc")` among their needs.
#[track_caller]
pub fn compiled(name: &str, into: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).with_extension("c");
    let program = into.join(name);
    run::ok(Command::new(tool("cc")).args(["-O1", "-Wall", "-Werror", "-pthread", "-o"]).arg(&program).arg(source));
    program
}
