//! The locks and atomics of nvfold; the file system and the rec-tree take them from here.
//!
//! The problem: tests that just run threads do not find a race that needs one thread to stop between two
//! instructions. And a locked instruction costs some twenty cycles even without contention, which no profiler
//! attributes to the operation that executed it.
//!
//! The idea: with the feature `shuttle` every lock and atomic, and in `pmem` every access to the media, is a point at
//! which a scheduler chooses the next thread, by a seed that a failing test prints (`schedules`). Code that is built
//! this way works only under that scheduler.
//!
//! Without the feature these are `parking_lot`'s locks and `std`'s atomics, in thin types that always count locked
//! instructions: one addition to a word of the thread, without a branch, next to an instruction of some 20 cycles.
//! The counts are those without contention:
//!
//! | operation | locked instructions |
//! |---|---|
//! | read-modify-write of an atomic, each attempt | 1 |
//! | `store` with `SeqCst` (an `xchg`) | 1 |
//! | lock, exclusive or shared, with its unlock | 2 |
//! | `try_lock`, `try_read`, `try_write` that gets the lock, with its unlock | 2 |
//! | the same when it does not | 1 |
//!
//! Not counted: reference counts of `Arc`, a wait for another thread, upgrades and downgrades of a shared lock.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod padded;
#[cfg(feature = "shuttle")]
pub mod schedules;

pub use padded::{Padded, Sum};
pub use real_or_tested::*;

#[cfg(not(feature = "shuttle"))]
mod real_or_tested {
    pub use parking_lot::{MutexGuard, RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard};
    pub use std::hint::spin_loop;

    use std::cell::Cell;
    use zerocopy::{FromZeros, KnownLayout};

    thread_local!(static LOCKED: Cell<u64> = const { Cell::new(0) });
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });

    #[inline(always)]
    fn count_locked(instructions: u64) {
        LOCKED.with(|locked| locked.set(locked.get().wrapping_add(instructions)));
    }

    /// Returns how many locked instructions of nvfold the calling thread has executed, as its locks and atomics
    /// count them without contention. Subtract two results to measure the code between them. `pmem::Counters`
    /// counts compare-and-exchanges on the media.
    pub fn locked_instructions() -> u64 {
        LOCKED.with(Cell::get)
    }

    /// `parking_lot`'s mutex, counted.
    #[derive(Default)]
    pub struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        /// Creates an open mutex.
        pub const fn new(value: T) -> Mutex<T> {
            Mutex(parking_lot::Mutex::new(value))
        }

        /// Waits for the lock.
        #[inline]
        pub fn lock(&self) -> MutexGuard<'_, T> {
            count_locked(2);
            self.0.lock()
        }

        /// Takes the lock if it is free.
        #[inline]
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            let guard = self.0.try_lock();
            count_locked(1 + u64::from(guard.is_some()));
            guard
        }
    }

    /// `parking_lot`'s read-write lock, counted.
    #[derive(Default)]
    pub struct RwLock<T>(parking_lot::RwLock<T>);

    impl<T> RwLock<T> {
        /// Creates an open lock.
        pub const fn new(value: T) -> RwLock<T> {
            RwLock(parking_lot::RwLock::new(value))
        }

        /// Waits for the lock and shares it.
        #[inline]
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            count_locked(2);
            self.0.read()
        }

        /// Shares the lock if no thread has it exclusively.
        #[inline]
        pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            let guard = self.0.try_read();
            count_locked(1 + u64::from(guard.is_some()));
            guard
        }

        /// Takes the lock if it is free.
        #[inline]
        pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            let guard = self.0.try_write();
            count_locked(1 + u64::from(guard.is_some()));
            guard
        }

        /// Waits for the lock and shares it with readers; this guard alone can become exclusive.
        #[inline]
        pub fn upgradable_read(&self) -> RwLockUpgradableReadGuard<'_, T> {
            count_locked(2);
            self.0.upgradable_read()
        }

        /// Waits for the lock.
        #[inline]
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            count_locked(2);
            self.0.write()
        }

        /// Returns the value.
        pub fn into_inner(self) -> T {
            self.0.into_inner()
        }
    }

    /// `std`'s atomics, counted. Only the methods in use exist; a new one gets its count when it is added.
    pub mod atomic {
        use super::count_locked;
        pub use std::sync::atomic::Ordering;
        use zerocopy::FromZeros;

        macro_rules! counted {
            ($($name:ident of $value:ty, $($arithmetic:ident)*;)*) => {$(
                #[doc = concat!("`std`'s `", stringify!($name), "`, counted.")]
                #[derive(Debug, Default, FromZeros)]
                #[repr(transparent)]
                pub struct $name(std::sync::atomic::$name);

                // Not every type uses every method.
                #[allow(dead_code)]
                impl $name {
                    /// Creates an atomic.
                    pub const fn new(value: $value) -> $name {
                        $name(std::sync::atomic::$name::new(value))
                    }

                    /// Reads the value.
                    #[inline]
                    pub fn load(&self, order: Ordering) -> $value {
                        self.0.load(order)
                    }

                    /// Writes the value.
                    #[inline]
                    pub fn store(&self, value: $value, order: Ordering) {
                        // Free at run time, because each caller passes a constant order.
                        count_locked(u64::from(matches!(order, Ordering::SeqCst)));
                        self.0.store(value, order);
                    }

                    /// Changes the value as `change` says, again if another thread was faster.
                    #[inline]
                    pub fn fetch_update(
                        &self,
                        set: Ordering,
                        fetch: Ordering,
                        mut change: impl FnMut($value) -> Option<$value>,
                    ) -> Result<$value, $value> {
                        self.0.fetch_update(set, fetch, |value| {
                            let changed = change(value);
                            count_locked(u64::from(changed.is_some()));
                            changed
                        })
                    }

                    counted!(@exchanges $value, compare_exchange compare_exchange_weak);
                    counted!(@methods $value, swap fetch_and fetch_or $($arithmetic)*);
                }
            )*};
            (@exchanges $value:ty, $($method:ident)*) => {$(
                /// Replaces the value if it is `current`.
                #[inline]
                pub fn $method(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    count_locked(1);
                    self.0.$method(current, new, success, failure)
                }
            )*};
            (@methods $value:ty, $($method:ident)*) => {$(
                /// Changes the value, and returns the one before.
                #[inline]
                pub fn $method(&self, value: $value, order: Ordering) -> $value {
                    count_locked(1);
                    self.0.$method(value, order)
                }
            )*};
        }

        counted! {
            AtomicBool of bool,;
            AtomicU8 of u8, fetch_add fetch_sub;
            AtomicU16 of u16, fetch_add fetch_sub;
            AtomicU32 of u32, fetch_add fetch_sub;
            AtomicU64 of u64, fetch_add fetch_sub;
            AtomicUsize of usize, fetch_add fetch_sub;
        }
    }

    /// Allocates atomics of value 0, in memory that the system backs only where it is touched: the bitmap of a large
    /// device costs nothing until its segments are used.
    pub fn zeroed<T: FromZeros>(count: u64) -> Box<[T]>
    where
        [T]: KnownLayout<PointerMetadata = usize>,
    {
        <[T]>::new_box_zeroed_with_elems(count as usize).expect("DRAM for the tables of the device")
    }

    /// Returns the number of the calling thread: 0, 1, 2 and so on, in the order in which threads first call this.
    pub fn thread_number() -> usize {
        static NEXT: atomic::AtomicUsize = atomic::AtomicUsize::new(0);
        NUMBER.with(|number| {
            if number.get() == usize::MAX {
                number.set(NEXT.fetch_add(1, atomic::Ordering::Relaxed));
            }
            number.get()
        })
    }

    /// For tests: sets the calling thread's number, so that the choices that depend on it are the same in every run.
    #[doc(hidden)]
    pub fn number_this_thread(number: usize) {
        NUMBER.set(number);
    }
}

#[cfg(feature = "shuttle")]
mod real_or_tested {
    pub use shuttle::hint::spin_loop;
    pub use shuttle::sync::atomic;
    pub use shuttle_parking_lot::{
        Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard,
    };

    /// Allocates atomics of value 0.
    pub fn zeroed<T: Default>(count: u64) -> Box<[T]> {
        (0..count).map(|_| T::default()).collect()
    }

    /// Returns the number of the calling thread, in the order in which threads were started: the same in every
    /// replay.
    pub fn thread_number() -> usize {
        shuttle::current::me().into()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::atomic::{AtomicBool, AtomicU64, Ordering};
    use super::{Mutex, RwLock, locked_instructions, zeroed};

    fn counted<T>(work: impl FnOnce() -> T) -> u64 {
        let before = locked_instructions();
        let _done = work();
        locked_instructions() - before
    }

    #[test]
    fn locked_instructions_are_counted_as_documented() {
        let (number, flag) = (AtomicU64::new(1), AtomicBool::new(false));
        assert_eq!(counted(|| number.fetch_add(1, Ordering::Relaxed)), 1);
        assert_eq!(counted(|| flag.swap(true, Ordering::AcqRel)), 1);
        assert_eq!(counted(|| number.compare_exchange(7, 8, Ordering::Relaxed, Ordering::Relaxed)), 1);
        assert_eq!(counted(|| number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |_| None)), 0);
        assert_eq!(counted(|| number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n + 1))), 1);
        assert_eq!(counted(|| number.store(number.load(Ordering::SeqCst), Ordering::Release)), 0);
        assert_eq!(counted(|| number.store(1, Ordering::SeqCst)), 1);
        let (mutex, lock) = (Mutex::new(()), RwLock::new(()));
        assert_eq!(counted(|| drop(mutex.lock())), 2);
        assert_eq!(counted(|| drop(mutex.try_lock())), 2);
        assert_eq!(counted(|| drop(lock.read())), 2);
        assert_eq!(counted(|| drop(lock.write())), 2);
        assert_eq!(counted(|| drop(lock.upgradable_read())), 2);
        assert_eq!(counted(|| drop(lock.try_read())), 2);
        assert_eq!(counted(|| drop(lock.try_write())), 2);
        let _read = lock.read();
        assert_eq!(counted(|| assert!(lock.try_write().is_none())), 1);
        let _held = mutex.lock();
        assert_eq!(counted(|| assert!(mutex.try_lock().is_none())), 1);
    }

    #[test]
    fn each_thread_counts_its_own_locked_instructions() {
        let before = locked_instructions();
        let other = std::thread::spawn(|| counted(|| drop(Mutex::new(()).lock())));
        assert_eq!(other.join().expect("it does not panic"), 2);
        assert_eq!(locked_instructions(), before);
    }

    #[test]
    fn zeroed_atomics_are_zero() {
        assert!(zeroed::<AtomicU64>(1000).iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }
}
