//! Ways to copy a tree: clones of nvfold, embedded and by the command, and what other file systems offer.
//!
//! ```text
//! embedded    FileSystem::clone_tree in this process          nvfold      `nvfold clone` on a mount of a device in memory
//! tmpfs       cp -a                                           xfs         cp -a --reflink=always on a loop device
//! overlayfs   a mount with the tree of tmpfs below            btrfs       btrfs subvolume snapshot on a loop device
//! ```
//!
//! What a copy holds is counted where its file system keeps it: allocated bytes of the device or of the disk image, and on
//! tmpfs blocks, inodes and names. So other programs do not disturb it, and what the kernel could drop does not count.

use crate::made::{MadeTree, entries_in, new_inode};
use crate::mounts::{self, Mounted};
use crate::place::{FsType, Place};
use crate::process::{output, own_program, run};
use crate::waits::Writer;
use crate::{BenchError, Doing, Result};
use clap::ValueEnum;
use nvfold::{CloneOptions, FileKind, FileSystem, InodeNumber, MkfsOptions, MountOptions, Policy};
use pmem::{DeviceSpec, OpenOptions, Region};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for the background work of a mount.
const PATIENCE: Duration = Duration::from_secs(120);

const TREE: &str = "tree";
/// Where a writer makes and removes files: outside of the tree, since `cp` fails on names that go away.
const BESIDE: &str = "beside";

/// What makes copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// nvfold in this process
    Embedded,
    /// A mount of nvfold
    Nvfold,
    /// tmpfs
    Tmpfs,
    /// XFS on a loop device
    Xfs,
    /// btrfs on a loop device
    Btrfs,
    /// overlayfs on tmpfs
    Overlayfs,
}

/// Bytes that are held.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// By the file system for what it stores.
    pub stored: u64,
    /// By the process that serves it.
    pub process: u64,
}

/// Makes copies of one tree; they are numbered.
pub(crate) trait Copier {
    /// Returns the name of its row.
    fn name(&self) -> &str;
    /// Makes a copy.
    fn copy(&self, number: u32) -> Result<()>;
    /// Proves that a copy is whole.
    fn check(&self, number: u32) -> Result<()>;
    /// Proves no more than that a copy has all entries: its tree has changed since.
    fn check_count(&self, number: u32) -> Result<()>;
    /// Removes a copy.
    fn remove(&self, number: u32) -> Result<()>;
    /// Waits for the end of background work.
    fn settle(&self) -> Result<()>;
    /// Returns what is held now.
    fn held(&self) -> Result<Held>;
    /// Returns true if copies share the data of the tree.
    fn shares(&self) -> bool;
    /// Returns who rewrites files of the tree, and makes and removes files beside it; `None` if that is not allowed.
    /// Writers are numbered.
    fn writer(&self, number: u32) -> Result<Option<Box<Writer>>>;
}

/// Makes the tree in a new place of this kind, below the folder of the run.
pub(crate) fn copier(kind: Kind, folder: &Path, tree: &Arc<MadeTree>) -> Result<Vec<Box<dyn Copier>>> {
    if kind == Kind::Embedded {
        let policies = [(Policy::Off, "embedded off"), (Policy::Inline, "embedded inline")];
        return policies.into_iter().map(|(policy, name)| embedded(policy, name, tree)).collect();
    }
    Ok(vec![Box::new(OnHost::set_up(kind, folder, tree)?)])
}

/// nvfold in this process.
struct Embedded {
    name: &'static str,
    fs: FileSystem,
    region: Region,
    tree: Arc<MadeTree>,
    top: InodeNumber,
}

fn embedded(policy: Policy, name: &'static str, tree: &Arc<MadeTree>) -> Result<Box<dyn Copier>> {
    let region = Region::create(&DeviceSpec::Memory, device_bytes(tree), &OpenOptions::default());
    let region = region.map_err(nvfold::Error::from).doing("make a memory device")?;
    FileSystem::mkfs(&region, &MkfsOptions::default()).doing("format")?;
    let clock = Arc::new(pmem::clock::coarse_now_ns);
    let options = MountOptions { policy, clock, ..MountOptions::default() };
    let fs = FileSystem::mount(region.clone(), options).doing("mount")?;
    let make = |name: &str| fs.mkdir(InodeNumber::ROOT, name.as_bytes(), &new_inode(FileKind::Directory));
    let top = make(TREE).and_then(|top| make(BESIDE).map(|_| top)).doing("make a directory")?.ino;
    tree.make_in(&fs, top)?;
    Ok(Box::new(Embedded { name, fs, region, tree: tree.clone(), top }))
}

/// Returns the size of a device for a tree, what a writer changes, and copies without data.
fn device_bytes(tree: &MadeTree) -> u64 {
    (tree.blocks() * 2 * 4096 + tree.entries * 8192 + (512 << 20)).next_multiple_of(2 << 20)
}

fn copy_name(number: u32) -> String {
    format!("copy{number}")
}

impl Copier for Embedded {
    fn name(&self) -> &str {
        self.name
    }

    fn copy(&self, number: u32) -> Result<()> {
        let name = copy_name(number);
        let cloned = self.fs.clone_tree(self.top, InodeNumber::ROOT, name.as_bytes(), &CloneOptions::default());
        self.tree.check_count(&name, cloned.doing("clone the tree")?.copied.entries)
    }

    fn check(&self, number: u32) -> Result<()> {
        self.tree.check_in(&self.fs, TREE, &copy_name(number))
    }

    fn check_count(&self, number: u32) -> Result<()> {
        let name = copy_name(number);
        let top = self.fs.lookup(InodeNumber::ROOT, name.as_bytes()).doing("look the copy up")?.ino;
        self.tree.check_count(&name, entries_in(&self.fs, top)?)
    }

    fn remove(&self, number: u32) -> Result<()> {
        self.fs.remove_tree(InodeNumber::ROOT, copy_name(number).as_bytes()).doing("remove the copy")
    }

    fn settle(&self) -> Result<()> {
        while !self.fs.remove_step().doing("free the copy")? {}
        Ok(())
    }

    fn held(&self) -> Result<Held> {
        Ok(Held { stored: self.region.allocated_bytes(), process: private_bytes("self")? })
    }

    fn shares(&self) -> bool {
        true
    }

    fn writer(&self, number: u32) -> Result<Option<Box<Writer>>> {
        let (fs, tree) = (self.fs.clone(), self.tree.clone());
        let beside = fs.lookup(InodeNumber::ROOT, BESIDE.as_bytes()).doing("look up a directory")?.ino;
        let (mut content, mut steps) = (tree.buffer(), Steps::of(number));
        Ok(Some(Box::new(move || match steps.next(&tree) {
            Step::Rewrite(entry, file) => {
                tree.fill(entry, steps.version(), &mut content);
                let path = format!("{TREE}/{}", file.display());
                let found = fs.resolve(path.as_bytes()).doing("find a file of the tree")?;
                let first = &content[..content.len().min(4096)];
                fs.open(found.ino).and_then(|file| file.write_at(0, first)).doing("rewrite a file of the tree")
            }
            Step::Create(name) => {
                let made = fs.create(beside, name.as_bytes(), &new_inode(FileKind::Regular));
                made.and_then(|made| fs.open(made.ino)?.write_at(0, name.as_bytes())).doing("make a file")
            }
            Step::Remove(name) => fs.unlink(beside, name.as_bytes()).doing("remove a file"),
        })))
    }
}

/// What a writer does in turn: rewriting the beginning of a file of the tree, making a small file, and removing it.
enum Step {
    Rewrite(u64, PathBuf),
    Create(String),
    Remove(String),
}

/// The steps of one writer.
struct Steps {
    writer: u32,
    made: u64,
}

impl Steps {
    fn of(writer: u32) -> Steps {
        Steps { writer, made: 0 }
    }

    /// Returns a number that no other step of any writer has.
    fn version(&self) -> u64 {
        u64::from(self.writer) << 40 | self.made
    }

    fn next(&mut self, tree: &MadeTree) -> Step {
        self.made += 1;
        let round = self.made / 3;
        let name = format!("new{}-{round}", self.writer);
        match self.made % 3 {
            1 => Step::Create(name),
            2 => Step::Remove(name),
            _ => {
                // Each time another file, since only the first change of one has to be kept for a copy.
                let entries = (0..tree.entries).map(|next| (round * 7919 + next) % tree.entries);
                let mut files = entries.filter_map(|entry| Some((entry, tree.file(entry)?)));
                let (entry, file) = files.next().expect("a tree has files");
                Step::Rewrite(entry, file)
            }
        }
    }
}

/// A tree on a file system of the host.
struct OnHost {
    kind: Kind,
    name: String,
    tree: Arc<MadeTree>,
    program: PathBuf,
    place: Place,
    /// Where the file system keeps what it stores; `None`: it is a tmpfs.
    image: Option<PathBuf>,
    /// Its mount; it goes when this is dropped.
    mounted: Mounted,
}

impl OnHost {
    fn set_up(kind: Kind, folder: &Path, tree: &Arc<MadeTree>) -> Result<OnHost> {
        let (name, how) = match kind {
            Kind::Nvfold | Kind::Embedded => ("nvfold", "nvfold clone"),
            Kind::Tmpfs => ("tmpfs", "cp -a"),
            Kind::Xfs => ("xfs", "cp -a --reflink=always"),
            Kind::Btrfs => ("btrfs", "subvolume snapshot"),
            Kind::Overlayfs => ("overlayfs", "mount"),
        };
        let dir = folder.join(format!("{name}.mount"));
        fs::create_dir(&dir).doing(format!("make {}", dir.display()))?;
        let image = folder.join(format!("{name}.img"));
        let program = own_program()?;
        let bytes = device_bytes(tree);
        let mounted = match kind {
            Kind::Nvfold | Kind::Embedded => {
                let size = bytes.to_string();
                run(Command::new(&program).arg("mkfs").arg(&image).args(["--size", &size]))?;
                mounts::nvfold(&program, name, &image, &dir, "")?
            }
            Kind::Xfs => mounts::on_loop_device(FsType::XFS, &dir, &image, bytes)?,
            Kind::Btrfs => mounts::on_loop_device(FsType::BTRFS, &dir, &image, bytes)?,
            Kind::Tmpfs | Kind::Overlayfs => mounts::tmpfs(name, &dir, 2 * bytes, 8 * tree.entries + 1000)?,
        };
        let place = mounted.place.clone();
        let image = (place.fs_type != FsType::TMPFS).then_some(image);
        let on_host =
            OnHost { kind, name: format!("{name}, {how}"), tree: tree.clone(), program, place, image, mounted };
        on_host.make_tree()?;
        Ok(on_host)
    }

    fn make_tree(&self) -> Result<()> {
        let original = self.original();
        match self.kind {
            Kind::Btrfs => run(Command::new("btrfs").args(["subvolume", "create"]).arg(&original))?,
            _ => fs::create_dir(&original).doing("make the tree")?,
        }
        fs::create_dir(self.place.dir.join(BESIDE)).doing("make a directory")?;
        self.place.prove(&original)?;
        self.tree.make_at(&original)?;
        self.settle()
    }

    fn original(&self) -> PathBuf {
        self.place.dir.join(TREE)
    }

    /// Returns the directory that is given to whoever removes a copy.
    fn target(&self, number: u32) -> PathBuf {
        self.place.dir.join(copy_name(number))
    }

    /// Returns the top of a copy, proven to be where its row says.
    fn top(&self, number: u32) -> Result<PathBuf> {
        let target = self.target(number);
        if self.kind == Kind::Overlayfs {
            let merged = target.join("merged");
            Place::mount_point(&merged, FsType::OVERLAY).prove(&merged)?;
            return Ok(merged);
        }
        self.place.prove(&target)?;
        Ok(target)
    }

    fn overlay(&self, target: &Path) -> Result<()> {
        for part in ["upper", "work", "merged"] {
            fs::create_dir_all(target.join(part)).doing("make a directory of an overlay")?;
        }
        let [lower, upper, work] = [self.original(), target.join("upper"), target.join("work")];
        let [lower, upper, work] = [lower.display(), upper.display(), work.display()];
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        run(Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(target.join("merged")))
    }
}

impl Copier for OnHost {
    fn name(&self) -> &str {
        &self.name
    }

    fn copy(&self, number: u32) -> Result<()> {
        let (original, target) = (self.original(), self.target(number));
        let both = |command: &mut Command| run(command.arg(&original).arg(&target));
        match self.kind {
            Kind::Nvfold | Kind::Embedded => both(Command::new(&self.program).arg("clone")),
            Kind::Tmpfs => both(Command::new("cp").arg("-a")),
            Kind::Xfs => both(Command::new("cp").args(["-a", "--reflink=always"])),
            Kind::Btrfs => both(Command::new("btrfs").args(["subvolume", "snapshot"])),
            Kind::Overlayfs => self.overlay(&target),
        }
    }

    fn check(&self, number: u32) -> Result<()> {
        self.tree.check_at(&self.original(), &self.top(number)?)
    }

    fn check_count(&self, number: u32) -> Result<()> {
        let top = self.top(number)?;
        self.tree.check_count(&top.display().to_string(), crate::made::entries_below(&top)?)
    }

    fn remove(&self, number: u32) -> Result<()> {
        let target = self.target(number);
        match self.kind {
            Kind::Nvfold | Kind::Embedded => run(Command::new(&self.program).arg("remove").arg(&target)),
            Kind::Btrfs => run(Command::new("btrfs").args(["subvolume", "delete"]).arg(&target)),
            Kind::Overlayfs => {
                run(Command::new("umount").arg(target.join("merged")))?;
                fs::remove_dir_all(&target).doing("remove an overlay")
            }
            Kind::Tmpfs | Kind::Xfs => run(Command::new("rm").arg("-r").arg(&target)),
        }
    }

    fn settle(&self) -> Result<()> {
        if self.kind == Kind::Nvfold {
            return wait_until_removed(&self.program, &self.place.dir);
        }
        let dir = File::open(&self.place.dir).doing("open a mount")?;
        rustix::fs::syncfs(dir).map_err(std::io::Error::from).doing("sync a mount")
    }

    fn held(&self) -> Result<Held> {
        self.settle()?;
        if matches!(self.kind, Kind::Xfs | Kind::Btrfs) {
            // A sync writes their logs. Their tables get into the image when they become read-only.
            for how in ["remount,ro", "remount,rw"] {
                run(Command::new("mount").args(["-o", how]).arg(&self.place.dir))?;
            }
        }
        let stored = match &self.image {
            Some(image) => fs::metadata(image).doing("look at a disk image")?.blocks() * 512,
            None => tmpfs_bytes(&self.place.dir)?,
        };
        let process = self.mounted.server_id().map_or(Ok(0), |id| private_bytes(&id.to_string()))?;
        Ok(Held { stored, process })
    }

    fn shares(&self) -> bool {
        self.kind != Kind::Tmpfs
    }

    fn writer(&self, number: u32) -> Result<Option<Box<Writer>>> {
        if self.kind == Kind::Overlayfs {
            // What is below an overlay must not change.
            return Ok(None);
        }
        let (tree, original, beside) = (self.tree.clone(), self.original(), self.place.dir.join(BESIDE));
        let (mut content, mut steps) = (tree.buffer(), Steps::of(number));
        Ok(Some(Box::new(move || match steps.next(&tree) {
            Step::Rewrite(entry, file) => {
                tree.fill(entry, steps.version(), &mut content);
                let file = File::options().write(true).open(original.join(file));
                let first = &content[..content.len().min(4096)];
                file.and_then(|file| file.write_all_at(first, 0)).doing("rewrite a file of the tree")
            }
            Step::Create(name) => fs::write(beside.join(&name), &name).doing("make a file"),
            Step::Remove(name) => fs::remove_file(beside.join(name)).doing("remove a file"),
        })))
    }
}

/// Waits until a mount has freed all trees that were removed.
fn wait_until_removed(program: &Path, mount: &Path) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let stats = output(Command::new(program).args(["stats", "--json"]).arg(mount))?;
        let stats: serde_json::Value =
            serde_json::from_str(&stats).map_err(std::io::Error::from).doing("read stats")?;
        let left = ["removing_directories", "removing_files"].map(|key| stats["space"][key].as_u64());
        if left == [Some(0); 2] {
            return Ok(());
        }
        if left.contains(&None) || Instant::now() > deadline {
            let why = std::io::Error::other(format!("{left:?} directories and files are left"));
            return Err(BenchError::Io { doing: "wait for removed trees".into(), source: why });
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns what a tmpfs holds: its blocks, and what the kernel keeps for each inode and its name.
fn tmpfs_bytes(dir: &Path) -> Result<u64> {
    let status = rustix::fs::statvfs(dir).map_err(std::io::Error::from).doing("look at a tmpfs")?;
    let blocks = (status.f_blocks - status.f_bfree) * status.f_frsize;
    let slabs = fs::read_to_string("/proc/slabinfo").doing("read /proc/slabinfo")?;
    let object_bytes = |slab: &str| {
        let line = slabs.lines().find(|line| line.split_whitespace().next() == Some(slab));
        line.and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok())
            .ok_or_else(|| std::io::Error::other(format!("no {slab}")))
            .doing("read /proc/slabinfo")
    };
    let inode_bytes = object_bytes("shmem_inode_cache")? + object_bytes("dentry")?;
    Ok(blocks + (status.f_files - status.f_ffree) * inode_bytes)
}

/// Returns the private memory of a process.
fn private_bytes(process: &str) -> Result<u64> {
    let about = fs::read_to_string(format!("/proc/{process}/status")).doing("look at a process")?;
    let kib = about.lines().find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next()?.parse().ok());
    Ok(kib.unwrap_or(0) * 1024)
}
