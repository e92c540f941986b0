//! Options of a mount.

use crate::chunk::generators::Generators;
use crate::compression::Compression;
use crate::dedup::Dedup;
use crate::dedup::auto::options::AutoOptions;
use crate::dedup::denova::options::DeNovaOptions;
use crate::dedup::nv_dedup::options::NvDedupOptions;
use crate::dedup::policy::{Pack, Policy};
use crate::dedup::stream::DeExtOptions;
use crate::media::superblock::Superblock;
use crate::words::{Clock, Stopwatch};
use std::sync::Arc;

/// Whose data is shared with whose.
///
/// Only new data obeys it: what is shared stays shared, and a chunk keeps the domain in which it was stored, until the
/// owner of a file that references it changes. A clone (`copy_file_range`) shares in any case: it is a request by
/// somebody who may read the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// Equal data is shared, whoever owns the files. For a device that one user has for himself.
    #[default]
    All,
    /// Equal data is shared between files of one owner. Nobody learns by sharing what another user stores.
    Owner {
        /// 16 random bytes, which become the secret of the device if it has none yet.
        new_secret: [u8; 16],
    },
}

impl Share {
    /// Returns how a program that has a device for itself shares on it: as the mounts before did. A device whose data is
    /// in one domain stays so.
    pub fn of_device(superblock: &Superblock) -> Share {
        superblock.secret().map_or(Share::All, |new_secret| Share::Owner { new_secret })
    }

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Share::All => "all",
            Share::Owner { .. } => "owner",
        }
    }
}

/// Says how to mount a device.
#[derive(Clone)]
pub struct MountOptions {
    /// Policy for new data.
    pub policy: Policy,
    /// Whether the ends of files are packed under policies that store blocks.
    pub pack: Pack,
    /// How new packed chunks are stored. A file or directory may override it.
    pub compression: Compression,
    /// Whose data is shared with whose.
    pub share: Share,
    /// Options of policy `nv-dedup`.
    pub nv_dedup: NvDedupOptions,
    /// Options of policy `denova`.
    pub denova: DeNovaOptions,
    /// How policy `deext` cuts data.
    pub deext: DeExtOptions,
    /// Options of policy `auto`.
    pub auto: AutoOptions,
    /// The shortest run of bytes that the policies `icid` share with the bytes that it was copied from, in bytes, within
    /// [`ORIGIN_BYTES_MIN_RANGE`](crate::ORIGIN_BYTES_MIN_RANGE); 64 as in the paper. `None`: by what writing and sharing
    /// cost on the device, at most half a block; without a `stopwatch`, 64. If a value is given, such runs are shared even
    /// if more is stored than files hold because of them.
    pub origin_bytes_min: Option<u64>,
    /// Clock for measuring costs (NV-Dedup 4.4.1). The core has no clock, so without one costs are not measured.
    pub stopwatch: Option<Stopwatch>,
    /// Mount read-only: the device is not changed.
    pub read_only: bool,
    /// Number of threads that write at once; each gets its own allocation cursor.
    pub cores: usize,
    /// Source of the current time.
    pub clock: Clock,
    /// Gives freed memory back to the host. `None`: on for devices in memory.
    pub discard: Option<bool>,
    /// Chooses free segments for packed chunks by their wear (DeEXT III-C). `false` serves to measure the gain.
    pub levels_wear: bool,
    /// Before a rewrite of stored data is committed (by background work or on request), reads it and compares it with
    /// what it replaces. On in debug builds. Benchmarks turn it off, because it reads data that nothing else reads.
    pub compares_rewrites: bool,
    /// Source of TX_IDs (NV-Dedup 4.3.1).
    pub generators: Generators,
    /// A policy of the caller, used instead of `policy`.
    pub custom_policy: Option<Arc<dyn Dedup>>,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            policy: Policy::default(),
            pack: Pack::default(),
            compression: Compression::default(),
            share: Share::default(),
            nv_dedup: NvDedupOptions::default(),
            denova: DeNovaOptions::default(),
            deext: DeExtOptions::default(),
            auto: AutoOptions::default(),
            origin_bytes_min: None,
            stopwatch: None,
            read_only: false,
            cores: 2,
            clock: Arc::new(|| 0),
            discard: None,
            levels_wear: true,
            compares_rewrites: cfg!(debug_assertions),
            generators: Generators::default(),
            custom_policy: None,
        }
    }
}
