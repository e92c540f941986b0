//! A temporary directory in memory, gone on drop.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A directory that only one test uses.
pub struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    /// Makes a directory on /dev/shm if there is one, else in the system's temporary directory.
    pub fn new() -> Scratch {
        let shm = Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        Scratch::within(&parent)
    }

    /// Makes a directory on a disk file system (the system's temporary directory).
    pub fn on_disk() -> Scratch {
        Scratch::within(&std::env::temp_dir())
    }

    fn within(parent: &Path) -> Scratch {
        let dir = tempfile::Builder::new()
            .prefix("nvfold-test-")
            .tempdir_in(parent)
            .unwrap_or_else(|error| panic!("making a scratch directory in {}: {error}", parent.display()));
        Scratch { dir }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a path inside it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a sparse file of `bytes` inside it, for its owner alone.
    pub fn device(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.join(name);
        let created = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path);
        let file = created.expect("create the device file");
        file.set_len(bytes).expect("size the device file");
        path
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}
