//! What an operator must know of a mount, as messages: each kind has a name, a level and an advice ([`KINDS`]).
//! docs/operating/monitoring.md has all of them. A lost device ends the process.

use super::GRACE;
use crate::failure::FAILED;
use crate::log::{EVENT, MOUNT};
use crate::metrics::EventCounts;
use crate::mounts;
use crate::size;
use crate::statistics::SyncErrors;
use crate::text::{counted, escaped};
use crate::utab;
use nvfold::{ExpiredTree, InodeNumber, LimitedTree, Recovery};
use nvfold_mount::{Event, Room};
use pmem::Region;
use std::ffi::OsStr;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tracing::{error, info, warn};

/// A level of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Error,
    Warning,
    Info,
}

/// A kind of event.
pub(crate) struct Kind {
    /// What the journal has in the field NVFOLD_EVENT, and the metrics in the label `event`.
    pub name: &'static str,
    pub level: Level,
    /// What to do. It ends the message.
    pub advice: &'static str,
}

const fn kind(name: &'static str, level: Level, advice: &'static str) -> Kind {
    Kind { name, level, advice }
}

use Level::{Error, Info, Warning};

/// All kinds, in the order of the documentation.
pub(crate) const KINDS: [Kind; 27] = [
    kind("mounted", Info, ""),
    kind("unmounted", Info, ""),
    kind("unmount_failed", Error, "the next mount recovers it; look for errors of the disk in the kernel's log"),
    kind("recovered", Warning, "nothing that was durable is lost; find out why the server ended"),
    kind("not_reconciled", Error, "what was stored before the crash is kept; unmount, and run `nvfold fsck`"),
    kind("bad_memory", Error, "`nvfold fsck` lists the files; restore them from a copy"),
    kind("unreadable", Error, "what they may name is kept; unmount, and let `nvfold fsck --repair` decide"),
    kind(
        "syncs_fail",
        Error,
        "what was written since the last good sync is in memory only; look for errors of the disk, keep the mount, and \
         copy what matters elsewhere",
    ),
    kind("syncs_succeed", Info, ""),
    kind(
        "device_lost",
        Error,
        "the mount has ended; give the host room, and mount again, which recovers what was stored",
    ),
    kind("over_memory_limit", Warning, "mount it with a smaller size, or raise the limit (docs/containers.md)"),
    kind(
        "may_be_killed",
        Warning,
        "give the server CAP_SYS_RESOURCE, or the group a higher limit (docs/containers.md)",
    ),
    kind("nearly_full", Warning, "delete files or snapshots, run `nvfold reclaim`, or use a larger device"),
    kind("not_nearly_full", Info, ""),
    kind(
        "no_space",
        Error,
        "delete files or snapshots, run `nvfold reclaim`, or use a larger device; if much is available, the host lacks \
         memory or disk, or the request was larger than the device",
    ),
    kind("space_again", Info, ""),
    kind("limit_reached", Warning, "delete files below it, or raise the limit with `nvfold set`"),
    kind("below_limit", Info, ""),
    kind("not_stored", Error, "programs learn of it by fsync or close, and must write again; make room"),
    kind("expired", Info, ""),
    kind("remounted_ro", Warning, "`mount -o remount,rw` reverses it"),
    kind("remounted_rw", Info, ""),
    kind("policy_switched", Info, ""),
    kind("left_out", Warning, "`nvfold stats` counts what else is; run `nvfold fsck` when it is not mounted"),
    kind("refused", Error, "nothing is lost; report it, with `nvfold stats`"),
    kind(
        "panicked",
        Error,
        "work beside the requests is not tried again before the next mount, any other panic ends the mount; report it",
    ),
    kind("daemon_ended", Error, "mount again; look for other errors before this one"),
];

/// Tells operators what happens to a mount, and counts it.
#[derive(Clone)]
pub(super) struct Teller {
    pub region: Region,
    pub device: String,
    pub dir: PathBuf,
    /// False if the last mount for writing did not end as it should. A new device has had none.
    pub was_clean: bool,
    pub counts: Arc<EventCounts>,
}

/// What is told of an event.
struct Told {
    name: &'static str,
    /// What has happened to what.
    what: String,
    inode: Option<u64>,
    path: Option<PathBuf>,
}

impl Told {
    fn new(name: &'static str, what: impl Display) -> Told {
        Told { name, what: what.to_string(), inode: None, path: None }
    }

    fn about(self, inode: InodeNumber) -> Told {
        Told { inode: Some(inode.0), ..self }
    }

    fn at(self, path: PathBuf) -> Told {
        Told { path: Some(path), ..self }
    }
}

impl Teller {
    /// Returns what handles the events of the library.
    pub(super) fn handler(self) -> Arc<dyn Fn(Event) + Send + Sync> {
        Arc::new(move |event| {
            if let Event::Recovered { time, .. } = &event {
                // The first mount of a device finds nothing that was saved either.
                if self.was_clean {
                    return;
                }
                self.counts.recovered(*time);
            }
            if let Some(told) = self.told(&event) {
                self.tell(&told);
            }
            if let Event::DeviceLost { .. } = event {
                leave_lost_device(&self.dir);
            }
        })
    }

    /// Tells that something has happened to the mount.
    pub(super) fn tell_of(&self, name: &'static str, what: impl Display) {
        self.tell(&Told::new(name, what));
    }

    fn tell(&self, told: &Told) {
        let Told { name, what, inode, path } = told;
        self.counts.count(name);
        let kind = KINDS.iter().find(|kind| kind.name == *name).expect("each name is in the table");
        let path = path.as_ref().map(|path| escaped(&mounts::show(path)));
        let (path, advice) = (path.as_deref(), Some(kind.advice).filter(|advice| !advice.is_empty()));
        let what = escaped(what);
        let message = advice.map_or(what.clone(), |advice| format!("{what}; {advice}"));
        // The target and the level of a message are fixed at its place in the source.
        macro_rules! log {
            ($log:ident, $target:expr) => {
                $log!(target: $target, event = name, inode, path, advice, "{message}")
            };
        }
        match (kind.level, *name) {
            (Level::Error, "unmount_failed") => log!(error, MOUNT),
            (Level::Info, "mounted" | "unmounted") => log!(info, MOUNT),
            (Level::Error, _) => log!(error, EVENT),
            (Level::Warning, _) => log!(warn, EVENT),
            (Level::Info, _) => log!(info, EVENT),
        }
    }

    fn told(&self, event: &Event) -> Option<Told> {
        let Teller { region, device, dir, .. } = self;
        let told = |name, what: String| Some(Told::new(name, format!("{device}: {what}")));
        match event {
            Event::BadMemory { offset, bytes } => {
                told("bad_memory", format!("{bytes} bytes at offset {offset:#x} lie in bad memory"))
            }
            Event::Syncs(errors) => {
                let name = if errors.is_failing { "syncs_fail" } else { "syncs_succeed" };
                told(name, format!("syncs: {}", SyncErrors::of(region)?.in_brief()))
            }
            Event::Unreadable { inodes } => told("unreadable", format!("{inodes} inodes cannot be read and give EIO")),
            Event::DeviceLost { error } => {
                Some(Told::new("device_lost", format!("{}; the mount on {} ends", error.as_ref()?, dir.display())))
            }
            Event::Expired(tree) => Some(expired(dir, tree)),
            Event::NearlyFull(room) => told("nearly_full", format!("nearly full: {}", room_words(room))),
            Event::NotNearlyFull(room) => {
                told("not_nearly_full", format!("not nearly full any more: {}", room_words(room)))
            }
            Event::NoSpace(room) => {
                told("no_space", format!("a request found no space (ENOSPC): {}", room_words(room)))
            }
            Event::SpaceAgain(room) => told("space_again", format!("there is space again: {}", room_words(room))),
            Event::LimitReached { tree, path } => {
                Some(of_tree("limit_reached", "has reached its limit (EDQUOT)", dir, tree, path.as_deref()))
            }
            Event::BelowLimit { tree, path } => {
                Some(of_tree("below_limit", "has room again", dir, tree, path.as_deref()))
            }
            Event::NotStored { inode } => {
                let what =
                    format!("what programs had written could not be stored, in inode {} and perhaps others", inode.0);
                Some(told("not_stored", what)?.about(*inode))
            }
            Event::Remounted { read_only: true } => told("remounted_ro", format!("{} is read-only now", dir.display())),
            Event::Remounted { .. } => told("remounted_rw", format!("{} is writable again", dir.display())),
            Event::Recovered { found, time } => told("recovered", self.recovered_words(found, *time)),
            Event::PolicySwitched { directory, from, chosen } => {
                let before = from.map(|from| format!(" instead of {}", from.name())).unwrap_or_default();
                let to = format!("new data is stored by policy {}{before} ({})", chosen.policy.name(), chosen.reason);
                match directory {
                    Some(inode) => {
                        Some(told("policy_switched", format!("in directory inode {}, {to}", inode.0))?.about(*inode))
                    }
                    None => told("policy_switched", to),
                }
            }
            Event::MethodSwitched { from, to } => {
                let what = format!("policy nv-dedup uses method {} instead of {}", to.name(), from.name());
                told("policy_switched", what)
            }
            Event::LeftOut { error } => told("left_out", format!("left out in the background: {error}")),
            Event::Refused { error } => told("refused", format!("refused a change: {error}")),
            Event::Panicked { what } => told("panicked", format!("{what} was ended by a panic")),
            Event::NotReconciled { error } => told("not_reconciled", error.to_string()),
            Event::DaemonEnded { error } => told("daemon_ended", format!("work in the background ends: {error}")),
            _ => None,
        }
    }

    fn recovered_words(&self, found: &Recovery, time: Duration) -> String {
        let Recovery { entries_scanned, inodes_scanned, unreadable, .. } = found;
        let mounting = self.counts.scanned_for().unwrap_or_default();
        format!(
            "recovered after a crash: mounted in {:.3} s, counts exact {:.3} s later; scanned {} and {}, {}",
            mounting.as_secs_f64(),
            time.as_secs_f64(),
            counted(*entries_scanned, "chunk entry", "chunk entries"),
            counted(*inodes_scanned, "inode slot", "inode slots"),
            match unreadable {
                0 => "nothing is damaged".to_owned(),
                count => format!("{} damaged", counted(*count, "inode is", "inodes are")),
            }
        )
    }
}

fn room_words(room: &Room) -> String {
    let Room { bytes, available_bytes, inodes_free, .. } = *room;
    format!(
        "{} available of {} ({} % used), {inodes_free} inodes free",
        size::show(available_bytes),
        size::show(bytes),
        room.used_percent()
    )
}

fn expired(dir: &Path, expired: &ExpiredTree) -> Told {
    let ExpiredTree { path, tree, .. } = expired;
    let path = below(dir, path);
    let held = format!("{} and {}", counted(tree.inodes, "inode", "inodes"), size::show(tree.logical_bytes));
    let what = format!("{}: removed because its time had come, with {held}", mounts::show(&path));
    Told::new("expired", what).about(tree.top).at(path)
}

fn of_tree(name: &'static str, state: &str, dir: &Path, tree: &LimitedTree, path: Option<&[u8]>) -> Told {
    let path = path.map(|path| below(dir, path));
    let shown = path.as_ref().map_or(format!("directory inode {}", tree.top.0), mounts::show);
    let of = |used: String, limit: Option<String>| limit.map_or(used.clone(), |limit| format!("{used} of {limit}"));
    let bytes = of(size::show(tree.logical_bytes), tree.limits.logical_bytes.map(size::show));
    let inodes = of(tree.inodes.to_string(), tree.limits.inodes.map(|limit| limit.to_string()));
    let told = Told::new(name, format!("{shown}: {state}: {bytes}, {inodes} inodes")).about(tree.top);
    Told { path, ..told }
}

/// Returns the path below the mount point of what has this path on the device.
fn below(dir: &Path, path: &[u8]) -> PathBuf {
    dir.join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)))
}

/// Ends the process of a mount that was detached. `serve` ends with the session, when the last file is closed; if that
/// takes longer than the grace period, the process exits here.
fn leave_lost_device(dir: &Path) {
    utab::forget(dir);
    thread::spawn(|| {
        thread::sleep(GRACE);
        std::process::exit(i32::from(FAILED));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_on_monitoring_has_every_event_with_its_level_and_advice() {
        let page = include_str!("../../../../docs/operating/monitoring.md");
        let begin = page.find("| event | level |").expect("the table of events");
        let rows: Vec<&str> = page[begin..].lines().skip(2).take_while(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), KINDS.len());
        for (row, Kind { name, level, advice }) in rows.iter().zip(&KINDS) {
            let level = format!("{level:?}").to_lowercase();
            let (begins, ends) = (format!("| `{name}` | {level} | "), format!(" | {advice} |"));
            assert!(row.starts_with(&begins) && row.ends_with(&ends), "{row}\nmust be {begins}..{ends}");
        }
    }

    #[test]
    fn every_event_but_good_news_has_an_advice() {
        for kind in &KINDS {
            assert_eq!(kind.advice.is_empty(), kind.level == Level::Info, "{}", kind.name);
        }
    }
}
