//! The oracle: a file system of maps and vectors, with Linux's errno for each failure.

use std::collections::{BTreeMap, BTreeSet};

use nvfold::errno::*;
use nvfold::{AllocateMode, POLICY_ATTRIBUTE, Policy, RenameMode, XattrMode};

use super::Subject;
use super::op::{self, Answer, EMPTY_SLOT, Kind, NOT_A_FILE, NodePath, Op, SLOTS, Stat};

type Id = usize;
const ROOT: Id = 0;

/// The whole file system. Nodes are never removed, so an open slot keeps its file.
#[derive(Clone)]
pub struct Oracle {
    nodes: Vec<Node>,
    slots: [Option<Id>; SLOTS as usize],
    snapshots: BTreeSet<u8>,
    /// The directories that got limits; one that lost them and got others is there twice.
    tops: Vec<Id>,
}

#[derive(Clone)]
struct Node {
    stat: Stat,
    bytes: Vec<u8>,
    entries: BTreeMap<Vec<u8>, Id>,
    xattrs: BTreeMap<u8, Vec<u8>>,
    policy: Option<Policy>,
    limits: Option<Limited>,
    /// The limited tree that it is charged to, by its place in `tops`. The directory may have lost these limits.
    charged: Option<usize>,
}

/// The limits of a directory. The model does not know how many bytes files map.
#[derive(Clone, Copy)]
struct Limited {
    tree: usize,
    inodes: Option<u64>,
    logical_bytes: Option<u64>,
}

impl Subject for Oracle {
    fn name(&self) -> &'static str {
        "the oracle"
    }

    fn apply(&mut self, op: &Op) -> Answer {
        self.carry_out(op).into()
    }
}

impl Default for Oracle {
    fn default() -> Oracle {
        Oracle::new()
    }
}

impl Oracle {
    /// Makes an empty file system.
    pub fn new() -> Oracle {
        let root = Node::new(Kind::Directory, 0o755);
        Oracle { nodes: vec![root], slots: [None; SLOTS as usize], snapshots: BTreeSet::new(), tops: Vec::new() }
    }

    /// Returns the operations that read everything.
    pub fn questions(&self) -> Vec<Op> {
        let mut questions = Vec::new();
        for (path, id) in self.walk() {
            let node = &self.nodes[id];
            // The root's mode and owner depend on the subject.
            if !path.is_empty() {
                questions.push(Op::Stat { path: path.clone() });
                questions.push(Op::ListXattr { path: path.clone() });
            }
            for &name in node.xattrs.keys() {
                questions.push(Op::GetXattr { path: path.clone(), name });
            }
            if self.known(node.charged).is_some() {
                questions.push(Op::GetLimits { path: path.clone() });
            }
            if node.policy.is_some() {
                questions.push(Op::GetPolicy { path: path.clone() });
            }
            questions.push(match node.stat.kind {
                Kind::Regular => Op::Read { path, offset: 0, len: node.bytes.len() as u64 + 1 },
                Kind::Directory => Op::Readdir { path },
                Kind::Symlink => Op::Readlink { path },
                Kind::Fifo | Kind::Whiteout => continue,
            });
        }
        questions
    }

    fn walk(&self) -> Vec<(NodePath, Id)> {
        let mut found = vec![(NodePath::new(), ROOT)];
        let mut next = 0;
        while next < found.len() {
            let (path, id) = found[next].clone();
            for index in 0..=u8::MAX {
                if let Some(&child) = self.nodes[id].entries.get(&op::name(index)) {
                    let mut path = path.clone();
                    path.push(index);
                    found.push((path, child));
                }
                if index > 31 {
                    break;
                }
            }
            next += 1;
        }
        found
    }

    fn carry_out(&mut self, op: &Op) -> Result<Answer, i32> {
        match op {
            Op::Create { path, mode } => self.add(path, Node::new(Kind::Regular, *mode)),
            Op::Mkdir { path, mode } => self.add(path, Node::new(Kind::Directory, *mode)),
            Op::Fifo { path } => self.add(path, Node::new(Kind::Fifo, 0o644)),
            Op::Symlink { path, target_len } => {
                let mut node = Node::new(Kind::Symlink, 0o777);
                node.bytes = symlink_target(*target_len);
                self.add(path, node)
            }
            Op::Link { from, to } => self.link(from, to),
            Op::Unlink { path } => self.unlink(path),
            Op::Rmdir { path } => self.rmdir(path),
            Op::RemoveTree { path } => self.remove_tree(path),
            Op::Rename { from, to, mode } => self.rename(from, to, *mode),
            Op::Readdir { path } => self.readdir(path),
            Op::Readlink { path } => {
                let node = &self.nodes[self.find(path)?];
                if node.stat.kind != Kind::Symlink {
                    return Err(EINVAL);
                }
                Ok(Answer::Bytes(node.bytes.clone()))
            }
            Op::Stat { path } => Ok(Answer::Stat(self.stat(self.find(path)?))),
            Op::Chmod { path, mode } => {
                let id = self.find(path)?;
                if self.nodes[id].stat.kind == Kind::Symlink {
                    return Err(NOT_A_FILE);
                }
                self.nodes[id].stat.mode = *mode;
                Ok(Answer::Done)
            }
            Op::Chown { path, uid, gid } => {
                let id = self.find(path)?;
                (self.nodes[id].stat.uid, self.nodes[id].stat.gid) = (*uid, *gid);
                Ok(Answer::Done)
            }
            Op::SetTimes { path, mtime, .. } => {
                let id = self.find(path)?;
                self.nodes[id].stat.mtime = Some(*mtime);
                Ok(Answer::Done)
            }
            Op::SetXattr { path, name, seed, len, mode } => {
                let id = self.find(path)?;
                let there = self.nodes[id].xattrs.contains_key(name);
                match mode {
                    XattrMode::Create if there => return Err(EEXIST),
                    XattrMode::Replace if !there => return Err(ENODATA),
                    _ => self.nodes[id].xattrs.insert(*name, op::data(*seed, *len)),
                };
                Ok(Answer::Done)
            }
            Op::GetXattr { path, name } => {
                let value = self.nodes[self.find(path)?].xattrs.get(name).ok_or(ENODATA)?;
                Ok(Answer::Bytes(value.clone()))
            }
            Op::ListXattr { path } => {
                let node = &self.nodes[self.find(path)?];
                let policy = node.policy.map(|_| POLICY_ATTRIBUTE.to_vec());
                let mut names: Vec<_> = node.xattrs.keys().map(|&name| xattr_name(name)).chain(policy).collect();
                names.sort();
                Ok(Answer::Names(names))
            }
            Op::RemoveXattr { path, name } => {
                let id = self.find(path)?;
                self.nodes[id].xattrs.remove(name).ok_or(ENODATA)?;
                Ok(Answer::Done)
            }
            Op::CreateWith { path, kind, mode, xattrs } => {
                let mut node = Node::new(*kind, *mode);
                node.xattrs = xattrs.iter().map(|(name, seed, len)| (*name, op::data(*seed, *len))).collect();
                self.add(path, node)
            }
            Op::SetTogether { path, mode, size, mtime, xattr } => {
                let id = self.find_file(path)?;
                let node = &mut self.nodes[id];
                node.stat.mode = mode.unwrap_or(node.stat.mode);
                if let Some(size) = size {
                    node.bytes.resize(*size as usize, 0);
                    node.stat.mtime = None;
                }
                node.stat.mtime = mtime.or(node.stat.mtime);
                match xattr {
                    Some((name, Some((seed, len)))) => drop(node.xattrs.insert(*name, op::data(*seed, *len))),
                    Some((name, None)) => drop(node.xattrs.remove(name)),
                    None => {}
                }
                Ok(Answer::Done)
            }
            Op::Write { path, offset, len, seed } => {
                let id = self.find_file(path)?;
                self.write(id, *offset, &op::data(*seed, *len));
                Ok(Answer::Done)
            }
            Op::Append { path, len, seed } => {
                let id = self.find_file(path)?;
                self.write(id, self.nodes[id].bytes.len() as u64, &op::data(*seed, *len));
                Ok(Answer::Done)
            }
            Op::Read { path, offset, len } => self.read(self.find_file(path)?, *offset, *len),
            Op::Truncate { path, size } => {
                let id = self.find_file(path)?;
                self.nodes[id].bytes.resize(*size as usize, 0);
                self.nodes[id].stat.mtime = None;
                Ok(Answer::Done)
            }
            Op::Allocate { path, offset, len, mode } => {
                let id = self.find_file(path)?;
                self.allocate(id, *offset as usize, *len as usize, *mode);
                Ok(Answer::Done)
            }
            Op::Clone { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.find_file(from)?, self.find_file(to)?);
                self.clone_range(from, *from_offset, to, *to_offset, *len)
            }
            Op::Copy { from, from_offset, to, to_offset, len, changed } => {
                let (from, to) = (self.find_file(from)?, self.find_file(to)?);
                let bytes = &self.nodes[from].bytes;
                let start = bytes.len().min(*from_offset as usize);
                let end = bytes.len().min(start + *len as usize);
                let data = op::with_changes(bytes[start..end].to_vec(), *changed);
                self.write(to, *to_offset, &data);
                Ok(Answer::Done)
            }
            Op::CloneTree { from, to, meanwhile } => {
                let cloned = self.clone_tree(from, to);
                meanwhile.iter().filter(|_| cloned.is_ok()).for_each(|op| drop(self.carry_out(op)));
                cloned
            }
            Op::Snapshot { from, name } => {
                let id = self.find(from)?;
                if self.nodes[id].stat.kind != Kind::Directory {
                    return Err(ENOTDIR);
                }
                if self.snapshots.insert(*name) { Ok(Answer::Done) } else { Err(EEXIST) }
            }
            Op::SetLimits { path, inodes, logical_bytes } => self.set_limits(path, *inodes, *logical_bytes),
            Op::GetLimits { path } => {
                let limited = self.limits_of(self.nodes[self.find(path)?].charged);
                let told = |limited: Limited| (limited.inodes, limited.logical_bytes, self.charged_to(limited.tree));
                Ok(op::limits(limited.map(told)))
            }
            Op::DeleteSnapshot { name } => {
                if self.snapshots.remove(name) {
                    Ok(Answer::Done)
                } else {
                    Err(ENOENT)
                }
            }
            Op::Sync { path } | Op::Dedup { path, .. } | Op::Compress { path, .. } | Op::Undedup { path, .. } => {
                self.find_file(path).map(|_| Answer::Done)
            }
            Op::Fill
            | Op::FillStep
            | Op::Reclaim
            | Op::ReclaimStep { .. }
            | Op::CollectSteps { .. }
            | Op::EmptySegments
            | Op::GrowTable { .. }
            | Op::GrowMounted
            | Op::DrainStep
            | Op::Drain
            | Op::ReorderStep
            | Op::SetMode { .. } => Ok(Answer::Done),
            Op::SetPolicy { path, policy } => {
                let id = self.find(path)?;
                let node = &mut self.nodes[id];
                match (node.stat.kind, policy) {
                    (Kind::Regular | Kind::Directory, Some(_)) => node.policy = *policy,
                    (Kind::Regular | Kind::Directory, None) => drop(node.policy.take().ok_or(ENODATA)?),
                    _ => return Err(NOT_A_FILE),
                }
                Ok(Answer::Done)
            }
            Op::GetPolicy { path } => {
                let policy = self.nodes[self.find(path)?].policy.ok_or(ENODATA)?;
                Ok(Answer::Bytes(policy.name().into()))
            }
            Op::Open { path, slot } => {
                self.slots[*slot as usize] = Some(self.find_file(path)?);
                Ok(Answer::Done)
            }
            Op::SlotWrite { slot, offset, len, seed } => {
                let id = self.slots[*slot as usize].ok_or(EMPTY_SLOT)?;
                self.write(id, *offset, &op::data(*seed, *len));
                Ok(Answer::Done)
            }
            Op::SlotRead { slot, offset, len } => {
                self.read(self.slots[*slot as usize].ok_or(EMPTY_SLOT)?, *offset, *len)
            }
            Op::SlotStat { slot } => Ok(Answer::Stat(self.stat(self.slots[*slot as usize].ok_or(EMPTY_SLOT)?))),
            Op::Close { slot } => {
                self.slots[*slot as usize] = None;
                Ok(Answer::Done)
            }
            Op::Tmpfile { slot, mode } => {
                let mut node = Node::new(Kind::Regular, *mode);
                node.stat.nlink = 0;
                node.charged = self.nodes[ROOT].charged;
                self.check_limit(node.charged, 1)?;
                self.nodes.push(node);
                self.slots[*slot as usize] = Some(self.nodes.len() - 1);
                Ok(Answer::Done)
            }
            Op::SlotLink { slot, to } => {
                let id = self.slots[*slot as usize].ok_or(EMPTY_SLOT)?;
                let (dir, name) = self.parent(to)?;
                if self.nodes[dir].entries.contains_key(&name) {
                    return Err(EEXIST);
                }
                self.check_same_tree(id, dir)?;
                self.join(id, dir);
                self.nodes[id].stat.nlink += 1;
                self.put(dir, name, id);
                Ok(Answer::Done)
            }
            Op::Reconcile | Op::Trim | Op::TrimStep | Op::Rest { .. } => Ok(Answer::Done),
            Op::Remount | Op::Crash | Op::Convert | Op::Grow => {
                self.slots = [None; SLOTS as usize];
                Ok(Answer::Done)
            }
        }
    }

    /// Returns the directory that holds the last name, which may be absent.
    fn parent(&self, path: &NodePath) -> Result<(Id, Vec<u8>), i32> {
        let (last, dirs) = path.split_last().ok_or(EINVAL)?;
        let mut dir = ROOT;
        for &index in dirs {
            dir = *self.nodes[dir].entries.get(&op::name(index)).ok_or(ENOENT)?;
            match self.nodes[dir].stat.kind {
                Kind::Directory => {}
                // All targets dangle.
                Kind::Symlink => return Err(ENOENT),
                _ => return Err(ENOTDIR),
            }
        }
        Ok((dir, op::name(*last)))
    }

    fn find(&self, path: &NodePath) -> Result<Id, i32> {
        if path.is_empty() {
            return Ok(ROOT);
        }
        let (dir, name) = self.parent(path)?;
        self.nodes[dir].entries.get(&name).copied().ok_or(ENOENT)
    }

    fn find_file(&self, path: &NodePath) -> Result<Id, i32> {
        let id = self.find(path)?;
        if self.nodes[id].stat.kind == Kind::Regular { Ok(id) } else { Err(NOT_A_FILE) }
    }

    fn add(&mut self, path: &NodePath, mut node: Node) -> Result<Answer, i32> {
        let (dir, name) = self.parent(path)?;
        if self.nodes[dir].entries.contains_key(&name) {
            return Err(EEXIST);
        }
        node.charged = self.nodes[dir].charged;
        self.check_limit(node.charged, 1)?;
        if node.stat.kind == Kind::Directory {
            self.nodes[dir].stat.nlink += 1;
        }
        if matches!(node.stat.kind, Kind::Regular | Kind::Directory) {
            node.policy = self.nodes[dir].policy;
        }
        self.nodes.push(node);
        let id = self.nodes.len() - 1;
        self.put(dir, name, id);
        Ok(Answer::Done)
    }

    fn put(&mut self, dir: Id, name: Vec<u8>, id: Id) {
        self.nodes[dir].entries.insert(name, id);
        self.nodes[dir].stat.mtime = None;
    }

    fn take(&mut self, dir: Id, name: &[u8]) {
        self.nodes[dir].entries.remove(name);
        self.nodes[dir].stat.mtime = None;
    }

    /// Copies a tree; what is linked in it is linked in the copy.
    fn clone_tree(&mut self, from: &NodePath, to: &NodePath) -> Result<Answer, i32> {
        let top = self.find(from)?;
        let (dir, name) = self.parent(to)?;
        if self.nodes[top].stat.kind != Kind::Directory {
            return Err(ENOTDIR);
        }
        if self.nodes[dir].stat.kind != Kind::Directory {
            return Err(ENOTDIR);
        }
        if to.len() > from.len() && to.starts_with(from) {
            return Err(EINVAL);
        }
        if self.nodes[dir].entries.contains_key(&name) {
            return Err(EEXIST);
        }
        let (mut copies, first, charged) = (BTreeMap::new(), self.nodes.len(), self.nodes[dir].charged);
        let copy = self.copy_of(top, &mut copies);
        if let Err(over) = self.check_limit(charged, copies.len() as u64) {
            self.nodes.truncate(first);
            return Err(over);
        }
        for node in &mut self.nodes[first..] {
            (node.limits, node.charged) = (None, charged);
        }
        self.nodes[dir].stat.nlink += 1;
        self.put(dir, name, copy);
        Ok(Answer::Done)
    }

    fn copy_of(&mut self, id: Id, copies: &mut BTreeMap<Id, Id>) -> Id {
        if let Some(&copy) = copies.get(&id) {
            self.nodes[copy].stat.nlink += 1;
            return copy;
        }
        let mut node = self.nodes[id].clone();
        if node.stat.kind != Kind::Directory {
            node.stat.nlink = 1;
        }
        let entries = std::mem::take(&mut node.entries);
        self.nodes.push(node);
        let copy = self.nodes.len() - 1;
        copies.insert(id, copy);
        for (name, child) in entries {
            let child = self.copy_of(child, copies);
            self.nodes[copy].entries.insert(name, child);
        }
        copy
    }

    fn link(&mut self, from: &NodePath, to: &NodePath) -> Result<Answer, i32> {
        let id = self.find(from)?;
        let (dir, name) = self.parent(to)?;
        if self.nodes[dir].entries.contains_key(&name) {
            return Err(EEXIST);
        }
        if self.nodes[id].stat.kind == Kind::Directory {
            return Err(EPERM);
        }
        self.check_same_tree(id, dir)?;
        self.join(id, dir);
        self.nodes[id].stat.nlink += 1;
        self.put(dir, name, id);
        Ok(Answer::Done)
    }

    fn unlink(&mut self, path: &NodePath) -> Result<Answer, i32> {
        let (dir, name) = self.parent(path)?;
        let id = *self.nodes[dir].entries.get(&name).ok_or(ENOENT)?;
        if self.nodes[id].stat.kind == Kind::Directory {
            return Err(EISDIR);
        }
        self.nodes[id].stat.nlink -= 1;
        self.take(dir, &name);
        Ok(Answer::Done)
    }

    fn rmdir(&mut self, path: &NodePath) -> Result<Answer, i32> {
        let (dir, name) = self.parent(path)?;
        let id = *self.nodes[dir].entries.get(&name).ok_or(ENOENT)?;
        if self.nodes[id].stat.kind != Kind::Directory {
            return Err(ENOTDIR);
        }
        if !self.nodes[id].entries.is_empty() {
            return Err(ENOTEMPTY);
        }
        self.nodes[id].limits = None;
        self.take(dir, &name);
        self.nodes[dir].stat.nlink -= 1;
        Ok(Answer::Done)
    }

    fn remove_tree(&mut self, path: &NodePath) -> Result<Answer, i32> {
        let (dir, name) = self.parent(path)?;
        let id = *self.nodes[dir].entries.get(&name).ok_or(ENOENT)?;
        if self.nodes[id].stat.kind != Kind::Directory {
            return Err(ENOTDIR);
        }
        self.take(dir, &name);
        self.nodes[dir].stat.nlink -= 1;
        let mut removed = vec![id];
        while let Some(id) = removed.pop() {
            self.nodes[id].limits = None;
            for child in std::mem::take(&mut self.nodes[id].entries).into_values() {
                match self.nodes[child].stat.kind {
                    Kind::Directory => removed.push(child),
                    _ => self.nodes[child].stat.nlink -= 1,
                }
            }
        }
        Ok(Answer::Done)
    }

    fn rename(&mut self, from: &NodePath, to: &NodePath, mode: RenameMode) -> Result<Answer, i32> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let source = *self.nodes[from_dir].entries.get(&from_name).ok_or(ENOENT)?;
        let target = self.nodes[to_dir].entries.get(&to_name).copied();
        match (mode, target) {
            (_, Some(_)) if mode.refuses_target() => return Err(EEXIST),
            (RenameMode::Exchange, None) => return Err(ENOENT),
            _ => {}
        }
        let exchange = mode == RenameMode::Exchange;
        if self.is_inside(to_dir, source) {
            return Err(EINVAL);
        }
        if target.is_some_and(|target| self.is_inside(from_dir, target)) {
            return Err(if exchange { EINVAL } else { ENOTEMPTY });
        }
        if target == Some(source) {
            return Ok(Answer::Done);
        }
        if let Some(target) = target.filter(|_| !exchange) {
            self.check_way(source, target)?;
        }
        if from_dir != to_dir {
            self.check_same_tree(source, to_dir)?;
            target.filter(|_| exchange).map_or(Ok(()), |target| self.check_same_tree(target, from_dir))?;
        }
        if matches!(mode, RenameMode::Whiteout { .. }) {
            self.check_limit(self.nodes[from_dir].charged, 1)?;
        }
        if from_dir != to_dir {
            self.join(source, to_dir);
            target.iter().filter(|_| exchange).for_each(|target| self.join(*target, from_dir));
        }
        if let Some(target) = target.filter(|_| !exchange) {
            self.make_way(target, to_dir);
        }
        self.take(from_dir, &from_name);
        self.move_in(source, from_dir, to_dir, to_name);
        if let RenameMode::Whiteout { uid, gid, .. } = mode {
            let charged = self.nodes[from_dir].charged;
            self.nodes.push(Node { charged, ..Node::new(Kind::Whiteout, 0).owned_by(uid, gid) });
            self.put(from_dir, from_name, self.nodes.len() - 1);
        } else if let Some(target) = target.filter(|_| exchange) {
            self.move_in(target, to_dir, from_dir, from_name);
        }
        Ok(Answer::Done)
    }

    /// Checks that `target` may be replaced by `source`.
    fn check_way(&self, source: Id, target: Id) -> Result<(), i32> {
        match (self.nodes[source].stat.kind, self.nodes[target].stat.kind) {
            (Kind::Directory, Kind::Directory) if !self.nodes[target].entries.is_empty() => Err(ENOTEMPTY),
            (Kind::Directory, Kind::Directory) => Ok(()),
            (Kind::Directory, _) => Err(ENOTDIR),
            (_, Kind::Directory) => Err(EISDIR),
            _ => Ok(()),
        }
    }

    /// Drops the link of a target that is replaced.
    fn make_way(&mut self, target: Id, to_dir: Id) {
        match self.nodes[target].stat.kind {
            Kind::Directory => {
                self.nodes[to_dir].stat.nlink -= 1;
                self.nodes[target].limits = None;
            }
            _ => self.nodes[target].stat.nlink -= 1,
        }
    }

    /// Sets the limits of a directory, and charges what is below down to directories with limits of their own.
    fn set_limits(&mut self, path: &NodePath, inodes: Option<u64>, logical_bytes: Option<u64>) -> Result<Answer, i32> {
        let id = self.find(path)?;
        if self.nodes[id].stat.kind != Kind::Directory {
            return Err(ENOTDIR);
        }
        let above = if path.is_empty() { None } else { self.nodes[self.parent(path)?.0].charged };
        let has_any = inodes.is_some() || logical_bytes.is_some();
        match self.nodes[id].limits {
            None if has_any => {
                let tree = self.tops.len();
                self.tops.push(id);
                self.nodes[id].limits = Some(Limited { tree, inodes, logical_bytes });
                self.charge_below(id, Some(tree));
            }
            Some(before) if has_any => self.nodes[id].limits = Some(Limited { inodes, logical_bytes, ..before }),
            Some(_) => {
                self.nodes[id].limits = None;
                self.charge_below(id, above);
            }
            None => {}
        }
        Ok(Answer::Done)
    }

    fn charge_below(&mut self, top: Id, charged: Option<usize>) {
        let mut left = vec![top];
        while let Some(id) = left.pop() {
            self.nodes[id].charged = charged;
            let below: Vec<Id> = self.nodes[id].entries.values().copied().collect();
            left.extend(below.into_iter().filter(|id| self.nodes[*id].limits.is_none()));
        }
    }

    /// Returns the limits of a tree, if its directory still has them.
    fn limits_of(&self, charged: Option<usize>) -> Option<Limited> {
        self.nodes[self.tops[charged?]].limits.filter(|limited| Some(limited.tree) == charged)
    }

    /// Returns the tree if it still has limits.
    fn known(&self, charged: Option<usize>) -> Option<usize> {
        self.limits_of(charged).map(|limited| limited.tree)
    }

    /// Returns the number of inodes that are charged to a tree, with and without names.
    fn charged_to(&self, tree: usize) -> u64 {
        let mut seen: BTreeSet<Id> = self.slots.iter().flatten().copied().collect();
        let mut left = vec![ROOT];
        while let Some(id) = left.pop() {
            seen.insert(id);
            left.extend(self.nodes[id].entries.values());
        }
        seen.into_iter().filter(|id| self.nodes[*id].charged == Some(tree)).count() as u64
    }

    fn check_limit(&self, charged: Option<usize>, more: u64) -> Result<(), i32> {
        let Some(Limited { tree, inodes: Some(most), .. }) = self.limits_of(charged) else { return Ok(()) };
        if self.charged_to(tree) + more > most { Err(EDQUOT) } else { Ok(()) }
    }

    /// Checks that something may get a name in a directory.
    fn check_same_tree(&self, id: Id, dir: Id) -> Result<(), i32> {
        let is_top = self.nodes[id].limits.is_some();
        let is_same = self.known(self.nodes[id].charged) == self.known(self.nodes[dir].charged);
        if is_same || is_top { Ok(()) } else { Err(EXDEV) }
    }

    /// A file gets a name in a directory, and is charged as that is.
    fn join(&mut self, id: Id, dir: Id) {
        if self.nodes[id].stat.kind != Kind::Directory {
            self.nodes[id].charged = self.nodes[dir].charged;
        }
    }

    fn move_in(&mut self, id: Id, from_dir: Id, to_dir: Id, name: Vec<u8>) {
        if self.nodes[id].stat.kind == Kind::Directory {
            self.nodes[from_dir].stat.nlink -= 1;
            self.nodes[to_dir].stat.nlink += 1;
        }
        self.put(to_dir, name, id);
    }

    /// Returns whether `inner` is `outer` or below it.
    fn is_inside(&self, inner: Id, outer: Id) -> bool {
        inner == outer
            || self.nodes[outer]
                .entries
                .values()
                .any(|&child| self.nodes[child].stat.kind == Kind::Directory && self.is_inside(inner, child))
    }

    fn readdir(&self, path: &NodePath) -> Result<Answer, i32> {
        let node = &self.nodes[self.find(path)?];
        if node.stat.kind != Kind::Directory {
            return Err(ENOTDIR);
        }
        let entries = node.entries.iter();
        Ok(Answer::Entries(entries.map(|(name, &id)| (name.clone(), self.nodes[id].stat.kind)).collect()))
    }

    fn stat(&self, id: Id) -> Stat {
        let node = &self.nodes[id];
        let size = match node.stat.kind {
            Kind::Regular | Kind::Symlink => Some(node.bytes.len() as u64),
            _ => None,
        };
        Stat { size, ..node.stat.clone() }
    }

    fn read(&self, id: Id, offset: u64, len: u64) -> Result<Answer, i32> {
        let bytes = &self.nodes[id].bytes;
        let start = bytes.len().min(offset as usize);
        let end = bytes.len().min((offset + len) as usize);
        Ok(Answer::Bytes(bytes[start..end].to_vec()))
    }

    fn write(&mut self, id: Id, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let bytes = &mut self.nodes[id].bytes;
        let end = offset as usize + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(data);
        self.nodes[id].stat.mtime = None;
    }

    fn allocate(&mut self, id: Id, offset: usize, len: usize, mode: AllocateMode) {
        use AllocateMode::*;
        let bytes = &mut self.nodes[id].bytes;
        if matches!(mode, Reserve | ZeroRange) && bytes.len() < offset + len {
            bytes.resize(offset + len, 0);
        }
        if matches!(mode, PunchHole | ZeroRange | ZeroRangeKeepSize) {
            let end = bytes.len().min(offset + len);
            bytes[offset.min(end)..end].fill(0);
        }
        self.nodes[id].stat.mtime = None;
    }

    fn clone_range(&mut self, from: Id, from_offset: u64, to: Id, to_offset: u64, len: u64) -> Result<Answer, i32> {
        let len = len.min((self.nodes[from].bytes.len() as u64).saturating_sub(from_offset));
        if from == to && from_offset < to_offset + len && to_offset < from_offset + len {
            return Err(EINVAL);
        }
        let start = self.nodes[from].bytes.len().min(from_offset as usize);
        let data = self.nodes[from].bytes[start..start + len as usize].to_vec();
        self.write(to, to_offset, &data);
        Ok(Answer::Done)
    }
}

impl Node {
    fn new(kind: Kind, mode: u32) -> Node {
        let nlink = if kind == Kind::Directory { 2 } else { 1 };
        Node {
            stat: Stat { kind, mode, uid: 0, gid: 0, nlink, size: None, mtime: None },
            bytes: Vec::new(),
            entries: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            policy: None,
            limits: None,
            charged: None,
        }
    }

    fn owned_by(mut self, uid: u32, gid: u32) -> Node {
        (self.stat.uid, self.stat.gid) = (uid, gid);
        self
    }
}

/// Returns the name of an extended attribute. It begins with trusted., which Linux allows on inodes of every kind.
pub fn xattr_name(index: u8) -> Vec<u8> {
    format!("trusted.attribute{index}").into_bytes()
}

/// Returns a target that leads nowhere, in components short enough to be names.
pub fn symlink_target(len: u64) -> Vec<u8> {
    (0..len).map(|at| if at % 200 == 199 { b'/' } else { b'p' + (at % 7) as u8 }).collect()
}
