//! The pm index: DeNOVA's failure atomic consistent table, FACT, over the chunk table (IV-C, IV-E).
//!
//! The problem: an index in DRAM takes memory for every chunk, and must be rebuilt or saved. An index on the device
//! must be intact at every moment, because a crash may come at any time, and a lookup should cost about one read.
//!
//! The idea: the first bits of a fingerprint select a chain. The chain's head holds one chunk; the few others whose
//! fingerprints begin with the same bits are linked after it. The chunk table is the paper's indirect area, so an
//! entry keeps its place whatever the index is, and a chain takes two numbers in each entry. DRAM holds only locks.
//!
//! ```text
//! n = ceil(log2(blocks)), p = first n bits of the weak fingerprint
//!
//! direct area         p: | weak, block a | next b | order |     16 bytes, in segments of its own
//! chunk table            a: counts, fingerprints, delete pointer p
//!                        b: counts, fingerprints, delete pointer p, next c, previous -
//!                        c: counts, fingerprints, delete pointer p, next -, previous b
//! ```
//!
//! **Order.** `next` is authoritative. An entry is durable and leads to the first one of the list, or nowhere, before one
//! store makes the head lead to it. One store unlinks it, durably before its block gets another user. So at every moment
//! a chain leads to all inserted entries, and ends. `previous` is a hint that is checked before use.
//!
//! **Batches.** The new chunks of a request enter together, with two fences. Those that fall into one chain are linked to
//! one another first, where no search can see them, and then the head leads to all of them at once:
//!
//! ```text
//! 1 new entries: next of each, the last one's is the present list    fence, unless all `next` are right already
//! 2 head: its block, if it has none; next = the first new entry      fence
//!   the entry behind the new ones: previous
//! ```
//!
//! A fresh entry leads nowhere. So step 1 has nothing to do where a list is empty, which is what most chunks find.
//!
//! **Reorder.** A chain is sorted by its reference counts in four steps. Each step holds the chain's lock, so
//! searches run between steps, and each step is durable before the next begins:
//!
//! ```text
//! 1 order = BEGUN                                       searched by next
//! 2 previous of all as they will be                     searched by next
//! 3 order = the last block, and the new first one       searched by previous, from the last
//! 4 next of all; then order = 0                         searched by next
//! ```
//!
//! The paper leaves the first entry in place. Here it takes part, which one store of 16 bytes in step 3 allows. An
//! operation that changes the chain in the meantime first finishes a committed reorder, or undoes one that is not
//! committed; recovery does the same.

use super::entries::{Entries, word};
use super::insertion::Insertion;
use super::sight::Sight;
use crate::fingerprint::WeakFunction;
use crate::media::chunk_entry::{ChunkEntry, ENTRY_BYTES, LINKS_WORD};
use crate::media::direct::{self, BEGUN, DIRECT_BYTES, DIRECT_PER_SEGMENT, DirectEntry, LIST_WORD, prefix_bits};
use crate::media::superblock::Geometry;
use crate::media::{ChunkRef, SEGMENT_BYTES};
use crate::words::{IndexKind, IndexStats, ReorderOptions};
use hashbrown::HashSet;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use nvfold_sync::{Mutex, MutexGuard};
use nvfold_sync::{Padded, Sum};
use pmem::{Flight, InFlight, Pm, Region};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// The number of locks. Chains share them.
const LOCKS: usize = 256;
/// The number of chain heads that reconcile reads at once.
const HEADS_AT_ONCE: usize = 4096;
/// The number of chunks that are inserted with two fences, and so the most chains that one thread locks.
const BATCH: usize = 64;

/// Neighbours of an entry in its chain, as block numbers; 0: none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Links {
    previous: u32,
    next: u32,
}

/// What a batch of insertions adds to one chain.
struct ChainGain {
    chain: u64,
    /// The chain's head before and after.
    before: DirectEntry,
    after: DirectEntry,
    /// The last new entry of the list; 0 if the list gains none.
    last: u32,
    /// The number of new entries.
    members: u64,
    /// True if an entry leads elsewhere on the media, so that its links must be durable before the head leads to it.
    links_first: bool,
}

/// The pm index of a device; safe to use from any thread.
pub struct Fact {
    region: Region,
    entries: Arc<Entries>,
    function: WeakFunction,
    /// Segments of the direct area, in order.
    segments: Vec<u64>,
    bits: u32,
    locks: Vec<Padded<Mutex<()>>>,
    members: Sum,
    /// `members` counts the chains below this number: all of them, except while reconcile counts after a crash.
    counted: AtomicU64,
    lookups: Sum,
    reads: Sum,
    reorder: ReorderOptions,
    /// A chain in which a search read many entries to find a chunk with many references, plus 1; 0: none.
    deep: AtomicU64,
    /// The reorder in progress; only one at a time.
    reordering: Mutex<Option<Reordering>>,
    reordered: AtomicU64,
}

/// A reorder between two of its steps.
struct Reordering {
    chain: u64,
    /// All blocks of the chain in their new order, the one in the head first.
    order: Vec<u32>,
    done: Step,
}

/// The last completed step of a reorder.
#[derive(Clone, Copy)]
enum Step {
    Begun,
    PreviousSet,
    Committed,
}

impl Fact {
    /// Opens the index whose direct area is in `segments`; `function` computes its fingerprints.
    pub fn new(
        region: Region,
        geometry: &Geometry,
        entries: Arc<Entries>,
        function: WeakFunction,
        segments: Vec<u64>,
        reorder: ReorderOptions,
    ) -> Fact {
        Fact {
            region,
            entries,
            function,
            segments,
            bits: prefix_bits(geometry.index_blocks()),
            locks: (0..LOCKS).map(|_| Padded::default()).collect(),
            members: Sum::default(),
            counted: AtomicU64::new(u64::MAX),
            lookups: Sum::default(),
            reads: Sum::default(),
            reorder,
            deep: AtomicU64::new(0),
            reordering: Mutex::new(None),
            reordered: AtomicU64::new(0),
        }
    }

    /// Returns the function that computes its fingerprints.
    pub fn function(&self) -> WeakFunction {
        self.function
    }

    /// Returns the segments of the direct area, in order.
    pub fn segments(&self) -> &[u64] {
        &self.segments
    }

    /// Returns the number of chains.
    pub fn chains(&self) -> u64 {
        1 << self.bits
    }

    /// Returns the chain of a fingerprint, which is the delete pointer of the chain's entries.
    pub fn chain_of(&self, weak: u32) -> u64 {
        direct::chain_of(weak, self.bits)
    }

    /// See [`super::index::Index::find`].
    pub fn find(&self, weak: u32, after: ChunkRef, mut take: impl FnMut(&ChunkRef) -> bool) -> Option<ChunkRef> {
        let chain = self.chain_of(weak);
        let _held = self.hold(chain);
        let head = self.head(chain);
        let first = self.entries.chunk(head.block);
        let mut behind = after == ChunkRef::NONE;
        let mut reads = 1;
        // In a damaged index the block number can be anything.
        let is_there = head.block != 0 && head.weak == weak && self.is_data(first);
        let mut found = (behind && is_there && take(&first)).then_some(first);
        behind |= first == after;
        if found.is_none() {
            for (block, entry) in self.list(chain, head) {
                reads += 1;
                if behind && !entry.is_empty() && entry.weak(self.function) == Some(weak) && take(&block) {
                    self.note_depth(chain, reads, entry.count);
                    found = Some(block);
                    break;
                }
                behind |= block == after;
            }
        }
        self.lookups.add(1);
        self.reads.add(u64::from(reads));
        found
    }

    /// See [`super::index::Index::insert`].
    pub fn insert(&self, weak: u32, block: ChunkRef) {
        self.insert_all(&[Insertion::always(weak, block)]);
    }

    /// See [`super::index::Index::insert_all`].
    pub fn insert_all(&self, new: &[Insertion<'_>]) -> Vec<ChunkRef> {
        let mut refused = Vec::new();
        new.chunks(BATCH).for_each(|batch| self.insert_batch(batch, &mut refused));
        refused
    }

    /// Inserts chunks with one fence for their links, if any has to change, and one for the heads. All their chains
    /// stay locked until the end.
    fn insert_batch(&self, new: &[Insertion<'_>], refused: &mut Vec<ChunkRef>) {
        let mut by_chain: SmallVec<[(usize, u64, usize); BATCH]> = SmallVec::new();
        for (at, one) in new.iter().enumerate() {
            let chain = self.chain_of(one.weak);
            by_chain.push((lock_of(chain), chain, at));
        }
        by_chain.sort_unstable();
        let _held = self.hold_all(by_chain.iter().map(|(lock, ..)| *lock));
        let (mut links, mut heads) = (Flight::new(), Flight::new());
        let mut gains: SmallVec<[ChainGain; BATCH]> = SmallVec::new();
        for of_one in by_chain.chunk_by(|one, next| one.1 == next.1) {
            let insertions = of_one.iter().map(|(.., at)| &new[*at]);
            gains.extend(self.link(of_one[0].1, insertions, refused, &mut links));
        }
        if gains.is_empty() {
            return;
        }
        if gains.iter().any(|gain| gain.links_first) {
            let _ = self.region.fence(std::mem::take(&mut links));
        }
        gains.iter().for_each(|gain| self.lead_to(gain, &mut heads));
        let _ = self.region.fence((links, heads));
        gains.iter().for_each(|gain| self.account(gain.chain, gain.members));
    }

    /// Links the new entries of a chain to one another, and the last of them to the present list. Nothing leads to
    /// them yet. Returns `None` if the chain gains none.
    fn link<'n>(
        &self,
        chain: u64,
        new: impl Iterator<Item = &'n Insertion<'n>>,
        refused: &mut Vec<ChunkRef>,
        flight: &mut Flight,
    ) -> Option<ChainGain> {
        let before = self.in_order(chain);
        let mut joining: SmallVec<[&Insertion<'_>; 4]> = SmallVec::new();
        for one in new {
            match self.admission(chain, before, &joining, one) {
                Admission::Enters => joining.push(one),
                Admission::IsThere => {}
                Admission::Refused => refused.push(one.chunk),
            }
        }
        let mut gain =
            ChainGain { chain, before, after: before, last: 0, members: joining.len() as u64, links_first: false };
        let first = *joining.first()?;
        let mut listed = &joining[..];
        if before.block == 0 {
            (gain.after.weak, gain.after.block) = (first.weak, word(first.chunk));
            listed = &joining[1..];
        }
        // From the last one to the first, each leads to the one that was linked before.
        for (at, one) in listed.iter().enumerate().rev() {
            let previous = at.checked_sub(1).map_or(0, |before| word(listed[before].chunk));
            let links = Links { previous, next: gain.after.next };
            let stored = self.links(one.chunk);
            gain.links_first |= stored.next != links.next;
            if stored != links {
                flight.extend(self.set_links(word(one.chunk), links));
            }
            gain.after.next = word(one.chunk);
        }
        gain.last = listed.last().map_or(0, |last| word(last.chunk));
        Some(gain)
    }

    /// Decides whether a chunk enters its chain, which `joining` are about to enter.
    fn admission(&self, chain: u64, head: DirectEntry, joining: &[&Insertion<'_>], new: &Insertion<'_>) -> Admission {
        let is_unknown = |other| new.known.is_some_and(|known| !known.contains(&other));
        let weak_of = |entry: &ChunkEntry| entry.weak(self.function).filter(|_| !entry.is_empty());
        let direct = (head.block != 0).then(|| (self.entries.chunk(head.block), Some(head.weak)));
        let listed = self.list(chain, head).map(|(other, entry)| (other, weak_of(&entry)));
        let joining = joining.iter().map(|other| (other.chunk, Some(other.weak)));
        let mut admission = Admission::Enters;
        for (other, weak) in direct.into_iter().chain(joining).chain(listed) {
            if other == new.chunk {
                admission = Admission::IsThere;
            } else if weak == Some(new.weak) && is_unknown(other) {
                return Admission::Refused;
            }
        }
        // An entry that cannot be linked would cut off the list behind it.
        let offset = self.entries.offset(new.chunk);
        match self.region.check_writable(offset, ENTRY_BYTES) {
            Ok(()) => admission,
            Err(_) => Admission::IsThere,
        }
    }

    /// Makes a head lead to what its chain gains. The hint of the entry behind that follows.
    fn lead_to(&self, gain: &ChainGain, flight: &mut Flight) {
        let ChainGain { chain, before, after, last, .. } = *gain;
        if after.block != before.block {
            flight.add(self.region.store_u64(self.head_offset(chain), after.first_word()).flush());
        }
        if after.next != before.next {
            flight.add(self.set_list(chain, after));
            self.hint(before.next, last, flight);
        }
    }

    /// See [`super::index::Index::remove`].
    pub fn remove(&self, weak: u32, block: ChunkRef) -> Flight {
        self.take_out(weak, block, |chain, head| {
            self.hinted(chain, head, block).or_else(|| self.before(chain, head, block))
        })
    }

    /// Removes a block durably; for reconcile. The block may already be unlinked, while an entry that was unlinked
    /// with it still points to it. `previous` is unreliable then, so this searches the list.
    pub fn remove_lost(&self, weak: u32, block: ChunkRef) {
        let removed = self.take_out(weak, block, |chain, head| self.before(chain, head, block));
        let _ = self.region.fence(removed);
    }

    /// Unlinks a block from its chain, if it is there. `before` finds the predecessor in the list.
    fn take_out(&self, weak: u32, block: ChunkRef, before: impl Fn(u64, DirectEntry) -> Option<u32>) -> Flight {
        let chain = self.chain_of(weak);
        let _held = self.hold(chain);
        let head = self.in_order(chain);
        let mut flight = Flight::new();
        if head.block == word(block) {
            flight.add(self.region.store_u64(self.head_offset(chain), 0).flush());
        } else {
            let Some(before) = before(chain, head) else { return flight };
            self.unlink(chain, before, self.links(block).next, &mut flight);
        }
        self.account(chain, u64::MAX);
        flight
    }

    /// Returns the memory and the work of the index.
    pub fn stats(&self) -> IndexStats {
        IndexStats {
            kind: IndexKind::Pm,
            entries: self.members.get(),
            dram_bytes: (self.locks.len() * size_of::<Padded<Mutex<()>>>() + self.segments.capacity() * 8) as u64,
            media_bytes: self.segments.len() as u64 * SEGMENT_BYTES,
            lookups: self.lookups.get(),
            reads: self.reads.get(),
            reordered: self.reordered.load(Ordering::Relaxed),
        }
    }

    /// Sets the number of entries from the saved state; for the mount.
    pub fn adopt(&self, entries: u64) {
        self.members.set(entries);
    }

    /// Begins to count entries chain by chain with [`Fact::tidy`]; for a mount after a crash.
    pub fn begin_count(&self) {
        self.members.set(0);
        self.counted.store(0, Ordering::Relaxed);
    }

    /// Ends the count that [`Fact::begin_count`] began: all chains are counted.
    pub fn end_count(&self) {
        self.counted.store(u64::MAX, Ordering::Relaxed);
    }

    /// Cleans up chains; for reconcile. Finishes or undoes reorders that a crash interrupted, unlinks entries that do
    /// not belong to their chain, and corrects the hints. The caller holds the freeze lock, so no chain changes
    /// meanwhile.
    pub fn tidy(&self, chains: Range<u64>) {
        let mut heads = vec![DirectEntry::default(); HEADS_AT_ONCE.min((chains.end - chains.start) as usize)];
        let mut first = chains.start;
        while first < chains.end {
            // Most heads are empty, so they are read in bulk.
            let in_segment = DIRECT_PER_SEGMENT - first % DIRECT_PER_SEGMENT;
            let count = (chains.end - first).min(in_segment).min(heads.len() as u64);
            let heads = &mut heads[..count as usize];
            self.region.scan_into(self.head_offset(first), heads.as_mut_bytes());
            let used = (first..).zip(heads.iter()).filter(|(_, head)| **head != DirectEntry::default());
            used.for_each(|(chain, _)| self.tidy_one(chain));
            first += count;
        }
        self.counted.store(chains.end, Ordering::Relaxed);
    }

    fn tidy_one(&self, chain: u64) {
        let _held = self.hold(chain);
        self.counted.store(chain + 1, Ordering::Relaxed);
        let head = self.in_order(chain);
        let mut flight = Flight::new();
        let direct = self.entries.chunk(head.block);
        let mut members = 0;
        if head.block != 0 && self.member(chain, direct).is_some_and(|entry| entry.weak == head.weak) {
            members += 1;
        } else if head.block != 0 {
            flight.add(self.region.store_u64(self.head_offset(chain), 0).flush());
        }
        let mut before = 0;
        let mut at = head.next;
        let mut met = HashSet::new();
        while at != 0 {
            let block = self.entries.chunk(at);
            if !self.is_data(block) || !met.insert(at) {
                // Damage: cut the chain here. Reconcile inserts the rest again from the chunk entries.
                self.unlink(chain, before, 0, &mut flight);
                break;
            }
            let Links { previous, next } = self.links(block);
            if self.member(chain, block).is_none() || block == direct {
                let is_of_chain = self.entry(block).delete_pointer == chain as u32;
                self.unlink(chain, before, if is_of_chain { next } else { 0 }, &mut flight);
                at = if is_of_chain { next } else { 0 };
                continue;
            }
            if previous != before {
                flight.extend(self.set_links(at, Links { previous: before, next }));
            }
            members += 1;
            (before, at) = (at, next);
        }
        let _ = self.region.fence(flight);
        self.members.add(members);
    }

    /// Does one step of reordering a chain, if a search asked for it. Returns true if there was nothing to do.
    pub fn reorder_step(&self) -> bool {
        let mut reordering = self.reordering.lock();
        *reordering = match reordering.take() {
            Some(reordering) => self.go_on(reordering),
            None => match self.deep.swap(0, Ordering::Relaxed).checked_sub(1) {
                Some(chain) => self.begin(chain),
                None => return true,
            },
        };
        false
    }

    /// Ends the reorder under way, if there is one, so that every chain is in order after an unmount (invariant 6).
    pub fn end_reordering(&self) {
        if let Some(Reordering { chain, .. }) = self.reordering.lock().take() {
            let _held = self.hold(chain);
            self.in_order(chain);
        }
    }

    /// Does step 1, unless the chain is sorted already.
    fn begin(&self, chain: u64) -> Option<Reordering> {
        let _held = self.hold(chain);
        let head = self.in_order(chain);
        let direct = Some(self.entries.chunk(head.block)).filter(|block| self.is_data(*block));
        let direct_is_missing = direct.is_none();
        let direct = direct.map(|block| (block, self.entry(block)));
        let blocks = direct.into_iter().chain(self.list(chain, head));
        let mut order: Vec<(u32, u32)> = blocks.map(|(block, entry)| (word(block), entry.count)).collect();
        if direct_is_missing || order.is_sorted_by(|one, other| one.1 >= other.1) {
            return None;
        }
        order.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let order = order.into_iter().map(|(block, _)| block).collect();
        let begun = DirectEntry { order: BEGUN, ..head };
        let _ = self.region.fence(self.set_list(chain, begun));
        Some(Reordering { chain, order, done: Step::Begun })
    }

    /// Does the next of steps 2 to 4. Gives up if the chain was changed since, because that ended the reorder.
    fn go_on(&self, reordering: Reordering) -> Option<Reordering> {
        let Reordering { chain, order, done } = reordering;
        let _held = self.hold(chain);
        let head = self.head(chain);
        let (first, list) = order.split_first()?;
        match done {
            Step::Begun | Step::PreviousSet if head.order != BEGUN => None,
            Step::Begun => {
                let mut flight = Flight::new();
                let mut previous = 0;
                for &at in list {
                    let next = self.links(self.entries.chunk(at)).next;
                    flight.extend(self.set_links(at, Links { previous, next }));
                    previous = at;
                }
                let _ = self.region.fence(flight);
                Some(Reordering { chain, order, done: Step::PreviousSet })
            }
            Step::PreviousSet => {
                let weak = self.entry(self.entries.chunk(*first)).weak;
                let committed = DirectEntry { weak, block: *first, next: head.next, order: *list.last()? };
                let _ = self.region.fence(self.region.store_u128(self.head_offset(chain), committed.encode()).flush());
                self.reordered.fetch_add(1, Ordering::Relaxed);
                Some(Reordering { chain, order, done: Step::Committed })
            }
            Step::Committed => {
                self.in_order(chain);
                None
            }
        }
    }

    /// Ends any reorder of a chain and returns the chain's head; for a caller that is about to change the chain.
    fn in_order(&self, chain: u64) -> DirectEntry {
        let head = self.head(chain);
        match head.order {
            0 => head,
            BEGUN => self.take_order_back(chain, head),
            _ => self.finish_order(chain, head),
        }
    }

    /// Makes `previous` follow `next` again. These are hints, so they may reach the media after the flag.
    fn take_order_back(&self, chain: u64, head: DirectEntry) -> DirectEntry {
        let mut flight = Flight::new();
        let mut previous = 0;
        for (block, entry) in self.list(chain, head) {
            flight.extend(self.set_links(word(block), Links { previous, next: entry.next }));
            previous = word(block);
        }
        let in_order = DirectEntry { order: 0, ..head };
        flight.add(self.set_list(chain, in_order));
        let _ = self.region.fence(flight);
        in_order
    }

    /// Does step 4: makes `next` follow `previous`.
    fn finish_order(&self, chain: u64, head: DirectEntry) -> DirectEntry {
        let mut flight = Flight::new();
        let mut next = 0;
        for (block, entry) in self.list(chain, head) {
            flight.extend(self.set_links(word(block), Links { previous: entry.previous, next }));
            next = word(block);
        }
        let _ = self.region.fence(flight);
        let in_order = DirectEntry { next, order: 0, ..head };
        let _ = self.region.fence(self.set_list(chain, in_order));
        in_order
    }

    /// Records a chain for reordering, if a search read too many entries before it found one with this count.
    fn note_depth(&self, chain: u64, reads: u32, count: u32) {
        if self.reorder.reads != 0 && reads >= self.reorder.reads && count >= self.reorder.references {
            self.deep.store(chain + 1, Ordering::Relaxed);
        }
    }

    /// Unlinks the entries between `before` (0: the head) and `after` (0: the end of the list).
    fn unlink(&self, chain: u64, before: u32, after: u32, flight: &mut Flight) {
        self.point(chain, before, after, flight);
        self.hint(after, before, flight);
    }

    /// Notes in an entry (0: the end of the list) that `previous` leads to it.
    fn hint(&self, entry: u32, previous: u32, flight: &mut Flight) {
        if entry != 0 && self.is_data(self.entries.chunk(entry)) {
            let links = self.links(self.entries.chunk(entry));
            flight.extend(self.set_links(entry, Links { previous, ..links }));
        }
    }

    /// Makes `from` (0: the head) lead to `to`.
    fn point(&self, chain: u64, from: u32, to: u32, flight: &mut Flight) {
        match from {
            0 => flight.add(self.set_list(chain, DirectEntry { next: to, ..self.head(chain) })),
            _ => flight.extend(self.set_links(from, Links { next: to, ..self.links(self.entries.chunk(from)) })),
        }
    }

    /// Searches a list for the predecessor of a block: another block, or 0 for the head. `None` if the block is not
    /// there.
    fn before(&self, chain: u64, head: DirectEntry, block: ChunkRef) -> Option<u32> {
        if head.next == word(block) {
            return Some(0);
        }
        let leads_here = |(_, entry): &(ChunkRef, ChunkEntry)| entry.next == word(block);
        self.list(chain, head).find(leads_here).map(|(before, _)| word(before))
    }

    /// Returns the predecessor of a block if the block's hint is correct. No hint counts in a chain that reconcile has
    /// not reached: it may name an entry that leads to the block and that a crash has left outside the chain.
    fn hinted(&self, chain: u64, head: DirectEntry, block: ChunkRef) -> Option<u32> {
        if !self.is_counted(chain) {
            return None;
        }
        let hint = self.links(block).previous;
        if hint == 0 {
            return (head.next == word(block)).then_some(0);
        }
        let entry = self.member(chain, self.entries.chunk(hint))?;
        (entry.next == word(block)).then_some(hint)
    }

    /// Returns the entry of a block if it belongs to this chain.
    fn member(&self, chain: u64, block: ChunkRef) -> Option<ChunkEntry> {
        let entry = self.is_data(block).then(|| self.entry(block))?;
        let weak = entry.weak(self.function)?;
        let is_of_chain = u64::from(entry.delete_pointer) == chain && self.chain_of(weak) == chain;
        (is_of_chain && entry.is_of(block) && entry.is_whole()).then_some(entry)
    }

    /// Iterates over the list behind a head, in search order.
    fn list(&self, chain: u64, head: DirectEntry) -> List<'_> {
        let is_committed = head.order != 0 && head.order != BEGUN;
        let at = if is_committed { head.order } else { head.next };
        List { fact: self, chain, at, backward: is_committed, tour: Tour::default() }
    }

    fn hold(&self, chain: u64) -> MutexGuard<'_, ()> {
        self.locks[lock_of(chain)].lock()
    }

    /// Takes locks, which are named in ascending order, each once: so no two threads wait for each other.
    fn hold_all(&self, locks: impl Iterator<Item = usize>) -> SmallVec<[MutexGuard<'_, ()>; BATCH]> {
        let mut held = SmallVec::new();
        let mut last = None;
        for lock in locks.filter(|lock| last.replace(*lock) != Some(*lock)) {
            held.push(self.locks[lock].lock());
        }
        held
    }

    /// Adds `change` to the number of entries; two's complement for a decrease.
    fn account(&self, chain: u64, change: u64) {
        if self.is_counted(chain) {
            self.members.add(change);
        }
    }

    /// True if reconcile has reached a chain, or has nothing to do.
    fn is_counted(&self, chain: u64) -> bool {
        chain < self.counted.load(Ordering::Relaxed)
    }

    fn is_data(&self, block: ChunkRef) -> bool {
        self.entries.exists(block)
    }

    /// Returns the device offset of the head of a chain.
    pub fn head_offset(&self, chain: u64) -> u64 {
        let segment = self.segments[(chain / DIRECT_PER_SEGMENT) as usize];
        segment * SEGMENT_BYTES + chain % DIRECT_PER_SEGMENT * DIRECT_BYTES
    }

    /// Prefetches the heads of the chains of these fingerprints.
    pub fn fetch(&self, weak: impl Iterator<Item = u32>) {
        let head = |weak| (self.head_offset(self.chain_of(weak)), DIRECT_BYTES);
        self.region.fetch(&weak.map(head).collect::<SmallVec<[_; 32]>>());
    }

    /// See [`super::index::Index::peek`]: looks only at the head.
    pub fn peek(&self, weak: u32) -> Sight {
        let head = self.head(self.chain_of(weak));
        let is_first = head.block != 0 && head.weak == weak;
        if is_first { Sight::Chunk(self.entries.chunk(head.block)) } else { Sight::Unclear }
    }

    fn head(&self, chain: u64) -> DirectEntry {
        DirectEntry::decode(self.region.load_u128(self.head_offset(chain)))
    }

    fn set_list(&self, chain: u64, head: DirectEntry) -> Pm<'_, u64, InFlight> {
        self.region.store_u64(self.head_offset(chain) + LIST_WORD, head.list_word()).flush()
    }

    /// Reads an entry. One in bad memory reads as empty: the chain ends there, and the search that reads it does not
    /// fail.
    fn entry(&self, block: ChunkRef) -> ChunkEntry {
        let offset = self.entries.offset(block);
        let entry = self.region.read(offset);
        let _ = self.region.sound_or_forget(offset, ENTRY_BYTES);
        entry
    }

    fn links(&self, block: ChunkRef) -> Links {
        let offset = self.entries.offset(block);
        let word = self.region.load_u64(offset + LINKS_WORD);
        let _ = self.region.sound_or_forget(offset, ENTRY_BYTES);
        Links { previous: word as u32, next: (word >> 32) as u32 }
    }

    /// Stores links. Links in bad memory stay as they are; code that follows them checks where they lead.
    fn set_links(&self, block: u32, links: Links) -> Flight {
        let mut flight = Flight::new();
        let offset = self.entries.offset(self.entries.chunk(block));
        if self.region.check_writable(offset, ENTRY_BYTES).is_ok() {
            let word = u64::from(links.next) << 32 | u64::from(links.previous);
            flight.add(self.region.store_u64(offset + LINKS_WORD, word).flush());
        }
        flight
    }
}

/// Whether a chunk enters its chain.
enum Admission {
    Enters,
    /// It is in the chain, or it stays outside because its entry is in bad memory.
    IsThere,
    Refused,
}

/// Returns the lock of a chain.
fn lock_of(chain: u64) -> usize {
    chain as usize % LOCKS
}

/// Iterator over the list of a chain.
struct List<'f> {
    fact: &'f Fact,
    chain: u64,
    at: u32,
    backward: bool,
    tour: Tour,
}

impl Iterator for List<'_> {
    type Item = (ChunkRef, ChunkEntry);

    /// Returns the next entry. The list also ends where a damaged chain leads to an entry of another chain.
    fn next(&mut self) -> Option<Self::Item> {
        let block = self.fact.entries.chunk(self.at);
        if self.at == 0 || !self.fact.is_data(block) || !self.tour.is_new(self.at) {
            return None;
        }
        let entry = self.fact.entry(block);
        if u64::from(entry.delete_pointer) != self.chain {
            return None;
        }
        self.at = if self.backward { entry.previous } else { entry.next };
        Some((block, entry))
    }
}

/// Detects that a damaged list is circular: the walk meets the block noted at the last power of two (Brent).
#[derive(Default)]
struct Tour {
    steps: u64,
    noted: u32,
}

impl Tour {
    fn is_new(&mut self, at: u32) -> bool {
        let is_new = at != self.noted;
        self.steps += 1;
        if self.steps.is_power_of_two() {
            self.noted = at;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::chunk_entry::{CountWord, tag};
    use crate::media::{BlockNumber, SEGMENT_BLOCKS};
    use pmem::{DeviceSpec, OpenOptions};

    const BYTES: u64 = 16 << 20;
    const CHAIN: u64 = 7;

    /// An index by itself, whose entries are written here.
    struct Table {
        fact: Fact,
        region: Region,
        first: BlockNumber,
    }

    impl Table {
        fn new() -> Table {
            let region = Region::create(&DeviceSpec::Memory, BYTES, &OpenOptions::default()).unwrap();
            let geometry = Geometry::of(BYTES).unwrap();
            let entries = Arc::new(Entries::new(geometry));
            let (reorder, segments) = (ReorderOptions { references: 1, reads: 2 }, vec![geometry.segments() - 1]);
            let fact = Fact::new(region.clone(), &geometry, entries, WeakFunction::Xxh3, segments, reorder);
            Table { fact, region, first: BlockNumber(geometry.first_segment() * SEGMENT_BLOCKS) }
        }

        /// Returns the fingerprint of the `number`-th of a chain.
        fn weak(&self, chain: u64, number: u64) -> u32 {
            ((chain << (32 - self.fact.bits)) | number) as u32
        }

        /// Writes the entry of the `at`-th block, which then has `at + 1` references.
        fn block(&self, at: u64, weak: u32) -> ChunkRef {
            let block = BlockNumber(self.first.0 + at);
            let word = CountWord { tag: tag::ADD, tx: 1, count: at as u32 + 1, update_count: 0 };
            let mut entry = ChunkEntry::for_block(block, word).with_weak(self.fact.function, weak);
            entry.delete_pointer = self.fact.chain_of(weak) as u32;
            let _ = self.region.fence(self.region.write(self.fact.entries.offset(block.into()), &entry).flush());
            block.into()
        }

        /// Makes `count` chunks of the chain that differ in their fingerprints.
        fn of_one_chain(&self, count: u64) -> Vec<(u32, ChunkRef)> {
            let of = |at| (self.weak(CHAIN, at), self.block(at, self.weak(CHAIN, at)));
            (0..count).map(of).collect()
        }

        fn insert(&self, new: &[(u32, ChunkRef)]) {
            let new: Vec<_> = new.iter().map(|(weak, chunk)| Insertion::always(*weak, *chunk)).collect();
            assert!(self.fact.insert_all(&new).is_empty());
        }

        /// Returns the members of the chain in order, whose links are as after any change without a reorder.
        fn members(&self) -> Vec<ChunkRef> {
            let head = self.fact.head(CHAIN);
            assert_eq!(head.order, 0);
            let mut members: Vec<_> =
                (head.block != 0).then(|| self.fact.entries.chunk(head.block)).into_iter().collect();
            let (mut before, mut next) = (0, head.next);
            for (chunk, entry) in self.fact.list(CHAIN, head) {
                assert_eq!((entry.previous, next), (before, word(chunk)));
                assert!(!members.contains(&chunk), "{chunk} is there twice");
                members.push(chunk);
                (before, next) = (next, entry.next);
            }
            assert_eq!(next, 0, "it ends where nothing is linked");
            members
        }

        fn fences(&self, work: impl FnOnce()) -> u64 {
            let before = self.region.counters().fences;
            work();
            self.region.counters().fences - before
        }
    }

    /// Returns all orders of the numbers below `count`.
    fn orders(count: usize) -> Vec<Vec<usize>> {
        let Some(last) = count.checked_sub(1) else { return vec![Vec::new()] };
        let with_last = |order: Vec<usize>| {
            (0..=last).map(move |at| [&order[..at], &[last], &order[at..]].concat()).collect::<Vec<_>>()
        };
        orders(last).into_iter().flat_map(with_last).collect()
    }

    fn sorted(mut chunks: Vec<ChunkRef>) -> Vec<ChunkRef> {
        chunks.sort_unstable();
        chunks
    }

    /// Four chunks enter in every order and in every division into batches, after none to three steps of a reorder of
    /// what is there, and leave in every order.
    #[test]
    fn a_chain_is_well_formed_after_batches_in_every_order() {
        let table = Table::new();
        let chunks = table.of_one_chain(6);
        for (order, number) in orders(4).into_iter().zip(0usize..) {
            for division in 0..8 {
                let steps = (number + division) % 4;
                table.insert(&chunks[4..]);
                table.fact.deep.store(CHAIN + 1, Ordering::Relaxed);
                (0..steps).for_each(|_| _ = table.fact.reorder_step());
                let mut batch = Vec::new();
                for (at, which) in order.iter().enumerate() {
                    batch.push(chunks[*which]);
                    if at == 3 || division & 1 << at != 0 {
                        table.insert(&std::mem::take(&mut batch));
                    }
                }
                while !table.fact.reorder_step() {}
                let mut left: Vec<ChunkRef> = chunks.iter().map(|(_, chunk)| *chunk).collect();
                assert_eq!(sorted(table.members()), left, "{order:?} in division {division}");
                for at in order.iter().copied().chain(4..6) {
                    let _ = table.region.fence(table.fact.remove(chunks[at].0, chunks[at].1));
                    left.retain(|chunk| *chunk != chunks[at].1);
                    assert_eq!(sorted(table.members()), left, "{order:?} in division {division}, without {at}");
                }
                assert_eq!(table.fact.members.get(), 0);
            }
        }
    }

    #[test]
    fn a_batch_takes_two_fences_and_one_if_all_links_are_right() {
        let table = Table::new();
        let chunks = table.of_one_chain(8);
        let other = |at| (table.weak(CHAIN + at, 0), table.block(20 + at, table.weak(CHAIN + at, 0)));
        let others: Vec<_> = (1..9).map(other).collect();
        assert_eq!(table.fences(|| table.insert(&others)), 1, "into eight empty chains");
        assert_eq!(table.fences(|| table.insert(&chunks[..1])), 1, "into an empty chain");
        assert_eq!(table.fences(|| table.insert(&chunks[1..2])), 1, "into an empty list");
        assert_eq!(table.fences(|| table.insert(&chunks[2..])), 2, "into a list");
        assert_eq!(table.fences(|| table.insert(&chunks)), 0, "they are there");
        let direct = table.members()[0];
        assert_eq!(direct, chunks[0].1);
        assert_eq!(table.members().len(), 8);
        assert_eq!(table.members()[1..7], chunks[2..].iter().map(|(_, chunk)| *chunk).collect::<Vec<_>>());
    }

    /// More chunks than a batch has, in more chains than there are locks.
    #[test]
    fn a_request_of_any_length_enters_all_its_chains() {
        let table = Table::new();
        let new = |at: u64| {
            let weak = table.weak(at * 5 % 700, at);
            (weak, table.block(at, weak))
        };
        let chunks: Vec<_> = (0..900).map(new).collect();
        table.insert(&chunks);
        for (weak, chunk) in &chunks {
            assert_eq!(table.fact.find(*weak, ChunkRef::NONE, |_| true), Some(*chunk));
        }
        assert_eq!(table.fact.members.get(), 900);
    }

    #[test]
    fn a_chunk_is_refused_if_an_unknown_one_has_its_fingerprint_also_in_its_own_batch() {
        let weak = |table: &Table| table.weak(CHAIN, 1);
        // The one that is there is the direct one, or in the list.
        for others in 0..2 {
            let table = Table::new();
            let weak = weak(&table);
            let there = table.block(5, weak);
            (0..others)
                .for_each(|at| table.insert(&[(table.weak(CHAIN, 90), table.block(90 + at, table.weak(CHAIN, 90)))]));
            let [one, two, three] = [1, 2, 3].map(|at| table.block(at, weak));
            let insert = |new: &[(ChunkRef, &[ChunkRef])]| {
                let new = new.iter().map(|(chunk, known)| Insertion { weak, chunk: *chunk, known: Some(known) });
                table.fact.insert_all(&new.collect::<Vec<_>>())
            };
            assert_eq!(insert(&[(there, &[])]), []);
            assert_eq!(insert(&[(one, &[])]), [one], "another one is there");
            assert_eq!(insert(&[(one, &[there]), (two, &[there])]), [two], "one is of the same batch");
            assert_eq!(insert(&[(one, &[there])]), [], "it is there itself");
            assert_eq!(insert(&[(two, &[there, one]), (three, &[there, one, two])]), []);
            assert_eq!(table.members().len(), 4 + others as usize);
        }
    }

    /// After a crash between the fences of a batch an entry outside leads into the chain, and the hint may say that it
    /// is in front.
    #[test]
    fn the_hint_of_an_interrupted_insertion_does_not_count() {
        let table = Table::new();
        let chunks = table.of_one_chain(4);
        table.insert(&chunks[..3]);
        let first = table.members()[1];
        let outside = word(chunks[3].1);
        let (own, hint) =
            (Links { previous: 0, next: word(first) }, Links { previous: outside, ..table.fact.links(first) });
        let stored = (table.fact.set_links(outside, own), table.fact.set_links(word(first), hint));
        let _ = table.region.fence(stored);
        table.fact.begin_count();
        let weak = chunks.iter().find(|(_, chunk)| *chunk == first).unwrap().0;
        let _ = table.region.fence(table.fact.remove(weak, first));
        table.fact.tidy(0..table.fact.chains());
        table.fact.end_count();
        assert!(!table.members().contains(&first), "it was taken out");
        table.insert(&chunks[3..]);
        assert_eq!((table.members().len(), table.fact.members.get()), (3, 3));
    }
}
