//! The memory limits that this process runs under: those of its control group (cgroup) and of every group above it.
//!
//! The problem: the pages of a device in memory are charged to the cgroup of the process that stores to them first. At
//! the limit the kernel kills a process of the group. That is most likely the one with the most memory, the server of
//! the device, and a `mem:` device is gone with it.
//!
//! The idea: memory is reserved before anything is accepted that needs it, as disk is at level `file`. [`Room::reserve`]
//! looks whether the limits leave room, and then lets the kernel allocate the pages (fallocate), which charges them. A
//! part of each limit is kept for what nobody reserves: the memory of the server and of the other processes in the
//! group. Clean page cache counts as room, because the kernel gives it up before it kills.
//!
//! ```text
//! limit   |  kept  |  room: free, or clean page cache  |  in use: pages of the device, processes, dirty page cache  |
//! ```
//!
//! The limits may change at any time, so they are read each time; a reservation is for some 2 MiB, and takes far longer
//! than that. Notifications of the kernel (`memory.pressure_level`, changes of `memory.events`) come when the limit is
//! reached, which is too late for an error, so nothing waits for them; their counts are reported.
//!
//! This is in `pmem` because it is about the memory of the device, like the disk of a device at level `file`: the file
//! system asks `Region` for room, and does not know what limits it.
//!
//! Both versions of cgroups are understood. Files of a group:
//!
//! | | version 1 | version 2 |
//! |---|---|---|
//! | limit | `memory.limit_in_bytes` | `memory.max` |
//! | use | `memory.usage_in_bytes` | `memory.current` |
//! | page cache | `memory.stat`: `total_inactive_file`, ... | `memory.stat`: `inactive_file`, ... |
//! | limit reached | `memory.failcnt` | `memory.events`: `max` |
//! | killed | `memory.oom_control`: `oom_kill` | `memory.events`: `oom_kill` |

use crate::descriptor::Descriptor;
use crate::host;
use crate::owner::decoded;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, Result, retry_on_intr};
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The part of a limit that is kept, and its bounds. A mount on a full device needs most: its threads wait for space, so
/// there are many of them, with buffers of 2 MiB each. A front end keeps their number small (measured: 20 threads and
/// 16 MiB at a limit of 300 MiB; 47 and 85 MiB before it did).
const KEPT_PART: u64 = 4;
const KEPT_BYTES_MIN: u64 = 32 << 20;
const KEPT_BYTES_MAX: u64 = 512 << 20;
/// In version 1, no limit is a number near 2^63.
const NO_LIMIT: u64 = 1 << 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A cgroup: a directory with the files of the memory controller.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    version: Version,
    dir: PathBuf,
}

/// The tightest memory limit of a process, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The directory of the cgroup.
    pub cgroup: PathBuf,
    /// The limit.
    pub limit_bytes: u64,
    /// What is in use, page cache included.
    pub used_bytes: u64,
    /// The part of it that is clean page cache, which the kernel gives up when memory is short.
    pub cache_bytes: u64,
    /// The part of the limit that a device leaves to processes.
    pub kept_bytes: u64,
    /// How often the limit was reached.
    pub reached: u64,
    /// How many processes of the group the kernel has killed because of a limit.
    pub killed: u64,
}

impl MemoryLimit {
    /// Returns how many bytes a device may still take.
    pub fn room_bytes(&self) -> u64 {
        room_of(self.limit_bytes, self.used_bytes, self.cache_bytes)
    }

    /// Returns the tightest limit of this process; `None` if nothing limits its memory, or if the limits cannot be read.
    pub fn of_this_process() -> Option<MemoryLimit> {
        tightest(&groups_of_this_process())
    }
}

/// The room for a device in memory.
pub(crate) struct Room {
    groups: Vec<Group>,
    /// Held from the look at the limits until the pages are charged.
    reserving: Mutex<()>,
    /// For tests: the most bytes that the device may take.
    bytes_max: AtomicU64,
}

impl Room {
    /// Returns the room under the limits of this process. `None` if it has none, except for a test that sets one.
    pub(crate) fn of_this_process(is_test: bool) -> Option<Room> {
        let groups = groups_of_this_process();
        let is_limited = groups.iter().any(|group| group.limit().is_some());
        (is_limited || is_test).then(|| Room::under(groups))
    }

    fn under(groups: Vec<Group>) -> Room {
        Room { groups, reserving: Mutex::new(()), bytes_max: AtomicU64::new(u64::MAX) }
    }

    /// For tests: limits the bytes of the device.
    pub(crate) fn limit(&self, bytes: u64) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Returns how many more bytes the device may take now, or some number of at least `enough`.
    pub(crate) fn free_bytes(&self, device: &Descriptor, enough: u64) -> u64 {
        let of_groups = self.groups.iter().map(|group| group.room_bytes(enough)).min().unwrap_or(u64::MAX);
        match self.bytes_max.load(Ordering::Relaxed) {
            u64::MAX => of_groups,
            most => {
                let taken = device.stat().map_or(0, |stat| stat.st_blocks as u64 * 512);
                of_groups.min(most.saturating_sub(taken))
            }
        }
    }

    /// Reserves memory for a range of the device, whose content stays. `held` are the parts of it that are known to have
    /// their memory.
    ///
    /// # Errors
    /// ENOSPC if the limits leave no room; the host's.
    pub(crate) fn reserve(
        &self,
        device: &Descriptor,
        range: Range<u64>,
        held: impl FnOnce() -> Vec<Range<u64>>,
    ) -> Result<()> {
        let length = range.end - range.start;
        let _reserving = self.reserving.lock();
        let free = self.free_bytes(device, length);
        let is_held = |part: Range<u64>| part.end - part.start;
        if free < length && free + held().into_iter().map(is_held).sum::<u64>() < length {
            return Err(Errno::NOSPC);
        }
        let file = device.get()?;
        retry_on_intr(|| host::fallocate(file, FallocateFlags::KEEP_SIZE, range.start, length))
    }
}

fn tightest(groups: &[Group]) -> Option<MemoryLimit> {
    groups.iter().filter_map(Group::describe).min_by_key(MemoryLimit::room_bytes)
}

impl Group {
    fn read(&self, file: &str) -> Option<String> {
        read_file(&self.dir.join(file))
    }

    fn read_number(&self, file: &str) -> Option<u64> {
        self.read(file)?.trim().parse().ok()
    }

    /// Returns the limit; `None` if there is none (in version 2: the word `max`, or no file in the root).
    fn limit(&self) -> Option<u64> {
        let file = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        self.read_number(file).filter(|limit| *limit < NO_LIMIT)
    }

    fn used(&self) -> u64 {
        let file = match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        self.read_number(file).unwrap_or(0)
    }

    /// Returns the page cache that the kernel can drop at once: neither dirty nor mapped by a program. Memory of devices
    /// and of tmpfs is no page cache here, but the kernel counts it as mapped, and the server maps its whole device.
    fn clean_cache(&self) -> u64 {
        let stat = self.read("memory.stat").unwrap_or_default();
        let names = match self.version {
            Version::V1 => [
                "total_inactive_file",
                "total_active_file",
                "total_mapped_file",
                "total_shmem",
                "total_dirty",
                "total_writeback",
            ],
            Version::V2 => ["inactive_file", "active_file", "file_mapped", "shmem", "file_dirty", "file_writeback"],
        };
        let [inactive, active, mapped, shmem, dirty, writeback] = names.map(|name| value_of(&stat, name).unwrap_or(0));
        (inactive + active).saturating_sub(mapped.saturating_sub(shmem) + dirty + writeback)
    }

    /// Returns how many bytes a device may take, or some number of at least `enough`: without a look at the page cache
    /// if there is that much without it.
    fn room_bytes(&self, enough: u64) -> u64 {
        let Some(limit) = self.limit() else { return u64::MAX };
        let used = self.used();
        match room_of(limit, used, 0) {
            free if free >= enough => free,
            _ => room_of(limit, used, self.clean_cache()),
        }
    }

    fn describe(&self) -> Option<MemoryLimit> {
        let limit_bytes = self.limit()?;
        let (reached, killed) = match self.version {
            Version::V1 => (
                self.read_number("memory.failcnt"),
                self.read("memory.oom_control").and_then(|text| value_of(&text, "oom_kill")),
            ),
            Version::V2 => {
                let events = self.read("memory.events").unwrap_or_default();
                (value_of(&events, "max"), value_of(&events, "oom_kill"))
            }
        };
        Some(MemoryLimit {
            cgroup: self.dir.clone(),
            limit_bytes,
            used_bytes: self.used(),
            cache_bytes: self.clean_cache(),
            kept_bytes: kept_of(limit_bytes),
            reached: reached.unwrap_or(0),
            killed: killed.unwrap_or(0),
        })
    }
}

/// Returns how many bytes a device may take of a limit, of which so many are in use, and of these so many clean page
/// cache.
fn room_of(limit: u64, used: u64, cache: u64) -> u64 {
    limit.saturating_sub(kept_of(limit)).saturating_sub(used.saturating_sub(cache))
}

/// Returns the part of a limit that is left to processes.
fn kept_of(limit: u64) -> u64 {
    (limit / KEPT_PART).clamp(KEPT_BYTES_MIN, KEPT_BYTES_MAX)
}

/// Reads a file by system calls alone: a program under which nvfold is preloaded may be inside a call of its libc.
fn read_file(path: &Path) -> Option<String> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = Vec::with_capacity(4096);
    let mut part = [0; 4096];
    loop {
        match retry_on_intr(|| rustix::io::read(&file, &mut part)).ok()? {
            0 => return String::from_utf8(bytes).ok(),
            count => bytes.extend_from_slice(&part[..count]),
        }
    }
}

/// Returns a value of a file with a name and a number in each line.
fn value_of(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Returns the cgroup of this process and those above it, as far as this process can see them.
fn groups_of_this_process() -> Vec<Group> {
    if cfg!(miri) {
        return Vec::new();
    }
    let read = |path| read_file(Path::new(path)).unwrap_or_default();
    find(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
}

/// Finds the groups in the content of `/proc/self/cgroup` and `/proc/self/mountinfo`. On a host with both versions the
/// memory controller is in one of them: version 1 if it is mounted there.
fn find(cgroups: &str, mounts: &str) -> Vec<Group> {
    let of = |version: Version| {
        let own = cgroups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let is_memory = match version {
                Version::V1 => controllers.split(',').any(|controller| controller == "memory"),
                Version::V2 => controllers.is_empty(),
            };
            is_memory.then_some(path)
        })?;
        let (root, mount) = mounts.lines().find_map(|line| mounted(line, version))?;
        Some(groups_between(version, &mount, below(&root, own)))
    };
    of(Version::V1).or_else(|| of(Version::V2)).unwrap_or_default()
}

/// Returns the path of a group below the root of a mount. A group that is not below it (a container without a cgroup
/// namespace of its own may see its own group as the root) is taken as the root itself.
fn below<'p>(root: &Path, group: &'p str) -> &'p Path {
    let below = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
    if below.components().any(|part| part.as_os_str() == "..") { Path::new("") } else { below }
}

fn groups_between(version: Version, mount: &Path, below: &Path) -> Vec<Group> {
    below.ancestors().map(|group| Group { version, dir: mount.join(group) }).collect()
}

/// Returns the root of a cgroup mount and its mount point, if a line of mountinfo (proc(5)) is one with the memory
/// controller.
fn mounted(line: &str, version: Version) -> Option<(PathBuf, PathBuf)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3).map(|field| PathBuf::from(OsString::from_vec(decoded(field.as_bytes()))));
    let mut kind = kind.split(' ');
    let (root, mount) = (place.next()?, place.next()?);
    let is_it = match (version, kind.next()?) {
        (Version::V1, "cgroup") => kind.nth(1)?.split(',').any(|option| option == "memory"),
        (Version::V2, "cgroup2") => true,
        _ => false,
    };
    is_it.then_some((root, mount))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const MIB: u64 = 1 << 20;
    /// A host with systemd: version 2 alone.
    const HOST_V2: (&str, &str) = (
        "0::/user.slice/user-1000.slice/run-u7.scope\n",
        "22 28 0:21 / /sys rw,nosuid - sysfs sysfs rw\n\
         31 22 0:27 / /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    );
    /// docker on a host with version 2: a cgroup namespace, so the container is the root.
    const CONTAINER_V2: (&str, &str) =
        ("0::/\n", "611 610 0:27 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw\n");
    /// docker on a host with version 1, without a cgroup namespace: the mount begins at the container.
    const CONTAINER_V1: (&str, &str) = (
        "12:memory:/docker/4c1f\n11:cpu,cpuacct:/docker/4c1f\n1:name=systemd:/docker/4c1f\n0::/system.slice/x.service\n",
        "700 690 0:30 /docker/4c1f /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n\
         701 690 0:31 /docker/4c1f /sys/fs/cgroup/memory ro,nosuid shared:9 master:11 - cgroup cgroup rw,memory\n\
         702 690 0:32 / /sys/fs/cgroup/unified ro - cgroup2 cgroup rw\n",
    );

    fn dirs(cgroups: &str, mounts: &str) -> Vec<String> {
        find(cgroups, mounts).iter().map(|group| group.dir.to_string_lossy().trim_end_matches('/').into()).collect()
    }

    #[test]
    fn the_cgroup_of_a_process_and_its_ancestors_are_found() {
        let v2 = find(HOST_V2.0, HOST_V2.1);
        assert!(v2.iter().all(|group| group.version == Version::V2));
        let above = ["/user.slice/user-1000.slice/run-u7.scope", "/user.slice/user-1000.slice", "/user.slice", ""];
        assert_eq!(dirs(HOST_V2.0, HOST_V2.1), above.map(|path| format!("/sys/fs/cgroup{path}")));
        assert_eq!(dirs(CONTAINER_V2.0, CONTAINER_V2.1), ["/sys/fs/cgroup"]);
        assert_eq!(dirs(CONTAINER_V1.0, CONTAINER_V1.1), ["/sys/fs/cgroup/memory"]);
        assert_eq!(find(CONTAINER_V1.0, CONTAINER_V1.1)[0].version, Version::V1);
    }

    #[test]
    fn unreadable_cgroup_information_gives_no_group() {
        assert_eq!(dirs("", ""), [""; 0]);
        assert_eq!(dirs("0::/x\n", "no mount\n"), [""; 0]);
        assert_eq!(dirs("5:cpu:/x\n", CONTAINER_V1.1), [""; 0], "the memory controller is nowhere");
        // A process that was moved out of the root of its namespace.
        assert_eq!(dirs("0::/../other\n", CONTAINER_V2.1), ["/sys/fs/cgroup"]);
        let spaces = "31 22 0:27 / /my\\040groups rw - cgroup2 cgroup2 rw\n";
        assert_eq!(dirs("0::/a\n", spaces), ["/my groups/a", "/my groups"]);
    }

    /// Makes the files of a group; `files` are names with contents.
    fn group(version: Version, dir: &Path, files: &[(&str, &str)]) -> Group {
        fs::create_dir_all(dir).unwrap();
        files.iter().for_each(|(name, content)| fs::write(dir.join(name), content).unwrap());
        Group { version, dir: dir.to_owned() }
    }

    fn v2(dir: &Path, max: &str, current: u64) -> Group {
        // 150 MiB of a device, of which 149 are mapped, and 2 MiB of programs.
        let stat = "anon 1048576\nfile 209715200\nshmem 157286400\nfile_mapped 158334976\nfile_dirty 2097152\n\
                    file_writeback 1048576\ninactive_anon 4096\ninactive_file 20971520\nactive_file 10485760\n\
                    slab_reclaimable 77\n";
        let events = "low 0\nhigh 3\nmax 41\noom 2\noom_kill 1\noom_group_kill 0\n";
        let current = format!("{current}\n");
        let files =
            [("memory.max", max), ("memory.current", &current), ("memory.stat", stat), ("memory.events", events)];
        group(Version::V2, dir, &files)
    }

    #[test]
    #[cfg_attr(miri, ignore = "it makes files")]
    fn clean_page_cache_counts_as_room_and_a_part_of_the_limit_is_kept_free() {
        let dir = tempfile::tempdir().unwrap();
        let v2 = v2(dir.path(), "314572800\n", 200 * MIB);
        // 300 MiB less a quarter.
        let most = 300 * MIB - 300 * MIB / 4;
        assert_eq!(v2.room_bytes(MIB), most - 200 * MIB, "enough without page cache");
        assert_eq!(v2.room_bytes(100 * MIB), most - 200 * MIB + 26 * MIB, "30 MiB of cache; 4 are dirty or mapped");
        let limit = v2.describe().unwrap();
        assert_eq!((limit.limit_bytes, limit.used_bytes, limit.cache_bytes), (300 * MIB, 200 * MIB, 26 * MIB));
        assert_eq!((limit.reached, limit.killed, limit.room_bytes()), (41, 1, v2.room_bytes(u64::MAX)));
        let stat = "cache 99\ninactive_file 1\ntotal_inactive_file 8388608\ntotal_active_file 4194304\n\
                    total_dirty 1048576\ntotal_writeback 0\ntotal_mapped_file 158334976\ntotal_shmem 157286400\n";
        let files = [
            ("memory.limit_in_bytes", "314572800\n"),
            ("memory.usage_in_bytes", "209715200\n"),
            ("memory.stat", stat),
            ("memory.failcnt", "7\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ];
        let limit = group(Version::V1, &dir.path().join("v1"), &files).describe().unwrap();
        assert_eq!((limit.cache_bytes, limit.reached, limit.killed), (10 * MIB, 7, 2));
        assert_eq!(limit.room_bytes(), most - 200 * MIB + 10 * MIB);
    }

    /// Without memory of devices, and with more of it than is mapped, mapped pages are those of programs at most.
    #[test]
    #[cfg_attr(miri, ignore = "it makes files")]
    fn device_memory_is_not_counted_as_mapped_page_cache() {
        let dir = tempfile::tempdir().unwrap();
        let cache = |mapped: u64, shmem: u64| {
            let stat = format!(
                "inactive_file {}\nactive_file {}\nfile_mapped {}\nshmem {}\n",
                20 * MIB,
                10 * MIB,
                mapped * MIB,
                shmem * MIB
            );
            group(Version::V2, dir.path(), &[("memory.stat", &stat)]).clean_cache() / MIB
        };
        assert_eq!([cache(0, 0), cache(12, 0), cache(40, 0)], [30, 18, 0]);
        assert_eq!([cache(200, 200), cache(212, 200), cache(100, 200)], [30, 18, 30]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "it makes files")]
    fn the_cgroup_with_the_least_room_decides_and_without_limits_none() {
        let dir = tempfile::tempdir().unwrap();
        let own = v2(&dir.path().join("a/b"), "max\n", 10 * MIB);
        let middle = v2(&dir.path().join("a"), "268435456\n", 100 * MIB);
        let top = v2(dir.path(), "1073741824\n", 1000 * MIB);
        assert_eq!((own.limit(), own.room_bytes(1), own.describe()), (None, u64::MAX, None));
        let groups = [own.clone(), middle.clone(), top.clone()];
        assert_eq!(tightest(&groups).unwrap().cgroup, dir.path(), "it has the least room, not the least limit");
        assert_eq!(tightest(&groups[..2]).unwrap().cgroup, middle.dir);
        assert_eq!(tightest(&groups[..1]), None);
        let unlimited =
            group(Version::V1, &dir.path().join("v1"), &[("memory.limit_in_bytes", "9223372036854771712\n")]);
        assert_eq!(unlimited.limit(), None);
        let none = Group { version: Version::V2, dir: dir.path().join("none") };
        assert_eq!((none.limit(), none.room_bytes(1)), (None, u64::MAX), "the root of version 2 has no files");
    }

    #[test]
    #[cfg_attr(miri, ignore = "it makes files")]
    fn memory_is_reserved_or_refused_before_it_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let device = host::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        host::ftruncate(&device, 64 * MIB).unwrap();
        let device = Descriptor::new(device, 0).unwrap();
        let taken = || device.stat().unwrap().st_blocks as u64 * 512;
        let room = Room::under(vec![v2(dir.path(), "104857600\n", 80 * MIB)]);
        // 100 MiB less the 32 that are kept less 80 in use, and 26 of page cache.
        assert_eq!(room.free_bytes(&device, u64::MAX), 14 * MIB);
        room.reserve(&device, 0..2 * MIB, Vec::new).unwrap();
        assert_eq!(taken(), 2 * MIB, "the pages are charged");
        room.reserve(&device, 2 * MIB..12 * MIB, Vec::new).unwrap();
        fs::write(dir.path().join("memory.current"), "115343360\n").unwrap();
        assert_eq!(room.reserve(&device, 12 * MIB..14 * MIB, Vec::new), Err(Errno::NOSPC));
        assert_eq!(taken(), 12 * MIB);
        let held = || vec![0..MIB, MIB..2 * MIB];
        room.reserve(&device, 0..2 * MIB, held).expect("what has its memory needs no more");
        fs::write(dir.path().join("memory.max"), "max\n").unwrap();
        room.reserve(&device, 12 * MIB..14 * MIB, Vec::new).expect("the limit was lifted");
    }
}
