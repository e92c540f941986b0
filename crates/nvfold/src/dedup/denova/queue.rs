//! The work queue: the log entries that the daemon still has to process (DeNOVA IV-B1).
//!
//! The problem: every write adds to the queue and must not pay for it. The daemon wants the oldest node or, when it
//! is far behind, the node that saves most for its work.
//!
//! The idea: each writer pushes into one of 16 stripes, a vector behind a lock that other writers rarely take. The
//! daemon collects the stripes and sorts the nodes by length: one FIFO list for each power of two. The oldest node is
//! the oldest of the lists' first nodes; the largest is in the highest list that is not empty.
//!
//! ```text
//! writers   -> | open | full full .. |  x 16 stripes
//! daemon    <-  lists of nodes of 1, 2-3, 4-7, .. blocks, each in the sequence of arrival
//! ```
//!
//! A node is a hint: its log entry may be gone or have moved, so the consumer checks it.

use crate::dedup::work::Token;
use crate::words::{Stopwatch, TimeNs};
use nvfold_sync::Padded;
use nvfold_sync::{Mutex, thread_number};
use std::collections::VecDeque;

const STRIPES: usize = 16;
/// Number of nodes that a stripe takes without allocating memory.
const OPEN_NODES: usize = 256;
/// Number of nodes taken before the stripes are collected again.
const COLLECT_EVERY: u64 = 64;
/// Number of writes between two readings of the stopwatch, while the clock of the file system does not advance.
const STAMP_EVERY: u32 = 16;
/// With more nodes than this, the largest is taken first.
const LONG: u64 = 4096;

/// A log entry that needs the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// The log entry.
    pub entry: Token,
    /// Number of its blocks.
    pub blocks: u32,
    /// When it was queued, by the stopwatch.
    pub queued_at: u64,
}

/// Size of a node in the saved state, in 8-byte words.
pub(crate) const NODE_WORDS: usize = 4;

impl Node {
    /// Creates a node that is not queued yet.
    pub(crate) fn new(entry: Token, blocks: u32) -> Node {
        Node { entry, blocks, queued_at: 0 }
    }

    /// Returns the node as it is saved. The queueing time is left out, because the stopwatch differs between mounts.
    pub(crate) fn words(&self) -> [u64; NODE_WORDS] {
        let Token { words: [first, second, third], tail } = self.entry;
        [first, u64::from(self.blocks) << 32 | u64::from(tail), second, third]
    }

    /// Returns the node that [`Node::words`] saved.
    pub(crate) fn from_words([first, middle, second, third]: [u64; NODE_WORDS]) -> Node {
        let (tail, blocks) = (middle as u32, (middle >> 32) as u32);
        Node::new(Token { words: [first, second, third], tail }, blocks)
    }
}

/// Nodes of one writer, or of a few.
#[derive(Default)]
struct QueueStripe {
    open: Vec<Node>,
    full: Vec<Vec<Node>>,
    /// Number of blocks of all nodes.
    blocks: u64,
    /// The last reading of the stopwatch, the reading of the clock at that time, and the number of writes so far.
    stamp: u64,
    clock: TimeNs,
    writes: u32,
}

/// Nodes that the daemon has collected from the stripes.
#[derive(Default)]
struct Sorted {
    /// Lists by length: nodes with their position in the order of arrival.
    lists: Vec<VecDeque<(u64, Node)>>,
    entries: u64,
    blocks: u64,
    next: u64,
    taken: u64,
    /// An empty vector, which replaces that of a stripe when its nodes are collected.
    spare: Vec<Node>,
}

impl Sorted {
    fn add(&mut self, node: Node) {
        let list = node.blocks.max(1).ilog2() as usize;
        if self.lists.len() <= list {
            self.lists.resize_with(list + 1, VecDeque::new);
        }
        self.lists[list].push_back((self.next, node));
        self.next += 1;
        self.entries += 1;
        self.blocks += u64::from(node.blocks);
    }

    /// Returns the list whose first node is taken next.
    fn next_list(&self) -> Option<usize> {
        let lists = || self.lists.iter().enumerate().filter_map(|(at, list)| Some((at, list.front()?.0)));
        let next = if self.entries > LONG { lists().next_back() } else { lists().min_by_key(|(_, place)| *place) };
        next.map(|(at, _)| at)
    }

    fn take(&mut self) -> Option<Node> {
        let list = self.next_list()?;
        let (_, node) = self.lists[list].pop_front()?;
        self.entries -= 1;
        self.blocks -= u64::from(node.blocks);
        self.taken += 1;
        if self.lists[list].is_empty() {
            // Free the memory of a queue that was long once.
            self.lists[list] = VecDeque::new();
        }
        Some(node)
    }
}

/// How much waits in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Number of nodes.
    pub entries: u64,
    /// Number of blocks of these nodes.
    pub blocks: u64,
    /// DRAM that the queue takes, bytes.
    pub dram_bytes: u64,
    /// When the oldest node was queued, by the stopwatch.
    pub oldest: Option<u64>,
}

/// The work queue; see the module.
pub(crate) struct Queue {
    stripes: [Padded<Mutex<QueueStripe>>; STRIPES],
    sorted: Mutex<Sorted>,
    stopwatch: Option<Stopwatch>,
}

impl Queue {
    /// Creates an empty queue.
    pub(crate) fn new(stopwatch: Option<Stopwatch>) -> Queue {
        Queue { stripes: std::array::from_fn(|_| Padded::default()), sorted: Mutex::default(), stopwatch }
    }

    /// Returns the reading of the stopwatch, or 0 without one.
    pub(crate) fn now(&self) -> u64 {
        self.stopwatch.as_ref().map_or(0, |stopwatch| stopwatch())
    }

    /// Adds a node. `clock` is the time by the file system's clock, which every write reads anyway. The stopwatch is
    /// read only when that clock has advanced, and every few writes.
    pub(crate) fn push(&self, mut node: Node, clock: TimeNs) {
        let mut stripe = self.stripes[thread_number() % STRIPES].lock();
        if stripe.clock != clock || stripe.writes.is_multiple_of(STAMP_EVERY) {
            (stripe.clock, stripe.stamp) = (clock, self.now());
        }
        stripe.writes = stripe.writes.wrapping_add(1);
        node.queued_at = stripe.stamp;
        if stripe.open.len() == stripe.open.capacity() {
            let full = std::mem::replace(&mut stripe.open, Vec::with_capacity(OPEN_NODES));
            if !full.is_empty() {
                stripe.full.push(full);
            }
        }
        stripe.blocks += u64::from(node.blocks);
        stripe.open.push(node);
    }

    /// Adds nodes that an earlier mount left.
    pub(crate) fn restore(&self, nodes: impl IntoIterator<Item = Node>) {
        let (now, mut sorted) = (self.now(), self.sorted.lock());
        nodes.into_iter().for_each(|node| sorted.add(Node { queued_at: now, ..node }));
    }

    /// Adds a node again that was taken and not completed; it goes to the end.
    pub(crate) fn put_back(&self, node: Node) {
        self.sorted.lock().add(node);
    }

    /// Takes the next node.
    pub(crate) fn take(&self) -> Option<Node> {
        let mut sorted = self.sorted.lock();
        if sorted.entries == 0 || sorted.taken.is_multiple_of(COLLECT_EVERY) {
            self.collect(&mut sorted);
        }
        sorted.take()
    }

    fn collect(&self, sorted: &mut Sorted) {
        for stripe in &self.stripes {
            let mut open = std::mem::take(&mut sorted.spare);
            let full = {
                let mut stripe = stripe.lock();
                if !stripe.open.is_empty() {
                    if open.capacity() == 0 {
                        open.reserve_exact(OPEN_NODES);
                    }
                    std::mem::swap(&mut stripe.open, &mut open);
                }
                stripe.blocks = 0;
                std::mem::take(&mut stripe.full)
            };
            full.into_iter().flatten().for_each(|node| sorted.add(node));
            open.drain(..).for_each(|node| sorted.add(node));
            sorted.spare = open;
        }
    }

    /// True if the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.sorted.lock().entries == 0 && self.stripes.iter().all(|stripe| stripe.lock().open.is_empty())
    }

    /// Returns all nodes, the oldest first. For an unmount, when no thread adds or takes nodes any longer.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        let mut sorted = self.sorted.lock();
        self.collect(&mut sorted);
        let mut nodes: Vec<(u64, Node)> = sorted.lists.iter().flatten().copied().collect();
        nodes.sort_unstable_by_key(|(place, _)| *place);
        nodes.into_iter().map(|(_, node)| node).collect()
    }

    /// Returns how much waits, and since when.
    pub(crate) fn waiting(&self) -> Waiting {
        let node_bytes = size_of::<Node>() as u64;
        let mut waiting = {
            let sorted = self.sorted.lock();
            let slots: usize = sorted.lists.iter().map(VecDeque::capacity).sum();
            Waiting {
                entries: sorted.entries,
                blocks: sorted.blocks,
                dram_bytes: (slots * size_of::<(u64, Node)>()) as u64 + sorted.spare.capacity() as u64 * node_bytes,
                oldest: sorted.lists.iter().filter_map(|list| Some(list.front()?.1.queued_at)).min(),
            }
        };
        for stripe in &self.stripes {
            let stripe = stripe.lock();
            let parts = || stripe.full.iter().chain([&stripe.open]);
            waiting.entries += parts().map(|part| part.len() as u64).sum::<u64>();
            waiting.blocks += stripe.blocks;
            waiting.dram_bytes += parts().map(|part| part.capacity() as u64 * node_bytes).sum::<u64>();
            let first = parts().find_map(|part| Some(part.first()?.queued_at));
            waiting.oldest = waiting.oldest.into_iter().chain(first).min();
        }
        waiting
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn node(position: u64, blocks: u32) -> Node {
        Node::new(Token { words: [7, position, 4096 * position], tail: 3 }, blocks)
    }

    fn position(node: Node) -> u64 {
        node.entry.words[1]
    }

    #[test]
    fn a_short_queue_is_first_in_first_out() {
        let queue = Queue::new(None);
        (0..3 * COLLECT_EVERY).for_each(|at| queue.push(node(at, 1 + (at as u32 * 7) % 300), 0));
        assert_eq!(queue.waiting().entries, 3 * COLLECT_EVERY);
        for at in 0..3 * COLLECT_EVERY {
            assert_eq!(queue.take().map(position), Some(at));
        }
        assert!(queue.take().is_none() && queue.is_empty());
    }

    #[test]
    fn a_long_queue_returns_large_entries_first() {
        let queue = Queue::new(None);
        (0..LONG + 10).for_each(|at| queue.push(node(at, 1), 0));
        (0..5).for_each(|at| queue.push(node(LONG + 10 + at, 256), 0));
        let first: Vec<u32> = (0..6).map(|_| queue.take().unwrap().blocks).collect();
        assert_eq!(first, [256, 256, 256, 256, 256, 1]);
        let waiting = queue.waiting();
        assert_eq!((waiting.entries, waiting.blocks), (LONG + 9, LONG + 9));
    }

    #[test]
    fn a_queue_node_survives_saving_and_loading() {
        let saved = node(1 << 43, u32::MAX);
        assert_eq!(Node::from_words(saved.words()), saved);
        let queue = Queue::new(None);
        queue.restore([node(2, 1), node(1, 9)]);
        queue.put_back(queue.take().unwrap());
        assert_eq!(queue.nodes().into_iter().map(position).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn queued_nodes_get_their_time_on_arrival() {
        let ticks = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let clock = ticks.clone();
        let tick = move || 100 * (1 + clock.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let queue = Queue::new(Some(std::sync::Arc::new(tick)));
        queue.push(node(1, 1), 5);
        queue.push(node(2, 1), 5);
        queue.push(node(3, 1), 6);
        let stamps: Vec<u64> = queue.nodes().iter().map(|node| node.queued_at).collect();
        assert_eq!(stamps, [100, 100, 200], "asked when the clock moves");
        assert_eq!(queue.waiting().oldest, Some(100));
    }
}
