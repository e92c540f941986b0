//! The rows of the table: every policy, as it can be mounted, on every index that it can use.

use crate::{Doing, Result};
use nvfold::{
    AutoOptions, Costs, DeNovaOptions, DedupMode, FileSystem, Generators, IndexKind, Method, MethodChoice, MkfsOptions,
    MountOptions, NvDedupOptions, Policy, Prefer,
};
use pmem::{DeviceSpec, FlushMode, OpenOptions, Region};

/// Bytes of a device; each cell of the table has its own.
const DEVICE_BYTES: u64 = 64 << 20;

/// Costs of a device on which storing a block is always cheaper than a look-up: policy `auto` chooses `off` at mount.
const FAST: Costs = Costs { write_ns: 400, weak_ns: 150, strong_ns: 3_000, lookup_ns: 150, compare_ns: 250 };

/// A policy with its options, and the index of the device on which it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// The policy for new data.
    pub policy: Policy,
    /// The index that finds chunk entries.
    pub index: IndexKind,
    /// Policy `nv-dedup`: the method; here it is fixed, not chosen by cost.
    pub method: Method,
    /// Policy `denova`: when it shares.
    pub mode: DedupMode,
}

impl System {
    /// Returns all systems, in the order of the table.
    pub fn all() -> Vec<System> {
        Policy::ALL.into_iter().flat_map(System::of_policy).collect()
    }

    fn of_policy(policy: Policy) -> Vec<System> {
        let on = |index| System { policy, index, method: Method::WBFin, mode: DedupMode::Inline };
        let indexes = IndexKind::ALL.into_iter();
        match policy {
            // It never looks up a fingerprint, so the index makes no difference.
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
            // It stores pieces, and all rows of the table are about blocks.
            Policy::DeExt => Vec::new(),
            // At any time it behaves like one of the others. Its row minus that of `off` is the cost of choosing.
            Policy::Auto => vec![on(IndexKind::Dram)],
            // Without origins they behave like the policies above.
            Policy::Icid | Policy::IcidInline | Policy::IcidDeExt => Vec::new(),
        }
    }

    /// Returns the policy with its options: `nv-dedup, wb`.
    pub fn policy_name(&self) -> String {
        let name = self.policy.name();
        match self.policy {
            Policy::NvDedup => format!("{name}, {}", self.method.name()),
            Policy::DeNova => format!("{name}, {}", self.mode),
            Policy::Auto => format!("{name}, that chose off"),
            _ => name.into(),
        }
    }

    /// Returns whether a duplicate of a stored block is shared during the write.
    pub fn shares_at_once(&self) -> bool {
        match self.policy.without_origins() {
            Policy::Off | Policy::Auto => false,
            Policy::NvDedup => self.method != Method::NonFin,
            Policy::DeNova => self.mode == DedupMode::Inline,
            _ => true,
        }
    }

    /// Formats a memory device and mounts it with a fixed clock, no stopwatch, one allocation cursor and no discard.
    /// Flush instructions are issued as on a DAX device.
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
            nv_dedup: NvDedupOptions {
                method,
                costs: (self.policy == Policy::Auto).then_some(FAST),
                ..NvDedupOptions::default()
            },
            auto: AutoOptions { prefer: Prefer::Speed, ..AutoOptions::default() },
            denova: DeNovaOptions { mode: self.mode, ..DeNovaOptions::default() },
            cores: 1,
            // A thread's generator depends on the number of earlier threads. Here it must always be the same.
            generators: Generators::Global,
            discard: Some(false),
            compares_rewrites: false,
            ..MountOptions::default()
        }
    }
}
