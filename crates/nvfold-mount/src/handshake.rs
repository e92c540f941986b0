//! Mounts, and agrees with the kernel on features before the first request (`nvfold_fuse::handshake`).

use crate::mounts::FS_SUBTYPE;
use crate::options::{Cache, Options};
use nvfold_fuse::handshake::{Wanted, agree};
use nvfold_fuse::mount::{Mounting, unmount};
use nvfold_fuse::protocol::feature;
use rustix::mount::{MountFlags, UnmountFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Features to ask for; those that the kernel lacks are left out. FUSE_READDIRPLUS_AUTO is not among them, so every
/// listing comes with attributes: most programs that list a directory look at its files, and each look would be a
/// round trip.
const WANTED: [u64; 12] = [
    feature::DO_READDIRPLUS,
    feature::PARALLEL_DIROPS,
    feature::ASYNC_DIO,
    feature::EXPORT_SUPPORT,
    feature::CACHE_SYMLINKS,
    feature::EXPLICIT_INVAL_DATA,
    feature::HANDLE_KILLPRIV_V2,
    feature::POSIX_ACL,
    feature::DONT_MASK,
    feature::SPLICE_READ,
    feature::SPLICE_WRITE,
    feature::SPLICE_MOVE,
];

/// The result of the handshake.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Agreed {
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
/// The errors of mount(2) and of fusermount3, and those of the handshake; nothing is mounted then.
pub(crate) fn mount(
    options: &Options,
    dir: &Path,
    read_only: bool,
    wants_ring: bool,
    background: u16,
) -> io::Result<(OwnedFd, Agreed)> {
    let connection = mounting(options, read_only).mount(dir)?;
    let agreed = shake_hands(&connection, options, wants_ring, background);
    let agreed = agreed.inspect_err(|_| _ = unmount(dir, UnmountFlags::DETACH))?;
    Ok((connection, agreed))
}

/// Returns what mount(2) is to do.
pub(crate) fn mounting(options: &Options, read_only: bool) -> Mounting {
    let mut flags = options.flags;
    flags.set(MountFlags::RDONLY, read_only);
    let source = options.source.clone();
    Mounting { source, subtype: FS_SUBTYPE, flags, allow_other: options.allow_other }
}

/// Does the handshake on a connection that is mounted. The arguments and the errors are those of [`mount`].
pub(crate) fn shake_hands(
    connection: &OwnedFd,
    options: &Options,
    wants_ring: bool,
    background: u16,
) -> io::Result<Agreed> {
    let wanted = Wanted {
        features: features(options, wants_ring),
        max_write_bytes: options.max_write_bytes,
        read_ahead_bytes: options.max_write_bytes,
        background,
    };
    let agreed = agree(connection, &wanted)?;
    if options.idmap && agreed & feature::ALLOW_IDMAP == 0 {
        return Err(io::Error::other("option idmap needs Linux 6.12"));
    }
    let has = |one| agreed & one != 0;
    Ok(Agreed {
        no_open: has(feature::NO_OPEN_SUPPORT),
        by_ring: has(feature::OVER_IO_URING),
        writeback: has(feature::WRITEBACK_CACHE),
    })
}

/// Returns the features that a mount with these options asks for.
pub(crate) fn features(options: &Options, wants_ring: bool) -> u64 {
    let opening = match options.cache {
        // Without this flag, an older kernel maps files that bypass the page cache read-only.
        Cache::None => feature::DIRECT_IO_ALLOW_MMAP,
        Cache::Auto | Cache::Full => feature::NO_OPEN_SUPPORT,
    };
    let asked = [
        (options.has_writeback(), feature::WRITEBACK_CACHE),
        (wants_ring, feature::OVER_IO_URING),
        (options.idmap, feature::ALLOW_IDMAP),
    ];
    let asked = asked.into_iter().filter_map(|(is_asked, one)| is_asked.then_some(one));
    WANTED.into_iter().chain([opening]).chain(asked).fold(0, |all, one| all | one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold_fuse::handshake::ALWAYS;

    /// What Linux 6.18 offers with FUSE over io_uring turned on, and what `nvfold_fuse::handshake` adds.
    const OFFERED: u64 = 0x07fd_73ff_fffb;

    fn agreed(options: &Options, wants_ring: bool) -> u64 {
        (features(options, wants_ring) | ALWAYS) & OFFERED
    }

    /// A change here is a change of what the kernel does: what it caches, which requests it sends.
    #[test]
    fn each_option_asks_for_its_features_and_no_others() {
        let options = Options::default();
        assert_eq!(agreed(&options, false), 0x52d7_a3f1);
        assert_eq!(agreed(&options, true), 0x200_52d7_a3f1);
        assert_eq!(agreed(&Options { idmap: true, ..options.clone() }, false), 0x100_52d7_a3f1);
        assert_eq!(agreed(&Options { writeback: false, ..options.clone() }, false), 0x52d6_a3f1);
        assert_eq!(agreed(&Options { cache: Cache::None, ..options }, false), 0x10_52d4_a3f1);
    }
}
