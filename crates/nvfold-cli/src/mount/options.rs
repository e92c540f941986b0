//! Mount options (`-o size=8G,policy=off,ro,...`): those of nvfold, and those that mount(8) passes on.

use crate::dedup_options::{self, DedupOptions};
use crate::device::{DeviceOptions, parse_flush, parse_profile, processors};
use crate::failure::{Failure, Outcome};
use crate::option_list::{Group, listed};
use crate::size;
use nvfold::{Clock, IndexKind, Policy, Share};
use nvfold_fuse::SPIN;
use nvfold_mount::{Cache, WantedTransport};
use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountFlags;
use std::time::Duration;

/// Largest write request of the kernel, in bytes: its own limit of 256 pages.
const MAX_WRITE_BYTES: u32 = 1 << 20;
const SPIN_US_MAX: usize = 1000;

/// The options that people use, for help.
static GROUPS: [Group; 4] = [
    Group {
        heading: "Size and space",
        options: &[
            ("size=SIZE", "Size of a new device in memory (mem:), for example 8G"),
            (
                "discard, nodiscard",
                "Give freed space back to the host at once, or keep it. Default: discard if the device is in memory",
            ),
        ],
    },
    dedup_options::GROUP,
    Group {
        heading: "Access",
        options: &[
            ("ro, rw", "Mount read-only, or read-write (default); with remount, change a mount that exists"),
            (
                "allow_other, noallow_other",
                "Serve all users, or only the one who mounts. Default: all users if that is root",
            ),
            (
                "share=all|owner",
                "Share equal data of all users, or only data of the same owner, so that no user can find out what others \
                 store. Default: owner with allow_other, else all",
            ),
            ("idmap", "Allow idmapped mounts of this one"),
            (
                "btime",
                "Tell programs when files were made. The first look at each file by a program that asks for it, as those in \
                 Rust and in Node always do, is then a request",
            ),
        ],
    },
    Group {
        heading: "Speed",
        options: &[
            ("threads=N", "Threads that serve requests, 1 to 256. Default: the number of processors, 2 to 16"),
            (
                "cache=auto|full|none",
                "File pages that the kernel caches: with a device in memory a limited number, else any (auto, the \
                 default); any number (full); only pages of mapped files (none)",
            ),
            (
                "writeback=auto|on|off",
                "Whether the kernel collects writes before it sends them. Default: yes, unless the mount has option sync",
            ),
        ],
    },
];

/// The options for experiments; those of the policies are added.
static RESEARCH_GROUPS: [Group; 2] = [
    Group {
        heading: "Device",
        options: &[
            ("index=dram|pm", "Index of a new device in memory (mem:): a table in DRAM (default), or on the device"),
            ("profile=NAME", "As --profile"),
            ("flush=auto|always", "As --flush"),
            ("fsname=NAME", "Name of the device in the mount table"),
        ],
    },
    Group {
        heading: "Requests of the kernel",
        options: &[
            (
                "transport=auto|ring|device",
                "How they come: by io_uring (ring) or /dev/fuse; auto uses io_uring if it works",
            ),
            ("spin=MICROSECONDS|off", "How long a thread spins for the next request before it sleeps"),
            ("max_write=SIZE", "The largest write request: a multiple of 4K, from 4K to 1M (default)"),
        ],
    },
];

/// Lists the options that people use, for the help.
pub(crate) fn help() -> String {
    listed(&GROUPS)
}

/// Returns the options that people use, and those for experiments, with those of the policies.
pub(crate) fn lists() -> (Vec<&'static Group>, Vec<&'static Group>) {
    (GROUPS.iter().collect(), dedup_options::RESEARCH_GROUPS.iter().chain(&RESEARCH_GROUPS).collect())
}

/// Whether the kernel caches writes and sends them later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Writeback {
    #[default]
    Auto,
    On,
    Off,
}

impl Writeback {
    fn parse(text: &str) -> Result<Writeback, String> {
        match text {
            "auto" => Ok(Writeback::Auto),
            "on" => Ok(Writeback::On),
            "off" => Ok(Writeback::Off),
            _ => Err("must be auto, on or off".into()),
        }
    }
}

fn parse_transport(text: &str) -> Result<WantedTransport, String> {
    match text {
        "auto" => Ok(WantedTransport::Auto),
        "ring" => Ok(WantedTransport::Ring),
        "device" => Ok(WantedTransport::Device),
        _ => Err("must be auto, ring or device".into()),
    }
}

fn parse_cache(text: &str) -> Result<Cache, String> {
    match text {
        "auto" => Ok(Cache::Auto),
        "full" => Ok(Cache::Full),
        "none" => Ok(Cache::None),
        _ => Err("must be none, auto or full".into()),
    }
}

/// An option for the kernel, or its opposite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MountOption {
    Suid,
    NoSuid,
    Dev,
    NoDev,
    Exec,
    NoExec,
    Sync,
    Async,
    DirSync,
}

/// The mount options, parsed.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Size of a `mem:` device in bytes.
    pub size_bytes: Option<u64>,
    /// Index of a `mem:` device.
    pub index: Option<IndexKind>,
    /// How the mount deduplicates new data.
    pub dedup: DedupOptions,
    pub read_only: bool,
    /// The value of `ro` or `rw`, if one of them was given.
    pub said_read_only: Option<bool>,
    /// Change the existing mount.
    pub remount: bool,
    /// Serve users other than the one who mounts. The kernel checks permissions in any case.
    pub allow_other: bool,
    /// Whose data is shared with whose; `None`: as `allow_other` asks for.
    share: Option<Share>,
    /// Allow idmapped mounts of this one.
    pub idmap: bool,
    /// Tell programs when files were made.
    pub btime: bool,
    pub threads: usize,
    /// Give freed memory back to the host; `None`: only if the device is memory.
    pub discard: Option<bool>,
    pub device: DeviceOptions,
    pub max_write_bytes: u32,
    /// Whether writes wait in the kernel's page cache.
    pub writeback: Writeback,
    /// Whether the kernel caches pages of files.
    pub cache: Cache,
    pub transport: WantedTransport,
    /// How long a thread spins for the next request before it sleeps; `None`: not at all.
    pub spin: Option<Duration>,
    /// Name of the device in the mount table, if it differs from the device's own.
    pub fs_name: Option<String>,
    /// Options that concern umount(8) and other programs, which read them in umount(8)'s table.
    pub for_umount: Vec<String>,
    /// Options for the kernel: nosuid, nodev, noexec, ...
    kernel: Vec<MountOption>,
}

impl Options {
    /// Returns the defaults. A mount by root is open to all users, as with other file systems.
    pub(crate) fn new(is_root: bool) -> Options {
        Options {
            size_bytes: None,
            index: None,
            dedup: DedupOptions::of(Policy::Auto),
            read_only: false,
            said_read_only: None,
            remount: false,
            allow_other: is_root,
            share: None,
            idmap: false,
            btime: false,
            threads: processors().clamp(2, 16),
            discard: None,
            device: DeviceOptions::default(),
            max_write_bytes: MAX_WRITE_BYTES,
            writeback: Writeback::default(),
            cache: Cache::default(),
            transport: WantedTransport::default(),
            spin: Some(SPIN),
            fs_name: None,
            for_umount: Vec::new(),
            kernel: if is_root { vec![MountOption::Dev, MountOption::Suid] } else { Vec::new() },
        }
    }

    /// Parses a list of options. A later option overrides an earlier one.
    pub(crate) fn take(&mut self, list: &str) -> Outcome<()> {
        list.split(',').filter(|option| !option.is_empty()).try_for_each(|option| self.take_one(option))
    }

    fn take_one(&mut self, option: &str) -> Outcome<()> {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let wrong = |why: String| Failure::usage(format!("mount option {option}"), why);
        if let Some(taken) = self.dedup.take(name, value) {
            return taken.map_err(wrong);
        }
        let value = |what: &str| value.ok_or_else(|| wrong(format!("it needs a value: {name}={what}")));
        match name {
            "size" => self.size_bytes = Some(size::parse(value("8G")?).map_err(wrong)?),
            "index" => self.index = Some(dedup_options::parse_index(value("pm")?).map_err(wrong)?),
            "ro" | "rw" => {
                self.read_only = name == "ro";
                self.said_read_only = Some(self.read_only);
            }
            "remount" => self.remount = true,
            "allow_other" => self.allow_other = true,
            "noallow_other" => self.allow_other = false,
            "share" => self.share = Some(parse_share(value("owner")?).map_err(wrong)?),
            "idmap" => self.idmap = true,
            "btime" => self.btime = true,
            "threads" => self.threads = number(value("4")?, 1, 256).map_err(wrong)?,
            "discard" => self.discard = Some(true),
            "nodiscard" => self.discard = Some(false),
            "profile" => self.device.profile = Some(parse_profile(value("optane")?).map_err(wrong)?),
            "flush" => self.device.flush = Some(parse_flush(value("always")?).map_err(wrong)?),
            "max_write" => {
                let bytes = size::parse(value("1M")?).map_err(wrong)?;
                let fits = (4096..=u64::from(MAX_WRITE_BYTES)).contains(&bytes) && bytes % 4096 == 0;
                self.max_write_bytes = fits
                    .then_some(bytes as u32)
                    .ok_or_else(|| wrong("must be a multiple of 4K, from 4K to 1M".into()))?;
            }
            "writeback" => self.writeback = Writeback::parse(value("auto")?).map_err(wrong)?,
            "cache" => self.cache = parse_cache(value("auto")?).map_err(wrong)?,
            "transport" => self.transport = parse_transport(value("auto")?).map_err(wrong)?,
            "spin" if value("50")? == "off" => self.spin = None,
            "spin" => {
                let us = number(value("50")?, 1, SPIN_US_MAX).map_err(|why| wrong(format!("{why}, or off")))?;
                self.spin = Some(Duration::from_micros(us as u64));
            }
            "fsname" => self.fs_name = Some(value("NAME")?.to_owned()),
            "suid" => self.kernel_option(MountOption::Suid, MountOption::NoSuid),
            "nosuid" => self.kernel_option(MountOption::NoSuid, MountOption::Suid),
            "dev" => self.kernel_option(MountOption::Dev, MountOption::NoDev),
            "nodev" => self.kernel_option(MountOption::NoDev, MountOption::Dev),
            "exec" => self.kernel_option(MountOption::Exec, MountOption::NoExec),
            "noexec" => self.kernel_option(MountOption::NoExec, MountOption::Exec),
            "sync" => self.kernel_option(MountOption::Sync, MountOption::Async),
            "async" => self.kernel_option(MountOption::Async, MountOption::Sync),
            "dirsync" => self.kernel_option(MountOption::DirSync, MountOption::Async),
            // mount(8) documents that `user` implies these two.
            "user" | "users" | "owner" | "group" => {
                self.kernel_option(MountOption::NoSuid, MountOption::Suid);
                self.kernel_option(MountOption::NoDev, MountOption::Dev);
            }
            // These are always in effect, or concern only mount(8) and systemd.
            "default_permissions"
            | "defaults"
            | "auto"
            | "noauto"
            | "nofail"
            | "nouser"
            | "nousers"
            | "atime"
            | "noatime"
            | "relatime"
            | "norelatime"
            | "strictatime"
            | "nostrictatime"
            | "lazytime"
            | "nolazytime"
            | "diratime"
            | "nodiratime"
            | "silent"
            | "loud"
            | "subtype"
            | "comment"
            | "nosymfollow"
            | "context"
            | "uhelper" => {}
            // mount(8) passes these from the mount table to a remount.
            "user_id" | "group_id" | "rootmode" | "fd" | "max_read" | "blksize" => {}
            name if name.starts_with("X-") => {}
            name if name.starts_with("x-") || name == "_netdev" => self.for_umount.push(option.to_owned()),
            _ => {
                let hint = "`nvfold mount --help` and `--help-research` list the options";
                return Err(Failure::usage(format!("mount option {option}"), "there is no such option").hint(hint));
            }
        }
        Ok(())
    }

    fn kernel_option(&mut self, option: MountOption, instead_of: MountOption) {
        self.kernel.retain(|given| *given != instead_of && *given != option);
        self.kernel.push(option);
    }

    /// Returns true if the kernel is to cache writes and send them later; resolves `auto`. With `sync` each write
    /// must be sent at once anyway, and without cached pages there is nothing to delay.
    pub(crate) fn has_writeback(&self) -> bool {
        match self.writeback {
            _ if self.cache == Cache::None => false,
            Writeback::Auto => !self.kernel.contains(&MountOption::Sync),
            Writeback::On => true,
            Writeback::Off => false,
        }
    }

    /// Returns whose data is shared with whose. By sharing, the users of a mount could find out what others store, so
    /// a mount for all users shares the data of one owner.
    pub(crate) fn share(&self) -> Share {
        self.share.unwrap_or(if self.allow_other { by_owner() } else { Share::All })
    }

    /// Returns the flags after a remount of a mount that has the flags `current`.
    pub(crate) fn flags_of_remount(&self, current: StatVfsMountFlags, read_only: bool) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, read_only);
        let choices = [
            (MountOption::NoSuid, MountOption::Suid, MountFlags::NOSUID, StatVfsMountFlags::NOSUID),
            (MountOption::NoDev, MountOption::Dev, MountFlags::NODEV, StatVfsMountFlags::NODEV),
            (MountOption::NoExec, MountOption::Exec, MountFlags::NOEXEC, StatVfsMountFlags::NOEXEC),
            (MountOption::Sync, MountOption::Async, MountFlags::SYNCHRONOUS, StatVfsMountFlags::SYNCHRONOUS),
        ];
        for (with, without, flag, now) in choices {
            let stays = current.contains(now) && !self.kernel.contains(&without);
            flags.set(flag, self.kernel.contains(&with) || stays);
        }
        flags
    }

    /// Returns these options for a remount after which all that can change is as they say.
    pub(crate) fn whole_remount(&self) -> Options {
        let mut whole = Options { said_read_only: Some(self.read_only), ..self.clone() };
        let opposites = [
            (MountOption::Suid, MountOption::NoSuid),
            (MountOption::Dev, MountOption::NoDev),
            (MountOption::NoExec, MountOption::Exec),
            (MountOption::Sync, MountOption::Async),
        ];
        for (unless, otherwise) in opposites {
            if !whole.kernel.contains(&unless) {
                whole.kernel_option(otherwise, unless);
            }
        }
        whole
    }

    /// Returns the flags of mount(2). Set-user-id bits and devices count only if that was said.
    fn flags(&self) -> MountFlags {
        let has = |option| self.kernel.contains(&option);
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, !has(MountOption::Suid));
        flags.set(MountFlags::NODEV, !has(MountOption::Dev));
        flags.set(MountFlags::NOEXEC, has(MountOption::NoExec));
        flags.set(MountFlags::SYNCHRONOUS, has(MountOption::Sync));
        flags.set(MountFlags::DIRSYNC, has(MountOption::DirSync));
        flags
    }

    /// Returns the options in the form that the library takes. `device` is the source in the mount table.
    pub(crate) fn of_mount(&self, device: &str, clock: Clock) -> nvfold_mount::Options {
        nvfold_mount::Options {
            source: self.fs_name.clone().unwrap_or_else(|| device.to_owned()),
            flags: self.flags(),
            allow_other: self.allow_other,
            idmap: self.idmap,
            btime: self.btime,
            threads: self.threads,
            max_write_bytes: self.max_write_bytes,
            writeback: self.has_writeback(),
            cache: self.cache,
            transport: self.transport,
            spin: self.spin,
            clock,
            ..nvfold_mount::Options::default()
        }
    }
}

fn by_owner() -> Share {
    Share::Owner { new_secret: pmem::random_bytes::<16>() }
}

fn parse_share(text: &str) -> Result<Share, String> {
    match text {
        "all" => Ok(Share::All),
        "owner" => Ok(by_owner()),
        _ => Err("must be all or owner".into()),
    }
}

fn number(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("must be a number from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold::Policy;

    fn taken(list: &str) -> Options {
        let mut options = Options::new(true);
        options.take(list).unwrap();
        options
    }

    #[test]
    fn options_are_parsed() {
        let options = taken("size=8G,index=pm,policy=off,ro,threads=3,nodiscard,max_write=128K,noallow_other,fsname=x");
        assert_eq!((options.size_bytes, options.index), (Some(8 << 30), Some(IndexKind::Pm)));
        assert_eq!(options.dedup.policy, Policy::Off);
        assert!(options.read_only && !options.allow_other);
        assert_eq!((options.threads, options.discard, options.max_write_bytes), (3, Some(false), 128 << 10));
        assert_eq!(options.fs_name.as_deref(), Some("x"));
    }

    #[test]
    fn generic_options_of_mount_8_and_fstab_are_accepted() {
        taken("rw,nosuid,nodev,noexec,relatime,_netdev,noauto,user,x-systemd.automount,defaults,,default_permissions");
    }

    #[test]
    fn writeback_is_on_unless_sync_or_an_option_turns_it_off() {
        assert!(taken("").has_writeback() && taken("writeback=auto").has_writeback());
        assert!(!taken("writeback=off").has_writeback());
        assert!(!taken("writeback=on,cache=none").has_writeback());
        assert!(!taken("sync").has_writeback() && taken("sync,writeback=on").has_writeback());
    }

    #[test]
    fn a_mount_for_all_users_shares_only_within_one_owner_by_default() {
        let name = |list: &str| taken(list).share().name();
        assert_eq!((name(""), name("noallow_other"), Options::new(false).share().name()), ("owner", "all", "all"));
        assert_eq!((name("share=all"), name("noallow_other,share=owner")), ("all", "owner"));
        assert!(Options::new(true).take("share=group").is_err());
    }

    #[test]
    fn spinning_is_bounded_and_can_be_turned_off() {
        assert_eq!(taken("").spin, Some(SPIN));
        assert_eq!(taken("spin=off").spin, None);
        assert_eq!(taken("spin=off,spin=100").spin, Some(Duration::from_micros(100)));
    }

    #[test]
    fn a_remount_changes_only_the_given_options() {
        let remount = |list: &str, current| {
            let mut options = Options::new(false);
            options.take(list).unwrap();
            assert!(options.remount);
            options.flags_of_remount(current, options.said_read_only.unwrap_or(false))
        };
        let (nosuid, noexec) = (StatVfsMountFlags::NOSUID, StatVfsMountFlags::NOEXEC);
        assert_eq!(remount("remount,ro", nosuid), MountFlags::RDONLY | MountFlags::NOSUID);
        assert_eq!(remount("rw,remount,suid,nodev", nosuid | noexec), MountFlags::NODEV | MountFlags::NOEXEC);
        // The options with which mount(8) calls a remount.
        let table = "rw,nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions,allow_other,remount,ro";
        assert_eq!(remount(table, nosuid), MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV);
    }

    #[test]
    fn a_whole_remount_leaves_nothing_as_it_was() {
        let all = StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV | StatVfsMountFlags::NOEXEC;
        let flags = |options: &Options| {
            let whole = options.whole_remount();
            whole.flags_of_remount(all | StatVfsMountFlags::SYNCHRONOUS, whole.said_read_only.unwrap())
        };
        assert_eq!(flags(&taken("")), MountFlags::empty());
        assert_eq!(flags(&taken("ro,noexec,sync")), MountFlags::RDONLY | MountFlags::NOEXEC | MountFlags::SYNCHRONOUS);
        assert_eq!(flags(&taken("nosuid,noexec,exec")), MountFlags::NOSUID);
        assert_eq!(flags(&Options::new(false)), MountFlags::NOSUID | MountFlags::NODEV);
    }

    #[test]
    fn a_later_mount_option_overrides_an_earlier_one() {
        assert!(!taken("ro,rw").read_only);
        assert_eq!(taken("nosuid,suid,nodev").flags(), MountFlags::NODEV);
    }

    #[test]
    fn set_id_bits_and_devices_are_honoured_by_default_only_on_mounts_by_root() {
        let (nosuid, nodev) = (MountFlags::NOSUID, MountFlags::NODEV);
        assert_eq!(taken("").flags(), MountFlags::empty());
        assert_eq!(taken("user,noexec,ro").flags(), nosuid | nodev | MountFlags::NOEXEC | MountFlags::RDONLY);
        assert_eq!(taken("sync,dirsync").flags(), MountFlags::SYNCHRONOUS | MountFlags::DIRSYNC);
        let mut of_user = Options::new(false);
        assert_eq!(of_user.flags(), nosuid | nodev);
        of_user.take("suid").unwrap();
        assert_eq!(of_user.flags(), nodev);
    }

    #[test]
    fn wrong_mount_options_are_refused() {
        for list in [
            "size",
            "size=x",
            "policy=all",
            "weak=md4",
            "index",
            "index=both",
            "mode=later",
            "period=0",
            "threads=0",
            "threads=x",
            "max_write=1",
            "max_write=2M",
            "writeback",
            "writeback=maybe",
            "cache",
            "cache=some",
            "transport",
            "transport=pigeon",
            "spin",
            "spin=0",
            "spin=1001",
            "spin=on",
            "bogus",
            "bogus=1",
        ] {
            assert!(Options::new(true).take(list).is_err(), "{list}");
        }
    }
}
