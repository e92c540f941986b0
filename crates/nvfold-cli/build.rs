//! Gives the command its version, for `nvfold --version`: `0.1.0 (1a2b3c4d5e6f 2026-11-28)`.
//!
//! Commit and day are the first of these that there are:
//!
//! 1. `NVFOLD_COMMIT` and `NVFOLD_COMMIT_DATE`, which the makefile and packages set;
//! 2. the commit that cargo writes into a crate that is published;
//! 3. that of the clone, as git tells it. Not in a development build: each commit would compile the command anew.
//!
//! Without any of them the version stands alone. The same sources give the same text on each machine.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=NVFOLD_COMMIT");
    println!("cargo:rerun-if-env-changed=NVFOLD_COMMIT_DATE");
    let version = env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    let built = match env::var("PROFILE").as_deref() {
        _ if is_set("NVFOLD_COMMIT") => named(),
        Ok("release") => published().or_else(of_clone),
        _ => Some("development build".to_owned()),
    };
    let built = built.map_or_else(String::new, |built| format!(" ({built})"));
    println!("cargo:rustc-env=NVFOLD_VERSION={version}{built}");
}

fn is_set(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// Returns what the variables say.
fn named() -> Option<String> {
    let commit = env::var("NVFOLD_COMMIT").ok()?;
    let date = env::var("NVFOLD_COMMIT_DATE").unwrap_or_default();
    Some(format!("{commit} {date}").trim_end().to_owned())
}

/// Returns the commit from which cargo packed this crate.
fn published() -> Option<String> {
    let text = std::fs::read_to_string(crate_dir().join(".cargo_vcs_info.json")).ok()?;
    let hash = text.split("\"sha1\"").nth(1)?.split('"').nth(1)?;
    Some(hash.get(..12)?.to_owned())
}

/// Returns commit and day of the clone of nvfold that this crate lies in.
fn of_clone() -> Option<String> {
    let root = crate_dir().join("../..");
    // Else this crate lies in the clone of something else.
    if !root.join(".git").exists() {
        return None;
    }
    for name in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(&root, &["rev-parse", "--git-path", name])?);
        // A file that is not there would compile the command each time.
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    let commit = git(&root, &["describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"])?;
    let date = git(&root, &["log", "-1", "--format=%cs"])?;
    Some(format!("{commit} {date}"))
}

fn crate_dir() -> PathBuf {
    PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
}

/// Returns what git prints; `None` if there is no git, or if it fails.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
