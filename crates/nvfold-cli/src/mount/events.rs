//! What a mount reports beside the requests ([`Event`]), as messages. A lost device ends the process.

use super::{GRACE, announce, inform};
use crate::failure::FAILED;
use crate::mounts;
use crate::size;
use crate::statistics::SyncErrors;
use crate::text::{counted, escaped};
use crate::utab;
use nvfold::ExpiredTree;
use nvfold_mount::Event;
use pmem::Region;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

/// Returns what handles the events of a mount.
pub(super) fn handler(region: Region, device: String, dir: PathBuf) -> Arc<dyn Fn(Event) + Send + Sync> {
    Arc::new(move |event| {
        if let Some(message) = message(&event, &region, &device, &dir) {
            let tell = if matches!(event, Event::Expired(_)) { inform } else { announce };
            tell(&format!("nvfold: {message}"));
        }
        if let Event::DeviceLost { .. } = event {
            leave_lost_device(&dir);
        }
    })
}

fn message(event: &Event, region: &Region, device: &str, dir: &Path) -> Option<String> {
    Some(match event {
        Event::BadMemory { offset, bytes } => {
            format!("{device}: {bytes} bytes at offset {offset:#x} lie in bad memory; `nvfold fsck` lists the files")
        }
        Event::Syncs(_) => format!("{device}: syncs: {}", SyncErrors::of(region)?.describe()),
        Event::Unreadable { inodes } => format!(
            "{device}: {inodes} inodes cannot be read and give EIO; what they may name is kept until \
             `nvfold fsck --repair` has decided"
        ),
        Event::DeviceLost { error } => format!("{}; the mount on {} ends", error.as_ref()?, dir.display()),
        Event::Expired(ExpiredTree { path, tree, .. }) => format!(
            "{}: removed because its time had come, with {} and {}",
            escaped(&mounts::show(&below(dir, path))),
            counted(tree.inodes, "inode", "inodes"),
            size::show(tree.logical_bytes)
        ),
        Event::LeftOut { error } => {
            format!("left out in the background: {error}; `nvfold stats` counts what else is")
        }
        Event::Refused { error } => format!("refused a change: {error}; `nvfold stats` counts what else is"),
        Event::Panicked { what } => {
            format!("{what} was ended by a panic: it is not tried again before the next mount, and all else goes on")
        }
        Event::NotReconciled { error } => format!("{device}: {error}; what it held before the crash is kept"),
        Event::DaemonEnded { error } => format!("work in the background ends: {error}"),
        _ => return None,
    })
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
