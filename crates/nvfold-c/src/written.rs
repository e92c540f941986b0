//! How much a program writes, and a watcher that may see each write.
#![forbid(unsafe_code)]

use crate::device::Device;
use nvfold::InodeNumber;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// The watcher of each write: it gets the file, the offset and the bytes. `nvfold-lab paper icid` cuts the same writes in
/// other ways.
static WATCH: OnceLock<Box<Watch>> = OnceLock::new();

type Watch = dyn Fn(InodeNumber, u64, &[u8]) + Send + Sync;

/// Notes a write that was made.
pub fn note_write(device: &Device, ino: InodeNumber, at: u64, data: &[u8]) {
    device.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
    if let Some(watch) = WATCH.get() {
        watch(ino, at, data);
    }
}

/// Lets `watch` know of each write from now on.
pub fn watch_writes(watch: impl Fn(InodeNumber, u64, &[u8]) + Send + Sync + 'static) {
    let _ = WATCH.set(Box::new(watch));
}
