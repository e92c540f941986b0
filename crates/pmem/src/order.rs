//! Order as types: handles whose state says how far their bytes are on the way to the media.
//!
//! The problem: a pointer that becomes durable before its target leads to garbage after a crash. The idea: only a
//! handle whose bytes are flushed and fenced gives a pointer. A fence orders only its own thread, so a handle in
//! flight cannot leave its thread; a clean one can.
//!
//! ```
//! # let region = pmem::Region::create(&pmem::DeviceSpec::Memory, 4096, &Default::default()).unwrap();
//! let pointer = region.fence(region.write(64, &7u64).flush()).ptr();
//! let commit = region.store_ptr(0, pointer, 1); // the pointer, and a mark in its low bits
//! let _ = region.fence(commit.flush());
//! assert_eq!(region.load_u64(0), 64 | 1);
//! ```
//!
//! `tests/order/` lists programs that do not compile, with the message of the compiler for each.

use crate::Region;
use std::marker::PhantomData;

/// State of bytes that were stored but not flushed.
pub enum Dirty {}
/// State of bytes whose flush was issued but not fenced. Not `Send`.
pub struct InFlight(PhantomData<*const ()>);
/// State of bytes that are durable, as far as the device allows (`Region::level`).
pub enum Clean {}

/// A typed handle to bytes on the media: region and offset, never a reference.
#[must_use = "stored bytes are not durable until flushed and fenced"]
pub struct Pm<'r, T: ?Sized, S> {
    region: &'r Region,
    offset: u64,
    length: u64,
    value: PhantomData<fn(&T)>,
    state: PhantomData<S>,
}

impl<'r, T: ?Sized, S> Pm<'r, T, S> {
    #[inline]
    pub(crate) fn new(region: &'r Region, offset: u64, length: u64) -> Pm<'r, T, S> {
        Pm { region, offset, length, value: PhantomData, state: PhantomData }
    }

    /// Returns the device offset of the first byte.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        self.length
    }
}

impl<'r, T: ?Sized> Pm<'r, T, Dirty> {
    /// Issues the flush of every line the bytes touch.
    #[inline]
    #[track_caller]
    pub fn flush(self) -> Pm<'r, T, InFlight> {
        self.region.flush_lines(self.offset, self.length);
        Pm::new(self.region, self.offset, self.length)
    }
}

impl<T: ?Sized> Pm<'_, T, Clean> {
    /// Returns the pointer that may be stored on media.
    #[inline]
    pub fn ptr(&self) -> PmPtr<T> {
        PmPtr { offset: self.offset, pointee: PhantomData }
    }

    /// Returns the pointer to the first byte behind these bytes: the tail of a log stores it once this entry is its
    /// last.
    #[inline]
    pub fn end(&self) -> PmPtr<()> {
        PmPtr { offset: self.offset + self.length, pointee: PhantomData }
    }
}

/// A pointer that may be stored on media: only a [`Clean`] handle makes one.
pub struct PmPtr<T: ?Sized> {
    offset: u64,
    pointee: PhantomData<fn(&T)>,
}

impl<T: ?Sized> Clone for PmPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for PmPtr<T> {}

impl<T: ?Sized> PmPtr<T> {
    /// Returns the device offset that it points to.
    #[inline]
    pub fn offset(self) -> u64 {
        self.offset
    }
}

/// Any number of handles in flight whose types and offsets no longer matter; one fence makes all of them durable.
#[must_use = "what is in flight is not durable until fenced"]
#[derive(Default)]
pub struct Flight(PhantomData<*const ()>);

impl Flight {
    /// Makes an empty flight.
    pub fn new() -> Flight {
        Flight(PhantomData)
    }

    /// Adds one more handle.
    #[inline]
    pub fn add<T: ?Sized>(&mut self, _handle: Pm<'_, T, InFlight>) {}

    /// Adds the handles of another flight.
    #[inline]
    pub fn extend(&mut self, _other: Flight) {}
}

/// Receipt of a fenced [`Flight`]: all of it is durable. It allows one commit, because it cannot be copied.
#[must_use = "a receipt allows the commit that the fence was for"]
pub struct Landed(());

/// A value that one fence can make clean.
pub trait Group {
    /// The same value, clean.
    type Clean;
    /// Called only by [`Region::fence`], after the fence.
    #[doc(hidden)]
    fn landed(self, _: Fenced) -> Self::Clean;
}

/// Proof that a fence was executed; only this crate makes one.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Fenced(pub(crate) ());

impl<'r, T: ?Sized> Group for Pm<'r, T, InFlight> {
    type Clean = Pm<'r, T, Clean>;
    #[inline]
    fn landed(self, _: Fenced) -> Self::Clean {
        Pm::new(self.region, self.offset, self.length)
    }
}

impl Group for Flight {
    type Clean = Landed;
    #[inline]
    fn landed(self, _: Fenced) -> Landed {
        Landed(())
    }
}

/// An empty group: a fence for its own sake.
impl Group for () {
    type Clean = ();
    fn landed(self, _: Fenced) {}
}

impl<G: Group> Group for Option<G> {
    type Clean = Option<G::Clean>;
    #[inline]
    fn landed(self, fenced: Fenced) -> Self::Clean {
        self.map(|member| member.landed(fenced))
    }
}

/// Implements `Group` for tuples of two to five.
macro_rules! tuple_group {
    ($($member:ident)+) => {
        impl<$($member: Group),+> Group for ($($member,)+) {
            type Clean = ($($member::Clean,)+);
            #[allow(non_snake_case)]
            #[inline]
            fn landed(self, fenced: Fenced) -> Self::Clean {
                let ($($member,)+) = self;
                ($($member.landed(fenced),)+)
            }
        }
    };
}

tuple_group!(A B);
tuple_group!(A B C);
tuple_group!(A B C D);
tuple_group!(A B C D E);

impl<G: Group, const N: usize> Group for [G; N] {
    type Clean = [G::Clean; N];
    #[inline]
    fn landed(self, fenced: Fenced) -> Self::Clean {
        self.map(|member| member.landed(fenced))
    }
}

impl<G: Group> Group for Vec<G> {
    type Clean = Vec<G::Clean>;
    fn landed(self, fenced: Fenced) -> Self::Clean {
        self.into_iter().map(|member| member.landed(fenced)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceSpec, OpenOptions};

    /// Has two implementations for types that are `Send`, so the type checker cannot choose one: a call compiles only
    /// for types that are not `Send`.
    trait NotSend<Answer> {
        fn holds() {}
    }
    impl<T: ?Sized> NotSend<()> for T {}
    impl<T: ?Sized + Send> NotSend<u8> for T {}

    fn is_send<T: Send>() {}

    #[test]
    fn only_handles_in_flight_are_bound_to_their_thread() {
        <Pm<'_, u64, InFlight> as NotSend<_>>::holds();
        <Flight as NotSend<_>>::holds();
        is_send::<Pm<'_, u64, Dirty>>();
        is_send::<Pm<'_, [u8], Clean>>();
        is_send::<PmPtr<u64>>();
        is_send::<Landed>();
    }

    #[test]
    fn a_group_of_handles_of_any_shape_takes_one_fence() {
        let region = Region::create(&DeviceSpec::Memory, 4096, &OpenOptions::default()).unwrap();
        let word = |at: u64| region.store_u64(at * 8, at).flush();
        let fences = || region.counters().fences;
        let (first, second, (), third, fourth) =
            region.fence((word(1), Some(word(2)), (), vec![word(3), word(4)], None::<Flight>));
        assert_eq!(fences(), 1);
        assert_eq!((first.ptr().offset(), second.unwrap().ptr().offset()), (8, 16));
        assert_eq!(third.iter().map(|clean| clean.ptr().offset()).collect::<Vec<_>>(), [24, 32]);
        assert!(fourth.is_none());
        let mut flight = Flight::new();
        flight.add(word(5));
        let mut other = Flight::new();
        other.add(region.stream(64, &[1; 100]));
        flight.extend(other);
        let (_landed, [sixth, none]): (Landed, _) = region.fence((flight, [Some(word(6)), None]));
        assert_eq!(fences(), 2);
        assert_eq!((sixth.unwrap().end().offset(), none.is_none()), (56, true));
    }
}
