//! File systems mounted for a run: nvfold, the FUSE ceiling, and ext4, xfs and btrfs on a loop device in memory.
//!
//! Everything is in one directory on tmpfs; dropping [`Mounts`] unmounts and removes it. A [`Mounted`] is made only
//! by the functions that mount, after the mount has succeeded, and only if the mount table confirms it.

use crate::place::{self, FsType, Place};
use crate::process::{own_program, run};
use crate::scratch::Scratch;
use crate::{BenchError, Doing, Options, Result};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for the FUSE ceiling to appear, and for a server to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// One mounted file system; dropping it unmounts it.
pub struct Mounted {
    /// Name of its rows.
    pub name: String,
    /// Its place.
    pub place: Place,
    /// Ends once its mount is gone: the fields of a value are dropped after the value itself.
    server: Option<Server>,
}

impl Mounted {
    /// Takes over a new mount on `dir`, and makes the directory `direct` in it, if there is none.
    fn take_over(name: &str, dir: &Path, fs_type: FsType, server: Option<Server>) -> Result<Mounted> {
        let place = Place::mount_point(dir, fs_type);
        // From here on the mount is unmounted on drop, whatever fails.
        let mounted = Mounted { name: format!("mounted {name}"), place, server };
        mounted.place.prove(dir)?;
        fs::create_dir_all(dir.join("direct")).doing("make a directory on the mount")?;
        Ok(mounted)
    }

    /// Returns the number of the process that serves it; `None` if the kernel does.
    pub(crate) fn server_id(&self) -> Option<u32> {
        self.server.as_ref().map(|server| server.0.id())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmount = |options: &[&str]| {
            let mut command = Command::new("umount");
            command.args(options).arg(&self.place.dir).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        if !unmount(&[]) {
            // The mount is busy: it goes when its last file is closed.
            unmount(&["-l"]);
        }
    }
}

/// The process that serves a mount. Dropping it waits for its end, and kills it after a time limit.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All mounts of a run. The fields are dropped in this order.
pub struct Mounts {
    /// The mounts.
    pub mounted: Vec<Mounted>,
    /// A directory on tmpfs.
    pub tmpfs: Place,
    /// Reasons why file systems could not be mounted.
    pub left_out: Vec<String>,
    scratch: Scratch,
}

impl Mounts {
    /// Mounts what can be mounted; the rest is left out, with the reason. It is an error if a mount succeeds but is
    /// not the expected file system.
    pub fn set_up(options: &Options, bytes: u64) -> Result<Mounts> {
        let parent = options.dir.canonicalize().doing(options.dir.display().to_string())?;
        let scratch = Scratch::new_in(&parent)?;
        let tmpfs = Place::inside(&scratch.path().join("tmpfs"), FsType::TMPFS);
        fs::create_dir(&tmpfs.dir).doing(format!("make {}", tmpfs.dir.display()))?;
        tmpfs.prove(&tmpfs.dir)?;
        let mut mounts = Mounts { mounted: Vec::new(), tmpfs, left_out: Vec::new(), scratch };
        if options.embedded_only {
            return Ok(mounts);
        }
        if !rustix::process::geteuid().is_root() {
            mounts.left_out.push("everything mounted: it needs root".into());
            return Ok(mounts);
        }
        let bytes = bytes.max(512 << 20);
        for name in ["nvfold off", "nvfold inline", "FUSE ceiling", "ext4", "xfs", "btrfs"] {
            match mounts.mount(name, bytes) {
                Ok(mounted) => mounts.mounted.push(mounted),
                Err(error @ BenchError::Elsewhere { .. }) => return Err(error),
                Err(error) => mounts.left_out.push(format!("mounted {name}: {error}")),
            }
        }
        Ok(mounts)
    }

    fn mount(&self, name: &str, bytes: u64) -> Result<Mounted> {
        let word = name.replace(' ', "-");
        let dir = self.scratch.path().join(format!("{word}.mount"));
        fs::create_dir(&dir).doing(format!("make {}", dir.display()))?;
        let image = self.scratch.path().join(format!("{word}.img"));
        match name {
            "FUSE ceiling" => ceiling(name, &dir),
            "ext4" => on_loop_device(FsType::EXT4, &dir, &image, bytes),
            "xfs" => on_loop_device(FsType::XFS, &dir, &image, bytes),
            "btrfs" => on_loop_device(FsType::BTRFS, &dir, &image, bytes),
            _ => {
                let policy = name.trim_start_matches("nvfold ");
                nvfold(&own_program()?, name, Path::new("mem:"), &dir, &format!("size={bytes},policy={policy}"))
            }
        }
    }
}

/// Mounts a device by this `nvfold` command; `mem:` is a memory device. The server is started as `nvfold mount` starts it, but ends with
/// this process.
pub fn nvfold(program: &Path, name: &str, device: &Path, dir: &Path, options: &str) -> Result<Mounted> {
    let mut command = Command::new(program);
    command.args(["mount", "--background-child", "--with-parent"]).arg(device).arg(dir).args(["-o", options]);
    let doing = format!("{command:?}");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().doing(doing.clone())?;
    // It prints a line when the mount works. Until then it prints nothing.
    let mut line = String::new();
    let said = child.stdout.take().map(|pipe| BufReader::new(pipe).read_line(&mut line));
    let server = Server(child);
    if line.is_empty() {
        let why = format!("the server ended early ({:?})", said.map(|read| read.map_err(|error| error.to_string())));
        return Err(BenchError::Io { doing, source: std::io::Error::other(why) });
    }
    Mounted::take_over(name, dir, FsType::NVFOLD, Some(server))
}

/// Mounts the FUSE ceiling.
fn ceiling(name: &str, dir: &Path) -> Result<Mounted> {
    let server = Command::new(own_program()?).args(["bench", "ceiling"]).arg(dir).stdin(Stdio::null()).spawn();
    let mut server = Server(server.doing("start the FUSE ceiling")?);
    let deadline = Instant::now() + PATIENCE;
    while !place::is_mount_point(dir)? {
        let ended = server.0.try_wait().doing("wait for the FUSE ceiling")?;
        if ended.is_some() || Instant::now() > deadline {
            // A process that hangs need not be waited for again.
            let _ = server.0.kill();
            let why = ended.map_or("it does not appear in the mount table".into(), |status| status.to_string());
            return Err(BenchError::Io { doing: "mount the FUSE ceiling".into(), source: std::io::Error::other(why) });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Mounted::take_over(name, dir, FsType::CEILING, Some(server))
}

/// Mounts a tmpfs of its own, whose blocks and inodes nobody else uses.
pub(crate) fn tmpfs(name: &str, dir: &Path, bytes: u64, inodes: u64) -> Result<Mounted> {
    let options = format!("size={bytes},nr_inodes={inodes},mode=755");
    run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(dir))?;
    Mounted::take_over(name, dir, FsType::TMPFS, None)
}

/// Makes a file system in a file and mounts it.
pub(crate) fn on_loop_device(fs_type: FsType, dir: &Path, image: &Path, bytes: u64) -> Result<Mounted> {
    let file = fs::File::create(image).doing("make a disk image")?;
    file.set_len(bytes).doing("make a disk image")?;
    run(Command::new(format!("mkfs.{}", fs_type.name)).arg("-q").arg(image))?;
    run(Command::new("mount").args(["-t", fs_type.name, "-o", "loop"]).arg(image).arg(dir))?;
    Mounted::take_over(fs_type.name, dir, fs_type, None)
}
