//! Clones of trees: who may, what the kernel has to write back before, and what it has to learn afterwards.
//!
//! The problem: the library clones what it has. Written data may still be in the kernel's cache, whoever asks may see less
//! than the library does, and the kernel may know that there is no such name as the new one.
//!
//! The idea: in the order of a clone,
//!
//! ```text
//! may he?      token and permit (`clones`): the kernel has checked both directories; each file below: `rights`
//! write back   every regular file of the tree that the kernel knows: a notice about each (`notices`). The kernel does not
//!              say which ones it has pages of, and no system call waits for the pages of a whole FUSE file system:
//!              syncfs(2) only begins to write there (measured with Linux 6.18.44). What moves meanwhile is written back too (`moves`)
//! clone        the library's; another thread asks how far it is, or cancels it
//! learn        the kernel forgets that the name is missing, and the listing of its directory
//! ```
//!
//! Pages that a program has written are passed on by requests that other threads answer. A clone takes a turn of its user
//! (`turns`), and says that it waits, so there is always one.

use super::{Answer, Front};
use crate::acl;
use crate::clones::{self, Question, Refusal, SourceToken};
use crate::convert;
use crate::moves::Moving;
use crate::rights::{READ, Rights, SEARCH};
use nvfold::{Attr, CloneCaller, CloneOptions, CloneProgress, Cloned, Error, FileKind, InodeNumber};
use nvfold_fuse::{Caller, Errno, UNKNOWN_ID};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A token is valid in the period in which it was issued and in the next one.
const TOKEN_PERIOD: Duration = Duration::from_secs(30);

/// A clone that is under way.
#[derive(Default)]
struct Running {
    entries: AtomicU64,
    bytes: AtomicU64,
    is_cancelled: AtomicBool,
}

/// The clones of a mount that are under way, and what proves tokens.
pub(crate) struct Clones {
    /// Makes proofs that no process can guess.
    secret: RandomState,
    /// Periods of tokens are counted from here.
    began: Instant,
    /// By the inode number of the permit.
    running: Mutex<HashMap<u64, Arc<Running>>>,
}

/// Takes a clone off the list when it ends.
struct Listed<'c> {
    clones: &'c Clones,
    permit: InodeNumber,
    running: Arc<Running>,
}

impl Clones {
    pub(super) fn new() -> Clones {
        Clones { secret: RandomState::new(), began: Instant::now(), running: Mutex::default() }
    }

    fn proof(&self, directory: &Attr, user: u32, period: u64) -> u64 {
        self.secret.hash_one((directory.ino.0, directory.generation, user, period))
    }

    fn period(&self) -> u64 {
        self.began.elapsed().as_secs() / TOKEN_PERIOD.as_secs()
    }

    /// Returns true if the token of this directory was issued to this user lately.
    fn is_proven(&self, directory: &Attr, user: u32, proof: u64) -> bool {
        let now = self.period();
        [now, now.saturating_sub(1)].iter().any(|period| self.proof(directory, user, *period) == proof)
    }

    /// Lists a clone; `None` if this permit is in use.
    fn list(&self, permit: InodeNumber) -> Option<Listed<'_>> {
        let running = Arc::new(Running::default());
        let mut listed = self.running.lock();
        if listed.contains_key(&permit.0) {
            return None;
        }
        listed.insert(permit.0, running.clone());
        Some(Listed { clones: self, permit, running })
    }

    fn of(&self, permit: InodeNumber) -> Option<Arc<Running>> {
        self.running.lock().get(&permit.0).cloned()
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.clones.running.lock().remove(&self.permit.0);
    }
}

impl Running {
    fn progress(&self) -> CloneProgress {
        CloneProgress { entries: self.entries.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }

    /// Notes how far it is; breaks if it is to end.
    fn reached(&self, progress: CloneProgress) -> ControlFlow<()> {
        self.entries.store(progress.entries, Ordering::Relaxed);
        self.bytes.store(progress.bytes, Ordering::Relaxed);
        if self.is_cancelled.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Front {
    /// Returns the token that names a directory or a regular file in a question; ENODATA if it is neither.
    pub(crate) fn clone_source(&self, who: &Caller<'_>, ino: InodeNumber) -> Answer<Vec<u8>> {
        let directory = self.fs.getattr(ino).map_err(convert::errno)?;
        if !matches!(directory.kind, FileKind::Directory | FileKind::Regular) {
            return Err(Errno::ENODATA);
        }
        let proof = self.clones.proof(&directory, who.uid, self.clones.period());
        Ok(SourceToken { ino: ino.0, proof }.to_bytes().to_vec())
    }

    /// Answers a question about a clone, which came by a permit. EINVAL if it is none.
    pub(crate) fn asked_about_clone(&self, who: &Caller<'_>, permit: InodeNumber, question: &[u8]) -> Answer<Vec<u8>> {
        let done = match Question::decode(question).ok_or(Errno::EINVAL)? {
            Question::Clone { source, name } => self.clone_tree(who, permit, source, name),
            Question::Progress => Ok(self.clones.of(permit).map(|running| running.progress()).unwrap_or_default()),
            Question::Cancel => {
                let running = self.clones.of(permit);
                running.iter().for_each(|running| running.is_cancelled.store(true, Ordering::Relaxed));
                Ok(CloneProgress::default())
            }
        };
        Ok(clones::answer(&done))
    }

    fn clone_tree(
        &self,
        who: &Caller<'_>,
        permit: InodeNumber,
        token: SourceToken,
        name: &[u8],
    ) -> Result<CloneProgress, Refusal> {
        self.refuse_read_only()?;
        let (parent, owner) = self.permitted(who, permit)?;
        self.check_copy_place(parent, name)?;
        let (source, user) = self.named_source(who, token)?;
        let cloned = self.copy_tree(who, permit, source, (user != 0).then_some(&owner), &|options| {
            self.fs.clone_tree(source, parent, name, options)
        })?;
        self.tell_new_name(who, permit, parent, name);
        Ok(cloned.copied)
    }

    /// Refuses what would change something on a read-only mount.
    pub(super) fn refuse_read_only(&self) -> Result<(), Refusal> {
        self.check_not_read_only().map_err(|errno| refusal(errno, "the mount is read-only"))
    }

    /// Refuses a copy that would take the place of the snapshots.
    pub(super) fn check_copy_place(&self, parent: InodeNumber, name: &[u8]) -> Result<(), Refusal> {
        let why = "this name in the root is kept for snapshots";
        self.check_name_place(parent.0, OsStr::from_bytes(name)).map_err(|errno| refusal(errno, why))
    }

    /// Copies a tree, for whoever owns the permit. `owner`: whose the copy is to be, who may not read everything.
    pub(super) fn copy_tree(
        &self,
        who: &Caller<'_>,
        permit: InodeNumber,
        source: InodeNumber,
        owner: Option<&Attr>,
        copy: &dyn Fn(&CloneOptions<'_>) -> nvfold::Result<Cloned>,
    ) -> Result<Cloned, Refusal> {
        let uid = self.fs.getattr(permit).map_err(refused)?.uid;
        let Some(_turn) = self.turns.take(uid) else {
            return Err(refusal(Errno::EAGAIN, "this user has too many long requests"));
        };
        let Some(listed) = self.clones.list(permit) else {
            return Err(refusal(Errno::EINVAL, "one permit is for one clone at a time"));
        };
        let running = &listed.running;
        let _cloning = self.moves.begin_clone();
        self.write_back_below(who, source, &|| running.is_cancelled.load(Ordering::Relaxed));
        let rights = Rights::of(who, uid);
        let may_read = |attr: &Attr, acl: Option<&[u8]>| may_copy(&rights, attr, acl);
        let caller = owner.map(|owner| CloneCaller { uid: owner.uid, gid: owner.gid, may_read: &may_read });
        let progress = |progress| running.reached(progress);
        let cloned = copy(&CloneOptions { caller, progress: Some(&progress) }).map_err(refused)?;
        self.counters.change();
        Ok(cloned)
    }

    /// Makes the kernel learn of a name that a copy has got.
    pub(super) fn tell_new_name(&self, who: &Caller<'_>, permit: InodeNumber, parent: InodeNumber, name: &[u8]) {
        who.while_waiting(permit.0, || {
            self.notices.drop_name_now(parent, OsStr::from_bytes(name));
            // The pages of a directory are its listing.
            self.notices.write_back(parent);
        });
    }

    /// Returns the directory in which the caller may make names, as the kernel has found, and the owner of what he makes
    /// there.
    pub(super) fn permitted(&self, who: &Caller<'_>, permit: InodeNumber) -> Result<(InodeNumber, Attr), Refusal> {
        let none = || refusal(Errno::EPERM, "a clone must be asked for by a file of its own, made with O_TMPFILE");
        let parent = self.lookups.made_in(permit).ok_or_else(none)?;
        let owner = self.fs.getattr(permit).map_err(refused)?;
        // Another user's permit may have been reached through /proc.
        if who.is_known() && who.uid != owner.uid {
            return Err(none());
        }
        if self.fs.getattr(parent).map_err(refused)?.nlink == 0 {
            return Err(refusal(Errno::ENOENT, "its directory has been removed"));
        }
        Ok((parent, owner))
    }

    /// Returns the directory that a token names, and the user to whom it was issued: where requests do not tell who sends
    /// them, he is root if the kernel has let him use a name that only root may use.
    pub(super) fn named_source(&self, who: &Caller<'_>, token: SourceToken) -> Result<(InodeNumber, u32), Refusal> {
        let stale = || refusal(Errno::ESTALE, "the directory to clone has been removed, or asking took too long");
        let directory = self.fs.getattr(InodeNumber(token.ino)).map_err(|_| stale())?;
        let users = if who.is_known() { vec![who.uid] } else { vec![0, UNKNOWN_ID] };
        let user = users.into_iter().find(|user| self.clones.is_proven(&directory, *user, token.proof));
        Ok((directory.ino, user.ok_or_else(stale)?))
    }

    /// Returns true if a user may do all of `wanted` with a file, by its mode and its ACL.
    pub(super) fn is_allowed(&self, rights: &Rights, ino: InodeNumber, wanted: u32) -> bool {
        let acl = self.fs.get_xattr(ino, acl::ACCESS).ok();
        self.fs.getattr(ino).is_ok_and(|attr| rights.allow(&attr, acl.as_deref(), wanted))
    }

    /// Makes the kernel write back the pages of an inode, or of all files below a directory, as far as it knows them.
    pub(super) fn write_back_below(&self, who: &Caller<'_>, top: InodeNumber, is_cancelled: &dyn Fn() -> bool) {
        let Ok(attr) = self.fs.getattr(top) else { return };
        if attr.kind != FileKind::Directory {
            return self.write_back_all(who, &[top]);
        }
        let mut directories = vec![top];
        while let Some(directory) = directories.pop().filter(|_| !is_cancelled()) {
            directories.extend(self.write_back_files(who, directory));
        }
    }

    /// Makes the kernel write back the files in a directory that it knows. Returns the directories in it.
    fn write_back_files(&self, who: &Caller<'_>, directory: InodeNumber) -> Vec<InodeNumber> {
        let (mut below, mut cookie, mut some_known) = (Vec::new(), 0, false);
        let end = self.fs.last_cookie(directory).unwrap_or(0);
        // A directory that is gone has no names.
        while cookie < end
            && let Ok(entries) = self.names_after(directory, cookie)
        {
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            let of = |kind| entries.iter().filter(move |entry| entry.kind == kind).map(|entry| entry.ino);
            below.extend(of(FileKind::Directory));
            let known: Vec<InodeNumber> = of(FileKind::Regular).filter(|ino| self.lookups.is_known(*ino)).collect();
            some_known |= !known.is_empty();
            self.write_back_all(who, &known);
        }
        if some_known {
            self.notices.drop_listing(directory);
        }
        below
    }

    pub(super) fn write_back_all(&self, who: &Caller<'_>, files: &[InodeNumber]) {
        if let Some(first) = files.first() {
            who.while_waiting(first.0, || files.iter().for_each(|ino| self.notices.write_back(*ino)));
        }
    }

    /// Must be called before a name is moved or made of these inodes, and the result be held until that is done: while a
    /// tree is cloned, the kernel writes back first what may get into the tree.
    pub(crate) fn before_move(&self, who: &Caller<'_>, moved: impl FnOnce() -> Vec<InodeNumber>) -> Moving<'_> {
        let moving = self.moves.begin_move();
        if moving.is_beside_clone() {
            moved().into_iter().for_each(|ino| self.write_back_below(who, ino, &|| false));
        }
        moving
    }
}

/// Returns true if a user may copy a file: what he copies of a fifo or a socket is no more than he sees.
fn may_copy(rights: &Rights, attr: &Attr, acl: Option<&[u8]>) -> bool {
    match attr.kind {
        FileKind::Directory => rights.allow(attr, acl, READ | SEARCH),
        FileKind::Regular => rights.allow(attr, acl, READ),
        _ => true,
    }
}

pub(super) fn refusal(errno: Errno, why: &str) -> Refusal {
    Refusal { errno: errno.0, path: Vec::new(), why: why.to_owned() }
}

pub(super) fn refused(error: Error) -> Refusal {
    let errno = error.errno();
    match error {
        // The first name is that of the copy.
        Error::Denied { what, why, .. } => {
            let path = what.split_once('/').map_or("", |(_, path)| path);
            Refusal { errno, path: path.as_bytes().to_vec(), why: why.to_owned() }
        }
        Error::Posix { why, .. } => Refusal { errno, path: Vec::new(), why: why.to_owned() },
        error => Refusal { errno, path: Vec::new(), why: error.to_string() },
    }
}
