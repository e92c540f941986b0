//! Changes of attributes and their consequences: an ACL follows the mode, and a file loses its privileges when its
//! owner or content changes.
//!
//! Privileges are the bits set-user-id and set-group-id, and file capabilities. The kernel leaves them to the server
//! (FUSE_HANDLE_KILLPRIV_V2); otherwise it would ask for the capabilities of a file before each write.
//!
//! overlayfs copies a file up as one without a name: it sets the capabilities and the mode first and the owner last, and
//! takes no privileges away. The kernel does not say whose change of the owner it is. So a file that has never had a name
//! keeps its privileges if its owner gives it away, or it was root's: nobody else has run it, or could have had it made so.

use super::{Answer, Front};
use crate::acl::{self, Acl};
use crate::convert;
use nvfold::{Attr, FileKind, InodeNumber, SetAttr, XattrChange};
use nvfold_fuse::{Caller, Errno};

const SET_USER_ID: u32 = 0o4000;
pub(crate) const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;
const CAPABILITIES: &[u8] = b"security.capability";

impl Front {
    /// Changes attributes, and clears privileges and adapts the ACL where the change requires it.
    pub(crate) fn set_attributes(&self, who: &Caller, ino: InodeNumber, change: SetAttr) -> Answer<Attr> {
        // chown(-1, -1) clears privileges too. It arrives as a change of nothing, except perhaps the change time.
        let is_nothing = SetAttr { ctime: None, ..change } == SetAttr::default();
        let changes_hands = (change.uid.is_some() || change.gid.is_some()) && !self.is_made_for_another(who, ino)?;
        let loses_privileges = changes_hands || is_nothing || (change.size.is_some() && who.uid != 0);
        let mut change = change;
        let mut xattrs = Vec::new();
        if loses_privileges && change.mode.is_none() {
            let privileges = self.privileges(who, ino)?;
            if is_nothing && privileges.mode_without.is_some() && !privileges.may_change_mode {
                return self.change_nothing(ino, &change);
            }
            change.mode = privileges.mode_without;
            xattrs.extend(privileges.removal());
        }
        let access = change.mode.map(|mode| self.access_acl_with(ino, mode)).transpose()?.flatten();
        xattrs.extend(access.as_ref().map(|value| XattrChange { name: acl::ACCESS, value: Some(value) }));
        self.set_together(ino, &change, &xattrs)
    }

    /// Returns true for a file that has never had a name, of root or of this process.
    fn is_made_for_another(&self, who: &Caller, ino: InodeNumber) -> Answer<bool> {
        if self.lookups.made_in(ino).is_none() {
            return Ok(false);
        }
        let owner = self.fs.getattr(ino).map_err(convert::errno)?.uid;
        Ok([0, who.uid].contains(&owner))
    }

    /// Answers a change of nothing that would change the mode, by somebody who may not do that. A chown is refused, as
    /// on ext4. The kernel announces a change of the content of a file in the same way, but without a change time. Such a
    /// change then takes the privileges away itself.
    fn change_nothing(&self, ino: InodeNumber, change: &SetAttr) -> Answer<Attr> {
        let attr = self.fs.getattr(ino).map_err(convert::errno)?;
        let may_be_announced = attr.kind == FileKind::Regular && change.ctime.is_none();
        if may_be_announced { Ok(attr) } else { Err(Errno::EPERM) }
    }

    /// Changes attributes and extended attributes in one commit.
    pub(crate) fn set_together(&self, ino: InodeNumber, change: &SetAttr, xattrs: &[XattrChange<'_>]) -> Answer<Attr> {
        let change = SetAttr { times: self.times_of_change(ino, change)?, ..*change };
        let changed = self.with_room(|| self.fs.setattr_with(ino, &change, xattrs)).map_err(convert::errno)?;
        self.counters.change();
        Ok(changed)
    }

    /// Clears set-user-id, set-group-id and file capabilities of a regular file whose content changes. The kernel does
    /// not ask for the new mode by itself.
    pub(crate) fn take_privileges(&self, who: &Caller, ino: InodeNumber) -> Answer<()> {
        let privileges = self.privileges(who, ino)?;
        if privileges.mode_without.is_none() && !privileges.has_capabilities {
            return Ok(());
        }
        let change = SetAttr { mode: privileges.mode_without, ..SetAttr::default() };
        self.set_together(ino, &change, privileges.removal().as_slice())?;
        who.while_waiting(ino.0, || self.notices.has_other_attributes(ino));
        Ok(())
    }

    /// Does as `take_privileges`, unless root changes the content.
    pub(crate) fn take_privileges_from(&self, who: &Caller, ino: InodeNumber) -> Answer<()> {
        if who.uid != 0 { self.take_privileges(who, ino) } else { Ok(()) }
    }

    /// Returns the ACL of an inode as it is after a `chmod` to `mode`; `None` if the inode has no ACL.
    fn access_acl_with(&self, ino: InodeNumber, mode: u32) -> Answer<Option<Vec<u8>>> {
        let Ok(access) = self.fs.get_xattr(ino, acl::ACCESS) else { return Ok(None) };
        let access = Acl::decode(&access).ok_or(Errno::EIO)?;
        Ok(Some(access.with_mode(mode).encode()))
    }

    /// Returns the privileges that a change by this process takes away.
    fn privileges(&self, who: &Caller, ino: InodeNumber) -> Answer<Privileges> {
        let attr = self.fs.getattr(ino).map_err(convert::errno)?;
        if attr.kind == FileKind::Directory {
            return Ok(Privileges::default());
        }
        // Without group execution, set-group-id gives nothing to the process that runs the file. Members of the group
        // keep it, as on ext4.
        let keeps_group = || attr.mode & GROUP_EXECUTE == 0 && (who.uid == 0 || in_group(who, attr.gid));
        let set_group_id = if attr.mode & SET_GROUP_ID != 0 && !keeps_group() { SET_GROUP_ID } else { 0 };
        let taken = attr.mode & SET_USER_ID | set_group_id;
        Ok(Privileges {
            may_change_mode: who.uid == 0 || who.uid == attr.uid,
            mode_without: (taken != 0).then_some(attr.mode & !taken),
            has_capabilities: self.fs.get_xattr(ino, CAPABILITIES).is_ok(),
        })
    }
}

/// The privileges that a file gives to the process that runs it.
#[derive(Clone, Copy, Default)]
struct Privileges {
    /// True if the process may change the mode: the owner and root.
    may_change_mode: bool,
    /// The mode without set-user-id and set-group-id, if the file has one of them.
    mode_without: Option<u32>,
    has_capabilities: bool,
}

impl Privileges {
    /// Returns the removal of the file capabilities, if the file has any.
    fn removal(self) -> Option<XattrChange<'static>> {
        self.has_capabilities.then_some(XattrChange { name: CAPABILITIES, value: None })
    }
}

/// Returns true if the process is in a group: its own one, or one of those listed in /proc. Nobody knows the groups of an
/// unknown process, whose ids may be mapped to others.
pub(crate) fn in_group(who: &Caller, gid: u32) -> bool {
    if !who.is_known() {
        return false;
    }
    let status = || std::fs::read_to_string(format!("/proc/{}/status", who.pid)).unwrap_or_default();
    let listed = |status: String| {
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:").map(str::to_owned));
        groups.unwrap_or_default().split_whitespace().any(|group| group.parse() == Ok(gid))
    };
    who.gid == gid || listed(status())
}
