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
use crate::inode::Inode;
use crate::panics::Job;
use crate::words::{FileId, InodeNumber, Removing};
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicU64, Ordering};

/// The removed trees of a mount that are not freed yet.
#[derive(Default)]
pub(crate) struct Removal {
    list: Mutex<RemovalList>,
    /// The number of directories in the list. Only looked at.
    directories: AtomicU64,
}

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
        let top = self.unname_tree(parent, name)?;
        self.add_tops(top);
        Ok(())
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
        self.change_in_background("free a removed tree", || {
            // A copy that is being made may still need the names; it takes less time than this.
            if self.pending.is_any() {
                return Ok(true);
            }
            let mut list = self.under_way.removal.list.lock();
            let done = match self.panics.contain(Job::Remove, None, || self.advance(&mut list)) {
                Err(Error::Panicked { .. }) => Ok(true),
                done => done,
            };
            self.count(&list);
            done
        })
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

    fn advance(&self, list: &mut RemovalList) -> Result<bool> {
        match list.at {
            RemovalPlace::Between => match list.tops.pop().or_else(|| list.waiting.pop()) {
                Some(top) => list.at = RemovalPlace::Names(top, 0),
                None => return Ok(true),
            },
            RemovalPlace::Names(top, cookie) => {
                let tops = &mut list.tops;
                let done = self.at_top(top, |inode| self.look_at_names(inode, cookie, tops));
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
                if self.free_doomed() {
                    list.at = RemovalPlace::Between;
                }
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
