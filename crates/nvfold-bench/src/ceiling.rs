//! A minimal FUSE file system: files are byte vectors in one directory tree of two levels.
//!
//! Nothing is shared, nothing is durable, and size is the only attribute. The difference between a mount of nvfold
//! and this one is the cost of nvfold; the difference between this one and tmpfs is the cost of FUSE.

use crate::{Doing, Result, scratch};
use nvfold_fuse::handshake::{self, Wanted};
use nvfold_fuse::mount::{Mounting, unmount};
use nvfold_fuse::protocol::{Attr, StatFsOut, feature};
use nvfold_fuse::{Caller, Entry, Errno, Operation, Reply, SPIN, Server, Session, Transport};
use nvfold_fuse::{is_ring_available, place};
use parking_lot::RwLock;
use rustix::mount::{MountFlags, UnmountFlags};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const FOREVER: Duration = Duration::from_secs(86_400);
const ROOT: u64 = 1;
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

/// Serves until unmounted, in the default way of a mount of nvfold.
pub(crate) fn serve(dir: &Path) -> Result<()> {
    let nodes = HashMap::from([(ROOT, RwLock::new(Node::Directory))]);
    let tree = Tree { next: ROOT + 1, ..Tree::default() };
    let ceiling = Ceiling { tree: RwLock::new(tree), nodes: RwLock::new(nodes) };
    let doing = || format!("serve {}", dir.display());
    scratch::end_with_parent(dir)?;
    // Like the background process of a mount: a scheduling group of its own.
    rustix::process::setsid().map_err(std::io::Error::from).doing(doing())?;
    place::keep_clients_on_cpu();
    let mounting = Mounting {
        source: "ceiling".into(),
        subtype: "ceiling",
        flags: MountFlags::NOSUID | MountFlags::NODEV,
        allow_other: false,
    };
    let connection = mounting.mount(dir).doing(doing())?;
    let started = handshake::agree(&connection, &wanted()).and_then(|agreed| {
        let transport = match agreed & feature::OVER_IO_URING != 0 {
            true => Transport::Ring,
            false => Transport::Device { threads: 2, spin: Some(SPIN) },
        };
        Session::start(Arc::new(ceiling), connection, transport)
    });
    let session = started.inspect_err(|_| _ = unmount(dir, UnmountFlags::DETACH)).doing(doing())?;
    session.wait().doing(doing())
}

/// Returns the settings of the mount that it is compared with; an older kernel has fewer.
fn wanted() -> Wanted {
    let features = feature::WRITEBACK_CACHE | feature::ASYNC_DIO | feature::PARALLEL_DIROPS;
    let by_ring = if is_ring_available().is_ok() { feature::OVER_IO_URING } else { 0 };
    Wanted { features: features | by_ring, max_write_bytes: 1 << 20, read_ahead_bytes: u32::MAX, background: 16 }
}

impl Ceiling {
    fn attr(&self, ino: u64) -> std::result::Result<Attr, Errno> {
        let nodes = self.nodes.read();
        let (size, mode) = match &*nodes.get(&ino).ok_or(Errno::ENOENT)?.read() {
            Node::Directory => (0, 0o040755),
            Node::File { size, .. } => (*size, 0o100644),
        };
        Ok(Attr { ino, size, blocks: size.div_ceil(512), mode, nlink: 1, blksize: 4096, ..Attr::default() })
    }

    fn entry(&self, ino: u64) -> std::result::Result<Entry, Errno> {
        Ok(Entry { attr: self.attr(ino)?, generation: 0, valid: FOREVER })
    }

    fn add(&self, parent: u64, name: &OsStr, node: Node) -> std::result::Result<Entry, Errno> {
        let mut tree = self.tree.write();
        let ino = tree.next;
        tree.next += 1;
        tree.names.insert((parent, name.into()), ino);
        self.nodes.write().insert(ino, RwLock::new(node));
        drop(tree);
        self.entry(ino)
    }

    fn look_up(&self, parent: u64, name: &OsStr) -> std::result::Result<Entry, Errno> {
        let found = self.tree.read().names.get(&(parent, name.to_owned())).copied();
        self.entry(found.ok_or(Errno::ENOENT)?)
    }

    fn resize(&self, ino: u64, new: u64) {
        if let Some(node) = self.nodes.read().get(&ino)
            && let Node::File { size, pieces } = &mut *node.write()
        {
            *size = new;
            grow(pieces, new);
        }
    }

    fn read(&self, ino: u64, offset: u64, room: &mut [u8]) -> std::result::Result<usize, Errno> {
        let nodes = self.nodes.read();
        let node = nodes.get(&ino).ok_or(Errno::ENOENT)?;
        let Node::File { size, pieces } = &*node.read() else { return Err(Errno::EISDIR) };
        let length = size.saturating_sub(offset).min(room.len() as u64) as usize;
        let mut rest = &mut room[..length];
        let mut at = offset as usize;
        while !rest.is_empty() {
            let start = at % BLOCK;
            let (now, later) = rest.split_at_mut((BLOCK - start).min(rest.len()));
            now.copy_from_slice(&pieces[at / BLOCK][start..start + now.len()]);
            (at, rest) = (at + now.len(), later);
        }
        Ok(length)
    }

    fn write(&self, ino: u64, offset: u64, data: &[u8]) -> std::result::Result<(), Errno> {
        let nodes = self.nodes.read();
        let node = nodes.get(&ino).ok_or(Errno::ENOENT)?;
        let Node::File { size, pieces } = &mut *node.write() else { return Err(Errno::EISDIR) };
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
        Ok(())
    }
}

fn grow(pieces: &mut Vec<Box<[u8]>>, size: u64) {
    let wanted = (size as usize).div_ceil(BLOCK);
    while pieces.len() < wanted {
        pieces.push(vec![0; BLOCK].into());
    }
}

impl Server for Ceiling {
    fn answer(
        &self,
        _who: &Caller<'_>,
        operation: Operation<'_>,
        reply: &mut Reply<'_>,
    ) -> std::result::Result<(), Errno> {
        match operation {
            Operation::Lookup { parent, name } => reply.entry(&self.look_up(parent, name)?),
            Operation::GetAttr { ino, .. } => reply.attr(&self.attr(ino)?, FOREVER),
            Operation::SetAttr { ino, change } => {
                if let Some(size) = change.size {
                    self.resize(ino, size);
                }
                reply.attr(&self.attr(ino)?, FOREVER);
            }
            Operation::MkDir { parent, name, .. } => reply.entry(&self.add(parent, name, Node::Directory)?),
            Operation::Create { parent, name, .. } => {
                reply.created(&self.add(parent, name, Node::File { size: 0, pieces: Vec::new() })?, 0, 0);
            }
            Operation::Open { .. } | Operation::OpenDir { .. } => reply.opened(0, 0),
            Operation::Read { ino, offset, size, .. } => {
                reply.fill(size as usize, |room| self.read(ino, offset, room))?;
            }
            Operation::Write { ino, offset, data, .. } => {
                self.write(ino, offset, data)?;
                reply.written(data.len() as u32);
            }
            Operation::StatFs { .. } => reply.statfs(&StatFsOut { name_bytes_max: 255, ..StatFsOut::default() }),
            Operation::Forget { .. } | Operation::BatchForget { .. } => {}
            Operation::Flush | Operation::FSync | Operation::Release | Operation::ReleaseDir { .. } => {}
            _ => return Err(Errno::ENOSYS),
        }
        Ok(())
    }
}
