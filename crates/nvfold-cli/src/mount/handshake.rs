//! The handshake: what each side can do, agreed on before the first request (INIT).
//!
//! fuser does it, and mounts. Its sessions could answer requests too; `nvfold_fuse` does that.

use crate::mount::options::Options;
use crate::mount::pages::Cache;
use fuser::{Filesystem, InitFlags, KernelConfig, Request, Session};
use parking_lot::Mutex;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Requests the kernel may have under way in the background (read ahead, write back).
const BACKGROUND: u16 = 64;
/// The kernel sends requests by io_uring (Linux 6.14); fuser has no name for it.
const OVER_IO_URING: InitFlags = InitFlags::from_bits_retain(1 << 41);

/// What the kernel is asked for. Each is used where the kernel has it. Listings come with attributes always, not when the
/// kernel thinks that they are wanted: most programs that list a directory look at what is in it, and each file that they
/// look at would be a round trip (FUSE_READDIRPLUS_AUTO).
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

/// What the handshake came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Agreed {
    /// The kernel opens files without asking.
    pub no_open: bool,
    /// It sends requests by io_uring.
    pub by_ring: bool,
}

/// Mounts and agrees with the kernel. `wants_ring`: requests are to come by io_uring.
///
/// # Errors
/// Those of mount(2) and of fusermount3.
pub fn mount(
    options: &Options,
    dir: &Path,
    device: &str,
    wants_ring: bool,
) -> io::Result<(Session<Handshake>, Agreed)> {
    let agreed = Arc::new(Mutex::new(Agreed::default()));
    let handshake = Handshake {
        max_write_bytes: options.max_write_bytes,
        writeback: options.has_writeback(),
        keeps_pages: options.cache != Cache::None,
        wants_ring,
        agreed: agreed.clone(),
    };
    let session = Session::new(handshake, dir, &options.fuse_config(device))?;
    let agreed = *agreed.lock();
    Ok((session, agreed))
}

/// What is asked for.
pub struct Handshake {
    /// The largest write request.
    max_write_bytes: u32,
    /// What is written may wait in the kernel.
    writeback: bool,
    /// The kernel keeps pages of files that are not mapped.
    keeps_pages: bool,
    wants_ring: bool,
    agreed: Arc<Mutex<Agreed>>,
}

impl Filesystem for Handshake {
    fn init(&mut self, _who: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            let _ = config.add_capabilities(flag);
        }
        if self.writeback {
            let _ = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
        }
        let mut agreed = self.agreed.lock();
        if self.keeps_pages {
            agreed.no_open = config.add_capabilities(InitFlags::FUSE_NO_OPEN_SUPPORT).is_ok();
        } else {
            // An older kernel maps files without their own pages for reading alone.
            let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        }
        agreed.by_ring = self.wants_ring && config.add_capabilities(OVER_IO_URING).is_ok();
        let _ = config.set_max_write(self.max_write_bytes);
        // More than the kernel offers is refused with what it offers.
        if let Err(most) = config.set_max_readahead(self.max_write_bytes) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(BACKGROUND);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        Ok(())
    }
}
