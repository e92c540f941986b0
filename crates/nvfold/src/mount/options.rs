//! How a device is mounted.

use crate::chunk::transaction::Generators;
use crate::compression::Compression;
use crate::dedup::Dedup;
use crate::dedup::auto::options::AutoOptions;
use crate::dedup::denova::options::DeNovaOptions;
use crate::dedup::nv_dedup::options::NvDedupOptions;
use crate::dedup::policy::{Pack, Policy};
use crate::dedup::stream::DeExtOptions;
use crate::words::{Clock, Stopwatch};
use std::sync::Arc;

/// How to mount.
#[derive(Clone)]
pub struct MountOptions {
    /// Policy for new data.
    pub policy: Policy,
    /// Whether ends of files are packed under policies that store blocks.
    pub pack: Pack,
    /// How new packed chunks are stored. A file or directory may have a compression of its own.
    pub compression: Compression,
    /// How policy `nv-dedup` works.
    pub nv_dedup: NvDedupOptions,
    /// How policy `denova` works.
    pub denova: DeNovaOptions,
    /// How policy `deext` cuts.
    pub deext: DeExtOptions,
    /// How policy `auto` chooses.
    pub auto: AutoOptions,
    /// What costs are measured with; without one they are not, for the core has no clock of its own.
    pub stopwatch: Option<Stopwatch>,
    /// Change nothing.
    pub read_only: bool,
    /// Threads that write at once: this many allocation cursors are kept.
    pub cores: usize,
    /// Source of time.
    pub clock: Clock,
    /// Give freed segments back to the host. `None`: on for memory devices.
    pub discard: Option<bool>,
    /// Choose free segments for packed chunks by their wear. `false` is for measurements of what that gains.
    pub levels_wear: bool,
    /// Where TX_IDs come from.
    pub generators: Generators,
    /// A policy of the caller's own, in place of `policy`.
    pub foreign: Option<Arc<dyn Dedup>>,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            policy: Policy::default(),
            pack: Pack::default(),
            compression: Compression::default(),
            nv_dedup: NvDedupOptions::default(),
            denova: DeNovaOptions::default(),
            deext: DeExtOptions::default(),
            auto: AutoOptions::default(),
            stopwatch: None,
            read_only: false,
            cores: 2,
            clock: Arc::new(|| 0),
            discard: None,
            levels_wear: true,
            generators: Generators::default(),
            foreign: None,
        }
    }
}
