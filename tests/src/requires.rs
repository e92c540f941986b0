//! The needs of a test that may be missing.
//!
//! `requires!(root, fuse, tool("fio"))` at the top of a test returns early with a printed reason if one of them is
//! missing; with `CI=true` it panics instead, so that no test is skipped unnoticed there.

use std::path::{Path, PathBuf};

/// A resource that a test cannot do without.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// The rights of root: device nodes, owners, mounts.
    Root,
    /// /dev/fuse that can be opened.
    Fuse,
    /// Requests of FUSE by io_uring.
    Ring,
    /// overlayfs.
    Overlay,
    /// A program.
    Tool(&'static str),
}

/// The kernel's setting for FUSE requests by io_uring; a kernel older than 6.14 has no such file.
const RING_ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";

impl Need {
    /// Returns whether it is a setting or a part of the kernel that the tests do not change.
    fn is_the_kernels(self) -> bool {
        matches!(self, Need::Ring | Need::Overlay)
    }

    /// Returns why the need is not met, or `None`.
    pub fn missing(self) -> Option<String> {
        match self {
            Need::Root if !rustix::process::geteuid().is_root() => Some("needs root".into()),
            Need::Fuse if crate::mount::test_dir().is_none() => std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/fuse")
                .err()
                .map(|error| format!("needs /dev/fuse: {error}")),
            Need::Ring => match std::fs::read_to_string(RING_ENABLED) {
                Ok(text) if text.trim() == "Y" => None,
                Ok(_) => Some(format!("needs Y in {RING_ENABLED}: root may write it there")),
                Err(_) => Some("needs FUSE over io_uring (Linux 6.14)".into()),
            },
            Need::Overlay if !kernel_has_overlay() => Some("needs overlayfs in the kernel".into()),
            Need::Tool(name) if find_tool(name).is_none() => {
                Some(format!("needs the program {name}; run scripts/test-deps.sh"))
            }
            _ => None,
        }
    }
}

/// Returns whether the kernel has overlayfs, as a module that can be loaded or built in.
fn kernel_has_overlay() -> bool {
    let is_listed = || std::fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains("\toverlay\n"));
    let loads = || std::process::Command::new("modprobe").args(["-q", "overlay"]).status().is_ok();
    is_listed() || (loads() && is_listed())
}

/// Returns the path of a program: first those that scripts/test-deps.sh built, then NVFOLD_POSTGRESQL, PATH, the sbin
/// directories, and the newest server of PostgreSQL, which Debian keeps out of PATH.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(built)
        .chain(std::env::var_os("NVFOLD_POSTGRESQL").map(PathBuf::from))
        .chain(std::env::split_paths(&path))
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .chain(newest_postgresql())
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}

fn newest_postgresql() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let version = |name: std::ffi::OsString| name.to_str()?.parse::<u32>().ok();
    let newest = versions.flatten().filter_map(|entry| version(entry.file_name())).max()?;
    Some(PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin")))
}

/// Returns the path of a program that `requires!` has found.
pub fn tool(name: &str) -> PathBuf {
    find_tool(name).unwrap_or_else(|| panic!("{name} is not installed; run scripts/test-deps.sh"))
}

/// Returns true if all needs are met; else prints why not, or panics under `CI=true`.
pub fn met(needs: &[Need]) -> bool {
    let missing: Vec<(&Need, String)> = needs.iter().filter_map(|need| Some((need, need.missing()?))).collect();
    if missing.is_empty() {
        return true;
    }
    let may_be_missing = missing.iter().all(|(need, _)| need.is_the_kernels());
    let why = missing.into_iter().map(|(_, why)| why).collect::<Vec<_>>().join("; ");
    let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    if is_ci && !may_be_missing {
        panic!("nothing may be skipped with CI=true, but this test {why}");
    }
    eprintln!("skipped: this test {why}");
    false
}

/// Returns from the test with a printed reason if a need is missing.
#[macro_export]
macro_rules! requires {
    (@need root) => { $crate::requires::Need::Root };
    (@need ring) => { $crate::requires::Need::Ring };
    (@need overlay) => { $crate::requires::Need::Overlay };
    (@need fuse) => { $crate::requires::Need::Fuse };
    (@need tool($name:literal)) => { $crate::requires::Need::Tool($name) };
    ($($need:ident $(($name:literal))?),+ $(,)?) => {
        if !$crate::requires::met(&[$($crate::requires!(@need $need $(($name))?)),+]) {
            return;
        }
    };
}
