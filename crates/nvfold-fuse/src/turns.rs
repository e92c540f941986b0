//! Which of the threads that answer the kernel waits for the next request, and how.
//!
//! The problem: a request takes the server a few microseconds, and waking it takes more than that, above all when the
//! thread that sleeps is on another core. And each request wakes a sleeping thread, also when another one would have
//! taken it without being woken.
//!
//! The idea: while requests come in quick succession, one thread alone listens, and looks for the next request for some
//! microseconds before it sleeps; the others stay away from the kernel.
//!
//! ```text
//! answered -> does another thread listen? -- yes, nothing waits --> parked, until it is released
//!                    | no
//!                    v
//!             spins: asks the kernel whether a request waits, until one does or the time is over -> sleeps in read(2)
//!
//! released: one,  when a request is taken that takes long, or while another one waits
//!           all,  when requests come so seldom that spinning does not pay, when nothing was answered for a tick (a short
//!                 request may wait for a lock), and when the session ends
//! ```
//!
//! Whether spinning pays is seen from the last eight requests: half of them came within the time that would be spun.
//! So a mount that is idle takes no processor time, and one that is used takes for a request no more than that time.
//! The core is offered to others after each look. When somebody takes it, again and again, all cores are wanted, and
//! nobody spins for the next requests: for 64 at first, for twice as many each time that it is so again.
//!
//! A thread parks only while another one listens that would tell it of the end of the session (its [`Seat`] is dropped
//! with the thread). At first no thread has a seat, so all listen.

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long parked threads stay parked while nothing is answered.
const TICK: Duration = Duration::from_millis(2);
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Requests that are remembered, and how many of them must have come soon.
const REMEMBERED: u32 = u8::BITS;
const SOON_ENOUGH: u32 = REMEMBERED / 2;
/// A look and an offer of the core that take longer: somebody else had it.
const LOOK: Duration = Duration::from_micros(8);
/// Of the last eight times that somebody spun, how often the core was taken when all cores are wanted.
const TAKEN_OFTEN: u32 = 3;
/// For how many requests nobody spins then.
const PAUSE_LEAST: u32 = 64;
const PAUSE_MOST: u32 = 1 << 13;

#[derive(Default)]
struct State {
    /// Threads with a seat that wait for a request.
    listening: u32,
    parked: u32,
    /// Parked threads that may go on.
    released: u32,
    /// Requests that were answered.
    answered: u64,
    /// The last times that somebody spun, a bit each: set if somebody else took the core.
    taken: u8,
    /// Requests until somebody may spin again, and how many there were the last time.
    pause: u32,
    last_pause: u32,
    ended: bool,
}

impl State {
    fn release_all(&mut self) {
        self.released = self.parked;
    }

    /// Somebody has spun, and somebody else took the core or did not.
    fn spun(&mut self, is_taken: bool) {
        self.taken = self.taken << 1 | u8::from(is_taken);
        if self.taken.count_ones() >= TAKEN_OFTEN {
            self.taken = 0;
            self.last_pause = (2 * self.last_pause).clamp(PAUSE_LEAST, PAUSE_MOST);
            self.pause = self.last_pause;
        } else if self.taken == 0 {
            self.last_pause -= self.last_pause.min(1);
        }
    }
}

/// See the module.
pub struct Turns {
    /// How long to look for the next request before sleeping; `None`: all threads sleep in read(2) at once.
    spin: Option<Duration>,
    /// The connection to the kernel.
    connection: Arc<OwnedFd>,
    /// The last requests, a bit each: set for one that came within `spin`.
    came_soon: AtomicU8,
    state: Mutex<State>,
    released: Condvar,
    first_parked: Condvar,
}

/// The place of a thread that answers requests.
pub struct Seat {
    turns: Arc<Turns>,
    /// It has answered a request, and waits for the next one, since then.
    listens_since: Option<Instant>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.turns.end(self.listens_since.is_some());
    }
}

/// A request that a thread answers. When it is dropped the thread waits for the next one.
#[must_use]
pub struct Turn<'s>(&'s mut Seat);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.0.turns.spin.is_some() {
            self.0.answered();
        }
    }
}

impl Turns {
    /// Nobody listens yet.
    pub fn new(spin: Option<Duration>, connection: Arc<OwnedFd>) -> Arc<Turns> {
        let turns = Arc::new(Turns {
            spin,
            connection,
            came_soon: AtomicU8::new(0),
            state: Mutex::default(),
            released: Condvar::new(),
            first_parked: Condvar::new(),
        });
        if spin.is_some() {
            let turns = turns.clone();
            thread::spawn(move || turns.watch());
        }
        turns
    }

    /// A place for this thread.
    pub fn sit(self: &Arc<Self>) -> Seat {
        Seat { turns: self.clone(), listens_since: None }
    }
}

impl Seat {
    /// This thread has been given a request; `takes_long`: others should not wait for it.
    pub fn begin(&mut self, takes_long: bool) -> Turn<'_> {
        if let Some(spin) = self.turns.spin {
            let listened = self.listens_since.take();
            self.turns.taken(listened.map(|since| since.elapsed() < spin), takes_long);
        }
        Turn(self)
    }

    /// This thread has answered its request.
    fn answered(&mut self) {
        let must_look = self.turns.answered();
        self.listens_since = Some(Instant::now());
        if must_look {
            self.turns.look_for_one();
        }
    }
}

impl Turns {
    /// A request was taken. `came_soon`: whether it came within the time that would be spun, of a thread that listened.
    fn taken(&self, came_soon: Option<bool>, takes_long: bool) {
        if let Some(came_soon) = came_soon {
            // Two threads at once: one of their requests is not remembered.
            self.came_soon.store(self.came_soon.load(Ordering::Relaxed) << 1 | u8::from(came_soon), Ordering::Relaxed);
        }
        let (is_anybody_parked, does_anybody_listen) = {
            let mut state = self.state.lock();
            state.listening -= u32::from(came_soon.is_some());
            (state.parked > state.released, state.listening > 0)
        };
        if is_anybody_parked && !does_anybody_listen && (takes_long || self.does_one_wait()) {
            self.release(1);
        }
    }

    /// A request was answered. Parks the thread if another one listens; true if it is to look for the next request.
    fn answered(&self) -> bool {
        let mut state = self.state.lock();
        state.answered += 1;
        let pays = state.pause == 0 && self.do_requests_come_soon();
        state.pause = state.pause.saturating_sub(1);
        if pays && state.listening > 0 && !state.ended && !self.does_one_wait() {
            state.parked += 1;
            if state.parked == 1 {
                self.first_parked.notify_one();
            }
            while state.released == 0 && !state.ended {
                self.released.wait(&mut state);
            }
            state.parked -= 1;
            state.released = state.released.saturating_sub(1);
        } else if !pays && state.parked > 0 {
            state.release_all();
            self.released.notify_all();
        }
        state.listening += 1;
        pays && state.listening == 1
    }

    fn release(&self, threads: u32) {
        let mut state = self.state.lock();
        state.released = (state.released + threads).min(state.parked);
        self.released.notify_one();
    }

    fn do_requests_come_soon(&self) -> bool {
        self.came_soon.load(Ordering::Relaxed).count_ones() >= SOON_ENOUGH
    }

    /// Waits for a request, for the time that may be spun.
    fn look_for_one(&self) {
        let mut looked = Instant::now();
        let until = looked + self.spin.unwrap_or_default();
        let mut is_taken = false;
        while !is_taken && !self.does_one_wait() && looked < until {
            rustix::thread::sched_yield();
            let now = Instant::now();
            is_taken = now - looked > LOOK;
            looked = now;
        }
        self.state.lock().spun(is_taken);
    }

    /// Whether read(2) would return at once: with a request, or with the end of the session.
    fn does_one_wait(&self) -> bool {
        let mut looked = [PollFd::from_borrowed_fd(self.connection.as_fd(), PollFlags::IN)];
        poll(&mut looked, Some(&AT_ONCE)).is_ok_and(|ready| ready > 0)
    }

    /// Releases all parked threads when nothing was answered for a tick.
    fn watch(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            if state.parked == 0 {
                self.first_parked.wait(&mut state);
                continue;
            }
            let answered = state.answered;
            self.first_parked.wait_for(&mut state, TICK);
            if state.answered == answered && state.parked > 0 {
                state.release_all();
                self.released.notify_all();
            }
        }
    }

    /// A thread ends, and so does the session.
    fn end(&self, listened: bool) {
        let mut state = self.state.lock();
        state.listening -= u32::from(listened);
        state.ended = true;
        self.released.notify_all();
        self.first_parked.notify_all();
    }
}
