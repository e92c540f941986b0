//! The recorder: all accesses that change the media, in sequence, and the states that a crash could leave.
//!
//! **The crash model.** Stores are split into aligned 8-byte words; the medium writes a word completely or not at
//! all. A word is guaranteed once its line was flushed (or it was streamed) and the same thread fenced after that.
//! Until then a crash leaves it written or not. There is one rule: a later store to the *same word* carries the
//! earlier ones with it, because the cache holds one copy of the word. Two media are modelled ([`StoreOrder`]): one
//! that keeps no other order, and x86, which also keeps the order of cached stores to one line. Streamed words of a
//! line have no order among them in either.
//!
//! Memory that is given back ([`Action::Punch`]) reads as zeros. No fence waits for that: the host's file system
//! writes the hole at any later time, so a crash leaves each page as it was or zero. A later store to the page
//! settles it, because the write fault that allocates memory again is synchronous (MAP_SYNC); so does
//! [`Action::SettleHoles`].
//!
//! Each event names the line of code that caused it ([`Event::site`]), so a test can leave out a single flush or
//! fence of the program and see whether any check notices.
//!
//! [`Pending`] plays events forward and knows which words a crash may leave unwritten; [`Replay`] adds the media to
//! that, and [`Recording`] answers for one point of a recording at once.

use crate::LINE_BYTES;
use std::collections::{HashMap, HashSet};
use std::panic::Location;

const WORD_BYTES: u64 = 8;
/// The unit that the host takes back.
const PAGE_BYTES: u64 = crate::BLOCK_BYTES;

/// The line of code that caused an event.
pub type Site = &'static Location<'static>;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Number of the thread that did it.
    pub thread: usize,
    /// The line of code that called the `Region` or the handle.
    pub site: Site,
    /// What happened.
    pub action: Action,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Bytes stored through the cache.
    Store {
        /// Device offset.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
        /// Whether this is an aligned pair of words, stored at once (cmpxchg16b): no line that holds half of it ever
        /// leaves the cache.
        at_once: bool,
    },
    /// Bytes stored past the cache: in flight at once.
    Stream {
        /// Device offset.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The flush of the lines that a range touches.
    Flush {
        /// Device offset.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// A fence: what this thread has in flight is guaranteed.
    Fence,
    /// Whole pages given back to the host; they read as zeros.
    Punch {
        /// Device offset.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// All holes are on the media.
    SettleHoles,
}

/// Which stores a medium may reorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreOrder {
    /// Any two, except stores to the same word.
    AnyWord,
    /// Any two, except cached stores to the same line: the order of x86.
    Line,
}

/// A part of one word, or a page that was given back: a crash may or may not leave it on the media.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingWord {
    /// Device offset of its first byte.
    pub offset: u64,
    /// Number of the event that stored it, counted from the first that was played.
    pub event: usize,
    /// Whether it was streamed past the cache.
    pub streamed: bool,
    /// Whether this is not a word but a page of 4096 bytes that was given back: zeros.
    pub punched: bool,
    bytes: [u8; WORD_BYTES as usize],
    length: u8,
    /// Whether this is half of a pair that was stored at once; the other half is its neighbour in the list.
    at_once: bool,
    /// Threads whose next fence guarantees the word.
    in_flight_of: Vec<usize>,
}

impl PendingWord {
    /// Returns the bytes, 1 to 8 within one aligned word; none for a page that was given back.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Returns whether it was flushed or streamed, so that a fence would guarantee it.
    pub fn is_in_flight(&self) -> bool {
        !self.in_flight_of.is_empty()
    }

    /// Returns the number of the line that holds it.
    pub fn line(&self) -> u64 {
        self.offset / LINE_BYTES
    }

    fn word(&self) -> u64 {
        self.offset / WORD_BYTES
    }

    fn page(&self) -> u64 {
        self.offset / PAGE_BYTES
    }

    fn apply(&self, image: &mut [u8]) {
        let start = self.offset as usize;
        if self.punched {
            return image[start..start + PAGE_BYTES as usize].fill(0);
        }
        image[start..start + self.bytes().len()].copy_from_slice(self.bytes());
    }
}

/// The events since recording began or since the last `take_recording`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// The events, in order.
    pub events: Vec<Event>,
}

impl Recording {
    /// Returns the words not guaranteed after the first `events` events, in the order of their stores.
    pub fn unguaranteed(&self, events: usize) -> Vec<PendingWord> {
        let mut pending = Pending::default();
        self.events[..events].iter().for_each(|event| drop(pending.play(event)));
        pending.words
    }

    /// Returns the media after a crash behind the first `events` events. `base` is the media when recording began;
    /// `reached` says for each unguaranteed word whether it reached the media.
    pub fn image(
        &self,
        base: &[u8],
        events: usize,
        order: StoreOrder,
        reached: impl FnMut(&PendingWord) -> bool,
    ) -> Vec<u8> {
        let mut replay = Replay::new(base);
        replay.advance(self, events);
        replay.image(order, reached)
    }
}

/// The words that are stored but not guaranteed, updated as events are played.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    words: Vec<PendingWord>,
    events_played: usize,
}

impl Pending {
    /// Plays one event; returns the words that it guaranteed, in the order of their stores.
    pub fn play(&mut self, event: &Event) -> Vec<PendingWord> {
        let (number, thread) = (self.events_played, event.thread);
        self.events_played += 1;
        match &event.action {
            Action::Store { offset, bytes, at_once } => {
                let settled = self.settle_punched(*offset, bytes.len() as u64);
                self.words.extend(words(*offset, bytes, number, None, *at_once));
                return settled;
            }
            Action::Stream { offset, bytes } => {
                let settled = self.settle_punched(*offset, bytes.len() as u64);
                self.words.extend(words(*offset, bytes, number, Some(thread), false));
                return settled;
            }
            Action::Flush { offset, length } => self.flush(thread, *offset, *length),
            Action::Fence => return self.fence(thread),
            Action::Punch { offset, length } => self.words.extend(pages(*offset, *length, number)),
            Action::SettleHoles => return self.settle_punched(0, u64::MAX),
        }
        Vec::new()
    }

    /// Returns the words not guaranteed now, in the order of their stores.
    pub fn words(&self) -> &[PendingWord] {
        &self.words
    }

    /// Returns which of the words a crash leaves if those for which `reached` is true got to the media, with the
    /// words that they carry with them.
    pub fn carried(&self, order: StoreOrder, reached: impl FnMut(&PendingWord) -> bool) -> Vec<bool> {
        let mut there: Vec<bool> = self.words.iter().map(reached).collect();
        let mut words_there = HashSet::new();
        let mut lines_there = HashSet::new();
        let mut punched_there = HashSet::new();
        for at in (0..self.words.len()).rev() {
            let in_line_order = |word: &PendingWord| order == StoreOrder::Line && !word.streamed;
            let is_carried = |word: &PendingWord| {
                words_there.contains(&word.word())
                    || (in_line_order(word) && lines_there.contains(&word.line()))
                    || punched_there.contains(&word.page())
            };
            // The loop runs backwards: the second half of a pair comes first, and decides for both.
            let halves = if self.is_second_half(at) { at - 1..=at } else { at..=at };
            there[at] = halves.into_iter().any(|half| there[half] || is_carried(&self.words[half]));
            there[at] |= self.is_second_half(at + 1) && there[at + 1];
            if there[at] && self.words[at].punched {
                punched_there.insert(self.words[at].page());
            } else if there[at] {
                words_there.insert(self.words[at].word());
                if in_line_order(&self.words[at]) {
                    lines_there.insert(self.words[at].line());
                }
            }
        }
        there
    }

    fn is_second_half(&self, at: usize) -> bool {
        let first = at.checked_sub(1).and_then(|first| self.words.get(first));
        let second = self.words.get(at).filter(|second| second.at_once);
        first.zip(second).is_some_and(|(first, second)| first.event == second.event)
    }

    /// Settles the holes that a store touches: it gives these pages memory again. The hole is then on the media, and
    /// what was stored to the pages before it is gone.
    fn settle_punched(&mut self, offset: u64, length: u64) -> Vec<PendingWord> {
        let pages = offset / PAGE_BYTES..offset.saturating_add(length).div_ceil(PAGE_BYTES);
        let is_punched = |word: &PendingWord| word.punched && pages.contains(&word.page());
        let Some(last) = self.words.iter().rposition(is_punched) else { return Vec::new() };
        let punched: HashMap<u64, usize> = self
            .words
            .iter()
            .enumerate()
            .filter(|(_, word)| is_punched(word))
            .map(|(at, word)| (word.page(), at))
            .collect();
        let pending = std::mem::take(&mut self.words).into_iter().enumerate();
        let (settled, rest): (Vec<_>, Vec<_>) =
            pending.partition(|(at, word)| *at <= last && punched.get(&word.page()).is_some_and(|last| at <= last));
        self.words = rest.into_iter().map(|(_, word)| word).collect();
        settled.into_iter().map(|(_, word)| word).collect()
    }

    fn flush(&mut self, thread: usize, offset: u64, length: u64) {
        let lines = offset / LINE_BYTES..(offset + length).div_ceil(LINE_BYTES);
        for word in self.words.iter_mut().filter(|word| !word.punched && lines.contains(&word.line())) {
            if !word.in_flight_of.contains(&thread) {
                word.in_flight_of.push(thread);
            }
        }
    }

    /// Settles the words that the thread has in flight, and earlier stores to the same words, which are overwritten
    /// for good.
    fn fence(&mut self, thread: usize) -> Vec<PendingWord> {
        let in_flight = self.words.iter().enumerate().filter(|(_, word)| word.in_flight_of.contains(&thread));
        let last: HashMap<u64, usize> = in_flight.map(|(at, word)| (word.word(), at)).collect();
        let pending = std::mem::take(&mut self.words).into_iter().enumerate();
        let (settled, rest): (Vec<_>, Vec<_>) =
            pending.partition(|(at, word)| last.get(&word.word()).is_some_and(|last| at <= last));
        self.words = rest.into_iter().map(|(_, word)| word).collect();
        settled.into_iter().map(|(_, word)| word).collect()
    }
}

/// A recording played forward: the guaranteed content so far, and the words that are pending.
#[derive(Clone, Debug)]
pub struct Replay {
    guaranteed: Vec<u8>,
    pending: Pending,
}

impl Replay {
    /// Starts before the first event, with the media of that time.
    pub fn new(base: &[u8]) -> Replay {
        Replay { guaranteed: base.to_vec(), pending: Pending::default() }
    }

    /// Plays on until `events` events have been played.
    pub fn advance(&mut self, recording: &Recording, events: usize) {
        for event in &recording.events[self.pending.events_played.min(events)..events] {
            for settled in self.pending.play(event) {
                settled.apply(&mut self.guaranteed);
            }
        }
    }

    /// Returns the words not guaranteed now, in the order of their stores.
    pub fn unguaranteed(&self) -> &[PendingWord] {
        self.pending.words()
    }

    /// Returns the media after a crash now, with the words for which `reached` is true and the words that they carry
    /// with them.
    pub fn image(&self, order: StoreOrder, reached: impl FnMut(&PendingWord) -> bool) -> Vec<u8> {
        let mut image = self.guaranteed.clone();
        let there = self.pending.carried(order, reached);
        let reached = self.pending.words().iter().zip(there).filter(|(_, there)| *there);
        reached.for_each(|(word, _)| word.apply(&mut image));
        image
    }
}

/// Returns the pages of a range that was given back.
fn pages(offset: u64, length: u64, event: usize) -> impl Iterator<Item = PendingWord> {
    (offset..offset + length).step_by(PAGE_BYTES as usize).map(move |offset| PendingWord {
        offset,
        event,
        streamed: false,
        punched: true,
        bytes: [0; WORD_BYTES as usize],
        length: 0,
        at_once: false,
        in_flight_of: Vec::new(),
    })
}

/// Splits a store into parts of aligned words.
fn words(
    offset: u64,
    bytes: &[u8],
    event: usize,
    streamed_by: Option<usize>,
    at_once: bool,
) -> impl Iterator<Item = PendingWord> {
    let head = ((offset.next_multiple_of(WORD_BYTES) - offset) as usize).min(bytes.len());
    let (head, rest) = bytes.split_at(head);
    let parts = std::iter::once(head).filter(|head| !head.is_empty()).chain(rest.chunks(WORD_BYTES as usize));
    parts.scan(offset, move |at, part| {
        let start = *at;
        *at += part.len() as u64;
        let mut bytes = [0; WORD_BYTES as usize];
        bytes[..part.len()].copy_from_slice(part);
        Some(PendingWord {
            offset: start,
            event,
            streamed: streamed_by.is_some(),
            punched: false,
            bytes,
            length: part.len() as u8,
            at_once,
            in_flight_of: streamed_by.into_iter().collect(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(thread: usize, action: Action) -> Event {
        Event { thread, site: Location::caller(), action }
    }

    fn store(thread: usize, offset: u64, bytes: &[u8]) -> Event {
        event(thread, Action::Store { offset, bytes: bytes.to_vec(), at_once: false })
    }

    fn store_pair(thread: usize, offset: u64, bytes: &[u8; 16]) -> Event {
        event(thread, Action::Store { offset, bytes: bytes.to_vec(), at_once: true })
    }

    fn stream(thread: usize, offset: u64, bytes: &[u8]) -> Event {
        event(thread, Action::Stream { offset, bytes: bytes.to_vec() })
    }

    fn flush(thread: usize, offset: u64) -> Event {
        event(thread, Action::Flush { offset, length: 1 })
    }

    fn fence(thread: usize) -> Event {
        event(thread, Action::Fence)
    }

    fn pending_offsets(events: &[Event]) -> Vec<u64> {
        let recording = Recording { events: events.to_vec() };
        recording.unguaranteed(events.len()).iter().map(|word| word.offset).collect()
    }

    #[test]
    fn a_pair_reaches_the_media_completely_with_earlier_stores_to_its_words() {
        let events = [store(0, 8, &[1; 8]), store_pair(0, 0, &[2; 16]), store(0, 0, &[3; 8])];
        let at = |chosen: usize| {
            let mut position = 0;
            let choose = |_: &PendingWord| {
                position += 1;
                position - 1 == chosen
            };
            Recording { events: events.to_vec() }.image(&[0; 64], 3, StoreOrder::AnyWord, choose)[..16].to_vec()
        };
        assert_eq!(at(0), [[0; 8], [1; 8]].concat());
        assert_eq!((at(1), at(2)), (vec![2; 16], vec![2; 16]), "both halves, whichever is chosen");
        assert_eq!(at(3), [[3; 8], [2; 8]].concat(), "a later store to one half carries the pair");
    }

    #[test]
    fn a_punched_page_is_unchanged_or_zero_until_the_next_store() {
        let punch = event(0, Action::Punch { offset: 0, length: 2 * PAGE_BYTES });
        let old = [7; 3 * PAGE_BYTES as usize];
        let image = |events: &[Event], reached: &[u64]| {
            let recording = Recording { events: events.to_vec() };
            let is_reached = |word: &PendingWord| word.punched && reached.contains(&word.offset);
            let image = recording.image(&old, events.len(), StoreOrder::AnyWord, is_reached);
            [0, PAGE_BYTES, 2 * PAGE_BYTES].map(|at| image[at as usize])
        };
        let fenced = [store(0, 8, &[1; 8]), punch.clone(), fence(0)];
        assert_eq!(image(&fenced, &[]), [7, 7, 7], "no fence waits for the host");
        assert_eq!((image(&fenced, &[0]), image(&fenced, &[PAGE_BYTES])), ([0, 7, 7], [7, 0, 7]));
        let stored = [store(0, 8, &[1; 8]), punch, store(0, 16, &[2; 8])];
        assert_eq!(pending_offsets(&stored), [PAGE_BYTES, 16], "the first page has memory again");
        assert_eq!(image(&stored, &[]), [0, 7, 7]);
        let settled = [stored[0].clone(), stored[1].clone(), event(1, Action::SettleHoles)];
        assert_eq!(pending_offsets(&settled), [], "the host has written the holes down");
        assert_eq!(image(&settled, &[]), [0, 0, 7]);
    }

    /// Returns the crash image for a choice of pending words by their positions in the list.
    fn image(events: &[Event], order: StoreOrder, reached: &[usize]) -> Vec<u8> {
        let recording = Recording { events: events.to_vec() };
        let mut at = 0;
        let choose = |_: &PendingWord| {
            at += 1;
            reached.contains(&(at - 1))
        };
        recording.image(&[0; 256], events.len(), order, choose)
    }

    #[test]
    fn only_what_was_flushed_and_then_fenced_by_the_same_thread_is_guaranteed() {
        let stored = store(0, 0, &[1; 8]);
        assert_eq!(pending_offsets(std::slice::from_ref(&stored)), [0]);
        assert_eq!(pending_offsets(&[stored.clone(), flush(0, 0)]), [0]);
        assert_eq!(pending_offsets(&[stored.clone(), fence(0)]), [0]);
        assert_eq!(pending_offsets(&[stored.clone(), fence(0), flush(0, 0)]), [0]);
        assert_eq!(pending_offsets(&[stored.clone(), flush(0, 64), fence(0)]), [0]);
        assert_eq!(pending_offsets(&[stored.clone(), flush(0, 0), fence(1)]), [0]);
        assert_eq!(pending_offsets(&[stored.clone(), flush(0, 0), fence(0)]), []);
        assert_eq!(pending_offsets(&[stored.clone(), flush(1, 63), fence(1)]), [], "any thread can flush a line");
        assert_eq!(pending_offsets(&[stored, flush(0, 0), flush(1, 0), fence(1)]), []);
        assert_eq!(pending_offsets(&[stream(0, 64, &[1; 16])]), [64, 72]);
        assert_eq!(pending_offsets(&[stream(0, 64, &[1; 16]), fence(0)]), []);
    }

    #[test]
    fn a_store_after_the_flush_is_not_covered_by_it() {
        let events = [store(0, 0, &[1; 8]), flush(0, 0), store(0, 0, &[2; 8]), fence(0)];
        assert_eq!(pending_offsets(&events), [0]);
        assert_eq!(image(&events, StoreOrder::AnyWord, &[])[0], 1);
        assert_eq!(image(&events, StoreOrder::AnyWord, &[0])[0], 2);
    }

    #[test]
    fn a_guaranteed_word_is_never_undone_by_an_older_store() {
        let events = [store(0, 0, &[1; 8]), stream(1, 0, &[2; 8]), fence(1)];
        assert_eq!(pending_offsets(&events), []);
        assert_eq!(image(&events, StoreOrder::AnyWord, &[])[0], 2);
    }

    #[test]
    fn stores_are_split_into_aligned_words() {
        let events = [store(0, 5, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])];
        let recording = Recording { events: events.to_vec() };
        let parts: Vec<_> =
            recording.unguaranteed(1).into_iter().map(|word| (word.offset, word.bytes().to_vec())).collect();
        assert_eq!(parts, [(5, vec![1, 2, 3]), (8, vec![4, 5, 6, 7, 8, 9, 10, 11]), (16, vec![12])]);
    }

    #[test]
    fn a_word_that_reaches_the_media_includes_earlier_stores_to_it() {
        let events = [store(0, 0, &[1; 4]), store(0, 4, &[2; 4])];
        assert_eq!(image(&events, StoreOrder::AnyWord, &[1])[..8], [1, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(image(&events, StoreOrder::AnyWord, &[0])[..8], [1, 1, 1, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn line_order_keeps_the_order_of_cached_stores_to_one_line_only() {
        let events = [store(0, 0, &[1; 8]), store(0, 64, &[2; 8]), store(0, 8, &[3; 8])];
        let first_bytes = |image: Vec<u8>| (image[0], image[64], image[8]);
        assert_eq!(first_bytes(image(&events, StoreOrder::AnyWord, &[2])), (0, 0, 3));
        assert_eq!(first_bytes(image(&events, StoreOrder::Line, &[2])), (1, 0, 3));
        let streamed = [stream(0, 0, &[1; 16])];
        assert_eq!(image(&streamed, StoreOrder::Line, &[1])[..9], [0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn a_replay_in_steps_equals_a_replay_at_once() {
        let events = vec![
            store(0, 0, &[1; 24]),
            flush(0, 0),
            stream(1, 128, &[2; 64]),
            fence(0),
            store(0, 8, &[3; 8]),
            fence(1),
            stream(0, 0, &[4; 8]),
        ];
        let recording = Recording { events };
        let mut steps = Replay::new(&[0; 256]);
        for events in 0..=recording.events.len() {
            steps.advance(&recording, events);
            let mut once = Replay::new(&[0; 256]);
            once.advance(&recording, events);
            assert_eq!(steps.image(StoreOrder::Line, |_| true), once.image(StoreOrder::Line, |_| true));
            assert_eq!(steps.unguaranteed(), recording.unguaranteed(events));
        }
    }
}
