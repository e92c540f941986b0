//! Data for `nvfold-lab paper icid`: the writes of a program as it made them, and counters at its end.
//!
//! The problem: to compare with another way of deduplication, the benchmark needs the program's own writes, call by
//! call. The idea: a folder in the environment (`NVFOLD_RUN_EVALUATION`) holds the requests and receives the results.
//!
//! | file | content |
//!
//! | file | what |
//! |---|---|
//! | `variant` | if present: `icid-do` or `icid-ka`, the variants of the rec-tree (ICID 5.1, 5.7) |
//! | `writes` | if present, each write is appended: number of the file, offset and length (u64 each), bytes |
//! | `report` | written at exit: a line per counter, with its name and its value |

use crate::{device, process};
use nvfold_c::causality;
use nvfold_c::written::watch_writes;
use nvfold_causality::{TreeOptions, Variant};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{IoSlice, Write as _};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// High, because the program may rely on low numbers.
const DESCRIPTOR_MIN: i32 = 700;

static CALLS: AtomicU64 = AtomicU64::new(0);

fn folder() -> Option<PathBuf> {
    std::env::var_os("NVFOLD_RUN_EVALUATION").filter(|value| !value.is_empty()).map(PathBuf::from)
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
    let writes = writes_of(&folder.join("writes"));
    watch_writes(move |ino, offset, data| {
        CALLS.fetch_add(1, Ordering::Relaxed);
        if let Some(writes) = &writes {
            append(writes, [ino.0, offset, data.len() as u64], data);
        }
    });
}

fn writes_of(path: &Path) -> Option<File> {
    let file = OpenOptions::new().append(true).open(path).ok()?;
    // SAFETY: `file` is open; the new descriptor has no other owner.
    unsafe {
        let high = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, DESCRIPTOR_MIN);
        (high >= 0).then(|| File::from_raw_fd(high))
    }
}

/// Appends a record in one system call, so that the records of several threads do not mix.
fn append(mut writes: &File, head: [u64; 3], data: &[u8]) {
    let mut bytes = [0; 24];
    for (at, word) in bytes.chunks_exact_mut(8).zip(head) {
        at.copy_from_slice(&word.to_le_bytes());
    }
    let length = bytes.len() + data.len();
    // After a record that is cut short the rest is unreadable; the reader reports that.
    let written = writes.write_vectored(&[IoSlice::new(&bytes), IoSlice::new(data)]).unwrap_or(0);
    if written != length {
        process::say("the record of writes is cut short");
    }
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
    let _ = std::fs::write(folder.join("report"), text);
}
