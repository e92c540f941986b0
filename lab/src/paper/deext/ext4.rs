//! ext4 with the same files: their space there, and the traffic of writing them and reading them back.
//!
//! The problem: mounting ext4 needs root and kernel support. The idea: `mke2fs -d` fills an image without a mount,
//! and `dumpe2fs` reports how many of its blocks are in use. The traffic is computed from these: each block in use is
//! written once, and read once to read all files back. That is the least that ext4 can do: the journal is left out,
//! and inode tables count only as far as inodes are in use.

use super::set::Set;
use super::space::Space;
use crate::{Doing, LabError, Result};
use nvfold_bench::process::{output, run};
use nvfold_bench::scratch::Scratch;
use std::path::Path;
use std::process::Command;

const BLOCK: u64 = 4096;
/// Number of files per directory.
const FILES_OF_DIRECTORY: usize = 100;

/// Returns the space of a set on ext4.
pub(super) fn space(set: &Set) -> Result<Space> {
    let folder = Scratch::new_in(&std::env::temp_dir())?;
    let (tree, image) = (folder.path().join("tree"), folder.path().join("image"));
    lay_out(set, &tree)?;
    let blocks: u64 = set.files.iter().map(|file| (file.len() as u64).div_ceil(BLOCK)).sum();
    let image_bytes = (blocks * BLOCK * 5 / 4 + (32 << 20)).next_multiple_of(1 << 20);
    let file = std::fs::File::create(&image).doing("make an ext4 image")?;
    file.set_len(image_bytes).doing("size an ext4 image")?;
    let mut mke2fs = tool("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-O", "^resize_inode,^has_journal", "-d"]);
    run(mke2fs.arg(&tree).arg(&image))?;
    in_use(&output(tool("dumpe2fs").arg("-h").arg(&image))?, blocks)
}

/// Returns a command for a program of e2fsprogs, which may be outside of a user's PATH.
fn tool(name: &str) -> Command {
    let sbin = Path::new("/usr/sbin").join(name);
    Command::new(if sbin.exists() { sbin } else { name.into() })
}

/// Writes the files of a set into folders of a hundred.
fn lay_out(set: &Set, tree: &Path) -> Result<()> {
    for (number, files) in set.files.chunks(FILES_OF_DIRECTORY).enumerate() {
        let folder = tree.join(format!("d{number}"));
        std::fs::create_dir_all(&folder).doing("make a tree for ext4")?;
        for (number, content) in files.iter().enumerate() {
            std::fs::write(folder.join(format!("f{number}")), content).doing("fill a tree for ext4")?;
        }
    }
    Ok(())
}

/// Returns the bytes in use by kind, from the output of dumpe2fs and the blocks of all files.
fn in_use(told: &str, data_blocks: u64) -> Result<Space> {
    let field = |name: &str| -> Result<u64> {
        let value = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let number = value.and_then(|value| value.trim().parse().ok());
        number.ok_or_else(|| LabError::Miscounted(format!("dumpe2fs reports no `{name}`")))
    };
    let (blocks, free) = (field("Block count")?, field("Free blocks")?);
    let (inodes, inodes_free, inode_bytes) = (field("Inode count")?, field("Free inodes")?, field("Inode size")?);
    let tables = inodes * inode_bytes / BLOCK;
    let rest = (blocks - free).checked_sub(data_blocks + tables);
    let rest = rest.ok_or_else(|| LabError::Miscounted("ext4 has fewer blocks in use than its files".into()))?;
    Ok([data_blocks * BLOCK, 0, (inodes - inodes_free) * inode_bytes, rest * BLOCK, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ext4_blocks_in_use_are_counted_by_kind() {
        let told = "Inode count:              1024\nBlock count:              16384\nFree blocks:              13617\n\
                    Free inodes:              1000\nInode size:\t          256\n";
        let space = in_use(told, 2600).unwrap();
        assert_eq!(space, [2600 * BLOCK, 0, 24 * 256, (16384 - 13617 - 2600 - 64) * BLOCK, 0]);
        assert!(in_use(told, 3000).is_err());
        assert!(in_use("", 1).unwrap_err().to_string().contains("Block count"));
    }
}
