//! Whole trees between the host's file systems and one of ours: [`import`], [`export`], [`verify`]; and what sharing
//! would save on files that lie on the host: [`estimate`](estimate()).
//!
//! The problem: a tree is larger than memory and holds everything there is (holes, hard links, devices, attributes, files
//! that cannot be read). Going through it takes so long that somebody wants to see how far it is, and to stop it.
//!
//! The idea: one thread walks and several copy, with a bounded queue between them. So memory does not grow with the
//! tree; only directories, whose times are set last, and files with several names are remembered. A problem with one
//! file is noted and the rest goes on. A full device ends it, and so does the caller's callback.
//!
//! ```text
//! tree -> walk, one thread -> queue, 256 files -> threads that copy or compare -> counts, problems -> Report
//!                                                       |
//!               caller's thread: callback(Progress) ten times a second -> go on, or stop
//! ```
//!
//! This is the only room that makes calls of the operating system. Beside those it stands on what everybody can call:
//! [`FileSystem`], [`File`](crate::File), and the sizes that [`media`](crate::media) publishes. No thread outlives a
//! call.
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

pub use error::{Error, Result};
pub use estimate::{Distinct, Estimate, EstimateOptions, Needs, Part, PathCounts, Savings, estimate};
pub use export::{ExportOptions, export};
pub use files::{kind, names};
pub use import::{ImportOptions, import};
pub use report::{Problem, Progress, Report, Watch};
pub use verify::{VerifyOptions, verify};

use crate::{DirEntry, FileSystem, InodeNumber};

/// All entries of a directory of ours, sorted by name.
pub fn entries(fs: &FileSystem, dir: InodeNumber) -> crate::Result<Vec<DirEntry>> {
    let mut entries = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        entries.push(entry);
        true
    })?;
    entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}
