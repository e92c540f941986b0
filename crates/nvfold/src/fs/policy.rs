//! Which policy new data of a file gets: its own, from its attribute, or that of the mount.

use super::Core;
use crate::dedup::Dedup;
use crate::dedup::policy::{POLICY_ATTRIBUTE, Policy, PolicyOf};
use crate::error::{Error, Result, errno};
use crate::inode::{Inode, State};
use crate::words::{FileKind, InodeNumber};

/// Takes over what an inode's attribute says now.
pub(super) fn take_over(inode: &Inode, state: &State) {
    let named = state.short_attribute(POLICY_ATTRIBUTE).and_then(Policy::named);
    inode.set_own_policy(named.map(Policy::number));
}

fn own(inode: &Inode) -> Option<Policy> {
    inode.own_policy().and_then(Policy::numbered)
}

/// What may be the value of the policy attribute, and of what.
pub(super) fn check_attribute(doing: &'static str, kind: FileKind, value: &[u8]) -> Result<()> {
    let why = match kind {
        FileKind::Regular | FileKind::Directory if Policy::named(value).is_some() => return Ok(()),
        FileKind::Regular | FileKind::Directory => "user.nvfold.dedup names a policy, and there is none of that name",
        _ => "only files and directories have a policy",
    };
    Err(Error::Posix { doing, why, errno: errno::EINVAL })
}

impl Core {
    /// The policy that places new data of a file.
    #[inline]
    pub(super) fn policy_for(&self, inode: &Inode) -> &dyn Dedup {
        self.policies.of(own(inode))
    }

    /// Which policy new data of a file gets, or of what is made in a directory.
    pub(crate) fn policy_of(&self, ino: InodeNumber) -> Result<PolicyOf> {
        let inode = self.inode(ino.0)?;
        let _live = inode.read()?;
        Ok(own(&inode).map_or(PolicyOf::Mount(self.policies.policy), PolicyOf::Own))
    }
}
