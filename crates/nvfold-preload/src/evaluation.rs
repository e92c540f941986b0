//! Data for `nvfold-lab paper icid`: the writes of a program as it made them, and counters at its end. Bytes written and
//! shared are also counted by the ends of file names, so that tables and logs of a store can be told apart.
//!
//! The problem: to compare with another way of deduplication, the benchmark needs the program's own writes, call by
//! call. The idea: a folder in the environment (`NVFOLD_RUN_EVALUATION`) holds the requests and receives the results.
//!
//! | file | what |
//! |---|---|
//! | `variant` | if present: `icid-do` or `icid-ka`, the variants of the rec-tree (ICID 5.1, 5.7) |
//! | `writes` | if present, each write is appended: number of the file, offset and length (u64 each), bytes; it may be a FIFO |
//! | `report` | written at exit: a line per counter, with its name and its value |

use crate::{device, process};
use nvfold::InodeNumber;
use nvfold_c::causality;
use nvfold_c::written::{Watch, watch_writes};
use nvfold_causality::{TreeOptions, Variant};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// High, because the program may rely on low numbers.
const DESCRIPTOR_MIN: i32 = 700;

static CALLS: AtomicU64 = AtomicU64::new(0);
static KINDS: OnceLock<Kinds> = OnceLock::new();

/// Bytes of the files whose names end in the same way.
#[derive(Clone, Copy, Default)]
struct Bytes {
    written: u64,
    shared: u64,
}

/// Bytes by the end of the name with which a file was last opened, without its dot.
#[derive(Default)]
struct Kinds {
    state: Mutex<(HashMap<u64, String>, BTreeMap<String, Bytes>)>,
}

impl Kinds {
    fn opened(&self, ino: u64, path: &[u8]) {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let end = name.iter().rposition(|byte| *byte == b'.').map_or(&[][..], |dot| &name[dot + 1..]);
        let kind = String::from_utf8_lossy(end).replace(char::is_whitespace, "_");
        self.state.lock().0.insert(ino, kind);
    }

    fn written(&self, ino: u64, bytes: u64, shared_bytes: u64) {
        let (kinds, counts) = &mut *self.state.lock();
        let count = counts.entry(kinds.get(&ino).cloned().unwrap_or_default()).or_default();
        count.written += bytes;
        count.shared += shared_bytes;
    }

    fn counts(&self) -> BTreeMap<String, Bytes> {
        self.state.lock().1.clone()
    }
}

/// Records writes, and counts them.
struct Recorder {
    writes: Option<Mutex<File>>,
    kinds: &'static Kinds,
}

impl Watch for Recorder {
    fn opened(&self, ino: InodeNumber, path: &[u8]) {
        self.kinds.opened(ino.0, path);
    }

    fn written(&self, ino: InodeNumber, offset: u64, data: &[u8], shared_bytes: u64) {
        CALLS.fetch_add(1, Ordering::Relaxed);
        self.kinds.written(ino.0, data.len() as u64, shared_bytes);
        if let Some(writes) = &self.writes {
            // After a record that is cut short the rest is unreadable; the reader reports that.
            if append(&mut writes.lock(), [ino.0, offset, data.len() as u64], data).is_err() {
                process::say("the record of writes is cut short");
            }
        }
    }
}

fn folder() -> Option<PathBuf> {
    std::env::var_os("NVFOLD_RUN_EVALUATION").filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// True if data for an evaluation is wanted.
pub(crate) fn is_on() -> bool {
    folder().is_some()
}

/// Returns the options of the rec-tree.
pub(crate) fn tree_options() -> TreeOptions {
    let variant = folder().and_then(|folder| std::fs::read_to_string(folder.join("variant")).ok());
    TreeOptions::of(match variant.as_deref().map(str::trim) {
        Some("icid-do") => Variant::DeleteOverlapping,
        Some("icid-ka") => Variant::KeepAll,
        _ => Variant::Icid,
    })
}

/// Begins to record writes, if that is requested.
pub(crate) fn begin() {
    let Some(folder) = folder() else { return };
    let writes = writes_of(&folder.join("writes")).map(Mutex::new);
    watch_writes(Recorder { writes, kinds: KINDS.get_or_init(Kinds::default) });
}

fn writes_of(path: &Path) -> Option<File> {
    let file = OpenOptions::new().append(true).open(path).ok()?;
    // SAFETY: `file` is open; the new descriptor has no other owner.
    unsafe {
        let high = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, DESCRIPTOR_MIN);
        (high >= 0).then(|| File::from_raw_fd(high))
    }
}

/// Appends a record; the records of several threads must not mix, so the caller holds a lock. A FIFO takes a part at a
/// time.
fn append(writes: &mut File, head: [u64; 3], data: &[u8]) -> io::Result<()> {
    let mut bytes = [0; 24];
    for (at, word) in bytes.chunks_exact_mut(8).zip(head) {
        at.copy_from_slice(&word.to_le_bytes());
    }
    writes.write_all(&bytes)?;
    writes.write_all(data)
}

/// Writes the report.
pub(crate) fn end() {
    let (Some(folder), Some(device)) = (folder(), device::device()) else { return };
    let Ok(stats) = device.run(|fs| Ok(fs.stats())) else { return };
    let tree = causality::stats().unwrap_or_default();
    let mut text = String::new();
    for (name, count) in [
        ("write_calls", CALLS.load(Ordering::Relaxed)),
        ("written_bytes", device.written_bytes.load(Ordering::Relaxed)),
        ("offered_bytes", stats.origins.offered_bytes),
        ("shared_bytes", stats.origins.shared_bytes),
        ("shared_extents", stats.origins.shared_extents),
        ("pieces_shared", stats.pieces_shared),
        ("logical_bytes", stats.logical_bytes),
        ("stored_bytes", stats.stored_bytes),
        ("metadata_bytes", stats.metadata_bytes),
        ("tree_bytes", tree.memory_bytes),
        ("tree_records", tree.records),
        ("tree_insertions", tree.insertions),
        ("tree_lookups", tree.lookups),
        ("tree_deletions", tree.deletions),
        ("tree_given_up", tree.given_up),
    ] {
        let _ = writeln!(text, "{name} {count}");
    }
    for (kind, Bytes { written, shared }) in KINDS.get().map(Kinds::counts).unwrap_or_default() {
        let _ = writeln!(text, "written_bytes.{kind} {written}\nshared_bytes.{kind} {shared}");
    }
    let _ = std::fs::write(folder.join("report"), text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_by_the_end_of_the_name_that_a_file_has_now() {
        let kinds = Kinds::default();
        kinds.opened(7, b"/db/000003.log");
        kinds.written(7, 100, 0);
        kinds.opened(8, b"/db.old/000004.ldb");
        kinds.written(8, 50, 40);
        // The number of a removed file is used again.
        kinds.opened(7, b"000005.ldb");
        kinds.written(7, 10, 9);
        kinds.opened(9, b"/db.old/CURRENT");
        kinds.written(9, 1, 0);
        let counts = kinds.counts();
        let of = |kind: &str| (counts[kind].written, counts[kind].shared);
        assert_eq!([of("log"), of("ldb"), of("")], [(100, 0), (60, 49), (1, 0)]);
    }
}
