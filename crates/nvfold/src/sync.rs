//! The locks and atomics of the core, all of them taken from here.
//!
//! The problem: a race that needs one thread to stop between two instructions is not found by running threads.
//!
//! The idea: with the feature `shuttle` every lock and atomic, and in `pmem` every access to media, is a point at
//! which a scheduler chooses who runs next, by a seed that a failing test prints (`races/mod.rs`). Such a core
//! works only under that scheduler. Without the feature these are the names of `parking_lot` and `std`.

pub(crate) use real_or_tested::*;

#[cfg(not(feature = "shuttle"))]
mod real_or_tested {
    pub(crate) use parking_lot::{
        Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard,
    };
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic;

    use std::cell::Cell;
    use zerocopy::{FromZeros, KnownLayout};

    /// Atomics of value 0, in memory that the system backs only where it is touched: the bitmap of a large device
    /// costs nothing until its segments are used.
    pub(crate) fn zeroed<T: FromZeros>(count: u64) -> Box<[T]>
    where
        [T]: KnownLayout<PointerMetadata = usize>,
    {
        <[T]>::new_box_zeroed_with_elems(count as usize).expect("DRAM for the tables of the device")
    }

    /// Number of the calling thread: 0, 1, 2 and so on in the order in which threads first ask.
    pub(crate) fn thread_number() -> usize {
        static NEXT: atomic::AtomicUsize = atomic::AtomicUsize::new(0);
        thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });
        NUMBER.with(|number| {
            if number.get() == usize::MAX {
                number.set(NEXT.fetch_add(1, atomic::Ordering::Relaxed));
            }
            number.get()
        })
    }
}

#[cfg(feature = "shuttle")]
mod real_or_tested {
    pub(crate) use shuttle::hint::spin_loop;
    pub(crate) use shuttle::sync::atomic;
    pub(crate) use shuttle_parking_lot::{
        Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard,
    };

    /// Atomics of value 0.
    pub(crate) fn zeroed<T: Default>(count: u64) -> Box<[T]> {
        (0..count).map(|_| T::default()).collect()
    }

    /// Number of the calling thread in the order in which threads were started: the same in every replay.
    pub(crate) fn thread_number() -> usize {
        shuttle::current::me().into()
    }
}
