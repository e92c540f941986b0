//! The test's own device, through the library.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nvfold::check::CheckOptions;
use nvfold::{
    Clock, FileKind, FileSystem, IndexKind, MkfsOptions, MountOptions, NewInode, NvDedupOptions, Policy, Stopwatch,
    TimeNs, WeakFunction,
};
use pmem::{DeviceSpec, OpenOptions, PmemError, Region};

use crate::scratch::Scratch;

/// The policies every suite runs under, each with the index that it came with ([`index_of`]).
///
/// It has only one of the policies that follow origins: all of them place data without an origin as the others do.
pub const POLICIES: [Policy; 6] =
    [Policy::Off, Policy::Inline, Policy::NvDedup, Policy::DeNova, Policy::DeExt, Policy::IcidInline];

/// The policies that store whole blocks, for tests that count blocks.
pub const BLOCK_POLICIES: [Policy; 4] = [Policy::Off, Policy::Inline, Policy::NvDedup, Policy::DeNova];

/// Returns the index for the suites of a policy: that of its paper.
pub fn index_of(policy: Policy) -> IndexKind {
    if policy == Policy::DeNova { IndexKind::Pm } else { IndexKind::Dram }
}

/// A device file in memory, removed on drop.
pub struct Device {
    scratch: Scratch,
    path: PathBuf,
}

impl Device {
    /// Makes a sparse, unformatted device of `bytes`.
    pub fn blank(bytes: u64) -> Device {
        let scratch = Scratch::new();
        let path = scratch.device("device", bytes);
        Device { scratch, path }
    }

    /// Makes a formatted device of `mib` MiB.
    pub fn fresh(mib: u64) -> Device {
        let device = Device::blank(mib << 20);
        device.mkfs().expect("mkfs");
        device
    }

    /// Makes a formatted device of `mib` MiB for the suites of a policy.
    pub fn of(mib: u64, policy: Policy) -> Device {
        Device::indexed(mib, index_of(policy), WeakFunction::default())
    }

    /// Makes a device of `mib` MiB with this index and this weak fingerprint function.
    pub fn indexed(mib: u64, index: IndexKind, weak: WeakFunction) -> Device {
        let device = Device::blank(mib << 20);
        let region = device.region().expect("map");
        FileSystem::mkfs(&region, &MkfsOptions { index, weak, ..mkfs_options() }).expect("mkfs");
        device
    }

    /// Returns the path of the device file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the scratch directory that holds the device, in memory.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Maps the device.
    pub fn region(&self) -> Result<Region, PmemError> {
        Region::open(&DeviceSpec::Path(self.path.clone()), &OpenOptions::default())
    }

    /// Formats the device.
    pub fn mkfs(&self) -> nvfold::Result<()> {
        FileSystem::mkfs(&self.region()?, &mkfs_options())
    }

    /// Mounts the device with a policy.
    pub fn mount(&self, policy: Policy) -> FileSystem {
        self.try_mount(MountOptions { policy, ..options() }).expect("mount")
    }

    /// Mounts the device, or returns the error.
    pub fn try_mount(&self, options: MountOptions) -> nvfold::Result<FileSystem> {
        FileSystem::mount(self.region()?, options)
    }

    /// Panics unless fsck finds nothing on the unmounted device.
    #[track_caller]
    pub fn check(&self) {
        let findings = check(&self.path, false).expect("fsck");
        assert!(findings.is_empty(), "fsck finds:\n{}", findings.join("\n"));
    }
}

fn mkfs_options() -> MkfsOptions {
    MkfsOptions { uuid: *b"a uuid for tests", now: now(), ..MkfsOptions::default() }
}

/// Maps a device by path.
pub fn region_of(path: &Path) -> Result<Region, PmemError> {
    Region::open(&DeviceSpec::Path(path.to_owned()), &OpenOptions::default())
}

/// Returns the findings of fsck on an unmounted device, one line each; none if it is clean.
pub fn check(path: &Path, repair: bool) -> nvfold::Result<Vec<String>> {
    let open = OpenOptions { read_only: !repair, ..OpenOptions::default() };
    let region = Region::open(&DeviceSpec::Path(path.to_owned()), &open)?;
    findings_of(&region, &CheckOptions { repair, data: true })
}

/// Returns the findings of fsck on an unmounted region and on its data, one line each; repairs nothing.
pub fn findings_in_data(region: &Region) -> nvfold::Result<Vec<String>> {
    findings_of(region, &CheckOptions { repair: false, data: true })
}

/// Returns the findings of fsck on an unmounted region, one line each; repairs nothing.
pub fn findings(region: &Region) -> nvfold::Result<Vec<String>> {
    findings_of(region, &CheckOptions::default())
}

fn findings_of(region: &Region, options: &CheckOptions) -> nvfold::Result<Vec<String>> {
    let report = nvfold::check::check(region, options)?;
    let mut findings: Vec<_> = report.findings.iter().map(|finding| format!("{finding:?}")).collect();
    if report.findings_unlisted > 0 {
        findings.push(format!("and {} more", report.findings_unlisted));
    }
    Ok(findings)
}

/// Returns default options with the real clock, and with sampling periods that end within a test.
pub fn options() -> MountOptions {
    let nv_dedup = NvDedupOptions { period: 64, ..NvDedupOptions::default() };
    MountOptions { clock: Arc::new(now), nv_dedup, ..MountOptions::default() }
}

/// A clock that moves on when a test says so, and a little each time that it is read.
#[derive(Clone, Default)]
pub struct Time(Arc<AtomicU64>);

impl Time {
    /// What a look at the clock takes, in nanoseconds: enough that costs can be measured.
    const LOOK_NS: u64 = 50;

    /// Lets so many milliseconds pass.
    pub fn pass(&self, ms: u64) {
        self.0.fetch_add(ms * 1_000_000, Ordering::Relaxed);
    }

    /// Returns it as the clock of a mount. It begins in 2020.
    pub fn clock(&self) -> Clock {
        let time = self.clone();
        Arc::new(move || 1_577_836_800_000_000_000 + time.look() as TimeNs)
    }

    /// Returns it as the stopwatch of a mount.
    pub fn stopwatch(&self) -> Stopwatch {
        let time = self.clone();
        Arc::new(move || time.look())
    }

    fn look(&self) -> u64 {
        self.0.fetch_add(Time::LOOK_NS, Ordering::Relaxed)
    }
}

/// Returns the present time.
pub fn now() -> TimeNs {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock past 1970");
    since_1970.as_nanos() as TimeNs
}

/// Returns the arguments of `create` and `mkdir` for an inode of this kind, owned by root.
pub fn new_inode(kind: FileKind, mode: u32) -> NewInode {
    NewInode { kind, mode, uid: 0, gid: 0, rdev: 0 }
}

/// Returns a new regular file, 0644.
pub fn regular() -> NewInode {
    new_inode(FileKind::Regular, 0o644)
}

/// Returns a new directory, 0755.
pub fn directory() -> NewInode {
    new_inode(FileKind::Directory, 0o755)
}
