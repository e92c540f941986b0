//! File systems mounted for a run: nvfold, the FUSE ceiling, and ext4, xfs and btrfs on a loop device in memory.
//!
//! Everything lies in one directory under /dev/shm; dropping [`Mounts`] unmounts and removes all of it.

use crate::report::Report;
use crate::{BenchError, Doing, Options, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// One mounted file system.
pub struct Mounted {
    /// Name of its rows.
    pub name: String,
    /// Where it is.
    pub dir: PathBuf,
    /// Served through FUSE.
    pub is_fuse: bool,
    server: Option<Child>,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.dir).stderr(Stdio::null()).status();
        if let Some(server) = &mut self.server {
            let deadline = Instant::now() + Duration::from_secs(10);
            while Instant::now() < deadline && matches!(server.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = server.kill();
            let _ = server.wait();
            let _ = Command::new("umount").arg("-l").arg(&self.dir).stderr(Stdio::null()).status();
        }
    }
}

/// Everything that a run mounts.
pub struct Mounts {
    /// A directory on tmpfs.
    pub tmpfs: PathBuf,
    /// The mounts.
    pub mounted: Vec<Mounted>,
    root: PathBuf,
}

impl Drop for Mounts {
    fn drop(&mut self) {
        self.mounted.clear();
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl Mounts {
    /// Mounts what can be mounted; what cannot is noted in the report with the reason.
    pub fn set_up(options: &Options, bytes: u64, report: &mut Report) -> Result<Mounts> {
        let root = PathBuf::from(format!("/dev/shm/nvfold-bench.{}", std::process::id()));
        let tmpfs = root.join("tmpfs");
        fs::create_dir_all(&tmpfs).doing(format!("make {}", tmpfs.display()))?;
        let mut mounts = Mounts { tmpfs, mounted: Vec::new(), root };
        if options.embedded_only {
            return Ok(mounts);
        }
        if !rustix::process::geteuid().is_root() {
            report.leave_out("everything mounted: it needs root".into());
            return Ok(mounts);
        }
        let bytes = bytes.max(512 << 20);
        for name in ["nvfold off", "nvfold inline", "FUSE ceiling", "ext4", "xfs", "btrfs"] {
            match mounts.mount(name, bytes) {
                Ok(mounted) => mounts.mounted.push(mounted),
                Err(error) => report.leave_out(format!("mounted {name}: {error}")),
            }
        }
        Ok(mounts)
    }

    fn mount(&self, name: &str, bytes: u64) -> Result<Mounted> {
        let word = name.replace(' ', "-");
        let dir = self.root.join(format!("{word}.mount"));
        fs::create_dir_all(&dir).doing(format!("make {}", dir.display()))?;
        let mut mounted = Mounted { name: format!("mounted {name}"), dir: dir.clone(), is_fuse: false, server: None };
        match name.strip_prefix("nvfold ") {
            Some(policy) => return nvfold(name, &dir, &format!("size={bytes},policy={policy}")),
            None if name == "FUSE ceiling" => {
                mounted.is_fuse = true;
                let server = Command::new(own_program()?).args(["bench", "ceiling"]).arg(&dir).spawn();
                mounted.server = Some(server.doing("start the FUSE ceiling")?);
                wait_for_mount(&dir)?;
            }
            None => {
                let image = self.root.join(format!("{word}.img"));
                let file = fs::File::create(&image).doing("make a disk image")?;
                file.set_len(bytes).doing("make a disk image")?;
                run(Command::new(format!("mkfs.{name}")).arg("-q").arg(&image))?;
                run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&dir))?;
            }
        }
        fs::create_dir_all(dir.join("direct")).doing("make a directory on the mount")?;
        Ok(mounted)
    }
}

/// Mounts nvfold on memory, with a directory `direct` in it.
pub fn nvfold(name: &str, dir: &Path, options: &str) -> Result<Mounted> {
    run(Command::new(own_program()?).arg("mount").arg("mem:").arg(dir).args(["-o", options]))?;
    let mounted = Mounted { name: format!("mounted {name}"), dir: dir.to_owned(), is_fuse: true, server: None };
    fs::create_dir_all(dir.join("direct")).doing("make a directory on the mount")?;
    Ok(mounted)
}

/// The program that is running.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().doing("find the running program")
}

fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// What a command prints; an error that says what it complained of when it fails.
pub fn output(command: &mut Command) -> Result<String> {
    let doing = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().doing(doing.clone())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(BenchError::Io { doing, source: std::io::Error::other(format!("{}: {said}", output.status)) })
}

fn wait_for_mount(dir: &Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        // Where a directory is a mount point can be told without asking the mount itself.
        let table = fs::read_to_string("/proc/self/mounts").doing("read the mount table")?;
        if table.lines().any(|line| line.split(' ').nth(1) == dir.to_str()) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(BenchError::Io { doing: "mount the FUSE ceiling".into(), source: std::io::ErrorKind::TimedOut.into() })
}
