//! Policy `denova`: store now, share later (DeNOVA).
//!
//! The problem: on fast memory, a fingerprint takes longer than the write that it might save (III, equations 1 to 5).
//! So a writer must not wait for one.
//!
//! The idea: a write stores everything and marks its log entry; a daemon shares later. The mark exists twice: on the
//! device as a flag in the log entry, and in DRAM as a node in the work queue. Either one suffices: a clean unmount
//! saves the queue, and after a crash the queue is rebuilt from the flags.
//!
//! ```text
//! write          data, log entry with dedupe_needed, commit; node into the queue              `store/blocks.rs`
//! daemon   1     takes a node                                                                 [`schedule`]
//!          2     fingerprints, looks up                                      no lock          [`find`]
//!          3     UC + 1 on what is equal; unique blocks are entered                           `chunk/update.rs`
//!          4, 5  log entries with in_process that refer to equal blocks; tail             `jobs/work_queue.rs`
//!          6     UC - 1 and RFC + 1 at once; dedupe_complete; the old blocks are free
//! ```
//!
//! The paper's daemon fingerprints and looks up under the inode's lock. Here both run on copies, without any lock.
//! When the file is locked for the few stores of steps 3 to 6, the copies are checked against it again.
//!
//! | module | what |
//! |---|---|
//! | [`queue`] | the work queue (IV-B1) |
//! | [`waiting`] | how long nodes stay in the queue (V-B2) |
//! | [`find`] | finding blocks that equal stored blocks (IV-D) |
//! | [`schedule`] | when the daemon works, and how much (IV-B2) |
//! | [`options`] | options and statistics |
//!
//! In mode `inline` the policy shares while it writes, with the same functions: the paper's DeNOVA-Inline.

pub(crate) mod find;
pub(crate) mod options;
pub(crate) mod queue;
pub(crate) mod schedule;
pub(crate) mod waiting;

use super::batch::{PolicyCounters, Search, enter, is_block, share_all};
use super::policy::Verify;
use super::work::{Host, Left, ShareRequest, Token, Unfingerprinted};
use super::{Dedup, NewChunk, Piece};
use crate::chunk::Chunks;
use crate::chunk::transaction::Transaction;
use crate::error::Result;
use crate::fingerprint::{Fingerprint, Keys, Strong, StrongFunction};
use crate::media::{BLOCK_BYTES, ChunkRef};
use crate::words::Stopwatch;
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use options::{DeNovaOptions, DeNovaStats, DedupMode};
use queue::{Node, Queue};
use waiting::WaitTimes;

/// After this many tries a batch is left as it is: another writer stores the same content all the time.
const TRIES_MAX: u32 = 4;

/// Policy `denova`; see the module.
pub(crate) struct DeNova {
    keys: Keys,
    strong: Option<StrongFunction>,
    verify: Verify,
    options: DeNovaOptions,
    mode: Mutex<DedupMode>,
    /// True in mode `inline`; writes read this instead of `mode`.
    is_inline: AtomicBool,
    pub(super) tally: PolicyCounters,
    queue: Queue,
    has_stopwatch: bool,
    paused: AtomicBool,
    /// The daemon's task. Its lock is held during a step, so there is one daemon whatever thread runs it.
    under_way: Mutex<UnderWay>,
    /// True while a node is in process.
    is_busy: AtomicBool,
    wait_times: WaitTimes,
    dequeued: AtomicU64,
    looked_at_bytes: AtomicU64,
    shared_bytes: AtomicU64,
    busy_ns: AtomicU64,
}

/// The daemon's current task.
#[derive(Default)]
struct UnderWay {
    task: Option<Task>,
    /// Scratch memory for the blocks of a batch.
    bytes: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Task {
    node: Node,
    /// File offset at which to continue.
    from: u64,
    /// How often the batch at that offset was tried.
    tries: u32,
}

impl DeNova {
    /// Creates the policy. The fingerprint functions and `verify` are those of `nv-dedup`.
    pub(crate) fn new(
        keys: Keys,
        fingerprints: &super::nv_dedup::options::NvDedupOptions,
        options: &DeNovaOptions,
        stopwatch: Option<Stopwatch>,
    ) -> DeNova {
        let decides = |strong: &StrongFunction| {
            fingerprints.verify == Verify::Strong || fingerprints.weak.prefix_of() == Some(*strong)
        };
        DeNova {
            keys,
            strong: fingerprints.strong.filter(decides),
            verify: fingerprints.verify,
            options: *options,
            mode: Mutex::new(options.mode),
            is_inline: AtomicBool::new(options.mode == DedupMode::Inline),
            tally: PolicyCounters::default(),
            has_stopwatch: stopwatch.is_some(),
            queue: Queue::new(stopwatch),
            paused: AtomicBool::new(false),
            under_way: Mutex::default(),
            is_busy: AtomicBool::new(false),
            wait_times: WaitTimes::default(),
            dequeued: AtomicU64::new(0),
            looked_at_bytes: AtomicU64::new(0),
            shared_bytes: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
        }
    }

    /// Returns when the policy shares.
    pub(crate) fn mode(&self) -> DedupMode {
        *self.mode.lock()
    }

    /// Changes when the policy shares, from now on.
    pub(crate) fn set_mode(&self, mode: DedupMode) {
        *self.mode.lock() = mode;
        self.is_inline.store(mode == DedupMode::Inline, Ordering::Relaxed);
    }

    /// True if an entry was processed since mount or waits.
    pub(super) fn has_worked(&self) -> bool {
        self.dequeued.load(Ordering::Relaxed) > 0 || self.may_free_space()
    }

    /// Returns the bytes that the daemon has looked at and those that it has shared since mount.
    pub(super) fn looked_at_and_shared(&self) -> (u64, u64) {
        (self.looked_at_bytes.load(Ordering::Relaxed), self.shared_bytes.load(Ordering::Relaxed))
    }

    pub(super) fn is_inline(&self) -> bool {
        self.is_inline.load(Ordering::Relaxed)
    }

    /// Pauses the daemon, or lets it continue.
    pub(crate) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// True if nothing is queued or in process.
    fn is_done(&self) -> bool {
        !self.is_busy.load(Ordering::Relaxed) && self.queue.is_empty()
    }

    /// Returns the nodes of entries that need the daemon, the oldest first. For an unmount, when no thread adds or
    /// takes nodes any longer.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        let under_way = self.under_way.lock().task.map(|task| task.node);
        under_way.into_iter().chain(self.queue.nodes()).collect()
    }

    /// Queues nodes that an earlier mount left.
    pub(crate) fn restore(&self, nodes: impl IntoIterator<Item = Node>) {
        self.queue.restore(nodes);
    }

    /// Returns statistics, if new data uses the policy or anything is or was queued.
    pub(crate) fn stats(&self, is_default: bool) -> Option<DeNovaStats> {
        let waiting = self.queue.waiting();
        let dequeued = self.dequeued.load(Ordering::Relaxed);
        let under_way = u64::from(self.is_busy.load(Ordering::Relaxed));
        if !is_default && waiting.entries + dequeued + under_way == 0 {
            return None;
        }
        let now = self.queue.now();
        Some(DeNovaStats {
            mode: self.mode(),
            paused: self.paused.load(Ordering::Relaxed),
            queue_entries: waiting.entries + under_way,
            queue_bytes: waiting.blocks * BLOCK_BYTES,
            queue_dram_bytes: waiting.dram_bytes,
            lag_ns: waiting.oldest.filter(|_| self.has_stopwatch).map_or(0, |oldest| now.saturating_sub(oldest)),
            dequeued,
            looked_at_bytes: self.looked_at_bytes.load(Ordering::Relaxed),
            shared_bytes: self.shared_bytes.load(Ordering::Relaxed),
            busy_ns: self.busy_ns.load(Ordering::Relaxed),
            queue_wait_histogram: self.wait_times.classes(),
        })
    }

    fn done(&self, node: &Node) {
        self.dequeued.fetch_add(1, Ordering::Relaxed);
        if self.has_stopwatch {
            self.wait_times.count(self.queue.now().saturating_sub(node.queued_at));
        }
    }

    /// True if a block holds the bytes of the piece. The caller has a reference or a hold on it, so that it cannot
    /// change.
    fn is_equal(
        &self,
        block: impl Into<ChunkRef>,
        piece: &[u8],
        strong: Option<Strong>,
        tx: &mut Transaction<'_>,
    ) -> bool {
        let block = block.into();
        match strong.filter(|_| self.verify == Verify::Strong) {
            Some(strong) => tx.strong_of(block) == Some(strong),
            None => tx.chunks().equal(block, piece),
        }
    }

    /// Shares a batch of blocks of the task's entry. Returns the task that is left, if any.
    fn share(&self, task: &Task, bytes: &mut Vec<u8>, host: &dyn Host) -> Result<Option<Task>> {
        let is_last_try = task.tries >= TRIES_MAX;
        let share = ShareRequest { entry: task.node.entry, from: task.from, is_last_try, bytes };
        let done = host.share(share, self)?;
        self.looked_at_bytes.fetch_add(done.blocks * BLOCK_BYTES, Ordering::Relaxed);
        self.shared_bytes.fetch_add(done.shared_bytes, Ordering::Relaxed);
        self.tally.count(done.blocks, done.shared_bytes.div_ceil(BLOCK_BYTES));
        Ok(match done.left {
            Left::Nothing => None,
            Left::From(from) => Some(Task { from, tries: 0, ..*task }),
            Left::Again => Some(Task { tries: task.tries + 1, ..*task }),
        })
    }
}

impl Dedup for DeNova {
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint {
        if self.is_inline() { Fingerprint::by_keys(piece, self.keys, self.strong) } else { Fingerprint::default() }
    }

    fn stores_everything(&self) -> bool {
        !self.is_inline()
    }

    /// The mode may change between fingerprinting and placing a piece. Pieces without a fingerprint are stored and
    /// queued.
    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        let is_equal = |piece: &mut Piece<'_>, block, tx: &mut Transaction<'_>| {
            self.is_equal(block, piece.bytes, piece.fingerprint.strong, tx)
        };
        let reads_bytes = self.verify == Verify::Bytes || self.strong.is_none();
        let search = Search { collisions: &self.tally.collisions, fits: is_block, reads_bytes };
        let (offered, shared) = share_all(pieces, tx, &search, is_equal);
        self.tally.count(offered, shared);
    }

    fn published(&self, new: &[NewChunk], known: &[ChunkRef], chunks: &Chunks) -> Vec<ChunkRef> {
        enter(new, known, chunks)
    }

    fn unfingerprinted(&self) -> Unfingerprinted {
        Unfingerprinted::Queued
    }

    fn record_unfingerprinted_entry(&self, entry: Token, blocks: u32, time: i64) {
        self.queue.push(Node::new(entry, blocks), time);
    }

    /// Shares a batch of blocks of the next node.
    fn step(&self, host: &dyn Host) -> Result<bool> {
        let mut under_way = self.under_way.lock();
        let UnderWay { task, bytes } = &mut *under_way;
        let fresh = || self.queue.take().map(|node| Task { node, from: 0, tries: 0 });
        let Some(now) = task.take().or_else(fresh) else { return Ok(true) };
        self.is_busy.store(true, Ordering::Relaxed);
        match self.share(&now, bytes, host) {
            Ok(left) => *task = left,
            Err(error) => {
                self.queue.put_back(now.node);
                self.is_busy.store(false, Ordering::Relaxed);
                return Err(error);
            }
        }
        if task.is_none() {
            self.done(&now.node);
            self.is_busy.store(false, Ordering::Relaxed);
        }
        Ok(false)
    }

    fn may_free_space(&self) -> bool {
        !self.is_done()
    }
}
