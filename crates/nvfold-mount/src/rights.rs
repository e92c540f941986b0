//! What a user may do with a file, by its mode and its ACL.
//!
//! The problem: the kernel checks permissions before it sends a request. A request that is about a whole tree names one
//! directory, so the server checks those below, as the kernel would.
//!
//! The idea: the rules of acl(5), with the user, the group and the supplementary groups of the thread that waits for the
//! answer; it cannot change them meanwhile. Where its groups are unknown (idmapped mounts, another PID namespace), it may
//! what it might do as a member of any group and as a member of none. Capabilities grant nothing here.

use crate::acl::{Acl, Class};
use nvfold::Attr;
use nvfold_fuse::Caller;

/// Read permission.
pub(crate) const READ: u32 = 4;
/// Write permission.
pub(crate) const WRITE: u32 = 2;
/// Permission to search a directory.
pub(crate) const SEARCH: u32 = 1;

/// A user, with what decides what he may do.
#[derive(Clone, Debug)]
pub(crate) struct Rights {
    pub uid: u32,
    /// All groups; `None` if they are unknown.
    groups: Option<Vec<u32>>,
}

impl Rights {
    /// Returns those of the process that waits for an answer, whose user id may be known from elsewhere.
    pub(crate) fn of(who: &Caller<'_>, uid: u32) -> Rights {
        let status = || std::fs::read_to_string(format!("/proc/{}/status", who.pid)).ok();
        let groups = if who.is_known() { status().and_then(|status| groups_in(&status, who.gid)) } else { None };
        Rights { uid, groups }
    }

    /// Returns true if all of `wanted` is allowed. `acl` is the value of the access ACL, if the file has one.
    pub(crate) fn allow(&self, attr: &Attr, acl: Option<&[u8]>, wanted: u32) -> bool {
        let has = |bits: u32| bits & wanted == wanted;
        if self.uid == attr.uid {
            return has(attr.mode >> 6);
        }
        // The kernel does not look at an ACL whose mask allows nothing.
        match acl.filter(|_| attr.mode & 0o070 != 0).map(Acl::decode) {
            None => match self.is_in(attr.gid) {
                Some(true) => has(attr.mode >> 3),
                Some(false) => has(attr.mode),
                None => has(attr.mode >> 3) && has(attr.mode),
            },
            Some(None) => false,
            Some(Some(acl)) => self.allowed_by(&acl, attr.gid, has),
        }
    }

    fn allowed_by(&self, acl: &Acl, gid: u32, has: impl Fn(u32) -> bool) -> bool {
        let of = |class| acl.permissions_of(class);
        if let Some(named) = of(Class::User(self.uid)).next() {
            return has(named);
        }
        let groups = of(Class::AnyGroup).zip(acl.group_ids());
        let (mut is_member, mut may_be_member, mut some_allow, mut all_allow) = (false, false, false, true);
        for (permissions, id) in groups {
            match self.is_in(id.unwrap_or(gid)) {
                Some(false) => continue,
                Some(true) => is_member = true,
                None => may_be_member = true,
            }
            some_allow |= has(permissions);
            all_allow &= has(permissions);
        }
        let others = || of(Class::Other).next().is_some_and(&has);
        match (is_member, may_be_member) {
            (true, _) => some_allow,
            (false, true) => all_allow && others(),
            (false, false) => others(),
        }
    }

    /// Returns whether the user is in a group; `None` if that is unknown.
    fn is_in(&self, gid: u32) -> Option<bool> {
        self.groups.as_ref().map(|groups| groups.contains(&gid))
    }
}

/// Returns the groups in a status file of /proc, and this one.
fn groups_in(status: &str, gid: u32) -> Option<Vec<u32>> {
    let listed = status.lines().find_map(|line| line.strip_prefix("Groups:"))?;
    listed.split_whitespace().map(|group| group.parse().ok()).chain([Some(gid)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold::{FileKind, InodeNumber};

    fn file(mode: u32, uid: u32, gid: u32) -> Attr {
        Attr {
            ino: InodeNumber(7),
            generation: 0,
            kind: FileKind::Regular,
            mode,
            uid,
            gid,
            nlink: 1,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: 0,
            mtime: 0,
            ctime: 0,
            btime: 0,
        }
    }

    fn user(uid: u32, groups: &[u32]) -> Rights {
        Rights { uid, groups: Some(groups.to_vec()) }
    }

    fn stranger(uid: u32) -> Rights {
        Rights { uid, groups: None }
    }

    /// Tag, permissions, id.
    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend([tag.to_le_bytes(), permissions.to_le_bytes()].as_flattened());
            value.extend(id.to_le_bytes());
        }
        value
    }

    #[test]
    fn the_first_class_that_matches_decides() {
        // The owner may less than others do here, and the group less than others.
        assert!(!user(1, &[2]).allow(&file(0o077, 1, 2), None, READ));
        assert!(!user(3, &[9, 2]).allow(&file(0o707, 1, 2), None, READ));
        assert!(user(3, &[9, 2]).allow(&file(0o640, 1, 2), None, READ));
        assert!(user(3, &[9]).allow(&file(0o604, 1, 2), None, READ));
        assert!(!user(3, &[9]).allow(&file(0o640, 1, 2), None, READ));
        assert!(!user(1, &[]).allow(&file(0o600, 1, 2), None, READ | SEARCH), "all that is wanted");
        assert!(!user(0, &[0]).allow(&file(0o600, 1, 2), None, READ), "no capability is known here");
        assert!(user(1, &[]).allow(&file(0o200, 1, 2), None, WRITE));
    }

    #[test]
    fn an_acl_grants_what_its_mask_leaves() {
        let entries = [(1, 7, 0), (2, 4, 5), (2, 7, 6), (4, 0, 0), (8, 4, 30), (8, 0, 31), (16, 4, 0), (32, 0, 0)];
        let value = acl(&entries);
        let attr = file(0o740, 1, 20);
        let may = |rights: &Rights, wanted| rights.allow(&attr, Some(&value), wanted);
        assert!(may(&user(5, &[]), READ), "a named user");
        assert!(!may(&user(6, &[]), WRITE), "the mask");
        assert!(may(&user(9, &[20, 30]), READ), "one of the groups");
        assert!(!may(&user(9, &[20, 31]), READ), "none of the groups");
        assert!(!may(&user(9, &[40]), READ), "all others");
        assert!(user(9, &[20, 30]).allow(&file(0o640, 1, 30), None, READ), "without an ACL the mode decides");
        assert!(!user(5, &[]).allow(&file(0o700, 1, 20), Some(&value), READ), "a mask of nothing");
        assert!(!user(5, &[]).allow(&attr, Some(&value[..5]), READ), "an ACL that is none");
    }

    #[test]
    fn a_user_whose_groups_are_unknown_may_what_any_group_and_all_others_may() {
        assert!(stranger(1).allow(&file(0o400, 1, 2), None, READ));
        assert!(stranger(3).allow(&file(0o044, 1, 2), None, READ));
        assert!(!stranger(3).allow(&file(0o640, 1, 2), None, READ));
        assert!(!stranger(3).allow(&file(0o604, 1, 2), None, READ));
        let value = acl(&[(1, 7, 0), (4, 4, 0), (8, 4, 30), (16, 4, 0), (32, 4, 0)]);
        assert!(stranger(3).allow(&file(0o744, 1, 2), Some(&value), READ));
        let value = acl(&[(1, 7, 0), (4, 4, 0), (8, 0, 30), (16, 4, 0), (32, 4, 0)]);
        assert!(!stranger(3).allow(&file(0o744, 1, 2), Some(&value), READ), "he may be in group 30");
    }

    #[test]
    fn groups_are_read_from_the_status_of_a_process() {
        let status = "Name:\ta\nUid:\t1\t1\t1\t1\nGroups:\t4 24 1000 \nNStgid:\t1\n";
        assert_eq!(groups_in(status, 7), Some(vec![4, 24, 1000, 7]));
        assert_eq!(groups_in("Groups:\t\n", 7), Some(vec![7]));
        assert_eq!(groups_in("Name:\ta\n", 7), None);
    }
}
