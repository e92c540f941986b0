//! Freeing removed trees, in steps.
//!
//! The problem: the call that removes a tree takes one commit, however large the tree is. What frees it must not hold up
//! other operations, and must go on after a crash.
//!
//! The idea: a list of tops. The steps look at the names of one top after the other: its directories are added to the
//! list, its files are doomed. Then its slot is freed, and the doomed files after it ([`crate::fs`] has the steps, and
//! what a crash between them leaves). The list is a stack, so it holds at most the directories beside one path.

use super::Trees;
use crate::error::{Error, Result, errno};
use crate::fs::{Below, TREE_STEP};
use crate::inode::Inode;
use crate::panics::Job;
use crate::words::{FileId, InodeNumber, Removed, Removing};
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The removed trees of a mount that are not freed yet.
#[derive(Default)]
pub(crate) struct Removal {
    list: Mutex<RemovalList>,
    /// The number of directories in the list. Only looked at.
    directories: AtomicU64,
    /// Held during a step, outside of the freeze lock.
    stepping: Mutex<()>,
    /// Is told of what happens to files and directories.
    witness: Mutex<Option<Witness>>,
}

/// What a front end is told of removed trees, with no lock held that an operation takes.
pub(crate) type Witness = Arc<dyn Fn(InodeNumber, Removed<'_>) + Send + Sync>;

#[derive(Default)]
struct RemovalList {
    /// The tops to free.
    tops: Vec<FileId>,
    /// Where the work is.
    at: RemovalPlace,
    /// Tops for which the device has too little space now. They are tried when nothing else is left.
    waiting: Vec<FileId>,
    /// Tops that keep their names, because a directory below cannot be read. The next mount tries again.
    stuck: Vec<FileId>,
}

#[derive(Clone, Copy, Default)]
enum RemovalPlace {
    /// Between two tops.
    #[default]
    Between,
    /// Before the names of a top after this cookie.
    Names(FileId, u64),
    /// At the end of a top, all of whose names were looked at.
    End(FileId),
    /// At the doomed files of a top that is gone.
    Doomed,
}

impl RemovalList {
    fn directories(&self) -> usize {
        let at = matches!(self.at, RemovalPlace::Names(..) | RemovalPlace::End(_));
        self.tops.len() + usize::from(at) + self.waiting.len() + self.stuck.len()
    }
}

impl Trees<'_> {
    /// Removes a directory with all that is below it, by one commit. Steps free it.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EINVAL; EIO for damage.
    pub(crate) fn remove(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        if self.snapshots_directory()? == Some(parent) {
            let why = "it belongs to a snapshot, which does not change; `nvfold snapshot delete` removes it";
            return Err(Error::Posix { doing: "remove a tree", why, errno: errno::EROFS });
        }
        if let Ok(entry) = self.entry(parent, name) {
            self.check_does_not_hold_snapshots(entry.ino)?;
        }
        let top = self.unname_tree(parent, name)?;
        self.add_tops(top);
        Ok(())
    }

    /// Does the same with the directory that has this number; returns the directory and the name that it had.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EBUSY for the root and the directories of the snapshots; EIO for damage.
    pub(crate) fn remove_directory(&self, dir: InodeNumber) -> Result<(InodeNumber, Vec<u8>)> {
        self.check_does_not_hold_snapshots(dir)?;
        let (top, parent, name) = self.unname_directory(dir)?;
        self.add_tops(top);
        Ok((parent, name))
    }

    fn check_does_not_hold_snapshots(&self, dir: InodeNumber) -> Result<()> {
        if self.snapshots_directory()? != Some(dir) {
            return Ok(());
        }
        let why = "it holds the snapshots of the file system";
        Err(Error::Posix { doing: "remove a tree", why, errno: errno::EBUSY })
    }

    /// Adds tops of trees that are to be freed.
    pub(crate) fn add_tops(&self, tops: impl IntoIterator<Item = FileId>) {
        let mut list = self.under_way.removal.list.lock();
        list.tops.extend(tops);
        self.count(&list);
    }

    /// Does one step of freeing removed trees. Returns true if there is nothing to do now.
    ///
    /// # Errors
    /// EROFS; those of the device.
    pub(crate) fn remove_step(&self) -> Result<bool> {
        if !self.has_removed() {
            return Ok(true);
        }
        let Removal { stepping, list, .. } = &self.under_way.removal;
        let _only = stepping.lock();
        let witness = self.under_way.removal.witness.lock().clone();
        let (directory, going) = self.about_to_change();
        for ino in &going {
            witness.iter().for_each(|tell| tell(InodeNumber(*ino), Removed::Freed));
        }
        let mut below = Below { names: witness.is_some().then(Vec::new), ..Below::default() };
        let done = self.change_in_background("free a removed tree", || {
            // A copy that is being made may still need the names; it takes less time than this.
            if self.pending.is_any() {
                return Ok(true);
            }
            let mut list = list.lock();
            let done = match self.panics.contain(Job::Remove, None, || self.advance(&mut list, &going, &mut below)) {
                Err(Error::Panicked { .. }) => Ok(true),
                done => done,
            };
            list.tops.append(&mut below.tops);
            self.count(&list);
            done
        });
        for (ino, name) in below.names.into_iter().flatten() {
            let what = Removed::Name { directory, name: &name };
            witness.iter().for_each(|tell| tell(InodeNumber(ino), what));
        }
        done
    }

    /// Sets who is told of what happens to files and directories.
    pub(crate) fn set_witness(&self, witness: Witness) {
        *self.under_way.removal.witness.lock() = Some(witness);
    }

    /// Returns the directory whose names the next step looks at, and the inodes that it frees.
    fn about_to_change(&self) -> (InodeNumber, Vec<u64>) {
        match self.under_way.removal.list.lock().at {
            RemovalPlace::Names(top, _) => (InodeNumber(top.number), Vec::new()),
            RemovalPlace::End(top) => (InodeNumber(top.number), vec![top.number]),
            RemovalPlace::Doomed => (InodeNumber(0), self.doomed.first(TREE_STEP)),
            RemovalPlace::Between => (InodeNumber(0), Vec::new()),
        }
    }

    /// Frees all that can be freed now.
    ///
    /// # Errors
    /// Those of the steps.
    pub(crate) fn end_removing(&self) -> Result<()> {
        while !self.remove_step()? {}
        Ok(())
    }

    /// Frees removed trees until `blocks` more are free, or nothing can be freed now. Returns true if any became free.
    pub(crate) fn make_room(&self, blocks: u64) -> Result<bool> {
        let free = self.space.free_blocks();
        while self.space.free_blocks() < free + blocks && !self.remove_step()? {}
        Ok(self.space.free_blocks() > free)
    }

    /// True if removed trees are not freed yet.
    pub(crate) fn has_removed(&self) -> bool {
        self.removing() != Removing::default()
    }

    /// True if a step would find something to free now.
    pub(crate) fn can_go_on(&self) -> bool {
        let list = self.under_way.removal.list.lock();
        let has_more = !matches!(list.at, RemovalPlace::Between) || !list.tops.is_empty();
        has_more && !self.panics.have_stopped(Job::Remove)
    }

    /// Returns what is still to be freed, as far as it is known.
    pub(crate) fn removing(&self) -> Removing {
        let directories = self.under_way.removal.directories.load(Ordering::Relaxed);
        Removing { directories, files: self.doomed.len() as u64 }
    }

    fn count(&self, list: &RemovalList) {
        self.under_way.removal.directories.store(list.directories() as u64, Ordering::Relaxed);
    }

    /// Does a step. `going` are the inodes that it may free.
    fn advance(&self, list: &mut RemovalList, going: &[u64], below: &mut Below) -> Result<bool> {
        match list.at {
            RemovalPlace::Between => match list.tops.pop().or_else(|| list.waiting.pop()) {
                Some(top) => list.at = RemovalPlace::Names(top, 0),
                None => return Ok(true),
            },
            RemovalPlace::Names(top, cookie) => {
                let done = self.at_top(top, |inode| self.look_at_names(inode, cookie, below));
                list.at = match done {
                    Ok(Some(Some(cookie))) => RemovalPlace::Names(top, cookie),
                    Ok(Some(None)) => RemovalPlace::End(top),
                    Ok(None) => self.after_top(),
                    Err(error) => return self.put_off(list, top, error),
                };
            }
            RemovalPlace::End(top) => {
                let done = self.at_top(top, |inode| self.end_directory(inode));
                match done {
                    Ok(_) => list.at = self.after_top(),
                    Err(error) => return self.put_off(list, top, error),
                }
            }
            RemovalPlace::Doomed => {
                self.free_doomed(going);
                list.at = self.after_top();
            }
        }
        Ok(false)
    }

    /// Returns where the work goes on when a top is gone. Without doomed files nothing is counted as left.
    fn after_top(&self) -> RemovalPlace {
        if self.doomed.len() == 0 { RemovalPlace::Between } else { RemovalPlace::Doomed }
    }

    /// Does something with a top; `None` if it is gone.
    fn at_top<T>(&self, top: FileId, step: impl FnOnce(&Inode) -> Result<T>) -> Result<Option<T>> {
        let done = match self.inode_of(top) {
            Ok(Some(inode)) => step(&inode).map(Some),
            Ok(None) | Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        };
        self.region.check()?;
        done
    }

    /// Leaves a top for later. Its names stay, so what they lead to is not doomed.
    ///
    /// # Errors
    /// Those of the device.
    fn put_off(&self, list: &mut RemovalList, top: FileId, error: Error) -> Result<bool> {
        if error.is_of_device() {
            return Err(error);
        }
        self.doomed.clear();
        list.at = RemovalPlace::Between;
        match error {
            Error::NoSpace { .. } => {
                list.waiting.insert(0, top);
                // Nothing else may make room for it.
                return Ok(list.tops.is_empty());
            }
            error => {
                self.record_skipped(&error);
                list.stuck.push(top);
            }
        }
        Ok(false)
    }
}
