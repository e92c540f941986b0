//! The rows of the table: every policy, as it can be mounted, on every index that it can use.

use crate::{Doing, Result};
use nvfold::{
    DeNovaOptions, DedupMode, FileSystem, Generators, IndexKind, Method, MethodChoice, MkfsOptions, MountOptions,
    NvDedupOptions, Policy,
};
use pmem::{DeviceSpec, FlushMode, OpenOptions, Region};

/// Bytes of the device that each cell of the table gets for itself.
const DEVICE_BYTES: u64 = 64 << 20;

/// A policy with what it can be told, and the index of the device that it is mounted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// The policy for new data.
    pub policy: Policy,
    /// How chunk entries are found.
    pub index: IndexKind,
    /// Policy `nv-dedup`: the method, which is not chosen by costs here.
    pub method: Method,
    /// Policy `denova`: when it shares.
    pub mode: DedupMode,
}

impl System {
    /// Returns all of them, in the order of the table.
    pub fn all() -> Vec<System> {
        Policy::ALL.into_iter().flat_map(System::of_policy).collect()
    }

    fn of_policy(policy: Policy) -> Vec<System> {
        let on = |index| System { policy, index, method: Method::WBFin, mode: DedupMode::Inline };
        let indexes = IndexKind::ALL.into_iter();
        match policy {
            // It never looks for anything.
            Policy::Off => vec![on(IndexKind::Dram)],
            Policy::Inline => indexes.map(on).collect(),
            Policy::NvDedup => {
                let with = |method| IndexKind::ALL.map(|index| System { method, ..on(index) });
                Method::ALL.into_iter().flat_map(with).collect()
            }
            Policy::DeNova => {
                let with = |mode| IndexKind::ALL.map(|index| System { mode, ..on(index) });
                [DedupMode::Inline, DedupMode::Immediate].into_iter().flat_map(with).collect()
            }
            // Its pieces are not blocks, which all rows of the table are about.
            Policy::DeExt => Vec::new(),
            // It is one of the others at any time.
            Policy::Auto => Vec::new(),
            // Without origins they are the others.
            Policy::Icid | Policy::IcidInline | Policy::IcidDeExt => Vec::new(),
        }
    }

    /// The policy and what it was told: `nv-dedup, wb`.
    pub fn policy_name(&self) -> String {
        let name = self.policy.name();
        match self.policy {
            Policy::NvDedup => format!("{name}, {}", self.method.name()),
            Policy::DeNova => format!("{name}, {}", self.mode),
            _ => name.into(),
        }
    }

    /// Whether a duplicate of a stored block is shared while it is written.
    pub fn shares_at_once(&self) -> bool {
        match self.policy.without_origins() {
            Policy::Off => false,
            Policy::NvDedup => self.method != Method::NonFin,
            Policy::DeNova => self.mode == DedupMode::Inline,
            _ => true,
        }
    }

    /// Formats a device in memory and mounts it: a fixed clock, no stopwatch, one allocation cursor, nothing given back
    /// to the host. Flush instructions are issued as on a DAX device.
    pub fn mount(&self, device: &OpenOptions) -> Result<FileSystem> {
        let device = OpenOptions { flush: FlushMode::Always, ..device.clone() };
        let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &device).map_err(nvfold::Error::from);
        let region = region.doing("make a memory device")?;
        FileSystem::mkfs(&region, &MkfsOptions { index: self.index, ..MkfsOptions::default() }).doing("format")?;
        FileSystem::mount(region, self.mount_options()).doing("mount")
    }

    fn mount_options(&self) -> MountOptions {
        let method = MethodChoice::Fixed(self.method);
        MountOptions {
            policy: self.policy,
            nv_dedup: NvDedupOptions { method, ..NvDedupOptions::default() },
            denova: DeNovaOptions { mode: self.mode, ..DeNovaOptions::default() },
            cores: 1,
            // Which generator a thread has follows from how many threads there were: here it is always the same.
            generators: Generators::Global,
            discard: Some(false),
            ..MountOptions::default()
        }
    }
}
