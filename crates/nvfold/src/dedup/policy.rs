//! Which policy places data, and the names that users know policies by.

use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::packed::HEADER_BYTES;
use crate::media::{BLOCK_BYTES, PACKED_DEVICE_BYTES_MAX};

/// Which dedup system places data (docs/papers.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Store everything.
    Off,
    /// Share equal 4 KiB blocks as they are written: weak fingerprint, index, byte compare.
    #[default]
    Inline,
    /// Fingerprint as much as pays: the method follows from measured costs and the workload's duplicate ratio.
    NvDedup,
    /// Store now, share later: writes are queued, and a daemon shares what they stored ([`crate::Daemon`]).
    DeNova,
    /// Cut compressible data by its content and other data every 16 KiB, and share equal pieces as they are written.
    DeExt,
    /// Share bytes that were copied from files, as the writer says ([`crate::Origin`]); store everything else.
    Icid,
    /// As [`Policy::Icid`], and what was copied from nowhere goes the way of [`Policy::Inline`] (ICID section 6).
    IcidInline,
    /// As [`Policy::Icid`], and what was copied from nowhere goes the way of [`Policy::DeExt`].
    IcidDeExt,
    /// In each directory the one of `off`, `inline`, `denova` and `deext` that is the best for its data on this device now.
    Auto,
}

impl Policy {
    /// All of them.
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

    /// Its name, in attributes, in options and in reports.
    pub fn name(self) -> &'static str {
        Policy::NAMES[self as usize]
    }

    /// The policy of this name.
    pub fn named(name: &[u8]) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.name().as_bytes() == name)
    }

    /// Whether it shares what was copied from files, where the writer says so.
    pub fn follows_origins(self) -> bool {
        matches!(self, Policy::Icid | Policy::IcidInline | Policy::IcidDeExt)
    }

    /// The policy that places what has no origin: itself, unless it follows origins.
    pub fn without_origins(self) -> Policy {
        match self {
            Policy::Icid => Policy::Off,
            Policy::IcidInline => Policy::Inline,
            Policy::IcidDeExt => Policy::DeExt,
            other => other,
        }
    }

    /// Its number, as an inode keeps it in DRAM.
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    /// The policy of this number.
    pub(crate) fn numbered(number: u8) -> Option<Policy> {
        Policy::ALL.get(usize::from(number)).copied()
    }

    /// The names of all in one line, for messages.
    pub fn names() -> String {
        Policy::ALL.map(Policy::name).join(", ")
    }
}

/// Extended attribute with which a file or directory has a policy of its own for new data: its value is the name of
/// a [`Policy`]. What is made in a directory that has it gets a copy. A value that is no policy's name (of a newer
/// version) counts as none.
pub const POLICY_ATTRIBUTE: &[u8] = b"user.nvfold.dedup";

/// The policy for new data of a file, or of what is made in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyOf {
    /// Its own, from its attribute ([`POLICY_ATTRIBUTE`]).
    Own(Policy),
    /// It has none: that of the mount.
    Mount(Policy),
}

impl PolicyOf {
    /// Which one it is.
    pub fn policy(self) -> Policy {
        match self {
            PolicyOf::Own(policy) | PolicyOf::Mount(policy) => policy,
        }
    }
}

/// Whether the ends of files that do not fill a block are stored as packed chunks, under policies that store blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pack {
    /// Where it pays: ends of at most 3 KiB, on devices of at least 128 MiB.
    #[default]
    Auto,
    /// Wherever it saves space.
    On,
    /// Never: they take a block each.
    Off,
}

impl Pack {
    /// All of them.
    pub const ALL: [Pack; 3] = [Pack::Auto, Pack::On, Pack::Off];

    /// Returns its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Pack::Auto => "auto",
            Pack::On => "on",
            Pack::Off => "off",
        }
    }

    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Pack> {
        Pack::ALL.into_iter().find(|pack| pack.name() == name)
    }

    /// The longest end of a file that is packed on a device of so many bytes.
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

/// A segment of packed chunks and one of their entries must be little of the device.
const AUTO_DEVICE_BYTES_MIN: u64 = 128 << 20;
/// What grows beyond a block soon is not worth packing.
const AUTO_BYTES_MAX: u64 = 3 << 10;

/// What must be equal before a piece is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verify {
    /// The bytes, whatever else is equal.
    #[default]
    Bytes,
    /// A strong fingerprint is trusted, as in the paper; methods without one compare bytes.
    Strong,
}

/// What one policy saw since mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Which one.
    pub policy: Policy,
    /// Pieces offered to it.
    pub offered: u64,
    /// Pieces shared.
    pub shared: u64,
    /// Pieces whose weak fingerprint matched and whose bytes did not.
    pub collisions: u64,
}
