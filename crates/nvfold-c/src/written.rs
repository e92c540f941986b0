//! How much a program writes, and a watcher that may see which files it opens and each write.
#![forbid(unsafe_code)]

use crate::device::Device;
use nvfold::InodeNumber;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// The watcher of the program's writes. `nvfold-lab paper icid` cuts the same writes in other ways, and tells kinds of
/// files apart by their names.
static WATCH: OnceLock<Box<dyn Watch>> = OnceLock::new();

/// What sees the program's writes.
pub trait Watch: Send + Sync {
    /// A regular file was opened, by this path.
    fn opened(&self, ino: InodeNumber, path: &[u8]);

    /// These bytes were written to a file at an offset, and `shared_bytes` of them were shared with their origins.
    fn written(&self, ino: InodeNumber, offset: u64, data: &[u8], shared_bytes: u64);
}

/// Notes that a regular file was opened.
pub fn note_open(ino: InodeNumber, path: &[u8]) {
    if let Some(watch) = WATCH.get() {
        watch.opened(ino, path);
    }
}

/// Notes a write that was made.
pub fn note_write(device: &Device, ino: InodeNumber, at: u64, data: &[u8], shared_bytes: u64) {
    device.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
    if let Some(watch) = WATCH.get() {
        watch.written(ino, at, data, shared_bytes);
    }
}

/// Lets `watch` know of each file opened and of each write from now on.
pub fn watch_writes(watch: impl Watch + 'static) {
    let _ = WATCH.set(Box::new(watch));
}
