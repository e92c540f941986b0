//! The library as a subject.

use nvfold::internals::media::inode::INODES_PER_SEGMENT;
use nvfold::{
    Attr, CloneOptions, CloneProgress, Compression, File, FileKind, FileSystem, IndexKind, InodeNumber, Limits,
    MkfsOptions, MountOptions, Origin, POLICY_ATTRIBUTE, Policy, PolicyOf, RenameMode, SetAttr, Victims, XattrChange,
    XattrMode, errno,
};
use pmem::{DeviceSpec, OpenOptions, Region};
use std::cell::RefCell;
use std::ops::ControlFlow;

use super::op::{self, Answer, EMPTY_SLOT, Kind, NOT_A_FILE, NodePath, Op, SLOTS, Stat};
use super::{Subject, oracle};
use crate::device::{self, Time};

/// A device, or a directory of one, mounted through the library.
pub struct Library {
    region: Region,
    options: MountOptions,
    root: InodeNumber,
    mounted: Option<FileSystem>,
    /// Crashes so far. After every other crash the next crash and recovery come while counts are still being
    /// reconciled.
    crashes: u64,
    slots: [Option<File>; SLOTS as usize],
    /// Whether a round of collecting may be under way. What it refers to itself counts as stored and saved.
    collects: bool,
    /// The clock of the mount, if it is not the real one.
    time: Option<Time>,
    /// Called between the operations that are done while a tree is cloned.
    between: Option<Between>,
}

/// Sees the file system at a moment.
pub type Between = Box<dyn Fn(&FileSystem) + Send>;

impl Library {
    /// Makes a file system of `mib` MiB in memory.
    pub fn fresh(mib: u64, policy: Policy) -> Library {
        Library::indexed(mib, policy, device::index_of(policy))
    }

    /// As `fresh`, with this index.
    pub fn indexed(mib: u64, policy: Policy, index: IndexKind) -> Library {
        let region = Region::create(&DeviceSpec::Memory, mib << 20, &OpenOptions::default()).expect("a memory device");
        FileSystem::mkfs(&region, &MkfsOptions { index, now: device::now(), ..MkfsOptions::default() }).expect("mkfs");
        Library::on(region, MountOptions { policy, ..device::options() })
    }

    /// Mounts a formatted device.
    pub fn on(region: Region, options: MountOptions) -> Library {
        let mounted = Some(mount(&region, &options));
        Library {
            region,
            options,
            root: InodeNumber::ROOT,
            mounted,
            crashes: 0,
            slots: Default::default(),
            collects: false,
            time: None,
            between: None,
        }
    }

    /// As `on`, with a clock that only [`Op::Rest`] moves on. The options have the same clock.
    pub fn with_time(region: Region, options: MountOptions, time: Time) -> Library {
        Library { time: Some(time), ..Library::on(region, options) }
    }

    /// Makes a subject of the tree below a directory. It must not be remounted, because other subjects use the file
    /// system.
    pub fn below(fs: FileSystem, root: InodeNumber) -> Library {
        let (region, options) = (fs.region().clone(), MountOptions { policy: fs.policy(), ..device::options() });
        Library {
            region,
            options,
            root,
            mounted: Some(fs),
            crashes: 0,
            slots: Default::default(),
            collects: false,
            time: None,
            between: None,
        }
    }

    /// Calls this between the operations that are done while a tree is cloned.
    pub fn look_between(&mut self, between: Between) {
        self.between = Some(between);
    }

    /// Returns the mounted file system.
    pub fn fs(&self) -> &FileSystem {
        self.mounted.as_ref().expect("mounted")
    }

    /// Returns whether an open slot holds a file without a name.
    pub fn holds_nameless(&self) -> bool {
        self.slots.iter().flatten().any(|file| file.attr().nlink == 0)
    }

    /// Returns whether a slot holds a file.
    pub fn has_open_slots(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Returns whether a round of collecting may be under way.
    pub fn collects(&self) -> bool {
        self.collects
    }

    /// Closes all slots and unmounts in order.
    pub fn unmount(mut self) -> Region {
        self.slots = Default::default();
        self.mounted.take().expect("mounted").unmount().expect("unmount");
        self.region
    }

    /// Returns the blocks that writers may still take.
    pub fn blocks_available(&self) -> u64 {
        self.fs().statfs().blocks_available
    }

    /// Closes all slots and mounts again, in order or as after a crash. The stored bytes are the same before and
    /// after, but that an unmount packs the ends of files that grew.
    fn mount_again(&mut self, in_order: bool) {
        self.slots = Default::default();
        let fs = self.mounted.take().expect("mounted");
        self.crashes += u64::from(!in_order);
        let compared = in_order || self.crashes.is_multiple_of(2);
        let collects = std::mem::take(&mut self.collects);
        let sizes = |fs: &FileSystem| {
            let (logical, stored, saved) = exact_sizes(fs);
            if collects { (logical, 0, 0) } else { (logical, stored, saved) }
        };
        let before = compared.then(|| sizes(&fs));
        if in_order {
            fs.unmount().expect("unmount");
        } else {
            drop(fs);
        }
        let findings = device::findings(&self.region).expect("fsck");
        assert!(findings.is_empty(), "fsck finds:\n{}", findings.join("\n"));
        let fs = mount(&self.region, &self.options);
        if let Some(before) = before {
            let after = sizes(&fs);
            let is_packed = in_order && after.0 == before.0 && after.1 < before.1;
            assert!(
                is_packed || after == before,
                "the mount found other sizes (logical, stored, saved) than were kept: {after:?}, not {before:?}"
            );
        }
        self.mounted = Some(fs);
    }

    /// Closes all slots and converts the device to the other index. A device without space for that keeps its index.
    fn convert(&mut self) {
        // An unmount after this one packs nothing.
        self.mount_again(true);
        let fs = self.mounted.take().expect("mounted");
        let (from, weak) = (fs.index_kind(), fs.weak_function());
        while std::mem::take(&mut self.collects) {
            self.collects = !fs.reclaim_step(Victims::All).expect("reclaim");
        }
        let sizes = exact_sizes(&fs);
        fs.unmount().expect("unmount");
        let to = if from == IndexKind::Dram { IndexKind::Pm } else { IndexKind::Dram };
        let is = match nvfold::convert_index(&self.region, to, weak, &mut |_, _| {}) {
            Ok(()) => to,
            Err(error) if error.errno() == errno::ENOSPC => from,
            Err(error) => panic!("converting the index to {}: {error}", to.name()),
        };
        let findings = device::findings(&self.region).expect("fsck");
        assert!(findings.is_empty(), "fsck after a conversion to {} finds:\n{}", to.name(), findings.join("\n"));
        let fs = mount(&self.region, &self.options);
        assert_eq!((exact_sizes(&fs), fs.index_kind()), (sizes, is), "sizes (logical, stored, saved) and index");
        self.mounted = Some(fs);
    }

    fn grow(&mut self) {
        // As in a conversion.
        self.mount_again(true);
        let fs = self.mounted.take().expect("mounted");
        let sizes = exact_sizes(&fs);
        fs.unmount().expect("unmount");
        let grown = nvfold::grow(&self.region).expect("it can grow");
        assert_eq!(grown.after_bytes, self.region.len_bytes());
        let findings = device::findings(&self.region).expect("fsck");
        assert!(findings.is_empty(), "fsck after growth finds:\n{}", findings.join("\n"));
        let fs = mount(&self.region, &self.options);
        assert_eq!(exact_sizes(&fs), sizes, "sizes (logical, stored, saved)");
        self.mounted = Some(fs);
    }

    fn parent(&self, path: &NodePath) -> Result<(InodeNumber, Vec<u8>), i32> {
        let (last, dirs) = path.split_last().ok_or(errno::EINVAL)?;
        let mut dir = self.root;
        for &index in dirs {
            let attr = self.fs().lookup(dir, &op::name(index)).map_err(|error| error.errno())?;
            match attr.kind {
                FileKind::Directory => dir = attr.ino,
                // The kernel would follow the link, and all targets dangle.
                FileKind::Symlink => return Err(errno::ENOENT),
                _ => return Err(errno::ENOTDIR),
            }
        }
        Ok((dir, op::name(*last)))
    }

    fn find(&self, path: &NodePath) -> Result<Attr, i32> {
        if path.is_empty() {
            let mut attr = number(self.fs().getattr(self.root))?;
            // The directory of the snapshots is not a part of the model.
            attr.nlink -= u32::from(self.fs().lookup(self.root, nvfold::SNAPSHOTS[0]).is_ok());
            return Ok(attr);
        }
        let (dir, name) = self.parent(path)?;
        number(self.fs().lookup(dir, &name))
    }

    fn open(&self, path: &NodePath) -> Result<File, i32> {
        let attr = self.find(path)?;
        if attr.kind != FileKind::Regular {
            return Err(NOT_A_FILE);
        }
        number(self.fs().open(attr.ino))
    }

    fn slot(&self, slot: u8) -> Result<&File, i32> {
        self.slots[slot as usize].as_ref().ok_or(EMPTY_SLOT)
    }

    fn set(&self, path: &NodePath, change: SetAttr) -> Result<Answer, i32> {
        number(self.fs().setattr(self.find(path)?.ino, &change)).map(|_| Answer::Done)
    }

    fn carry_out(&mut self, op: &Op) -> Result<Answer, i32> {
        match op {
            Op::Create { path, mode } => {
                let (dir, name) = self.parent(path)?;
                done(self.fs().create(dir, &name, &device::new_inode(FileKind::Regular, *mode)))
            }
            Op::Fifo { path } => {
                let (dir, name) = self.parent(path)?;
                done(self.fs().create(dir, &name, &device::new_inode(FileKind::Fifo, 0o644)))
            }
            Op::Mkdir { path, mode } => {
                let (dir, name) = self.parent(path)?;
                done(self.fs().mkdir(dir, &name, &device::new_inode(FileKind::Directory, *mode)))
            }
            Op::Symlink { path, target_len } => {
                let (dir, name) = self.parent(path)?;
                let new = device::new_inode(FileKind::Symlink, 0o777);
                done(self.fs().symlink(dir, &name, &oracle::symlink_target(*target_len), &new))
            }
            Op::Link { from, to } => {
                let source = self.find(from)?;
                let (dir, name) = self.parent(to)?;
                // The kernel checks the new name before the file that is to be linked.
                if source.kind == FileKind::Directory && self.fs().lookup(dir, &name).is_ok() {
                    return Err(errno::EEXIST);
                }
                done(self.fs().link(source.ino, dir, &name))
            }
            Op::Unlink { path } => {
                let (dir, name) = self.parent(path)?;
                done(self.fs().unlink(dir, &name))
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.parent(path)?;
                done(self.fs().rmdir(dir, &name))
            }
            Op::RemoveTree { path } => {
                let (dir, name) = self.parent(path)?;
                number(self.fs().remove_tree(dir, &name))?;
                let step = || self.fs().remove_step();
                done(std::iter::repeat_with(step).find(|step| !matches!(step, Ok(false))).expect("without end"))
            }
            Op::Rename { from, to, mode } => self.rename(from, to, *mode),
            Op::Readdir { path } => self.readdir(path),
            Op::Readlink { path } => number(self.fs().readlink(self.find(path)?.ino)).map(Answer::Bytes),
            Op::Stat { path } => Ok(Answer::Stat(stat(&self.find(path)?))),
            Op::Chmod { path, mode } => {
                if self.find(path)?.kind == FileKind::Symlink {
                    return Err(NOT_A_FILE);
                }
                self.set(path, SetAttr { mode: Some(*mode), ..SetAttr::default() })
            }
            Op::Chown { path, uid, gid } => {
                self.set(path, SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() })
            }
            Op::SetTimes { path, atime, mtime } => {
                self.set(path, SetAttr { atime: Some(*atime), mtime: Some(*mtime), ..SetAttr::default() })
            }
            Op::SetXattr { path, name, seed, len, mode } => {
                let ino = self.find(path)?.ino;
                let value = op::data(*seed, *len);
                done(self.fs().set_xattr(ino, &oracle::xattr_name(*name), &value, *mode))
            }
            Op::GetXattr { path, name } => {
                let ino = self.find(path)?.ino;
                number(self.fs().get_xattr(ino, &oracle::xattr_name(*name))).map(Answer::Bytes)
            }
            Op::ListXattr { path } => {
                let mut names = number(self.fs().list_xattr(self.find(path)?.ino))?;
                names.sort();
                Ok(Answer::Names(names))
            }
            Op::RemoveXattr { path, name } => {
                let ino = self.find(path)?.ino;
                done(self.fs().remove_xattr(ino, &oracle::xattr_name(*name)))
            }
            Op::CreateWith { path, kind, mode, xattrs } => {
                let (dir, name) = self.parent(path)?;
                let xattrs = xattrs.iter().map(|(name, seed, len)| (oracle::xattr_name(*name), op::data(*seed, *len)));
                let xattrs: Vec<_> = xattrs.collect();
                let xattrs: Vec<_> = xattrs.iter().map(|(name, value)| (&name[..], &value[..])).collect();
                done(match kind {
                    Kind::Directory => {
                        self.fs().mkdir_with(dir, &name, &device::new_inode(FileKind::Directory, *mode), &xattrs)
                    }
                    _ => self.fs().create_with(dir, &name, &device::new_inode(FileKind::Regular, *mode), &xattrs),
                })
            }
            Op::SetTogether { path, mode, size, mtime, xattr } => {
                let ino = self.open(path)?.ino();
                let change = SetAttr { mode: *mode, size: *size, mtime: *mtime, ..SetAttr::default() };
                let xattr =
                    xattr.map(|(name, value)| (oracle::xattr_name(name), value.map(|(seed, len)| op::data(seed, len))));
                let xattr = xattr.as_ref().map(|(name, value)| XattrChange { name, value: value.as_deref() });
                done(self.fs().setattr_with(ino, &change, xattr.as_slice()))
            }
            Op::Write { path, offset, len, seed } => done(self.open(path)?.write_at(*offset, &op::data(*seed, *len))),
            Op::Append { path, len, seed } => done(self.open(path)?.append(&op::data(*seed, *len))),
            Op::Read { path, offset, len } => read(&self.open(path)?, *offset, *len),
            Op::Truncate { path, size } => done(self.open(path)?.set_len(*size)),
            Op::Allocate { path, offset, len, mode } => done(self.open(path)?.allocate(*offset, *len, *mode)),
            Op::Clone { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.open(from)?, self.open(to)?);
                // A system call clips the range to the source before it checks for an overlap.
                let len = (*len).min(from.attr().size.saturating_sub(*from_offset));
                done(to.clone_from(&from, *from_offset, *to_offset, len))
            }
            Op::Copy { from, from_offset, to, to_offset, len, changed } => {
                let (from, to) = (self.open(from)?, self.open(to)?);
                let mut bytes = vec![0; *len as usize];
                let read = from.read_at(*from_offset, &mut bytes).map_err(|error| error.errno())?;
                bytes.truncate(read);
                let origin = Origin { at: 0, length: *len, source: &from, source_offset: *from_offset };
                done(to.write_at_from(*to_offset, &op::with_changes(bytes, *changed), &[origin]))
            }
            Op::CloneTree { from, to, meanwhile } => self.clone_tree(from, to, meanwhile),
            Op::Snapshot { from, name } => {
                let top = self.find(from)?.ino;
                done(self.fs().create_snapshot(&op::name(*name), top, &CloneOptions::default()))
            }
            Op::DeleteSnapshot { name } => {
                done(self.fs().delete_snapshot(&op::name(*name)))?;
                let step = || self.fs().remove_step();
                done(std::iter::repeat_with(step).find(|step| !matches!(step, Ok(false))).expect("without end"))
            }
            Op::SetLimits { path, inodes, logical_bytes } => {
                let ino = self.find(path)?.ino;
                let limits = Limits { inodes: *inodes, logical_bytes: *logical_bytes, expires: None };
                done(self.fs().change_limits(ino, |all| *all = limits))
            }
            Op::GetLimits { path } => {
                let tree = number(self.fs().limited_tree(self.find(path)?.ino))?;
                let limits = tree.map(|tree| (tree.limits.inodes, tree.limits.logical_bytes, tree.inodes));
                Ok(op::limits(limits))
            }
            Op::Sync { path } => done(self.open(path)?.sync()),
            Op::Dedup { path, offset, len } => match self.fs().compression() {
                Compression::Off => done(self.open(path)?.dedup_range(*offset, *len)),
                compression => done(self.open(path)?.compress_range(*offset, *len, compression)),
            },
            Op::Compress { path, offset, len, compression } => {
                done(self.open(path)?.compress_range(*offset, *len, *compression))
            }
            Op::Undedup { path, offset, len } => done(self.open(path)?.undedup_range(*offset, *len)),
            Op::Fill => {
                let step = || self.fs().fill_step();
                done(std::iter::repeat_with(step).find(|step| !matches!(step, Ok(false))).expect("without end"))
            }
            Op::FillStep => done(self.fs().fill_step()),
            Op::ReclaimStep { victims } => {
                let is_done = number(self.fs().reclaim_step(*victims))?;
                self.collects = !is_done;
                Ok(Answer::Done)
            }
            Op::Reclaim => {
                self.collects = false;
                let step = || self.fs().reclaim_step(Victims::All);
                done(std::iter::repeat_with(step).find(|step| !matches!(step, Ok(false))).expect("without end"))
            }
            Op::CollectSteps { steps } => {
                let mut steps = (0..*steps).map(|_| number(self.fs().collect_step()));
                self.collects = !steps.find(|step| *step != Ok(false)).unwrap_or(Ok(false))?;
                Ok(Answer::Done)
            }
            Op::EmptySegments => {
                self.fs().empty_segments_of_blocks();
                Ok(Answer::Done)
            }
            Op::GrowTable { part } => {
                done(self.fs().grow_inode_table(InodeNumber(u64::from(*part) * INODES_PER_SEGMENT)))
            }
            Op::DrainStep => done(self.fs().drain_step()),
            Op::Drain => {
                let step = || self.fs().drain_step();
                done(std::iter::repeat_with(step).find(|step| !matches!(step, Ok(false))).expect("without end"))
            }
            Op::ReorderStep => done(self.fs().reorder_step()),
            Op::SetMode { mode } => {
                self.fs().set_dedup_mode(*mode);
                Ok(Answer::Done)
            }
            Op::SetPolicy { path, policy } => {
                let attr = self.find(path)?;
                match policy {
                    _ if !matches!(attr.kind, FileKind::Regular | FileKind::Directory) => Err(NOT_A_FILE),
                    None => done(self.fs().remove_xattr(attr.ino, POLICY_ATTRIBUTE)),
                    Some(policy) => {
                        let value = policy.name().as_bytes();
                        done(self.fs().set_xattr(attr.ino, POLICY_ATTRIBUTE, value, XattrMode::Set))
                    }
                }
            }
            Op::GetPolicy { path } => {
                let ino = self.find(path)?.ino;
                let value = number(self.fs().get_xattr(ino, POLICY_ATTRIBUTE));
                let own = matches!(number(self.fs().policy_of(ino))?, PolicyOf::Own(_));
                assert_eq!(own, value.is_ok(), "the attribute decides");
                value.map(Answer::Bytes)
            }
            Op::Open { path, slot } => {
                let file = self.open(path)?;
                self.slots[*slot as usize] = Some(file);
                Ok(Answer::Done)
            }
            Op::SlotWrite { slot, offset, len, seed } => {
                done(self.slot(*slot)?.write_at(*offset, &op::data(*seed, *len)))
            }
            Op::SlotRead { slot, offset, len } => read(self.slot(*slot)?, *offset, *len),
            Op::SlotStat { slot } => Ok(Answer::Stat(stat(&self.slot(*slot)?.attr()))),
            Op::Close { slot } => {
                self.slots[*slot as usize] = None;
                Ok(Answer::Done)
            }
            Op::Tmpfile { slot, mode } => {
                let file = number(self.fs().tmpfile(&device::new_inode(FileKind::Regular, *mode)))?;
                self.slots[*slot as usize] = Some(file);
                Ok(Answer::Done)
            }
            Op::SlotLink { slot, to } => {
                let (dir, name) = self.parent(to)?;
                done(self.fs().link(self.slot(*slot)?.ino(), dir, &name))
            }
            Op::Reconcile => done(self.fs().reconcile()),
            Op::Trim => done(self.fs().trim()),
            Op::TrimStep => done(self.fs().trim_step()),
            Op::Rest { ms } => {
                self.time.iter().for_each(|time| time.pass(*ms));
                Ok(Answer::Done)
            }
            Op::Remount => {
                self.mount_again(true);
                Ok(Answer::Done)
            }
            Op::Crash => {
                self.mount_again(false);
                Ok(Answer::Done)
            }
            Op::Convert => {
                self.convert();
                Ok(Answer::Done)
            }
            Op::GrowMounted => {
                let grown = number(self.fs().grow(None))?;
                assert_eq!(grown.after_bytes, self.region.len_bytes());
                Ok(Answer::Done)
            }
            Op::Grow => {
                self.grow();
                Ok(Answer::Done)
            }
        }
    }

    fn rename(&self, from: &NodePath, to: &NodePath, mode: RenameMode) -> Result<Answer, i32> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let answer = done(self.fs().rename(from_dir, &from_name, to_dir, &to_name, mode));
        // The kernel refuses a target above the source before it compares kinds.
        match answer {
            Err(errno::EISDIR) if from.starts_with(to) => Err(errno::ENOTEMPTY),
            answer => answer,
        }
    }

    /// Clones a tree in the smallest turns, and does the other operations between them.
    fn clone_tree(&mut self, from: &NodePath, to: &NodePath, meanwhile: &[Op]) -> Result<Answer, i32> {
        let (top, (dir, name)) = (self.find(from)?.ino, self.parent(to)?);
        let fs = self.fs().clone();
        let slots = std::mem::take(&mut self.slots);
        let others = Library { slots, time: self.time.clone(), ..Library::below(fs.clone(), self.root) };
        let (others, left) = (RefCell::new(others), RefCell::new(meanwhile.iter()));
        let progress = |_: CloneProgress| {
            if let Some(op) = left.borrow_mut().next() {
                others.borrow_mut().apply(op);
                self.between.iter().for_each(|between| between(&fs));
            }
            ControlFlow::Continue(())
        };
        fs.set_clone_turn(1);
        let options = CloneOptions { progress: Some(&progress), ..CloneOptions::default() };
        let cloned = done(fs.clone_tree(top, dir, &name, &options));
        let mut others = others.into_inner();
        left.into_inner().filter(|_| cloned.is_ok()).for_each(|op| drop(others.apply(op)));
        self.slots = std::mem::take(&mut others.slots);
        cloned
    }

    fn readdir(&self, path: &NodePath) -> Result<Answer, i32> {
        let mut entries = Vec::new();
        let mut collect = |entry: nvfold::DirEntry| {
            // Where the snapshots are.
            if entry.name != nvfold::SNAPSHOTS[0] {
                entries.push((entry.name, kind(entry.kind)));
            }
            true
        };
        number(self.fs().readdir(self.find(path)?.ino, 0, &mut collect))?;
        entries.sort();
        Ok(Answer::Entries(entries))
    }
}

impl Subject for Library {
    fn name(&self) -> &'static str {
        "the library"
    }

    fn apply(&mut self, op: &Op) -> Answer {
        if self.crashes > 0 {
            self.fs().reconcile_step().expect("reconcile");
        }
        let answer = self.carry_out(op).into();
        let skipped = self.fs().skipped();
        assert!(skipped.count == 0, "work in the background skipped something: {:?}", skipped.last_error);
        answer
    }
}

fn mount(region: &Region, options: &MountOptions) -> FileSystem {
    FileSystem::mount(region.clone(), options.clone()).expect("mount")
}

fn exact_sizes(fs: &FileSystem) -> (u64, u64, u64) {
    fs.reconcile().expect("reconcile");
    let (stats, usage) = (fs.stats(), fs.usage().expect("usage").expect("reconciled"));
    assert!(usage.adds_up(), "{usage:?}");
    assert_eq!((usage.logical_bytes, usage.stored_bytes), (stats.logical_bytes, stats.stored_bytes));
    (stats.logical_bytes, stats.stored_bytes, stats.saved_bytes)
}

fn read(file: &File, offset: u64, len: u64) -> Result<Answer, i32> {
    let mut buffer = vec![0xEE; len as usize];
    let count = number(file.read_at(offset, &mut buffer))?;
    buffer.truncate(count);
    Ok(Answer::Bytes(buffer))
}

fn stat(attr: &Attr) -> Stat {
    let size = matches!(attr.kind, FileKind::Regular | FileKind::Symlink).then_some(attr.size);
    Stat {
        kind: kind(attr.kind),
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink,
        size,
        mtime: Some(attr.mtime),
    }
}

fn kind(kind: FileKind) -> Kind {
    match kind {
        FileKind::Regular => Kind::Regular,
        FileKind::Directory => Kind::Directory,
        FileKind::Symlink => Kind::Symlink,
        FileKind::Fifo => Kind::Fifo,
        FileKind::CharDevice => Kind::Whiteout,
        other => panic!("nothing makes a {other:?} here"),
    }
}

fn number<T>(result: nvfold::Result<T>) -> Result<T, i32> {
    result.map_err(|error| error.errno())
}

fn done<T>(result: nvfold::Result<T>) -> Result<Answer, i32> {
    number(result).map(|_| Answer::Done)
}
