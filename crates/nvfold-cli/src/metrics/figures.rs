//! The figures of one mount, as its server knows them.

use crate::bounded::{self, ANSWERS_WITHIN};
use crate::failure::{Doing, Outcome};
use crate::mounts;
use crate::statistics::{self, Statistics};
use nvfold::{FileSystem, InodeNumber, LimitedTree, errno};
use nvfold_mount::{Counters, Latency, METRICS_ATTRIBUTE, Reader};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The largest number of limited trees with figures of their own: those that are nearest to their limits.
const TREES_MAX: usize = 64;
/// The longest path of a tree, in bytes; of a longer one the end is shown.
const PATH_BYTES_MAX: usize = 200;
/// How long the path of a tree is believed. To find it takes a look at the names beside it.
const BELIEVE_PATH: Duration = Duration::from_secs(60);

/// All figures of a mount: the value of [`METRICS_ATTRIBUTE`], as JSON. It must fit into an attribute.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Figures {
    pub statistics: Statistics,
    /// By operation; empty for users who may not see it, as all that follows.
    #[serde(default)]
    pub latencies: BTreeMap<String, Latency>,
    /// Failed requests by the name of the error.
    #[serde(default)]
    pub errors: BTreeMap<String, u64>,
    /// Events that operators were told of, by name.
    #[serde(default)]
    pub events: BTreeMap<String, u64>,
    /// How long mounting took, and how long it took then until all counts were exact, after a crash.
    #[serde(default)]
    pub scan_ns: Option<u64>,
    #[serde(default)]
    pub reconcile_ns: Option<u64>,
    /// The limited trees that are nearest to their limits, and the number of all.
    #[serde(default)]
    pub trees: Vec<Tree>,
    #[serde(default)]
    pub trees_count: Option<u64>,
    #[serde(default)]
    pub snapshots_count: Option<u64>,
}

/// A limited tree.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Tree {
    /// Its path from the mount point.
    pub path: String,
    pub inode: u64,
    pub logical_bytes: u64,
    pub inodes: u64,
    pub limit_bytes: Option<u64>,
    pub limit_inodes: Option<u64>,
    /// In nanoseconds since 1970.
    pub expires_ns: Option<i64>,
}

/// Counts what operators were told of.
#[derive(Default)]
pub(crate) struct EventCounts {
    by_name: BTreeMap<&'static str, AtomicU64>,
    scan: OnceLock<Duration>,
    reconcile: OnceLock<Duration>,
}

impl EventCounts {
    /// Makes counts of 0 for events of these names.
    pub(crate) fn of(names: impl Iterator<Item = &'static str>) -> Arc<EventCounts> {
        let by_name = names.map(|name| (name, AtomicU64::default())).collect();
        Arc::new(EventCounts { by_name, ..EventCounts::default() })
    }

    /// Counts an event.
    pub(crate) fn count(&self, name: &str) {
        if let Some(count) = self.by_name.get(name) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records how long mounting the device took.
    pub(crate) fn scanned(&self, time: Duration) {
        let _ = self.scan.set(time);
    }

    /// Returns how long mounting the device took.
    pub(crate) fn scanned_for(&self) -> Option<Duration> {
        self.scan.get().copied()
    }

    /// Records how long it took until all counts were exact.
    pub(crate) fn recovered(&self, time: Duration) {
        let _ = self.reconcile.set(time);
    }
}

/// From where a server takes the figures of its mount.
pub(crate) struct Source {
    pub fs: FileSystem,
    pub device: String,
    pub dir: PathBuf,
    pub counts: Arc<EventCounts>,
    paths: Mutex<HashMap<u64, (Instant, String)>>,
}

impl Source {
    pub(crate) fn new(fs: FileSystem, device: String, dir: PathBuf, counts: Arc<EventCounts>) -> Source {
        Source { fs, device, dir, counts, paths: Mutex::default() }
    }

    /// Returns the figures that a reader may see.
    pub(crate) fn figures(&self, served: &Counters, reader: Reader) -> nvfold::Result<Figures> {
        let Source { fs, device, dir, counts, .. } = self;
        if reader == Reader::Other {
            return Ok(Figures::of(Statistics::for_others(fs, device, dir, served)?));
        }
        let statistics = Statistics::in_figures(fs, device, dir, served)?;
        let is_reconciled = statistics.recovery.as_ref().is_some_and(|recovery| recovery.found.reconciled);
        // Before, what trees use is not known, and to ask would wait.
        let trees = if is_reconciled { Some(fs.limited_trees()?) } else { None };
        let ns = |time: &OnceLock<Duration>| time.get().map(|time| time.as_nanos() as u64);
        let by_name = counts.by_name.iter();
        Ok(Figures {
            latencies: served.latencies(),
            errors: served.errors(),
            events: by_name.map(|(name, count)| ((*name).to_owned(), count.load(Ordering::Relaxed))).collect(),
            scan_ns: ns(&counts.scan),
            reconcile_ns: ns(&counts.reconcile),
            trees_count: trees.as_ref().map(|trees| trees.len() as u64),
            trees: trees.map(|trees| self.nearest(trees)).unwrap_or_default(),
            snapshots_count: if is_reconciled { Some(fs.snapshots()?.len() as u64) } else { None },
            ..Figures::of(statistics)
        })
    }

    /// Returns the trees that are nearest to their limits.
    fn nearest(&self, mut trees: Vec<LimitedTree>) -> Vec<Tree> {
        let part = |used: u64, limit: Option<u64>| limit.map_or(0.0, |limit| used as f64 / limit.max(1) as f64);
        let nearness = |tree: &LimitedTree| {
            part(tree.logical_bytes, tree.limits.logical_bytes).max(part(tree.inodes, tree.limits.inodes))
        };
        trees.sort_by(|one, other| nearness(other).total_cmp(&nearness(one)));
        trees.truncate(TREES_MAX);
        let mut paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.retain(|_, (found, _)| found.elapsed() < BELIEVE_PATH);
        let mut path = |inode: InodeNumber| {
            let find = || (Instant::now(), shown(self.fs.directory_path(inode).ok(), inode));
            paths.entry(inode.0).or_insert_with(find).1.clone()
        };
        let tree = |tree: LimitedTree| Tree {
            path: path(tree.top),
            inode: tree.top.0,
            logical_bytes: tree.logical_bytes,
            inodes: tree.inodes,
            limit_bytes: tree.limits.logical_bytes,
            limit_inodes: tree.limits.inodes,
            expires_ns: tree.limits.expires,
        };
        trees.into_iter().map(tree).collect()
    }
}

/// Returns a path for a label: with a slash before it, and not too long. One that is not shown whole has the number of the
/// inode beside it, because each tree needs a label of its own.
fn shown(path: Option<Vec<u8>>, inode: InodeNumber) -> String {
    let Some(path) = path else { return format!("inode {}", inode.0) };
    let shown = format!("/{}", String::from_utf8_lossy(&path));
    let longer = shown.len().saturating_sub(PATH_BYTES_MAX);
    match longer == 0 && std::str::from_utf8(&path).is_ok() {
        true => shown,
        false => format!("..{} (inode {})", &shown[shown.ceil_char_boundary(longer)..], inode.0),
    }
}

impl Figures {
    fn of(statistics: Statistics) -> Figures {
        Figures {
            statistics,
            latencies: BTreeMap::new(),
            errors: BTreeMap::new(),
            events: BTreeMap::new(),
            scan_ns: None,
            reconcile_ns: None,
            trees: Vec::new(),
            trees_count: None,
            snapshots_count: None,
        }
    }

    /// Returns what users other than root and the one who mounted may see of it.
    pub(crate) fn left_for_others(self) -> Figures {
        Figures::of(self.statistics.left_for_others())
    }

    /// Asks the server of a mount.
    pub(crate) fn ask(dir: &Path) -> Outcome<Figures> {
        match bounded::get(dir, METRICS_ATTRIBUTE, ANSWERS_WITHIN) {
            Ok(value) => serde_json::from_slice(&value).doing(format!("read the metrics of {}", dir.display())),
            // A server of an older version.
            Err(error) if error.raw_os_error() == Some(errno::ENODATA) => statistics::ask(dir).map(Figures::of),
            Err(error) => Err(error).doing(mounts::show(dir)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_of_a_tree_is_its_path_or_has_its_inode_too() {
        let of = |path: &[u8]| shown(Some(path.to_vec()), InodeNumber(7));
        assert_eq!((of(b""), of(b"a/b"), shown(None, InodeNumber(7))), ("/".into(), "/a/b".into(), "inode 7".into()));
        assert_eq!(of(b"a\xff"), "../a\u{fffd} (inode 7)");
        let long = of("\u{e9}".repeat(300).as_bytes());
        assert!(long.starts_with("..\u{e9}") && long.ends_with(" (inode 7)") && long.len() < PATH_BYTES_MAX + 20);
    }
}
