//! Copies whole trees between file systems of the host and a device: [`import`], [`export`], [`verify`].
//! [`estimate`](estimate()) predicts what sharing would save on files of the host.
//!
//! The problem: a tree is larger than memory, and has holes, hard links, device nodes, attributes and unreadable
//! files. Walking it takes so long that a user wants to see the progress, and to be able to stop it.
//!
//! The idea: one thread walks and several copy, with a bounded queue between them, so memory does not grow with the
//! tree. Only directories, whose times are set last, and files with several names are remembered. A problem with one
//! file is recorded, and the work continues. It ends early if the device is full, or if the caller's callback asks
//! for it.
//!
//! ```text
//! tree -> walk, one thread -> queue, 256 files -> threads that copy or compare -> counts, problems -> Report
//!                                                       |
//!               caller's thread: callback(Progress) ten times a second -> go on, or stop
//! ```
//!
//! This is the only module that makes system calls. Otherwise it uses only the public interface: [`FileSystem`],
//! [`File`](crate::File), and the sizes that [`media`](crate::media) publishes. No thread outlives a call.
//!
//! | file | contents |
//! |---|---|
//! | `import`, `export`, `verify` | one task each |
//! | `estimate` | what sharing would save |
//! | `walk`, `dir`, `files` | trees, directories and files of the host |
//! | `crew`, `tally` | the threads, and the counts that they share |
//! | `report`, `error` | progress and results; errors that end the work early |
//!
//! ```
//! use nvfold::host::{self, ExportOptions, ImportOptions, VerifyOptions};
//! use std::ops::ControlFlow;
//! # use nvfold::{FileSystem, MkfsOptions, MountOptions};
//! # use pmem::{DeviceSpec, OpenOptions, Region};
//! # let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default())?;
//! # FileSystem::mkfs(&region, &MkfsOptions::default())?;
//! # let fs = FileSystem::mount(region, MountOptions::default())?;
//! # let dir = tempfile::tempdir()?;
//! # let (songs, copy) = (dir.path().join("songs"), dir.path().join("copy"));
//! # std::fs::create_dir(&songs)?;
//! # std::fs::write(songs.join("one"), [7; 10_000])?;
//! let mut show = |so_far: host::Progress| {
//!     println!("{} files, {} bytes", so_far.files, so_far.bytes);
//!     ControlFlow::Continue(())
//! };
//! host::import(&fs, &ImportOptions { sources: vec![songs.clone()], ..Default::default() }, &mut show)?;
//! let compared = host::verify(&fs, &VerifyOptions { source: songs, ..Default::default() }, &mut show)?;
//! assert_eq!((compared.files, compared.problem_count), (1, 0));
//!
//! host::export(&fs, &ExportOptions { from: "/songs".into(), to: copy.clone(), threads: 2 }, &mut show)?;
//! assert_eq!(std::fs::read(copy.join("one"))?, [7; 10_000]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod crew;
mod dir;
mod error;
mod estimate;
mod export;
mod files;
mod import;
mod report;
mod tally;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
mod verify;
mod walk;

pub use error::{TreeError, TreeResult};
pub use estimate::{Distinct, Estimate, EstimateOptions, Needs, PathCounts, PathEstimate, Savings, estimate};
pub use export::{ExportOptions, export};
pub use files::{kind, names};
pub use import::{ImportOptions, import};
pub use report::{Problem, Progress, TreeReport, Watch, shortened};
pub use verify::{VerifyOptions, verify};

use crate::{DirEntry, FileSystem, InodeNumber};
use std::path::Path;

/// Reports names of a directory on the device that are damage: no listing has them.
fn note_damaged_names(fs: &FileSystem, dir: InodeNumber, path: &Path, tally: &tally::Tally) {
    if let Ok(count @ 1..) = fs.damaged_names(dir) {
        tally.problem(path, format!("damaged names left out: {count}"));
    }
}

/// Returns all entries of a directory on the device, sorted by name.
pub fn entries(fs: &FileSystem, dir: InodeNumber) -> crate::Result<Vec<DirEntry>> {
    let mut entries = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        entries.push(entry);
        true
    })?;
    entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}
