//! Changes of attributes, and what must follow them: an ACL follows the mode, and privileges go when a file changes
//! hands or content.
//!
//! The kernel leaves privileges to us (FUSE_HANDLE_KILLPRIV_V2): otherwise it would ask for the capabilities of a file
//! before each write to it. Privileges are the bits set-user-id and set-group-id, and file capabilities.

use super::{Answer, Front};
use crate::mount::acl::{self, Acl};
use crate::mount::convert;
use fuser::{Errno, Request};
use nvfold::{Attr, FileKind, InodeNumber, SetAttr, XattrMode};

const SET_USER_ID: u32 = 0o4000;
pub const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;
const CAPABILITIES: &[u8] = b"security.capability";

impl Front {
    pub fn set_attributes(&self, who: &Request, ino: InodeNumber, change: SetAttr) -> Answer<Attr> {
        // chown(-1, -1) takes privileges away too; it comes as a change of nothing but perhaps the time of change.
        let changes_hands =
            change.uid.is_some() || change.gid.is_some() || SetAttr { ctime: None, ..change } == SetAttr::default();
        let loses_privileges = changes_hands || (change.size.is_some() && who.uid() != 0);
        let mut change = change;
        if loses_privileges && change.mode.is_none() {
            change.mode = self.unprivileged_mode(ino)?;
        }
        let attr = self.with_room(|| self.fs.setattr(ino, &change)).map_err(convert::errno)?;
        self.counters.change();
        if let (Some(mode), Ok(access)) = (change.mode, self.fs.get_xattr(ino, acl::ACCESS)) {
            let access = Acl::decode(&access).ok_or(Errno::EIO)?.with_mode(mode);
            self.fs.set_xattr(ino, acl::ACCESS, &access.encode(), XattrMode::Set).map_err(convert::errno)?;
        }
        Ok(attr)
    }

    pub fn take_privileges(&self, ino: InodeNumber) -> Answer<()> {
        match self.unprivileged_mode(ino)? {
            Some(mode) => self.set_mode(ino, mode),
            None => Ok(()),
        }
    }

    /// As `take_privileges`, unless it is root who changes the content.
    pub fn take_privileges_from(&self, who: &Request, ino: InodeNumber) -> Answer<()> {
        if who.uid() != 0 { self.take_privileges(ino) } else { Ok(()) }
    }

    /// Changes the mode and nothing that follows it.
    pub fn set_mode(&self, ino: InodeNumber, mode: u32) -> Answer<()> {
        let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.fs.setattr(ino, &change).map(|_| ()).map_err(convert::errno)
    }

    /// The mode without set-user-id and set-group-id, if it has them; file capabilities go too.
    fn unprivileged_mode(&self, ino: InodeNumber) -> Answer<Option<u32>> {
        let attr = self.fs.getattr(ino).map_err(convert::errno)?;
        if attr.kind == FileKind::Directory {
            return Ok(None);
        }
        if self.fs.get_xattr(ino, CAPABILITIES).is_ok() {
            self.fs.remove_xattr(ino, CAPABILITIES).map_err(convert::errno)?;
        }
        // Without group execution the bit means mandatory locking, not a privilege.
        let set_group_id = if attr.mode & GROUP_EXECUTE != 0 { SET_GROUP_ID } else { 0 };
        let taken = attr.mode & (SET_USER_ID | set_group_id);
        Ok((taken != 0).then_some(attr.mode & !taken))
    }
}
