//! POSIX ACLs: what a file inherits from its directory, and how ACL and mode stay consistent.
//!
//! The kernel checks permissions by the ACL (FUSE_POSIX_ACL) and leaves three things to the file system: a new file
//! takes the directory's default ACL instead of the umask; setting an ACL changes the mode; changing the mode changes
//! the ACL. An ACL is the value of an extended attribute:
//!
//! ```text
//! u32 version = 2 | { u16 tag, u16 permissions rwx, u32 id } ...      little-endian
//! ```

/// The attribute that holds the ACL of a file.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute that holds the ACL that new files in a directory inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// Whom entries of an ACL are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A named user.
    User(u32),
    /// The group of the file, and named groups.
    AnyGroup,
    /// All others.
    Other,
}

/// An ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Decodes the value of an attribute; `None` if it is not a valid ACL.
    pub(crate) fn decode(value: &[u8]) -> Option<Acl> {
        let (version, entries) = value.split_first_chunk::<4>()?;
        let whole = u32::from_le_bytes(*version) == VERSION && entries.len() % 8 == 0;
        let entry = |bytes: &[u8]| Entry {
            tag: u16::from_le_bytes([bytes[0], bytes[1]]),
            permissions: u16::from_le_bytes([bytes[2], bytes[3]]) & 7,
            id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        };
        let acl = Acl { entries: entries.chunks_exact(8).map(entry).collect() };
        let has = |tag| acl.entries.iter().filter(|entry| entry.tag == tag).count() == 1;
        (whole && has(USER_OBJ) && has(GROUP_OBJ) && has(OTHER)).then_some(acl)
    }

    /// Returns the ACL as the value of an attribute.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            value.extend(entry.tag.to_le_bytes());
            value.extend(entry.permissions.to_le_bytes());
            value.extend(entry.id.to_le_bytes());
        }
        value
    }

    /// Returns true if a mode expresses the whole ACL: it has no named user or group, and no mask.
    pub(crate) fn is_a_mode(&self) -> bool {
        self.entries.iter().all(|entry| !matches!(entry.tag, USER | GROUP | MASK))
    }

    /// Returns `mode` with its nine permission bits taken from this ACL. The group bits come from the mask, if there
    /// is one.
    pub(crate) fn mode(&self, mode: u32) -> u32 {
        let bits = |tag| self.permissions(tag).map(u32::from);
        let group = bits(MASK).or(bits(GROUP_OBJ)).unwrap_or(0);
        mode & !0o777 | bits(USER_OBJ).unwrap_or(0) << 6 | group << 3 | bits(OTHER).unwrap_or(0)
    }

    /// Returns the ACL after a `chmod` to `mode`.
    pub(crate) fn with_mode(&self, mode: u32) -> Acl {
        let group_tag = if self.permissions(MASK).is_some() { MASK } else { GROUP_OBJ };
        let mut acl = self.clone();
        for entry in &mut acl.entries {
            let shift = match entry.tag {
                USER_OBJ => 6,
                OTHER => 0,
                tag if tag == group_tag => 3,
                _ => continue,
            };
            entry.permissions = (mode >> shift & 7) as u16;
        }
        acl
    }

    /// Returns what a file created with `mode` inherits from this default ACL: its mode and, unless the mode
    /// expresses the whole ACL, its ACL.
    pub(crate) fn inherited(&self, mode: u32) -> (u32, Option<Acl>) {
        let granted = mode & (self.mode(0) | !0o777);
        let acl = self.with_mode(granted);
        (granted, (!acl.is_a_mode()).then_some(acl))
    }

    /// Returns the permissions of a class, in the order of its entries, as the mask leaves them.
    pub(crate) fn permissions_of(&self, class: Class) -> impl Iterator<Item = u32> {
        let mask = self.permissions(MASK).unwrap_or(7);
        self.entries.iter().filter_map(move |entry| {
            match (class, entry.tag) {
                (Class::User(id), USER) if entry.id == id => Some(entry.permissions & mask),
                (Class::AnyGroup, GROUP_OBJ | GROUP) => Some(entry.permissions & mask),
                (Class::Other, OTHER) => Some(entry.permissions),
                _ => None,
            }
            .map(u32::from)
        })
    }

    /// Returns the groups of these entries, in their order; `None` is the group of the file.
    pub(crate) fn group_ids(&self) -> impl Iterator<Item = Option<u32>> {
        self.entries.iter().filter_map(|entry| match entry.tag {
            GROUP_OBJ => Some(None),
            GROUP => Some(Some(entry.id)),
            _ => None,
        })
    }

    fn permissions(&self, tag: u16) -> Option<u16> {
        self.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.permissions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl { entries: entries.iter().map(|&(tag, permissions, id)| Entry { tag, permissions, id }).collect() }
    }

    #[test]
    fn an_acl_survives_encoding() {
        let acl = acl(&[
            (USER_OBJ, 7, u32::MAX),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, u32::MAX),
            (MASK, 7, u32::MAX),
            (OTHER, 0, u32::MAX),
        ]);
        assert_eq!(Acl::decode(&acl.encode()), Some(acl));
    }

    #[test]
    fn malformed_acls_are_refused() {
        let good = acl(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 5, 0)]).encode();
        assert!(Acl::decode(&good).is_some());
        assert_eq!(Acl::decode(&good[..good.len() - 1]), None, "cut off");
        assert_eq!(Acl::decode(&good[..4]), None, "no entries");
        assert_eq!(Acl::decode(&[]), None);
        let mut other_version = good;
        other_version[0] = 3;
        assert_eq!(Acl::decode(&other_version), None);
    }

    #[test]
    fn a_default_acl_replaces_the_umask() {
        let default = acl(&[(USER_OBJ, 7, 0), (USER, 7, 1000), (GROUP_OBJ, 5, 0), (MASK, 7, 0), (OTHER, 0, 0)]);
        let (mode, inherited) = default.inherited(0o666);
        assert_eq!(mode, 0o660);
        let expected = acl(&[(USER_OBJ, 6, 0), (USER, 7, 1000), (GROUP_OBJ, 5, 0), (MASK, 6, 0), (OTHER, 0, 0)]);
        assert_eq!(inherited, Some(expected));
    }

    #[test]
    fn a_default_acl_without_named_entries_gives_new_files_only_a_mode() {
        let default = acl(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 0, 0)]);
        assert_eq!(default.inherited(0o4777), (0o4750, None));
    }

    #[test]
    fn chmod_changes_the_mask_of_an_acl_and_not_its_group_entry() {
        let access = acl(&[(USER_OBJ, 7, 0), (USER, 7, 1000), (GROUP_OBJ, 5, 0), (MASK, 7, 0), (OTHER, 4, 0)]);
        let changed = access.with_mode(0o600);
        let expected = acl(&[(USER_OBJ, 6, 0), (USER, 7, 1000), (GROUP_OBJ, 5, 0), (MASK, 0, 0), (OTHER, 0, 0)]);
        assert_eq!(changed, expected);
        assert_eq!(changed.mode(0o4000), 0o4600);
    }
}
