//! Which policy places data, and the names that users know the policies by.

use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::packed::HEADER_BYTES;
use crate::media::{BLOCK_BYTES, PACKED_DEVICE_BYTES_MAX};

/// The dedup system that places data (docs/papers.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Store everything.
    Off,
    /// Share equal 4 KiB blocks as they are written: weak fingerprint, index, byte compare.
    #[default]
    Inline,
    /// Fingerprint as much as pays off: the method follows from measured costs and the workload's duplicate ratio.
    NvDedup,
    /// Store now, share later: writes are queued, and a daemon shares the stored blocks ([`crate::Daemon`]).
    DeNova,
    /// Cut compressible data by content and other data every 16 KiB, and share equal pieces as they are written.
    DeExt,
    /// Share bytes that were copied from files, as the writer declares ([`crate::Origin`]); store all other bytes.
    Icid,
    /// As [`Policy::Icid`], and data without an origin is handled by [`Policy::Inline`] (ICID section 6).
    IcidInline,
    /// As [`Policy::Icid`], and data without an origin is handled by [`Policy::DeExt`].
    IcidDeExt,
    /// Choose, in each directory, whichever of `off`, `inline`, `denova` and `deext` is best for its data on this
    /// device now.
    Auto,
}

impl Policy {
    /// All values.
    pub const ALL: [Policy; 9] = [
        Policy::Off,
        Policy::Inline,
        Policy::NvDedup,
        Policy::DeNova,
        Policy::DeExt,
        Policy::Icid,
        Policy::IcidInline,
        Policy::IcidDeExt,
        Policy::Auto,
    ];

    const NAMES: [&'static str; Policy::ALL.len()] =
        ["off", "inline", "nv-dedup", "denova", "deext", "icid", "icid+inline", "icid+deext", "auto"];

    /// Returns its name in attributes, options and reports.
    pub fn name(self) -> &'static str {
        Policy::NAMES[self as usize]
    }

    /// Returns the policy with this name, if there is one.
    pub fn named(name: &[u8]) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.name().as_bytes() == name)
    }

    /// True if it shares data that was copied from files, where the writer declares the origin.
    pub fn follows_origins(self) -> bool {
        matches!(self, Policy::Icid | Policy::IcidInline | Policy::IcidDeExt)
    }

    /// Returns the policy that places data without an origin: itself, unless it follows origins.
    pub fn without_origins(self) -> Policy {
        match self {
            Policy::Icid => Policy::Off,
            Policy::IcidInline => Policy::Inline,
            Policy::IcidDeExt => Policy::DeExt,
            other => other,
        }
    }

    /// Returns its number, as an inode keeps it in DRAM.
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    /// Returns the policy with this number, if there is one.
    pub(crate) fn numbered(number: u8) -> Option<Policy> {
        Policy::ALL.get(usize::from(number)).copied()
    }

    /// Returns the names of all policies in one line, for messages.
    pub fn names() -> String {
        Policy::ALL.map(Policy::name).join(", ")
    }
}

/// Extended attribute that gives a file or directory its own policy for new data. The value is the name of a
/// [`Policy`]. Files and directories that are created in a directory with the attribute get a copy of it. A value
/// that is not a policy's name (of a newer version) is ignored.
pub const POLICY_ATTRIBUTE: &[u8] = b"user.nvfold.dedup";

/// The policy for new data of a file, or for files created in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyOf {
    /// Its own, from its attribute ([`POLICY_ATTRIBUTE`]).
    Own(Policy),
    /// That of the mount, because it has no attribute.
    Mount(Policy),
}

impl PolicyOf {
    /// Returns the policy itself.
    pub fn policy(self) -> Policy {
        match self {
            PolicyOf::Own(policy) | PolicyOf::Mount(policy) => policy,
        }
    }
}

/// Whether ends of files that do not fill a block are stored as packed chunks, under policies that store blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pack {
    /// Where it pays off: ends of at most 3 KiB, on devices of at least 128 MiB.
    #[default]
    Auto,
    /// Wherever it saves space.
    On,
    /// Never: each end takes a block.
    Off,
}

impl Pack {
    /// All values.
    pub const ALL: [Pack; 3] = [Pack::Auto, Pack::On, Pack::Off];

    /// Returns its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Pack::Auto => "auto",
            Pack::On => "on",
            Pack::Off => "off",
        }
    }

    /// Returns the value with this name, if there is one.
    pub fn from_name(name: &str) -> Option<Pack> {
        Pack::ALL.into_iter().find(|pack| pack.name() == name)
    }

    /// Returns the longest end of a file, in bytes, that is packed on a device of `device_bytes` bytes; 0 if none is.
    pub(crate) fn bytes_max(self, device_bytes: u64) -> u64 {
        match self {
            _ if device_bytes > PACKED_DEVICE_BYTES_MAX => 0,
            Pack::Off => 0,
            Pack::Auto if device_bytes < AUTO_DEVICE_BYTES_MIN => 0,
            Pack::Auto => AUTO_BYTES_MAX,
            Pack::On => BLOCK_BYTES - ENTRY_BYTES - HEADER_BYTES - 1,
        }
    }
}

/// The smallest device on which `auto` packs: a segment of packed chunks and one of their entries must be a small
/// part of it.
const AUTO_DEVICE_BYTES_MIN: u64 = 128 << 20;
/// The longest end that `auto` packs. A longer one soon grows beyond a block and is not worth packing.
const AUTO_BYTES_MAX: u64 = 3 << 10;

/// What must be equal before a piece is shared with a stored chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verify {
    /// The bytes, in every case.
    #[default]
    Bytes,
    /// The strong fingerprint, as in the papers. Methods without one compare bytes.
    Strong,
}

/// Counters of one policy since mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct PolicyStats {
    /// The policy.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub policy: Policy,
    /// Number of pieces offered to it.
    pub offered: u64,
    /// Number of pieces shared.
    pub shared: u64,
    /// Number of times that a weak fingerprint matched and the bytes did not.
    pub collisions: u64,
}
