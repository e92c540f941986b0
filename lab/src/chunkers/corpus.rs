//! The data: versions of packages as tar files, and files of all kinds.

use crate::{Doing, Result};
use nvfold_bench::data::Random;
use std::fs;
use std::path::{Path, PathBuf};

/// Versions of one package.
pub(super) struct Versions {
    /// Its name.
    pub name: String,
    /// The versions, the older one first.
    pub versions: Vec<Vec<u8>>,
}

/// Reads `DIR/versions`: a folder per package, a file per version.
pub(super) fn versions(corpus: &Path) -> Result<Vec<Versions>> {
    let mut all = Vec::new();
    for folder in sorted_entries(&corpus.join("versions"))? {
        let mut versions = Vec::new();
        for file in sorted_entries(&folder)? {
            versions.push(fs::read(&file).doing(format!("read {}", file.display()))?);
        }
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        all.push(Versions { name, versions });
    }
    Ok(all)
}

/// Returns random bytes, and the same with up to 100 bytes inserted at one place in each 64 KiB.
pub(super) fn edited(bytes: usize) -> Versions {
    let mut random = Random(15);
    let old = random_bytes(&mut random, bytes);
    let mut new = Vec::with_capacity(bytes + bytes / 512);
    for part in old.chunks(64 << 10) {
        let (at, count) = (random.next_u64() as usize % part.len(), 1 + random.next_u64() as usize % 100);
        new.extend_from_slice(&part[..at]);
        new.extend(random_bytes(&mut random, count));
        new.extend_from_slice(&part[at..]);
    }
    Versions { name: "made up: insertions".into(), versions: vec![old, new] }
}

/// Returns `count` random bytes.
pub(super) fn random_bytes(random: &mut Random, count: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    bytes.truncate(count);
    bytes
}

/// Returns regular files below the packages of the corpus and the other trees. Folders that cannot be listed are
/// skipped.
pub(super) fn files(corpus: Option<&Path>, trees: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut pending: Vec<PathBuf> = trees.to_vec();
    for folder in corpus.map(|corpus| ["packages", "versions"].map(|name| corpus.join(name))).into_iter().flatten() {
        sorted_entries(&folder)?;
        pending.push(folder);
    }
    let mut files = Vec::new();
    while let Some(path) = pending.pop() {
        let Ok(kind) = path.symlink_metadata() else { continue };
        if kind.is_dir() {
            pending.extend(sorted_entries(&path).unwrap_or_default());
        } else if kind.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn sorted_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).doing(format!("list {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}
