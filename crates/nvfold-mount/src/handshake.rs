//! The handshake (INIT), in which kernel and server agree on features before the first request.
//!
//! fuser mounts and does the handshake. Its sessions could answer requests too, but `nvfold_fuse` does that here.

use crate::mount::options::Options;
use crate::mount::pages::Cache;
use fuser::{Filesystem, InitFlags, KernelConfig, Request, Session};
use parking_lot::Mutex;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Features to ask for; those that the kernel lacks are left out. FUSE_READDIRPLUS_AUTO is not among them, so every
/// listing comes with attributes: most programs that list a directory look at its files, and each look would be a
/// round trip.
const WANTED: [InitFlags; 12] = [
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_EXPORT_SUPPORT,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_SPLICE_READ,
    InitFlags::FUSE_SPLICE_WRITE,
    InitFlags::FUSE_SPLICE_MOVE,
];

/// The result of the handshake.
#[derive(Clone, Copy, Debug, Default)]
pub struct Agreed {
    /// The kernel opens files without a request.
    pub no_open: bool,
    /// The kernel sends requests by io_uring.
    pub by_ring: bool,
    /// Written data may wait in the kernel's page cache, and the kernel keeps the times of regular files.
    pub writeback: bool,
}

/// Mounts and does the handshake. `wants_ring`: ask for requests by io_uring. `background`: how many background requests
/// the kernel may send at once.
///
/// # Errors
/// The errors of mount(2) and of fusermount3.
pub fn mount(
    options: &Options,
    dir: &Path,
    device: &str,
    wants_ring: bool,
    background: u16,
) -> io::Result<(Session<Handshake>, Agreed)> {
    let agreed = Arc::new(Mutex::new(Agreed::default()));
    let handshake = Handshake {
        max_write_bytes: options.max_write_bytes,
        writeback: options.has_writeback(),
        keeps_pages: options.cache != Cache::None,
        wants_ring,
        wants_idmap: options.idmap,
        background,
        agreed: agreed.clone(),
    };
    let session = Session::new(handshake, dir, &options.fuse_config(device))?;
    let agreed = *agreed.lock();
    Ok((session, agreed))
}

/// The features to ask for.
pub struct Handshake {
    /// The largest write request, in bytes.
    max_write_bytes: u32,
    /// Written data may wait in the kernel's page cache.
    writeback: bool,
    /// The kernel may cache pages of files that are not mapped.
    keeps_pages: bool,
    wants_ring: bool,
    /// The mount can be mapped to other owners.
    wants_idmap: bool,
    background: u16,
    agreed: Arc<Mutex<Agreed>>,
}

impl Filesystem for Handshake {
    fn init(&mut self, _who: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            let _ = config.add_capabilities(flag);
        }
        let mut agreed = self.agreed.lock();
        agreed.writeback = self.writeback && config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE).is_ok();
        if self.keeps_pages {
            agreed.no_open = config.add_capabilities(InitFlags::FUSE_NO_OPEN_SUPPORT).is_ok();
        } else {
            // Without this flag, an older kernel maps files that bypass the page cache read-only.
            let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        }
        let over_ring = InitFlags::from_bits_retain(nvfold_fuse::OVER_IO_URING);
        agreed.by_ring = self.wants_ring && config.add_capabilities(over_ring).is_ok();
        if self.wants_idmap {
            let idmap = InitFlags::from_bits_retain(nvfold_fuse::ALLOW_IDMAP);
            config.add_capabilities(idmap).map_err(|_| io::Error::other("option idmap needs Linux 6.12"))?;
        }
        let _ = config.set_max_write(self.max_write_bytes);
        // If the value is too large, the error holds the largest one allowed.
        if let Err(most) = config.set_max_readahead(self.max_write_bytes) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(self.background);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        Ok(())
    }
}
