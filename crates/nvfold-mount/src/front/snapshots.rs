//! Snapshots: who may make, delete and restore them; figures about them; what two files share.
//!
//! `places` keeps them as they are.

use super::Front;
use super::listing::NAMES_AT_A_TIME;
use super::trees::{refusal, refused};
use crate::clones::{Refusal, SourceToken};
use crate::rights::{READ, Rights, SEARCH};
use crate::snapshots::{RANGES_MAX, SnapshotQuestion, answer};
use nvfold::{Attr, CloneProgress, FileKind, InodeNumber, SNAPSHOTS, Snapshot};
use nvfold_fuse::{Caller, Errno};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

// Pairs of files have room in an answer where ranges have it.
const _: () = assert!(NAMES_AT_A_TIME <= RANGES_MAX);

impl Front {
    /// Answers a question about snapshots, which came by an open file; `None` if it is none.
    pub(crate) fn asked_about_snapshots(
        &self,
        who: &Caller<'_>,
        asked_by: InodeNumber,
        question: &[u8],
    ) -> Option<Vec<u8>> {
        let done = match SnapshotQuestion::decode(question)? {
            SnapshotQuestion::Create { source, name } => self.create_snapshot(who, asked_by, source, name),
            SnapshotQuestion::Restore { snapshot, name } => self.restore_snapshot(who, asked_by, snapshot, name),
            SnapshotQuestion::Delete { any, name } => self.delete_snapshot(who, any, name),
            SnapshotQuestion::Figures { snapshot } => self.figures(who, snapshot),
            SnapshotQuestion::Unshared { one, other, from } => self.unshared(who, asked_by, (one, other), from),
            SnapshotQuestion::Equal { one, other, after } => self.equal_files(who, (one, other), after),
        };
        Some(answer(&done))
    }

    fn create_snapshot(
        &self,
        who: &Caller<'_>,
        permit: InodeNumber,
        token: SourceToken,
        name: &[u8],
    ) -> Result<Vec<u64>, Refusal> {
        self.refuse_read_only()?;
        let (made_in, owner) = self.permitted(who, permit)?;
        let (source, user) = self.named_source(who, token)?;
        if made_in != InodeNumber::ROOT || !(user == 0 || self.is_in_charge(owner.uid)?) {
            return Err(not_in_charge());
        }
        let copied = self
            .copy_tree(who, permit, source, None, &|options| self.fs.create_snapshot(name, source, options))
            .map(|cloned| numbers(cloned.copied));
        // The directories may be new also where the snapshot was refused.
        let had_places = self.snapshots.are_known();
        if let Some(home) = self.snapshots.look(&self.fs) {
            if !had_places {
                self.tell_new_name(who, permit, InodeNumber::ROOT, SNAPSHOTS[0]);
            }
            self.tell_new_name(who, permit, home, name);
        }
        copied
    }

    fn restore_snapshot(
        &self,
        who: &Caller<'_>,
        permit: InodeNumber,
        token: SourceToken,
        name: &[u8],
    ) -> Result<Vec<u64>, Refusal> {
        self.refuse_read_only()?;
        let (parent, owner) = self.permitted(who, permit)?;
        self.check_copy_place(parent, name)?;
        let (source, user) = self.named_source(who, token)?;
        let snapshot = self.snapshot_of(source)?;
        if let Ok(old) = self.fs.entry(parent, name) {
            self.check_may_replace(who, user, &old)?;
        }
        let caller = (user != 0).then_some(&owner);
        let copied = self.copy_tree(who, permit, source, caller, &|options| {
            self.fs.restore_snapshot(&snapshot.name, parent, name, options)
        })?;
        self.tell_new_name(who, permit, parent, name);
        Ok(numbers(copied.copied))
    }

    /// Allows to replace a directory to whoever could remove it.
    fn check_may_replace(&self, who: &Caller<'_>, user: u32, old: &nvfold::DirEntry) -> Result<(), Refusal> {
        if old.kind != FileKind::Directory {
            return Err(refusal(Errno(nvfold::errno::ENOTDIR), "it is no directory, and only a directory is replaced"));
        }
        if user == 0 {
            return Ok(());
        }
        if !who.is_known() {
            return Err(refusal(Errno::EPERM, "only root may replace a directory of this mount"));
        }
        let why = "no permission to remove the directory that it would replace";
        self.check_may_remove(who, old.ino).map_err(|errno| refusal(errno, why))
    }

    fn delete_snapshot(&self, who: &Caller<'_>, token: SourceToken, name: &[u8]) -> Result<Vec<u64>, Refusal> {
        self.refuse_read_only()?;
        let (_, user) = self.named_source(who, token)?;
        if !self.is_in_charge(user)? {
            return Err(not_in_charge());
        }
        self.fs.delete_snapshot(name).map_err(refused)?;
        self.counters.change();
        if let Some(home) = self.snapshots.look(&self.fs) {
            // Whoever asked may use the name again at once, so the kernel must know.
            self.notices.drop_name_now(home, OsStr::from_bytes(name));
            self.notices.write_back(home);
        }
        Ok(Vec::new())
    }

    fn figures(&self, who: &Caller<'_>, token: SourceToken) -> Result<Vec<u64>, Refusal> {
        let (top, user) = self.named_source(who, token)?;
        let snapshot = self.snapshot_of(top)?;
        let mut numbers = vec![snapshot.attr.btime.cast_unsigned()];
        if self.is_in_charge(user)? {
            let Some(_turn) = self.turns.take(user) else {
                return Err(refusal(Errno::EAGAIN, "this user has too many long requests"));
            };
            let usage = self.fs.snapshot_usage(&snapshot).map_err(refused)?;
            numbers.extend([usage.entries, usage.logical_bytes, usage.alone_bytes]);
        }
        Ok(numbers)
    }

    fn unshared(
        &self,
        who: &Caller<'_>,
        asked_by: InodeNumber,
        (one, other): (SourceToken, SourceToken),
        from: u64,
    ) -> Result<Vec<u64>, Refusal> {
        let [one, other] = [self.named_source(who, one)?.0, self.named_source(who, other)?.0];
        let attr = |ino| -> Result<Attr, Refusal> { self.fs.getattr(ino).map_err(refused) };
        if [attr(one)?, attr(other)?].iter().any(|attr| attr.kind != FileKind::Regular) {
            return Err(refusal(Errno::EINVAL, "only regular files are compared"));
        }
        if from == 0 {
            let files: Vec<InodeNumber> = [one, other].into_iter().filter(|ino| self.may_be_unwritten(*ino)).collect();
            who.while_waiting(asked_by.0, || files.iter().for_each(|ino| self.notices.write_back(*ino)));
        }
        let (ranges, next) = self.fs.unshared_ranges((one, other), from, RANGES_MAX).map_err(refused)?;
        Ok([next].into_iter().chain(ranges.into_iter().flat_map(|range| [range.start, range.end])).collect())
    }

    fn equal_files(
        &self,
        who: &Caller<'_>,
        (one, other): (SourceToken, SourceToken),
        after: u64,
    ) -> Result<Vec<u64>, Refusal> {
        let ((one, user), (other, _)) = (self.named_source(who, one)?, self.named_source(who, other)?);
        let rights = (user != 0).then(|| Rights::of(who, user));
        let may = |ino: InodeNumber, wanted| rights.as_ref().is_none_or(|rights| self.is_allowed(rights, ino, wanted));
        let listed = |errno| refusal(errno, "a directory could not be listed");
        let names = self.names_after(one, after).map_err(listed)?;
        let next = names.last().filter(|_| names.len() == NAMES_AT_A_TIME).map_or(0, |last| last.cookie);
        if !may(one, SEARCH) || !may(other, SEARCH) {
            return Ok(vec![0]);
        }
        let files = names.into_iter().filter(|entry| entry.kind == FileKind::Regular);
        let pairs = files.filter_map(|entry| Some([entry.ino, self.fs.entry(other, &entry.name).ok()?.ino]));
        let pairs: Vec<[InodeNumber; 2]> = pairs.filter(|pair| pair.iter().all(|ino| may(*ino, READ))).collect();
        let unwritten = pairs.as_flattened().iter().copied().filter(|ino| self.may_be_unwritten(*ino));
        self.write_back_all(who, &unwritten.collect::<Vec<_>>());
        // Of what cannot be compared here, the command finds out why.
        let equal = pairs.into_iter().filter(|[one, other]| self.fs.are_equal_unread(*one, *other).unwrap_or(false));
        Ok([next].into_iter().chain(equal.flatten().map(|ino| ino.0)).collect())
    }

    /// True if the kernel may have data of a file that it has not passed on: it does not report of which files it has.
    /// Nothing is written to those of snapshots.
    fn may_be_unwritten(&self, file: InodeNumber) -> bool {
        self.lookups.is_known(file) && !self.fs.is_in_snapshot(file).unwrap_or(false)
    }

    /// Returns the snapshot whose top this is.
    fn snapshot_of(&self, top: InodeNumber) -> Result<Snapshot, Refusal> {
        let all = self.fs.snapshots().map_err(refused)?;
        let found = all.into_iter().find(|snapshot| snapshot.attr.ino == top);
        found.ok_or_else(|| refusal(Errno::EINVAL, "it is no snapshot"))
    }

    /// Returns true for root and the owner of the root directory.
    fn is_in_charge(&self, user: u32) -> Result<bool, Refusal> {
        Ok(user == 0 || user == self.fs.getattr(InodeNumber::ROOT).map_err(refused)?.uid)
    }
}

fn numbers(copied: CloneProgress) -> Vec<u64> {
    vec![copied.entries, copied.bytes]
}

fn not_in_charge() -> Refusal {
    refusal(Errno::EPERM, "only root and the owner of the root directory may make and delete snapshots")
}
