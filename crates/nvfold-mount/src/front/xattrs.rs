//! Extended attributes. Most are stored; the virtual ones report, set or request something.
//!
//! ```text
//! user.nvfold.stats                     the report of the mount     read only, for others without figures
//! user.nvfold.usage                     what each byte is for       read only
//! user.nvfold.token                     names a file in hints       read only, `causality`
//! user.nvfold.clone-source              names a tree to clone       read only, `trees`
//! user.nvfold.{method,mode,paused}      settings of the mount       `settings`
//! user.nvfold.{dedup-range,...}.N.N     do something with the file  `requests`
//! user.nvfold.backup{,-next,...}        copy the whole device       `backups`
//! system.posix_acl_access               stored; the mode follows    `acl`
//! trusted.nvfold.*                      the same as user.nvfold.*, asked by root
//! any other user., trusted., security.  stored
//! ```
//!
//! The kernel lets only root use names in `trusted.`. So by such a name a command of root's is known where requests do not
//! tell who sent them (`idmap`).

use super::attributes::{SET_GROUP_ID, in_group};
use super::{Answer, Front};
use crate::acl::{self, Acl};
use crate::backups::{self, BackupRequest};
use crate::clones::SOURCE_ATTRIBUTE;
use crate::convert;
use crate::reports::{REPORT_ATTRIBUTE, Reader, USAGE_ATTRIBUTE};
use crate::requests::{self, Request as Asked};
use crate::settings::Setting;
use nvfold::{FileSystem, InodeNumber, SetAttr, XattrChange, XattrMode, errno};
use nvfold_causality::hint::TOKEN_ATTRIBUTE;
use nvfold_fuse::{Caller, Errno};

const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
const BOTH: u32 = XATTR_CREATE | XATTR_REPLACE;

impl Front {
    /// Sets an attribute; `flags` are those of setxattr(2). EPERM for attributes that cannot be set.
    pub(crate) fn set_attribute(
        &self,
        who: &Caller,
        ino: InodeNumber,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Answer<()> {
        if let Some(name) = asked_by_root(name) {
            return self.set_attribute(&who.as_root(), ino, &name, value, flags);
        }
        check_name(name)?;
        let mode = match flags & BOTH {
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => XattrMode::Set,
        };
        match name {
            name if name == acl::ACCESS => self.set_access_acl(who, ino, value),
            name if is_read_only(name) => Err(Errno::EPERM),
            name => match Setting::named(name) {
                Some(setting) => {
                    check_may_manage(who)?;
                    setting.set(&self.fs, value).ok_or(Errno::EINVAL)
                }
                // Both at once can never hold.
                None if flags & BOTH == BOTH => {
                    let exists = self.fs.get_xattr(ino, name).is_ok();
                    Err(if exists { Errno::EEXIST } else { Errno::ENODATA })
                }
                None => self.with_room(|| self.fs.set_xattr(ino, name, value, mode)).map_err(convert::errno),
            },
        }
    }

    /// Stores an ACL and changes the mode to match. An ACL that the mode expresses completely is not stored.
    fn set_access_acl(&self, who: &Caller, ino: InodeNumber, value: &[u8]) -> Answer<()> {
        let access = Acl::decode(value).ok_or(Errno::EINVAL)?;
        let attr = self.fs.getattr(ino).map_err(convert::errno)?;
        let mut mode = access.mode(attr.mode);
        if who.uid != 0 && !in_group(who, attr.gid) {
            mode &= !SET_GROUP_ID;
        }
        let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let stored = XattrChange { name: acl::ACCESS, value: (!access.is_a_mode()).then_some(value) };
        self.set_together(ino, &change, &[stored]).map(drop)
    }

    /// Returns the value of an attribute, or the answer to the request that its name is. `size` is the room for it.
    pub(crate) fn attribute(&self, who: &Caller, ino: InodeNumber, name: &[u8], size: u32) -> Answer<Vec<u8>> {
        if let Some(name) = asked_by_root(name) {
            return self.attribute(&who.as_root(), ino, &name, size);
        }
        match Asked::named(name) {
            // A process that asks for the size alone does not want the request carried out.
            Some(_) if size == 0 => Err(Errno::EINVAL),
            Some(asked) => self.carry_out(who, ino, asked),
            None if name == requests::DRAIN.as_bytes() => self.work(who, size, requests::drain),
            None if name == requests::RECLAIM.as_bytes() => self.work(who, size, requests::reclaim),
            None if name == requests::IN_SNAPSHOTS.as_bytes() => self.look(who, size, requests::in_snapshots),
            None if name == requests::REMOVE.as_bytes() && size == 0 => Err(Errno::EINVAL),
            None if name == requests::REMOVE.as_bytes() => self.remove_tree(who, ino).map(|()| b"removed".to_vec()),
            None if name == USAGE_ATTRIBUTE.as_bytes() => self.usage(who, size),
            None if name == requests::WRITE_BACK.as_bytes() => self.store_all(who, size, || Ok(())),
            None if name == requests::SYNC.as_bytes() => self.store_all(who, size, || self.sync_all()),
            None if name == backups::BEGIN.as_bytes() => {
                check_may_manage(who)?;
                self.begin_backup(who, size)
            }
            None => match BackupRequest::named(name) {
                Some(asked) => {
                    check_may_manage(who)?;
                    self.asked_about_backup(size, asked)
                }
                None => self.value(who, ino, name),
            },
        }
    }

    /// Stores what programs have written to any file, and then does the rest; returns the persistence level.
    fn store_all(&self, who: &Caller, size: u32, then: impl FnOnce() -> Answer<()>) -> Answer<Vec<u8>> {
        if size == 0 {
            return Err(Errno::EINVAL);
        }
        self.write_back_for(who)?;
        then()?;
        Ok(self.fs.region().level().to_string().into_bytes())
    }

    fn value(&self, who: &Caller, ino: InodeNumber, name: &[u8]) -> Answer<Vec<u8>> {
        check_name(name)?;
        if name == REPORT_ATTRIBUTE.as_bytes() {
            let reader = if may_manage(who) { Reader::Manager } else { Reader::Other };
            return self.reports.as_ref().map(|reports| reports.stats(&self.counters, reader)).ok_or(Errno::ENODATA);
        }
        if name == TOKEN_ATTRIBUTE.as_bytes() {
            return self.token(who, ino);
        }
        if name == SOURCE_ATTRIBUTE.as_bytes() {
            return self.clone_source(who, ino);
        }
        if let Some(setting) = Setting::named(name) {
            return Ok(setting.get(&self.fs).into_bytes());
        }
        self.fs.get_xattr(ino, name).map_err(convert::errno)
    }

    /// Carries out a request about a file. Its owner may share what it holds; whether it is shared, and where it lies, is
    /// told only to root and the user who mounted the file system: another user could find out what others store. EPERM.
    fn carry_out(&self, who: &Caller, ino: InodeNumber, asked: Asked) -> Answer<Vec<u8>> {
        let _turn = match asked.is_a_change() {
            true => {
                self.check_not_read_only()?;
                Some(self.turns.take(who.uid).ok_or(Errno::EAGAIN)?)
            }
            false => None,
        };
        let file = self.fs.open(ino).map_err(convert::errno)?;
        let before = file.attr();
        // Even how much of a file could be shared tells what others store, where all share with all.
        let tells = !asked.is_a_change() || !self.fs.shares_by_owner();
        let may = may_manage(who) || who.uid == before.uid && !tells;
        if !may {
            return Err(Errno::EPERM);
        }
        let answer = asked.carry_out(&file).map_err(convert::errno);
        if file.attr().blocks != before.blocks {
            self.notices.has_other_blocks(ino);
        }
        answer
    }

    /// Does one part of a longer task, for root or the user who mounted the file system.
    fn work(&self, who: &Caller, size: u32, part: fn(&FileSystem) -> nvfold::Result<Vec<u8>>) -> Answer<Vec<u8>> {
        check_may_manage(who)?;
        self.check_not_read_only()?;
        if size == 0 { Err(Errno::EINVAL) } else { part(&self.fs).map_err(convert::errno) }
    }

    /// Looks at all files, for root or the user who mounted the file system.
    fn look(&self, who: &Caller, size: u32, at: fn(&FileSystem) -> nvfold::Result<Vec<u8>>) -> Answer<Vec<u8>> {
        check_may_manage(who)?;
        if size == 0 { Err(Errno::EINVAL) } else { at(&self.fs).map_err(convert::errno) }
    }

    /// Returns what every stored byte is for, to root or the user who mounted the file system: writers wait meanwhile.
    fn usage(&self, who: &Caller, size: u32) -> Answer<Vec<u8>> {
        check_may_manage(who)?;
        if size == 0 {
            return Err(Errno::EINVAL);
        }
        let reports = self.reports.as_ref().ok_or(Errno::ENODATA)?;
        reports.usage(self.fs.usage().map_err(convert::errno)?).ok_or(Errno::EIO)
    }

    /// Returns the names of the stored attributes, each followed by a NUL.
    pub(crate) fn attribute_names(&self, who: &Caller, ino: InodeNumber) -> Answer<Vec<u8>> {
        let names = self.fs.list_xattr(ino).map_err(convert::errno)?;
        // As in other file systems, only root sees trusted attributes.
        let shown = |name: &Vec<u8>| who.uid == 0 || !name.starts_with(b"trusted.");
        Ok(names.into_iter().filter(shown).flat_map(|name| [name, vec![0]].concat()).collect())
    }

    /// Removes an attribute. EPERM for virtual attributes.
    pub(crate) fn remove_attribute(&self, ino: InodeNumber, name: &[u8]) -> Answer<()> {
        if is_read_only(name) || Setting::named(name).is_some() {
            return Err(Errno::EPERM);
        }
        check_name(name)?;
        let is_acl = name == acl::ACCESS || name == acl::DEFAULT;
        match self.fs.remove_xattr(ino, name) {
            // On other file systems too, removing an ACL that does not exist succeeds.
            Err(error) if is_acl && error.errno() == errno::ENODATA => Ok(()),
            removed => removed.map_err(convert::errno),
        }
    }
}

/// Returns the virtual attribute that a name stands for which only root may use.
fn asked_by_root(name: &[u8]) -> Option<Vec<u8>> {
    name.strip_prefix(b"trusted.nvfold.").map(|rest| [b"user.nvfold.", rest].concat())
}

/// Returns true for attributes whose value is made when they are read.
fn is_read_only(name: &[u8]) -> bool {
    [REPORT_ATTRIBUTE, USAGE_ATTRIBUTE, TOKEN_ATTRIBUTE, SOURCE_ATTRIBUTE].iter().any(|made| name == made.as_bytes())
}

/// Refuses names outside the namespaces that can be stored (EOPNOTSUPP), and those of a namespace itself (EINVAL).
fn check_name(name: &[u8]) -> Answer<()> {
    match [&b"user."[..], b"trusted.", b"security."].iter().find(|prefix| name.starts_with(prefix)) {
        Some(prefix) if name.len() == prefix.len() => Err(Errno::EINVAL),
        Some(_) => Ok(()),
        None if name == acl::ACCESS || name == acl::DEFAULT => Ok(()),
        None => Err(Errno::EOPNOTSUPP),
    }
}

/// Returns true for root and the user who mounted the file system.
pub(super) fn is_manager(user: u32) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&user)
}

fn may_manage(who: &Caller) -> bool {
    is_manager(who.uid)
}

/// Allows only root and the user who mounted the file system to change how a mount works (EPERM).
fn check_may_manage(who: &Caller) -> Answer<()> {
    if may_manage(who) { Ok(()) } else { Err(Errno::EPERM) }
}
