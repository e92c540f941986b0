//! The simplest FUSE file system there could be: files are byte vectors in one directory tree of two levels.
//!
//! Nothing is shared, nothing is durable, no attribute but the size is kept. What a mount of nvfold loses against
//! this is nvfold's; what this loses against tmpfs is FUSE's.

use crate::{Doing, Result};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const FOREVER: Duration = Duration::from_secs(86_400);
const BLOCK: usize = 128 << 10;

enum Node {
    Directory,
    /// Content in pieces of 128 KiB, so that growing copies nothing.
    File {
        size: u64,
        pieces: Vec<Box<[u8]>>,
    },
}

#[derive(Default)]
struct Tree {
    names: HashMap<(u64, OsString), u64>,
    next: u64,
}

struct Ceiling {
    tree: RwLock<Tree>,
    nodes: RwLock<HashMap<u64, RwLock<Node>>>,
}

/// Serves until unmounted.
pub fn serve(dir: &Path) -> Result<()> {
    let nodes = HashMap::from([(INodeNo::ROOT.0, RwLock::new(Node::Directory))]);
    let tree = Tree { next: INodeNo::ROOT.0 + 1, ..Tree::default() };
    let ceiling = Ceiling { tree: RwLock::new(tree), nodes: RwLock::new(nodes) };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("ceiling".into()),
        // `fuse.ceiling` in the mount table. fuser's own `Subtype` does not get there when root mounts.
        MountOption::CUSTOM("subtype=ceiling".into()),
        MountOption::DefaultPermissions,
    ];
    config.n_threads = Some(2);
    config.clone_fd = true;
    fuser::mount(ceiling, dir, &config).doing(format!("serve {}", dir.display()))
}

impl Ceiling {
    fn attr(&self, ino: u64) -> Option<FileAttr> {
        let nodes = self.nodes.read();
        let (kind, size, perm) = match &*nodes.get(&ino)?.read() {
            Node::Directory => (FileType::Directory, 0, 0o755),
            Node::File { size, .. } => (FileType::RegularFile, *size, 0o644),
        };
        Some(FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn add(&self, parent: u64, name: &OsStr, node: Node) -> FileAttr {
        let mut tree = self.tree.write();
        let ino = tree.next;
        tree.next += 1;
        tree.names.insert((parent, name.into()), ino);
        self.nodes.write().insert(ino, RwLock::new(node));
        self.attr(ino).expect("just added")
    }
}

fn grow(pieces: &mut Vec<Box<[u8]>>, size: u64) {
    let wanted = (size as usize).div_ceil(BLOCK);
    while pieces.len() < wanted {
        pieces.push(vec![0; BLOCK].into());
    }
}

impl Filesystem for Ceiling {
    fn init(&mut self, _who: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for flag in [InitFlags::FUSE_WRITEBACK_CACHE, InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_PARALLEL_DIROPS] {
            // Those of the mount that it is compared with; an older kernel has fewer.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _who: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.tree.read().names.get(&(parent.0, name.to_owned())).copied();
        match found.and_then(|ino| self.attr(ino)) {
            Some(attr) => reply.entry(&FOREVER, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _who: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino.0) {
            Some(attr) => reply.attr(&FOREVER, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _who: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let (Some(new), Some(node)) = (size, self.nodes.read().get(&ino.0))
            && let Node::File { size, pieces } = &mut *node.write()
        {
            *size = new;
            grow(pieces, new);
        }
        self.getattr(_who, ino, None, reply);
    }

    fn mkdir(&self, _who: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        reply.entry(&FOREVER, &self.add(parent.0, name, Node::Directory), Generation(0));
    }

    fn create(
        &self,
        _who: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let attr = self.add(parent.0, name, Node::File { size: 0, pieces: Vec::new() });
        reply.created(&FOREVER, &attr, Generation(0), FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _who: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let nodes = self.nodes.read();
        let Some(node) = nodes.get(&ino.0) else { return reply.error(Errno::ENOENT) };
        let Node::File { size: length, pieces } = &*node.read() else { return reply.error(Errno::EISDIR) };
        let end = length.saturating_sub(offset).min(u64::from(size)) + offset;
        let mut data = Vec::with_capacity(size as usize);
        let mut at = offset;
        while at < end {
            let start = at as usize % BLOCK;
            let stop = (start + (end - at) as usize).min(BLOCK);
            data.extend_from_slice(&pieces[at as usize / BLOCK][start..stop]);
            at += (stop - start) as u64;
        }
        reply.data(&data);
    }

    fn write(
        &self,
        _who: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let nodes = self.nodes.read();
        let Some(node) = nodes.get(&ino.0) else { return reply.error(Errno::ENOENT) };
        let Node::File { size, pieces } = &mut *node.write() else { return reply.error(Errno::EISDIR) };
        *size = (*size).max(offset + data.len() as u64);
        grow(pieces, *size);
        let mut at = offset as usize;
        let mut rest = data;
        while !rest.is_empty() {
            let start = at % BLOCK;
            let (now, later) = rest.split_at(rest.len().min(BLOCK - start));
            pieces[at / BLOCK][start..start + now.len()].copy_from_slice(now);
            (at, rest) = (at + now.len(), later);
        }
        reply.written(data.len() as u32);
    }

    fn flush(&self, _who: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _who: &Request, _ino: INodeNo, _fh: FileHandle, _data: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}
