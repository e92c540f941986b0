//! Which policy places data, and the names that users know policies by.

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
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 4] = [Policy::Off, Policy::Inline, Policy::NvDedup, Policy::DeNova];

    const NAMES: [&'static str; Policy::ALL.len()] = ["off", "inline", "nv-dedup", "denova"];

    /// Its name, in attributes, in options and in reports.
    pub fn name(self) -> &'static str {
        Policy::NAMES[self as usize]
    }

    /// The policy of this name.
    pub fn named(name: &[u8]) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.name().as_bytes() == name)
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
