//! The content of a device before it was damaged, and the part that must be there after it was repaired.
//!
//! An inode may be given up only if a line on which it depends was hit, and fsck must report it. Every other inode
//! must be there, with kind, content, attributes and names. If a directory was given up, its content is in
//! `lost+found`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::OnceLock;

use nvfold::check::CheckReport;
use nvfold::{FileKind, FileSystem, InodeNumber, MountOptions};

use super::footprint::{Footprint, footprints};
use super::image::{Image, KINDS};
use crate::slate::{Content, Slate};

/// An inode as a user sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its kind.
    pub kind: FileKind,
    content: Vec<(u64, Vec<u8>)>,
    target: Option<Vec<u8>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    mode: u32,
    size: u64,
    nlink: u32,
}

/// Paths, and the inodes that they lead to.
pub type Paths = BTreeMap<Vec<u8>, u64>;

/// The content of an undamaged device.
pub struct Survivors {
    inodes: BTreeMap<u64, Seen>,
    paths: Paths,
    footprints: BTreeMap<u64, Footprint>,
}

/// Returns the survivors of an image, found at the first use.
pub fn survivors(of: &'static Image) -> &'static Survivors {
    static FOUND: [OnceLock<Survivors>; KINDS.len()] = [const { OnceLock::new() }; KINDS.len()];
    FOUND[of.kind as usize].get_or_init(|| Survivors::of(&of.content, &Slate::new(of.content.len_bytes())))
}

/// Reads everything that the root leads to.
///
/// # Errors
/// Those of reading it.
pub fn look(fs: &FileSystem) -> nvfold::Result<(BTreeMap<u64, Seen>, Paths)> {
    let (mut inodes, mut paths) = (BTreeMap::new(), Paths::new());
    let mut dirs = vec![(InodeNumber::ROOT, Vec::new())];
    inodes.insert(InodeNumber::ROOT.0, see(fs, InodeNumber::ROOT)?);
    while let Some((dir, path)) = dirs.pop() {
        let mut entries = Vec::new();
        fs.readdir(dir, 0, &mut |entry| {
            entries.push(entry);
            true
        })?;
        for entry in entries {
            let at = [&path[..], b"/", &entry.name].concat();
            let found = fs.lookup(dir, &entry.name)?;
            inodes.insert(found.ino.0, see(fs, found.ino)?);
            if entry.kind == FileKind::Directory {
                dirs.push((entry.ino, at.clone()));
            }
            paths.insert(at, entry.ino.0);
        }
    }
    Ok((inodes, paths))
}

/// Reads one inode.
///
/// # Errors
/// Those of reading it.
pub fn see(fs: &FileSystem, ino: InodeNumber) -> nvfold::Result<Seen> {
    let attr = fs.getattr(ino)?;
    let mut xattrs = BTreeMap::new();
    for name in fs.list_xattr(ino)? {
        let value = fs.get_xattr(ino, &name)?;
        xattrs.insert(name, value);
    }
    let mut content = Vec::new();
    let mut size = 0;
    if attr.kind == FileKind::Regular {
        size = attr.size;
        let file = fs.open(ino)?;
        // In a file of terabytes, only what is not a hole.
        let mut at = 0;
        while let Ok(start) = file.seek(at, nvfold::Whence::Data) {
            let end = file.seek(start, nvfold::Whence::Hole)?;
            let mut bytes = vec![0; (end - start) as usize];
            file.read_at(start, &mut bytes)?;
            content.push((start, bytes));
            at = end;
        }
    }
    let target = if attr.kind == FileKind::Symlink { Some(fs.readlink(ino)?) } else { None };
    let nlink = if attr.kind == FileKind::Directory { 0 } else { attr.nlink };
    Ok(Seen { kind: attr.kind, content, target, xattrs, mode: attr.mode, size, nlink })
}

impl Survivors {
    /// Reads an undamaged device, clean or after a crash. `slate` has its size.
    pub fn of(content: &Content, slate: &Slate) -> Survivors {
        let region = slate.with(content);
        let fs = FileSystem::mount(region, MountOptions::default()).expect("a whole device");
        let (inodes, paths) = look(&fs).expect("a whole device");
        fs.unmount().expect("a whole device");
        Survivors { inodes, paths, footprints: footprints(content) }
    }

    /// Returns the number of inodes.
    pub fn count(&self) -> usize {
        self.inodes.len()
    }

    /// Returns the footprints.
    pub fn footprints(&self) -> &BTreeMap<u64, Footprint> {
        &self.footprints
    }

    /// Returns whether these bytes hold no content of any inode.
    pub fn is_metadata(&self, hit: &Range<u64>) -> bool {
        !self.footprints.values().any(|own| own.is_content_hit(hit))
    }

    /// Reads a device that was damaged and not repaired: everything that can be read is right, and the rest is EIO,
    /// never absent.
    ///
    /// # Errors
    /// The first violation.
    pub fn serve_before_repair(&self, fs: &FileSystem) -> Result<(), String> {
        for (path, ino) in &self.paths {
            let shown = String::from_utf8_lossy(path);
            match follow(fs, path) {
                Ok(found) if found == *ino => {}
                Ok(found) => return Err(format!("{shown} leads to inode {found}, not to {ino}")),
                Err(error) if error.errno() == nvfold::errno::EIO => continue,
                Err(error) => return Err(format!("{shown}: {error}")),
            }
            match see(fs, InodeNumber(*ino)) {
                Ok(seen) if seen == self.inodes[ino] => {}
                Ok(_) => return Err(format!("{shown}: other content, or attributes, than before")),
                Err(error) if error.errno() == nvfold::errno::EIO => {}
                Err(error) => return Err(format!("{shown}: {error}")),
            }
        }
        Ok(())
    }

    /// Reads a device that was repaired. Returns how many inodes were given up, and how many are in `lost+found`.
    ///
    /// # Errors
    /// What is missing.
    pub fn check_repaired(
        &self,
        fs: &FileSystem,
        report: &CheckReport,
        hit: &[Range<u64>],
    ) -> Result<(usize, usize), String> {
        let (inodes, paths) = look(fs).map_err(|error| format!("after repair: {error}"))?;
        let told: BTreeSet<u64> = report.given_up.iter().map(|lost| lost.ino).collect();
        let mut lost = BTreeSet::new();
        for (ino, seen) in &self.inodes {
            // A name that was lost with its directory is one link less.
            let names = paths.values().filter(|named| *named == ino).count() as u32;
            let nlink = if seen.kind == FileKind::Directory { 0 } else { names };
            let seen = &Seen { nlink, ..seen.clone() };
            let is_hit = hit.iter().any(|hit| self.footprints[ino].is_hit(hit));
            match inodes.get(ino) {
                _ if told.contains(ino) && is_hit => drop(lost.insert(*ino)),
                _ if told.contains(ino) => return Err(format!("inode {ino} was given up, and nothing of it was hit")),
                // A slot that looks free, and whose name was lost with its directory: nothing shows that it was an
                // inode.
                None if is_hit && !told.is_empty() => drop(lost.insert(*ino)),
                // Its number was then the next free one.
                Some(_) if is_hit && !told.is_empty() && paths.get(&b"/lost+found"[..]) == Some(ino) => {
                    lost.insert(*ino);
                }
                None => return Err(format!("inode {ino} is missing, and fsck has not said so")),
                Some(now) if seen.kind != FileKind::Directory && now != seen => {
                    return Err(format!("inode {ino} is not as it was: {}", difference(seen, now)));
                }
                Some(now) if (now.kind, &now.xattrs) != (seen.kind, &seen.xattrs) => {
                    return Err(format!("inode {ino} has another kind or other attributes"));
                }
                Some(_) => {}
            }
        }
        let mut moved = 0;
        for (path, ino) in self.paths.iter().filter(|(_, ino)| !lost.contains(ino)) {
            if self.ancestors(path).iter().any(|directory| lost.contains(directory)) {
                moved += usize::from(!self.is_below_lost(path, &lost));
            } else if paths.get(path) != Some(ino) {
                return Err(format!("{} is not where it was", String::from_utf8_lossy(path)));
            }
        }
        Ok((lost.len(), moved))
    }

    /// Returns the directories above a path.
    fn ancestors(&self, path: &[u8]) -> Vec<u64> {
        let slashes = path.iter().enumerate().filter(|(at, byte)| **byte == b'/' && *at > 0).map(|(at, _)| at);
        slashes.map(|at| self.paths[&path[..at]]).chain([InodeNumber::ROOT.0]).collect()
    }

    /// Returns whether the directory of a path is intact, and came into `lost+found` with the path.
    fn is_below_lost(&self, path: &[u8], lost: &BTreeSet<u64>) -> bool {
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        !lost.contains(self.paths.get(&path[..end]).unwrap_or(&InodeNumber::ROOT.0))
    }
}

/// Follows names, but no symbolic links.
fn follow(fs: &FileSystem, path: &[u8]) -> nvfold::Result<u64> {
    let mut at = InodeNumber::ROOT;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        at = fs.lookup(at, name)?.ino;
    }
    Ok(at.0)
}

fn difference(before: &Seen, now: &Seen) -> String {
    let content = before.content.iter().zip(&now.content).filter(|(one, other)| one != other).count();
    format!(
        "{:?}, {} and {} bytes in {} and {} parts, {content} parts differ, attributes equal: {}, links {} and {}",
        before.kind,
        before.size,
        now.size,
        before.content.len(),
        now.content.len(),
        before.xattrs == now.xattrs,
        before.nlink,
        now.nlink,
    )
}
