//! Memory of the C program.
//!
//! The problem: a pointer that C passes can be anything, and Rust can recognise only few wrong ones. The idea: the
//! parameters of exported functions that are pointers have types of their own, transparent to C, which **only a call from C
//! can make**: their field is private, and nothing here makes one but the unsafe `of`, by which nvfold-preload passes on what
//! a program gave to the function of libc that it stands for. So one argument carries all of the unsafe code below:
//!
//! > The value came from C, through a function that `nvfold.h` or `icid.h` declares, and the header says what it must point
//! > to while the call lasts: a string that ends in NUL, or so many bytes, or one structure of its type, which nobody else
//! > changes (or, where the call writes, reads) meanwhile. As for `read(2)` and `memcpy`, a program that passes anything else
//! > has undefined behaviour; what can be recognised without touching the memory is reported: NULL, misalignment, lengths that no
//! > object has, and ranges past the end of the address space.
//!
//! A type is not `Clone`, and what it lends lives as long as the borrow of it, so nothing outlives the call.

use crate::failure::{Failure, Outcome};
use std::ffi::{c_char, c_int, c_void};
use std::marker::PhantomData;
use std::{mem, ptr, slice};

/// Longest path, its NUL included.
const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;
/// Most buffers of one vector, as in Linux.
const IOVECS_MAX: c_int = 1024;
/// Most bytes of one read or write, as in Linux. What is asked for beyond it is not done.
pub const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// `const char *`: a string that ends in NUL.
#[repr(transparent)]
pub struct CText<'c>(*const c_char, PhantomData<&'c ()>);

/// `const void *`: bytes to be read.
#[repr(transparent)]
pub struct InBytes<'c>(*const c_void, PhantomData<&'c ()>);

/// `void *`: bytes to be written (and read).
#[repr(transparent)]
pub struct OutBytes<'c>(*mut c_void, PhantomData<&'c ()>);

/// `const T *`: a structure to be read, or NULL.
#[repr(transparent)]
pub struct In<'c, T>(*const T, PhantomData<&'c ()>);

/// `T *`: a structure to be filled.
#[repr(transparent)]
pub struct Out<'c, T>(*mut T, PhantomData<&'c ()>);

/// `const struct iovec *`: an array of buffers.
#[repr(transparent)]
pub struct CIovecs<'c>(*const libc::iovec, PhantomData<&'c ()>);

// By these names the generator of the headers knows them (cbindgen.toml).
pub type OutStat<'c> = Out<'c, libc::stat>;
pub type OutStatvfs<'c> = Out<'c, libc::statvfs>;
/// Two of them, in fact: access and modification.
pub type InTimes<'c> = In<'c, [libc::timespec; 2]>;

fn bad_address(what: &str) -> Failure {
    Failure::new(libc::EFAULT, format!("{what} is a bad address"))
}

/// Whether so many bytes at an address may be one object of C.
fn check_range(address: usize, length: usize) -> Outcome<()> {
    if length > isize::MAX as usize {
        return Err(Failure::invalid(format!("a length of {length} bytes is more than any object has")));
    }
    if length > 0 && address == 0 {
        return Err(Failure::new(libc::EFAULT, "the buffer is NULL"));
    }
    // Programs have the lower half of the address space.
    match address.checked_add(length) {
        Some(end) if end <= isize::MAX as usize => Ok(()),
        _ => Err(Failure::new(libc::EFAULT, "the buffer ends past the address space")),
    }
}

/// An empty vector with room for so many bytes. ENOMEM: the program decides what then, and does not end.
pub fn room(bytes: usize) -> Outcome<Vec<u8>> {
    let mut room = Vec::new();
    match room.try_reserve_exact(bytes) {
        Ok(()) => Ok(room),
        Err(error) => Err(Failure::new(libc::ENOMEM, format!("memory for {bytes} bytes: {error}"))),
    }
}

impl CText<'_> {
    /// # Safety
    ///
    /// The pointer came from C, as an argument of a call that lasts as long as this value; see the top.
    pub unsafe fn of(pointer: *const c_char) -> Self {
        Self(pointer, PhantomData)
    }

    /// Its bytes without the NUL. EFAULT for NULL, ENAMETOOLONG beyond `PATH_MAX`.
    pub fn bytes(&self) -> Outcome<&[u8]> {
        if self.0.is_null() {
            return Err(bad_address("the string"));
        }
        // SAFETY: a `CText` came from C (see the top), so this is a string; no byte behind its NUL, and none behind
        // `PATH_BYTES_MAX`, is read.
        let length = unsafe { libc::strnlen(self.0, PATH_BYTES_MAX) };
        if length == PATH_BYTES_MAX {
            let why = format!("the string is longer than {} bytes", PATH_BYTES_MAX - 1);
            return Err(Failure::new(libc::ENAMETOOLONG, why));
        }
        // SAFETY: those bytes were just read, and the caller changes none of them while the call, and so this borrow, lasts.
        Ok(unsafe { slice::from_raw_parts(self.0.cast(), length) })
    }

    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

impl InBytes<'_> {
    /// # Safety
    ///
    /// The pointer came from C, as an argument of a call that lasts as long as this value; see the top.
    pub unsafe fn of(pointer: *const c_void) -> Self {
        Self(pointer, PhantomData)
    }

    /// Gives EINVAL and EFAULT as `check_range` does.
    pub fn slice(&self, length: usize) -> Outcome<&[u8]> {
        check_range(self.address(), length)?;
        if length == 0 {
            return Ok(&[]);
        }
        // SAFETY: an `InBytes` came from C (see the top): so many bytes can be read there, and nobody changes them while the
        // call, and so this borrow, lasts. They are neither NULL nor too long, as checked.
        Ok(unsafe { slice::from_raw_parts(self.0.cast(), length) })
    }

    pub fn address(&self) -> usize {
        self.0.addr()
    }
}

impl OutBytes<'_> {
    /// # Safety
    ///
    /// The pointer came from C, as an argument of a call that lasts as long as this value; see the top.
    pub unsafe fn of(pointer: *mut c_void) -> Self {
        Self(pointer, PhantomData)
    }

    /// Gives EINVAL and EFAULT as `check_range` does. It is taken by `&mut self`, so there is one such slice at a time.
    pub fn slice(&mut self, length: usize) -> Outcome<&mut [u8]> {
        check_range(self.address(), length)?;
        if length == 0 {
            return Ok(&mut []);
        }
        // SAFETY: an `OutBytes` came from C (see the top): so many bytes can be written there, and nobody else touches them
        // while the call, and so this borrow, lasts. That C may not have given them a value yet is no matter to machine
        // code that C calls: to Rust they are bytes of an unknown value, and any value is one of `u8`.
        Ok(unsafe { slice::from_raw_parts_mut(self.0.cast(), length) })
    }

    /// Gives EINVAL and EFAULT as `check_range` does.
    pub fn check(&self, length: usize) -> Outcome<()> {
        check_range(self.address(), length)
    }

    pub fn address(&self) -> usize {
        self.0.addr()
    }

    /// For calls that give it back.
    pub fn pointer(&self) -> *mut c_void {
        self.0
    }
}

/// Copies bytes of C to bytes of C. They may overlap, or be the same: as memmove.
pub fn copy(target: &mut OutBytes<'_>, source: &InBytes<'_>, length: usize) -> Outcome<()> {
    check_range(target.address(), length)?;
    check_range(source.address(), length)?;
    if length > 0 {
        // SAFETY: both came from C (see the top): so many bytes can be read at one and written at the other; neither is NULL,
        // and `ptr::copy` allows them to overlap. No slice is made of either, since they may be the same memory.
        unsafe { ptr::copy(source.0.cast::<u8>(), target.0.cast::<u8>(), length) };
    }
    Ok(())
}

impl<T: Copy> In<'_, T> {
    /// Returns the structure, or `None` for NULL. EFAULT when it is misaligned.
    pub fn get(&self) -> Outcome<Option<T>> {
        if self.0.is_null() {
            return Ok(None);
        }
        if !self.0.is_aligned() {
            return Err(bad_address("a structure"));
        }
        // SAFETY: an `In` came from C (see the top): a whole structure lies there, and it is aligned. `T` is a structure of C
        // in which any bytes are a value (the aliases above are all there are).
        Ok(Some(unsafe { self.0.read() }))
    }
}

impl<T: Copy> Out<'_, T> {
    /// EFAULT for NULL and misaligned ones. To be asked before anything is done that cannot be told afterwards.
    pub fn check(&self) -> Outcome<()> {
        if self.0.is_null() || !self.0.is_aligned() { Err(bad_address("the structure to be filled")) } else { Ok(()) }
    }

    pub fn put(&mut self, value: T) -> Outcome<()> {
        self.check()?;
        // SAFETY: an `Out` came from C (see the top): there is room for a structure, which nobody else touches while the call
        // lasts; it is aligned. What was there is not read or dropped (`T` is `Copy`).
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Fills the first `length` bytes of the structure, or all of it: for structures that grow at their end, of which the
    /// caller may know a shorter one.
    pub fn put_prefix(&mut self, value: T, length: usize) -> Outcome<()> {
        self.check()?;
        // SAFETY: as in `put`, but that the caller says how many bytes there is room for; no more are written, and no more
        // read of `value`. They do not overlap, for `value` is ours.
        unsafe { ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), self.0.cast(), length.min(size_of::<T>())) };
        Ok(())
    }
}

/// A `struct stat` of zeros; what the kernel keeps free of it stays so.
pub fn empty_stat() -> libc::stat {
    // SAFETY: a structure of integers: all zeros are a value.
    unsafe { mem::zeroed() }
}

/// A `struct statvfs` of zeros.
pub fn empty_statvfs() -> libc::statvfs {
    // SAFETY: a structure of integers: all zeros are a value.
    unsafe { mem::zeroed() }
}

/// A vector of buffers that was looked at.
pub struct Iovecs<'c> {
    parts: Vec<(usize, *mut c_void)>,
    total: usize,
    of: PhantomData<&'c ()>,
}

impl CIovecs<'_> {
    /// # Safety
    ///
    /// The pointer came from C, as an argument of a call that lasts as long as this value; see the top.
    pub unsafe fn of(pointer: *const libc::iovec) -> Self {
        Self(pointer, PhantomData)
    }

    /// Looks at the array. EINVAL for a count below 0 or above 1024, and for more bytes than `SSIZE_MAX` together.
    pub fn look(&self, count: c_int) -> Outcome<Iovecs<'_>> {
        if !(0..=IOVECS_MAX).contains(&count) {
            return Err(Failure::invalid(format!("{count} buffers; there may be 0 to {IOVECS_MAX}")));
        }
        if count > 0 && (self.0.is_null() || !self.0.is_aligned()) {
            return Err(bad_address("the array of buffers"));
        }
        let mut found = Iovecs { parts: Vec::with_capacity(count as usize), total: 0, of: PhantomData };
        for at in 0..count as usize {
            // SAFETY: a `CIovecs` came from C (see the top): `count` structures lie there, aligned; any bytes are one.
            let iovec = unsafe { self.0.add(at).read() };
            check_range(iovec.iov_base.addr(), iovec.iov_len)?;
            found.parts.push((iovec.iov_len, iovec.iov_base));
            found.total = found.total.saturating_add(iovec.iov_len);
        }
        if found.total > isize::MAX as usize {
            return Err(Failure::invalid("the buffers have more bytes together than SSIZE_MAX"));
        }
        Ok(found)
    }
}

impl Iovecs<'_> {
    /// Bytes of all buffers together.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Returns address and length of each.
    pub fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.parts.iter().map(|(length, base)| (base.addr(), *length))
    }

    /// What they hold, one behind the other: `most` bytes at most. ENOMEM.
    pub fn gather(&self, most: usize) -> Outcome<Vec<u8>> {
        let mut bytes = room(self.total.min(most))?;
        for (length, base) in &self.parts {
            let length = (*length).min(most - bytes.len());
            if length > 0 {
                // SAFETY: `look` got this buffer from C and checked its range: so many bytes can be read there, and nobody
                // changes them while the call lasts (see the top); the slice is gone with this line.
                bytes.extend_from_slice(unsafe { slice::from_raw_parts(base.cast::<u8>(), length) });
            }
        }
        Ok(bytes)
    }

    /// Fills them, one after the other.
    pub fn scatter(&mut self, mut bytes: &[u8]) {
        for (length, base) in &self.parts {
            let (here, rest) = bytes.split_at((*length).min(bytes.len()));
            if !here.is_empty() {
                // SAFETY: `look` got this buffer from C and checked its range: so many bytes can be written there, and nobody
                // else touches them while the call lasts (see the top). `here` is ours, so they do not overlap.
                unsafe { ptr::copy_nonoverlapping(here.as_ptr(), base.cast(), here.len()) };
            }
            bytes = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_lengths_and_addresses_of_buffers_give_an_errno() {
        let errno = |address, length| check_range(address, length).map_err(|failure| failure.errno);
        assert_eq!(errno(0, 0), Ok(()));
        assert_eq!(errno(0, 1), Err(libc::EFAULT));
        assert_eq!(errno(4096, 1 << 63), Err(libc::EINVAL));
        assert_eq!(errno(4096, usize::MAX), Err(libc::EINVAL));
        assert_eq!(errno(4096, isize::MAX as usize), Err(libc::EFAULT));
        assert_eq!(errno(usize::MAX - 10, 5), Err(libc::EFAULT));
        assert_eq!(errno(4096, 1 << 40), Ok(()));
    }

    #[test]
    fn null_and_misaligned_pointers_give_an_errno() {
        let word = 0_u64;
        let misaligned = (&raw const word).cast::<u8>().wrapping_add(1).cast::<[libc::timespec; 2]>();
        assert_eq!(In(misaligned, PhantomData).get().unwrap_err().errno, libc::EFAULT);
        assert!(In::<[libc::timespec; 2]>(ptr::null(), PhantomData).get().unwrap().is_none());
        assert_eq!(Out::<libc::stat>(ptr::null_mut(), PhantomData).check().unwrap_err().errno, libc::EFAULT);
        assert_eq!(CText(ptr::null(), PhantomData).bytes().unwrap_err().errno, libc::EFAULT);
        assert_eq!(CIovecs(ptr::null(), PhantomData).look(1).err().unwrap().errno, libc::EFAULT);
        assert_eq!(CIovecs(ptr::null(), PhantomData).look(-1).err().unwrap().errno, libc::EINVAL);
        assert_eq!(CIovecs(ptr::null(), PhantomData).look(0).unwrap().total(), 0);
    }

    #[test]
    fn io_vectors_are_gathered_and_scattered_in_sequence() {
        let (mut one, mut two) = (*b"abc", *b"de");
        let part = |bytes: &mut [u8]| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let iovecs = [part(&mut one), libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }, part(&mut two)];
        let array = CIovecs(iovecs.as_ptr(), PhantomData);
        let mut list = array.look(3).unwrap();
        assert_eq!(
            (list.total(), list.gather(100).unwrap(), list.gather(4).unwrap()),
            (5, b"abcde".to_vec(), b"abcd".to_vec())
        );
        list.scatter(b"vwxy");
        assert_eq!((&one, &two), (b"vwx", b"ye"));
    }
}
