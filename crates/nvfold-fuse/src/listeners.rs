//! Decides which thread waits for the next request from the kernel, and how.
//!
//! The problem: the server handles a request in a few microseconds, and waking a thread takes longer than that, above
//! all if the thread sleeps on another core. Each request wakes a sleeping thread even if another thread would have
//! taken the request without a wake-up.
//!
//! The idea: while requests come in quick succession, only one thread listens. It spins for the next request for some
//! microseconds before it sleeps; the other threads do not wait in the kernel.
//!
//! ```text
//! answered -> does another thread listen? -- yes, nothing waits --> parked, until it is released
//!                    | no
//!                    v
//!             spins: asks the kernel whether a request waits, until one does or the time is over -> sleeps in read(2)
//!
//! released: one,  when a thread takes a request that takes long, or while another request waits
//!           all,  when requests come so seldom that spinning does not pay, when no request was answered for a tick (a
//!                 short request may wait for a lock), and when the session ends
//! ```
//!
//! Spinning pays if half of the last eight requests came within the time to spin. So an idle mount takes no processor
//! time, and a busy mount spends at most that time per request. A spinning thread yields the core after each look. If
//! other threads take the core again and again, all cores are in use, and no thread spins for the next 64 requests;
//! each further time the number doubles.
//!
//! A thread parks only while another thread listens. That one notices the end of the session and drops its
//! [`Listener`], which releases the parked threads. At the start no thread has one, so all threads listen.

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long threads stay parked while no request is answered.
const TICK: Duration = Duration::from_millis(2);
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// How many requests are remembered, and how many of them must have come soon.
const REMEMBERED: u32 = u8::BITS;
const SOON_ENOUGH: u32 = REMEMBERED / 2;
/// If one look and one yield take longer than this, another thread had the core.
const LOOK: Duration = Duration::from_micros(8);
/// Spinning pauses when the core was taken in this many of the last eight spins.
const TAKEN_OFTEN: u32 = 3;
/// The number of requests without spinning: the first pause, and the longest one.
const PAUSE_LEAST: u32 = 64;
const PAUSE_MOST: u32 = 1 << 13;

#[derive(Default)]
struct State {
    /// The number of registered threads that wait for a request.
    listening: u32,
    parked: u32,
    /// The number of parked threads that may go on.
    released: u32,
    /// The number of requests answered so far.
    answered: u64,
    /// The last eight spins, one bit each: set if another thread took the core.
    taken: u8,
    /// How many requests remain until a thread may spin again, and the length of the last pause.
    pause: u32,
    last_pause: u32,
    ended: bool,
}

impl State {
    fn release_all(&mut self) {
        self.released = self.parked;
    }

    /// Records a spin. `is_taken`: another thread took the core meanwhile.
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

/// State shared by the threads; see the module.
pub(crate) struct Listeners {
    /// How long to spin for the next request before sleeping; `None`: all threads sleep in read(2) at once.
    spin: Option<Duration>,
    /// The connection to the kernel.
    connection: Arc<OwnedFd>,
    /// The last eight requests, one bit each: set if the request came within `spin`.
    came_soon: AtomicU8,
    state: Mutex<State>,
    released: Condvar,
    first_parked: Condvar,
}

/// The registration of a thread that answers requests.
pub(crate) struct Listener {
    listeners: Arc<Listeners>,
    /// Set while the thread waits for its next request: the time at which it answered the last one.
    listens_since: Option<Instant>,
    /// True if the thread ends while the session goes on.
    has_left: bool,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.has_left {
            self.listeners.end(self.listens_since.is_some());
        }
    }
}

/// A request that a thread is answering. When this is dropped, the thread waits for the next request.
#[must_use]
pub(crate) struct Answering<'s>(&'s mut Listener);

impl Answering<'_> {
    /// Records that the thread has answered its request and ends, while others wait for requests.
    pub(crate) fn leave(self) {
        self.0.has_left = true;
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        match self.0.listeners.spin {
            None => {}
            Some(_) if self.0.has_left => self.0.listeners.left(),
            Some(_) => self.0.answered(),
        }
    }
}

impl Listeners {
    /// Makes the shared state; no thread listens yet.
    pub(crate) fn new(spin: Option<Duration>, connection: Arc<OwnedFd>) -> Arc<Listeners> {
        let listeners = Arc::new(Listeners {
            spin,
            connection,
            came_soon: AtomicU8::new(0),
            state: Mutex::default(),
            released: Condvar::new(),
            first_parked: Condvar::new(),
        });
        if spin.is_some() {
            let listeners = listeners.clone();
            thread::spawn(move || listeners.watch());
        }
        listeners
    }

    /// Registers the calling thread.
    pub(crate) fn register(self: &Arc<Self>) -> Listener {
        Listener { listeners: self.clone(), listens_since: None, has_left: false }
    }
}

impl Listener {
    /// Records that this thread has got a request. `takes_long`: other requests should not wait for it.
    pub(crate) fn begin(&mut self, takes_long: bool) -> Answering<'_> {
        if let Some(spin) = self.listeners.spin {
            let listened = self.listens_since.take();
            self.listeners.taken(listened.map(|since| since.elapsed() < spin), takes_long);
        }
        Answering(self)
    }

    /// Records that this thread has answered its request.
    fn answered(&mut self) {
        let must_look = self.listeners.answered();
        self.listens_since = Some(Instant::now());
        if must_look {
            self.listeners.look_for_one();
        }
    }
}

impl Listeners {
    /// Records a taken request. `came_soon`: whether it came within the time to spin; `None` for the
    /// first request of a thread.
    fn taken(&self, came_soon: Option<bool>, takes_long: bool) {
        if let Some(came_soon) = came_soon {
            // If two threads store at once, one of the two requests is not remembered. That is harmless.
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

    /// Records an answered request. Parks the thread if another one listens; returns true if it must spin for the
    /// next request.
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

    /// Records an answered request whose thread does not wait for another one.
    fn left(&self) {
        let nobody_listens = {
            let mut state = self.state.lock();
            state.answered += 1;
            state.listening == 0
        };
        if nobody_listens {
            self.release(1);
        }
    }

    fn release(&self, threads: u32) {
        let mut state = self.state.lock();
        state.released = (state.released + threads).min(state.parked);
        self.released.notify_one();
    }

    fn do_requests_come_soon(&self) -> bool {
        self.came_soon.load(Ordering::Relaxed).count_ones() >= SOON_ENOUGH
    }

    /// Spins until a request waits, the core is taken, or the time is over.
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

    /// Returns true if read(2) would return at once, with a request or with the end of the session.
    fn does_one_wait(&self) -> bool {
        let mut looked = [PollFd::from_borrowed_fd(self.connection.as_fd(), PollFlags::IN)];
        poll(&mut looked, Some(&AT_ONCE)).is_ok_and(|ready| ready > 0)
    }

    /// Releases all parked threads if no request was answered for a tick.
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

    /// Records that a thread, and with it the session, ends.
    fn end(&self, listened: bool) {
        let mut state = self.state.lock();
        state.listening -= u32::from(listened);
        state.ended = true;
        self.released.notify_all();
        self.first_parked.notify_all();
    }
}
