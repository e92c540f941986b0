//! Share or store? The one question the write path asks of each piece of data.
//!
//! A policy proposes, `fs` publishes: a policy sees bytes and blocks, never inodes, logs or names. It takes
//! [references](crate::chunk::reference) through the chunk table; `fs` publishes the extents that use them, or gives
//! them back. What a policy wants of `fs` in the background it asks of a [`Host`](work::Host), with tokens that only
//! `fs` can read.
//!
//! | file | what |
//! |---|---|
//! | [`policy`] | which policies there are, by number and name |
//! | `batch` | the pieces of one request, and how a policy that goes by the index places them |
//! | [`stream`], [`streams`] | files that are written piece by piece: where to cut, and what waits for the end of its piece |
//! | [`work`] | work in the background |
//! | `filler` | fingerprints that stored blocks lack |
//! | [`icid`] | which file memory was copied from: the rec-tree of a process, which knows nothing of devices |
//! | [`auto`] | which of them is the best for a directory's data now |
//! | `off`, `inline`, [`nv_dedup`], [`denova`], [`deext`] | a policy each, whole: its options, queue, cost model, schedule |
//!
//! A new policy is one file or folder, and one line each in [`policy::Policy`] and [`Policies::new`]. A program can also
//! bring one of its own ([`crate::MountOptions::foreign`]).

pub mod auto;
mod batch;
pub mod deext;
pub mod denova;
mod filler;
pub mod icid;
mod inline;
pub mod nv_dedup;
mod off;
pub mod policy;
pub mod stream;
pub mod streams;
pub mod work;

pub use batch::{Looks, Piece, Place, Places};
pub use denova::DeNova;
pub use nv_dedup::NvDedup;

use crate::chunk::transaction::Transaction;
use crate::chunk::{Chunks, Released};
use crate::compression::Compression;
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::media::ChunkRef;
use crate::media::saved_state::{FILLED_ALL, FILLED_OWN};
use crate::space::Space;
use crate::words::Stopwatch;
use auto::{Auto, Concrete};
use deext::DeExt;
use denova::queue::Node;
use filler::Filler;
use inline::Inline;
use off::Off;
use pmem::Region;
use policy::{Policy, PolicyStats};
use std::sync::Arc;
use streams::Streams;
use work::{Host, Token, Unfingerprinted};

/// What policies stand on.
#[derive(Clone, Copy)]
pub struct Ground<'g> {
    /// The device.
    pub(crate) region: &'g Region,
    /// Its blocks.
    pub(crate) space: &'g Space,
    /// Its chunk table and index.
    pub(crate) chunks: &'g Chunks,
}

/// A dedup system, in the order in which a write meets it.
///
/// A program can bring one of its own ([`crate::MountOptions::foreign`]): it may keep fingerprints wherever it likes;
/// the references are counted in the chunk table for every policy.
pub trait Dedup: Send + Sync {
    /// Fingerprint of a piece of one block, made before the inode is locked. With an empty one the piece is not entered
    /// in the chunk table.
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint;

    /// Whether it never shares and never fingerprints, so that a write need not be looked at block by block.
    fn stores_everything(&self) -> bool {
        false
    }

    /// Is shown the whole blocks of a request before the inode is locked, if it stores everything: it places none of them.
    fn lets_pass(&self, _blocks: &[u8]) {}

    /// Which of the whole blocks of a request, one behind the other in `blocks`, it looks at, if it does not store
    /// everything. Asked before the inode is locked. The others get no [`Dedup::fingerprint`] and are not placed.
    fn looks_for(&self, _blocks: &[u8]) -> Looks {
        Looks::All
    }

    /// Whether it finds blocks through the index of the device alone. With a dram index a block that nobody shares needs no
    /// chunk entry then: the index names it, and after a crash it gets its fingerprint anew in the background.
    fn goes_by_index(&self) -> bool {
        false
    }

    /// The streams of a policy that cuts them into packed chunks. Its pieces may be of any length up to 64 KiB, and it
    /// shares packed chunks; others are offered whole blocks, and share blocks.
    fn streams(&self) -> Option<&Streams> {
        None
    }

    /// Decides on the pieces of one request together, under the lock of the inode that is written: each stays
    /// [`Place::Store`], or becomes [`Place::Shared`] if an equal block is stored. One that `fs` has found equal to
    /// another of the request ([`Place::Twin`]) is decided already, and only counts. Candidates whose bytes differ are
    /// given back to the transaction. What it learns of a piece on the way it adds to its fingerprint.
    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>);

    /// A stored piece can be reached now: others may share it. False if another writer indexed a candidate after `place`
    /// looked, one that is none of `known`: `fs` asks again then, and offers this chunk only if they differ.
    fn published(&self, chunk: ChunkRef, fingerprint: &Fingerprint, known: &[ChunkRef], chunks: &Chunks) -> bool;

    /// One extent less names the chunk: others still do, or it is free. A free one gets no other user before this
    /// returns.
    fn released(&self, _chunk: ChunkRef, _left: Released) {}

    /// A request of so many bytes is done and no lock is held: time for what a policy does every so many pieces.
    fn request_done(&self, _bytes: u64, _ground: &Ground<'_>) {}

    /// What becomes of data that was stored without a fingerprint.
    fn unfingerprinted(&self) -> Unfingerprinted {
        Unfingerprinted::Stays
    }

    /// [`Unfingerprinted::Filed`]: this file has such data.
    fn file_lacks(&self, _file: u64) {}

    /// [`Unfingerprinted::Queued`]: this log entry, published at `time` by the clock of the file system, names such data.
    fn entry_lacks(&self, _entry: Token, _blocks: u32, _time: i64) {}

    /// Does a bounded part of its work in the background; true when there is nothing to do now.
    ///
    /// # Errors
    /// ENOSPC, EROFS, those of the device; what was not done is tried again.
    fn step(&self, _host: &dyn Host) -> Result<bool> {
        Ok(true)
    }

    /// Whether steps that are left may free space.
    fn may_free_space(&self) -> bool {
        false
    }
}

/// What the policies of a mount are made from.
pub struct PolicyOptions<'o> {
    /// For new data.
    pub policy: Policy,
    /// See there.
    pub nv_dedup: &'o nv_dedup::options::NvDedupOptions,
    /// See there.
    pub denova: &'o denova::options::DeNovaOptions,
    /// See there.
    pub deext: stream::DeExtOptions,
    /// See there.
    pub auto: auto::options::AutoOptions,
    /// How packed chunks of the mount are stored.
    pub compression: Compression,
    /// See [`crate::MountOptions::stopwatch`].
    pub stopwatch: Option<Stopwatch>,
    /// See [`crate::MountOptions::foreign`].
    pub foreign: Option<Arc<dyn Dedup>>,
}

/// The policies of a mount.
pub struct Policies {
    /// Default policy.
    pub policy: Policy,
    /// Policy `nv-dedup`, with what it has learnt.
    pub nv_dedup: NvDedup,
    /// Policy `denova`, with its queue; its daemon works whatever the policy of the mount is.
    pub denova: Arc<DeNova>,
    deext: Arc<DeExt>,
    inline: Arc<Inline>,
    off: Off,
    auto: Auto,
    foreign: Option<Arc<dyn Dedup>>,
    /// What gives blocks the fingerprints that they lack.
    pub(crate) filler: Arc<Filler>,
}

impl Policies {
    /// All of them, and which one new data goes to.
    pub fn new(options: PolicyOptions<'_>) -> Policies {
        let PolicyOptions { policy, nv_dedup, denova, deext, auto, compression, stopwatch, foreign } = options;
        let for_streams = stopwatch.clone();
        let denova = Arc::new(DeNova::new(nv_dedup, denova, stopwatch.clone()));
        let deext = DeExt::new(nv_dedup.weak, nv_dedup.strong, nv_dedup.verify, deext, for_streams);
        let deext = Arc::new(deext);
        let (given, for_auto) = (nv_dedup.costs, stopwatch.clone());
        let weak = nv_dedup.weak;
        let nv_dedup = NvDedup::new(nv_dedup, stopwatch);
        let filler = nv_dedup.filler.clone();
        filler.sweep();
        let inline = Arc::new(Inline::new(weak, filler.clone()));
        let concrete = Concrete { inline: inline.clone(), denova: denova.clone(), deext: deext.clone() };
        Policies {
            policy,
            nv_dedup,
            denova,
            deext,
            inline,
            auto: Auto::new(auto, given, for_auto, concrete, compression),
            off: Off,
            foreign,
            filler,
        }
    }

    /// The policy that places new data where there is no file: the one named, or else that of the mount.
    pub fn of(&self, own: Option<Policy>) -> &dyn Dedup {
        self.of_file(own, 0)
    }

    /// The policy that places new data of a file: its own, or else that of the mount. `directory`: the one it belongs to.
    #[inline]
    pub fn of_file(&self, own: Option<Policy>, directory: u64) -> &dyn Dedup {
        match (own, &self.foreign) {
            (None, Some(foreign)) => &**foreign,
            (own, _) => self.get(own.unwrap_or(self.policy), directory),
        }
    }

    /// Its name: where it chooses another, that one.
    pub fn chosen(&self, own: Option<Policy>, directory: u64) -> Policy {
        match own.unwrap_or(self.policy) {
            Policy::Auto => self.auto.policy_of(directory),
            policy => policy,
        }
    }

    /// Whether new data of a file is shared with what it was copied from.
    pub fn follow_origins(&self, own: Option<Policy>) -> bool {
        match (own, &self.foreign) {
            (None, Some(_)) => false,
            (own, _) => own.unwrap_or(self.policy).follows_origins(),
        }
    }

    fn get(&self, policy: Policy, directory: u64) -> &dyn Dedup {
        match policy.without_origins() {
            Policy::Inline => &*self.inline,
            Policy::NvDedup => &self.nv_dedup,
            Policy::DeNova => &*self.denova,
            Policy::DeExt => &*self.deext,
            Policy::Auto => self.auto.of(directory),
            _ => &self.off,
        }
    }

    /// What writes to blocks where a policy that packs has no room.
    pub fn of_blocks(&self) -> &dyn Dedup {
        &*self.inline
    }

    /// Whether any stream is under way.
    pub fn has_streams(&self) -> bool {
        !self.deext.streams.is_empty()
    }

    /// Shares ends of files with equal packed chunks, for a policy that shares blocks. They are compared byte by byte.
    pub fn place_ends(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        let is_equal = |piece: &mut Piece<'_>, chunk, tx: &mut Transaction<'_>| tx.chunks().equal(chunk, piece.bytes);
        let collisions = &self.inline.tally.collisions;
        let search = batch::Search { collisions, fits: batch::is_packed, reads_bytes: true };
        batch::share_all(pieces, tx, &search, is_equal);
    }

    /// The streams under way.
    pub fn streams(&self) -> Option<&Streams> {
        self.deext.streams()
    }

    /// Returns policy `deext`, for its work in the background.
    pub fn deext(&self) -> &dyn Dedup {
        &*self.deext
    }

    /// Queues a log entry that is flagged dedupe_needed, whatever policy its file has by now.
    pub fn queue(&self, entry: Token, blocks: u32, time: i64) {
        self.denova.entry_lacks(entry, blocks, time);
    }

    /// The entries that are queued or under way, the oldest first; for an unmount, when nobody adds or takes any more.
    pub fn queued(&self) -> Vec<Token> {
        self.denova.nodes().into_iter().map(|node| node.entry).collect()
    }

    /// Queues entries of before the mount.
    pub fn restore(&self, entries: impl IntoIterator<Item = (Token, u32)>) {
        self.denova.restore(entries.into_iter().map(|(entry, blocks)| Node::new(entry, blocks)));
    }

    /// True if a policy must be notified of releases. Only a foreign policy keeps a table of its own.
    pub fn needs_release_notices(&self) -> bool {
        self.foreign.is_some()
    }

    /// One extent less names the chunk.
    pub fn released(&self, chunk: ChunkRef, left: Released) {
        if let Some(foreign) = &self.foreign {
            foreign.released(chunk, left);
        }
    }

    /// Mount: the policy of new data measures what it has to know of the device.
    pub fn mounted(&self, ground: &Ground<'_>) {
        if self.policy == Policy::NvDedup {
            self.nv_dedup.measure(ground);
        }
        if self.is_default(Policy::Auto) {
            self.auto.measure(ground);
        }
    }

    /// The policy whose work in the background frees space.
    pub fn that_frees_space(&self) -> &dyn Dedup {
        &*self.denova
    }

    /// For an unmount: whose blocks are known not to lack fingerprints. While files wait nobody's; where the policy of the
    /// mount wants none, what it stored has none.
    pub fn filled(&self) -> u64 {
        match self.filler.is_done() {
            false => 0,
            // What was stored to be shared later is not in the list of what lacks fingerprints.
            true if self.is_default(Policy::Auto) && self.denova.has_worked() => 0,
            true if self.wants_fingerprints() => FILLED_ALL,
            true => FILLED_OWN,
        }
    }

    /// Mount: what the unmount before recorded.
    pub fn adopt_filled(&self, filled: u64) {
        if filled == FILLED_ALL || filled == FILLED_OWN && !self.wants_fingerprints() {
            self.filler.skip_sweep();
        }
    }

    /// Whether what the policy of the mount stores is to have fingerprints, at once or in the background.
    fn wants_fingerprints(&self) -> bool {
        self.of(None).unfingerprinted() == Unfingerprinted::Filed
    }

    /// Fills in fingerprints: what the policy of the mount looks for, if it does at all.
    pub fn that_fills(&self) -> &dyn Dedup {
        match self.is_default(Policy::NvDedup) {
            true => &self.nv_dedup,
            // Nobody looks for what it would fill in.
            false if self.is_default(Policy::Auto) && !self.auto.looks_for_fingerprints() => &self.off,
            false => &*self.inline,
        }
    }

    /// Whether new data goes to this policy unless its file says otherwise.
    pub fn is_default(&self, policy: Policy) -> bool {
        self.policy == policy && self.foreign.is_none()
    }

    /// What `auto` does, if any data goes by it.
    pub fn auto_stats(&self) -> Option<auto::options::AutoStats> {
        self.auto.stats(self.is_default(Policy::Auto))
    }

    /// A daemon works on what `denova` has queued.
    pub fn daemon_works(&self) {
        self.auto.daemon_works();
    }

    /// What `nv-dedup` does, if new data goes there.
    pub fn nv_dedup_stats(&self) -> Option<nv_dedup::options::NvDedupStats> {
        let sampling = &self.nv_dedup.sampling;
        (self.is_default(Policy::NvDedup) || sampling.totals().0 > 0).then(|| sampling.stats())
    }

    /// What each of the sharing policies saw.
    pub fn stats(&self) -> Vec<PolicyStats> {
        vec![
            self.inline.tally.stats(Policy::Inline),
            self.nv_dedup.policy_stats(),
            self.denova.tally.stats(Policy::DeNova),
            self.deext.tally.stats(Policy::DeExt),
        ]
    }
}
