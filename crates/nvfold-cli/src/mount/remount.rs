//! `nvfold mount -o remount,...`, which mount(8) calls too: changes an existing mount. Only the kernel's side can
//! change: whether the mount is read-only, and what programs may do on it. All other options stay as they were.

use super::Options;
use crate::failure::{Doing, Failure, Outcome};
use crate::mounts;
use crate::statistics::Statistics;
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use std::path::Path;

/// Changes the mount on `dir`.
pub(crate) fn remount(dir: &Path, options: &Options) -> Outcome<()> {
    let name = mounts::show(dir);
    if mounts::at(dir).is_none() {
        return Err(Failure::new(name, "no nvfold is mounted there, so it cannot be remounted"));
    }
    let statistics = Statistics::of(dir, &Default::default())?;
    let current = rustix::fs::statvfs(dir).doing(&name)?.f_flag;
    let read_only = options.said_read_only.unwrap_or(current.contains(StatVfsMountFlags::RDONLY));
    if statistics.read_only && !read_only {
        let why = "it was mounted read-only, and its process has opened the device for reading alone";
        return Err(Failure::new(name, why).hint("unmount it and mount it again, with -o rw"));
    }
    let flags = options.flags_of_remount(current, read_only);
    rustix::mount::mount_remount(dir, flags, "").map_err(|errno| {
        let failure = Failure::new(format!("remount {name}"), errno);
        match errno {
            Errno::BUSY => failure.hint("files on it are open for writing; see `fuser -vm DIR`"),
            Errno::PERM => failure.hint("only root can remount"),
            _ => failure,
        }
    })
}
