//! The daemon of policy `denova` (DeNOVA IV-B2): when it works, and how much.
//!
//! The problem: what was put off must be done, but whoever put it off did so to be faster. A daemon that works whenever
//! there is work takes memory bandwidth, locks and a processor from those who write.
//!
//! The idea: work comes in steps of a batch of blocks (`remap`), well below a millisecond each, and between two steps
//! the daemon asks whether to go on.
//!
//! ```text
//! mode         immediate: whenever anything is queued; delayed(n, m): every n ms, m nodes at most
//! manners      somebody entered the gate meanwhile: rest after a tenth of a millisecond, as long as it has worked
//!              CPU share: rest until it has worked no more than its percentage
//! no limits    free space below the guard; an operation that found too little; a drain
//! nothing      paused (but for those that found too little space, and a drain)
//! ```
//!
//! No clock of its own, no thread: a front end calls [`Daemon::turn`] and waits as long as that says. Without a stopwatch
//! a turn is a step.

use super::remap::node_of;
use super::{Core, FileSystem};
use crate::dedup::denova::linger::Linger;
use crate::dedup::denova::queue::{Node, Queue};
use crate::error::{Error, Result};
use crate::media::BLOCK_BYTES;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::types::{DeNovaOptions, DeNovaStats, DedupMode, MountOptions};
use std::time::Duration;

/// A turn ends after this long.
const TURN_NS: u64 = 1_000_000;
/// An idle daemon waits this long, and twice as long each time, up to the second.
const IDLE_LEAST: Duration = Duration::from_micros(50);
const IDLE_MOST: Duration = Duration::from_millis(10);
/// With somebody at work in front a turn ends after this long.
const SLICE_NS: u64 = 100_000;
/// Steps of a reorder in a turn: one chain.
const REORDER_STEPS: u64 = 4;
/// Space that sharing makes for an operation that found too little, before it tries again: so many blocks at least.
const ROOM_BLOCKS: u64 = 256;

/// A node under way.
#[derive(Clone, Copy)]
pub(super) struct Task {
    pub(super) node: Node,
    /// File offset to go on at.
    pub(super) next: u64,
    /// How often the batch there was looked at.
    pub(super) tries: u32,
}

/// What was put off, and who works on it.
pub(crate) struct Work {
    pub(crate) queue: Queue,
    options: DeNovaOptions,
    has_stopwatch: bool,
    paused: AtomicBool,
    /// Held over a step: there is one daemon, whoever plays it.
    place: Mutex<Place>,
    /// A node is under way.
    is_busy: AtomicBool,
    linger: Linger,
    dequeued: AtomicU64,
    looked_at_bytes: AtomicU64,
    shared_bytes: AtomicU64,
    busy_ns: AtomicU64,
}

#[derive(Default)]
struct Place {
    task: Option<Task>,
    bytes: Vec<u8>,
}

impl Work {
    pub(super) fn new(options: &MountOptions) -> Work {
        Work {
            queue: Queue::new(options.stopwatch.clone()),
            options: options.denova,
            has_stopwatch: options.stopwatch.is_some(),
            paused: AtomicBool::new(false),
            place: Mutex::default(),
            is_busy: AtomicBool::new(false),
            linger: Linger::default(),
            dequeued: AtomicU64::new(0),
            looked_at_bytes: AtomicU64::new(0),
            shared_bytes: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
        }
    }

    pub(super) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Whether nothing is queued or under way.
    pub(super) fn is_done(&self) -> bool {
        !self.is_busy.load(Ordering::Relaxed) && self.queue.is_empty()
    }

    pub(super) fn looked_at(&self, bytes: u64) {
        self.looked_at_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn shared(&self, bytes: u64) {
        self.shared_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Nodes of entries that need the daemon, for an unmount: nobody is inside the gate.
    fn nodes(&self) -> Vec<Node> {
        let under_way = self.place.lock().task.map(|task| task.node);
        under_way.into_iter().chain(self.queue.nodes()).collect()
    }

    fn done(&self, node: &Node) {
        self.dequeued.fetch_add(1, Ordering::Relaxed);
        if self.has_stopwatch {
            self.linger.count(self.queue.now().saturating_sub(node.queued_at));
        }
    }
}

impl Core {
    /// Shares a batch of blocks of the node that goes next; true when nothing is queued.
    fn share_step(&self) -> Result<bool> {
        // Counts must be known, and reconcile still finds what is to be queued.
        if self.is_reconciling() {
            return Ok(true);
        }
        let mut place = self.work.place.lock();
        let Place { task, bytes } = &mut *place;
        let fresh = || self.work.queue.take().map(|node| Task { node, next: 0, tries: 0 });
        let Some(now) = task.take().or_else(fresh) else { return Ok(true) };
        self.work.is_busy.store(true, Ordering::Relaxed);
        match self.share_queued(&now, bytes) {
            Ok(next) => *task = next,
            // Gone, or told to who reads it.
            Err(Error::NotFound { .. } | Error::Corrupt { .. } | Error::BadMemory { .. }) => {}
            Err(error) => {
                self.work.queue.put_back(now.node);
                self.work.is_busy.store(false, Ordering::Relaxed);
                return Err(error);
            }
        }
        if task.is_none() {
            self.work.done(&now.node);
            self.work.is_busy.store(false, Ordering::Relaxed);
        }
        Ok(false)
    }

    /// As [`Core::share_step`], inside the gate; behind those who work in front.
    fn work_step(&self) -> Result<bool> {
        let _inside = self.gate.enter_behind();
        if self.read_only || self.unmounted.load(Ordering::Relaxed) {
            return Err(Error::ReadOnly { doing: "share what is queued" });
        }
        self.check_lost()?;
        self.answer(self.share_step())
    }

    /// See `FileSystem::drain_step`.
    pub(super) fn drain_step(&self) -> Result<bool> {
        if !self.read_only && self.is_reconciling() {
            self.reconcile_step()?;
            return Ok(false);
        }
        self.work_step()
    }

    /// An operation found too little space: shares what is queued until there is some more, or nothing is left.
    pub(super) fn make_room_by_sharing(&self, blocks: u64) -> Result<()> {
        let enough = self.space.free_blocks() + blocks.max(ROOM_BLOCKS);
        while self.space.free_blocks() < enough && !self.work_step()? {}
        Ok(())
    }

    fn is_short_of_space(&self) -> bool {
        let (free, total) = (self.space.free_blocks(), self.space.total_blocks());
        free * 100 < total * u64::from(self.work.options.guard_percent)
    }

    /// The nodes that an unmount saves: those whose entries need the daemon, each once. A page of a log that was written
    /// anew may be one of it again, with another entry where a node has been waiting for the one before: what is saved
    /// is the node of the entry that is there.
    pub(crate) fn nodes_to_save(&self) -> Vec<Node> {
        let mut seen = hashbrown::HashSet::new();
        let entry_of = |node: Node| {
            let inode = self.inode(node.ino).ok()?;
            let entry = self.queued_entry(&inode, &inode.state.read(), &node)?;
            seen.insert(node.position).then(|| node_of(&inode, node.position, &entry))
        };
        self.work.nodes().into_iter().filter_map(entry_of).collect()
    }

    /// Mount: takes the nodes of a saved state in.
    pub(crate) fn restore_nodes(&self, nodes: Vec<Node>) {
        self.work.queue.restore(nodes);
    }

    /// What policy `denova` does, if new data goes there or anything is or was queued.
    pub(super) fn denova_stats(&self) -> Option<DeNovaStats> {
        let work = &self.work;
        let waiting = work.queue.waiting();
        let dequeued = work.dequeued.load(Ordering::Relaxed);
        let under_way = u64::from(work.is_busy.load(Ordering::Relaxed));
        if !self.policies.is_denova() && waiting.entries + dequeued + under_way == 0 {
            return None;
        }
        let now = work.queue.now();
        Some(DeNovaStats {
            mode: self.policies.denova.mode(),
            paused: work.paused.load(Ordering::Relaxed),
            queue_entries: waiting.entries + under_way,
            queue_bytes: waiting.blocks * BLOCK_BYTES,
            queue_dram_bytes: waiting.dram_bytes,
            lag_ns: waiting.oldest.filter(|_| work.has_stopwatch).map_or(0, |oldest| now.saturating_sub(oldest)),
            dequeued,
            looked_at_bytes: work.looked_at_bytes.load(Ordering::Relaxed),
            shared_bytes: work.shared_bytes.load(Ordering::Relaxed),
            busy_ns: work.busy_ns.load(Ordering::Relaxed),
            lingered: work.linger.classes(),
        })
    }
}

/// What works on the queue. Front ends run it on a thread of their own:
///
/// ```text
/// while !stopped { park_timeout(daemon.turn()?) }
/// ```
pub struct Daemon {
    fs: FileSystem,
    /// How long to wait when there is nothing to do.
    idle: Duration,
    /// Mode `delayed`: when it works next, by the stopwatch, and how many nodes are left of this time's.
    due: u64,
    left: u64,
    /// The mode that these two are of.
    mode: DedupMode,
}

impl Daemon {
    /// Of this file system.
    pub fn new(fs: FileSystem) -> Daemon {
        let mode = fs.dedup_mode();
        Daemon { fs, idle: IDLE_LEAST, due: 0, left: 0, mode }
    }

    /// Works for a moment, as mode and limits allow; how long to wait until the next turn. Whoever waits shorter loses
    /// nothing: in mode `delayed` a change of the mode, or space that becomes scarce, is heeded sooner then. Also fills
    /// in fingerprints ([`FileSystem::dedup_step`]).
    ///
    /// # Errors
    /// EROFS; those of the device.
    pub fn turn(&mut self) -> Result<Duration> {
        let core = self.fs.core.clone();
        if core.work.paused.load(Ordering::Relaxed) {
            return Ok(IDLE_MOST);
        }
        let began = core.work.queue.now();
        let hurries = core.is_short_of_space();
        let mode = core.policies.denova.mode();
        if mode != self.mode {
            // Nobody waits for what another interval had left.
            (self.mode, self.due, self.left) = (mode, 0, 0);
        }
        if let DedupMode::Delayed { interval_ms, entries } = mode
            && !hurries
            && self.left == 0
        {
            if began < self.due {
                return Ok(Duration::from_nanos(self.due - began));
            }
            self.due = began + interval_ms * 1_000_000;
            self.left = entries;
        }
        let worked = self.work(&core, began, hurries)?;
        core.work.busy_ns.fetch_add(worked.ns, Ordering::Relaxed);
        self.after(&core, began, hurries, worked)
    }

    /// Steps until the turn is over, or nothing may be done any more.
    fn work(&mut self, core: &Core, began: u64, hurries: bool) -> Result<Worked> {
        let is_delayed = matches!(core.policies.denova.mode(), DedupMode::Delayed { .. }) && !hurries;
        let mut worked = Worked::default();
        let entered = core.gate.entered();
        loop {
            let dequeued = core.work.dequeued.load(Ordering::Relaxed);
            match core.work_step() {
                Ok(is_empty) => worked.is_empty = is_empty,
                // Somebody else has to free some.
                Err(Error::NoSpace { .. }) => worked.is_stuck = true,
                Err(error) => return Err(error),
            }
            worked.ns = core.work.queue.now().saturating_sub(began);
            worked.steps += u64::from(!worked.is_empty);
            worked.is_in_the_way = core.gate.entered() != entered;
            if is_delayed {
                let done = core.work.dequeued.load(Ordering::Relaxed) - dequeued;
                self.left = if worked.is_empty { 0 } else { self.left.saturating_sub(done) };
            }
            let is_over = !core.work.has_stopwatch || worked.ns >= TURN_NS || is_delayed && self.left == 0;
            let steps_back = worked.is_in_the_way && !hurries && worked.ns >= SLICE_NS;
            if is_over || worked.is_empty || worked.is_stuck || steps_back {
                return Ok(worked);
            }
        }
    }

    /// How long to wait.
    fn after(&mut self, core: &Core, began: u64, hurries: bool, worked: Worked) -> Result<Duration> {
        if worked.is_stuck {
            return Ok(IDLE_MOST);
        }
        // The daemon's other task (IV-B2, IV-E). A step is a few stores.
        let mut is_in_order = false;
        for _ in 0..REORDER_STEPS {
            is_in_order = is_in_order || self.fs.reorder_step()?;
        }
        if worked.is_empty && !(is_in_order && self.fs.dedup_step()?) {
            return Ok(Duration::ZERO);
        }
        if worked.steps > 0 {
            self.idle = IDLE_LEAST;
        }
        let is_delayed = matches!(core.policies.denova.mode(), DedupMode::Delayed { .. });
        if is_delayed && self.left == 0 && !hurries {
            // Without a stopwatch whoever waits that long is the clock.
            let until = self.due.saturating_sub(began + worked.ns);
            self.due = if core.work.has_stopwatch { self.due } else { 0 };
            return Ok(Duration::from_nanos(until));
        }
        if worked.is_empty {
            let idle = self.idle;
            self.idle = (idle * 2).min(IDLE_MOST);
            return Ok(idle);
        }
        if hurries {
            return Ok(Duration::ZERO);
        }
        let percent = u64::from(core.work.options.cpu_percent.clamp(1, 100));
        let share = worked.ns * (100 - percent) / percent;
        let behind = if worked.is_in_the_way { worked.ns.max(IDLE_LEAST.as_nanos() as u64) } else { 0 };
        Ok(Duration::from_nanos(share.max(behind)))
    }
}

/// What a turn did.
#[derive(Clone, Copy, Default)]
struct Worked {
    steps: u64,
    ns: u64,
    is_empty: bool,
    is_stuck: bool,
    /// Somebody worked in front meanwhile.
    is_in_the_way: bool,
}
