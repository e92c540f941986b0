//! Changes of attributes, and what must follow them: an ACL follows the mode, and privileges go when a file changes
//! hands or content.
//!
//! The kernel leaves privileges to us (FUSE_HANDLE_KILLPRIV_V2): otherwise it would ask for the capabilities of a file
//! before each write to it. Privileges are the bits set-user-id and set-group-id, and file capabilities.

use super::{Answer, Front};
use crate::mount::acl::{self, Acl};
use crate::mount::convert;
use nvfold::{Attr, FileKind, InodeNumber, SetAttr, XattrChange};
use nvfold_fuse::{Caller, Errno};

const SET_USER_ID: u32 = 0o4000;
pub const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;
const CAPABILITIES: &[u8] = b"security.capability";

impl Front {
    pub fn set_attributes(&self, who: &Caller, ino: InodeNumber, change: SetAttr) -> Answer<Attr> {
        // chown(-1, -1) takes privileges away too; it comes as a change of nothing but perhaps the time of change.
        let changes_hands =
            change.uid.is_some() || change.gid.is_some() || SetAttr { ctime: None, ..change } == SetAttr::default();
        let loses_privileges = changes_hands || (change.size.is_some() && who.uid != 0);
        let mut change = change;
        let mut xattrs = Vec::new();
        if loses_privileges && change.mode.is_none() {
            let privileges = self.privileges(ino)?;
            change.mode = privileges.mode_without;
            xattrs.extend(privileges.removal());
        }
        let access = change.mode.map(|mode| self.access_acl_with(ino, mode)).transpose()?.flatten();
        xattrs.extend(access.as_ref().map(|value| XattrChange { name: acl::ACCESS, value: Some(value) }));
        self.set_together(ino, &change, &xattrs)
    }

    /// Changes attributes and extended attributes in one commit.
    pub fn set_together(&self, ino: InodeNumber, change: &SetAttr, xattrs: &[XattrChange<'_>]) -> Answer<Attr> {
        let changed = self.with_room(|| self.fs.setattr_with(ino, change, xattrs)).map_err(convert::errno)?;
        self.counters.change();
        Ok(changed)
    }

    pub fn take_privileges(&self, ino: InodeNumber) -> Answer<()> {
        let privileges = self.privileges(ino)?;
        if privileges == Privileges::default() {
            return Ok(());
        }
        let change = SetAttr { mode: privileges.mode_without, ..SetAttr::default() };
        self.set_together(ino, &change, privileges.removal().as_slice()).map(drop)
    }

    /// As `take_privileges`, unless it is root who changes the content.
    pub fn take_privileges_from(&self, who: &Caller, ino: InodeNumber) -> Answer<()> {
        if who.uid != 0 { self.take_privileges(ino) } else { Ok(()) }
    }

    /// The ACL of an inode after a `chmod` to `mode`, if it has one.
    fn access_acl_with(&self, ino: InodeNumber, mode: u32) -> Answer<Option<Vec<u8>>> {
        let Ok(access) = self.fs.get_xattr(ino, acl::ACCESS) else { return Ok(None) };
        let access = Acl::decode(&access).ok_or(Errno::EIO)?;
        Ok(Some(access.with_mode(mode).encode()))
    }

    fn privileges(&self, ino: InodeNumber) -> Answer<Privileges> {
        let attr = self.fs.getattr(ino).map_err(convert::errno)?;
        if attr.kind == FileKind::Directory {
            return Ok(Privileges::default());
        }
        // Without group execution the bit means mandatory locking, not a privilege.
        let set_group_id = if attr.mode & GROUP_EXECUTE != 0 { SET_GROUP_ID } else { 0 };
        let taken = attr.mode & (SET_USER_ID | set_group_id);
        Ok(Privileges {
            mode_without: (taken != 0).then_some(attr.mode & !taken),
            has_capabilities: self.fs.get_xattr(ino, CAPABILITIES).is_ok(),
        })
    }
}

/// What whoever runs a file gets by it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Privileges {
    /// The mode without set-user-id and set-group-id, if it has them.
    mode_without: Option<u32>,
    has_capabilities: bool,
}

impl Privileges {
    /// The extended attribute that goes with them.
    fn removal(self) -> Option<XattrChange<'static>> {
        self.has_capabilities.then_some(XattrChange { name: CAPABILITIES, value: None })
    }
}
