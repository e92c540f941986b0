//! System calls about a device: the real ones, and stand-ins under Miri.
//!
//! The problem: Miri interprets programs to find undefined behaviour, including data races, but it supports few
//! system calls and none that maps a file. The idea: under Miri the memory of `mem:` comes from the allocator, and a
//! file descriptor stands for it. Everything above runs unchanged. The other stand-ins answer that they cannot tell,
//! or that no other process is there.

#[cfg(not(miri))]
pub(crate) use rustix::fs::{fallocate, flock, fstat, fstatfs, ftruncate, memfd_create, seek};
#[cfg(not(miri))]
pub(crate) use rustix::io::pread;
#[cfg(not(miri))]
pub(crate) use rustix::mm::{madvise, mmap, munmap};

#[cfg(miri)]
pub(crate) use stand_in::*;

#[cfg(miri)]
mod stand_in {
    use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
    use rustix::fs::{FallocateFlags, FlockOperation, MemfdFlags, SeekFrom, Stat, StatFs};
    use rustix::io::{Errno, Result};
    use rustix::mm::{Advice, MapFlags, ProtFlags};
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ffi::c_void;
    use std::sync::Mutex;

    const PAGE: usize = crate::BLOCK_BYTES as usize;

    /// Memory that stands for a device: descriptor, address, length.
    static DEVICES: Mutex<Vec<(RawFd, usize, usize)>> = Mutex::new(Vec::new());

    fn memory(device: impl AsFd) -> Result<(*mut u8, usize)> {
        let devices = DEVICES.lock().expect("nobody panics with it");
        let found = devices.iter().find(|(number, ..)| *number == device.as_fd().as_raw_fd());
        let &(_, base, length) = found.ok_or(Errno::BADF)?;
        Ok((std::ptr::with_exposed_provenance_mut(base), length))
    }

    fn layout(length: usize) -> Layout {
        Layout::from_size_align(length, PAGE).expect("a length of whole blocks")
    }

    /// Returns some new descriptor; any one will do.
    pub(crate) fn memfd_create(_name: &str, _flags: MemfdFlags) -> Result<OwnedFd> {
        std::io::pipe().map(|(reader, _)| reader.into()).map_err(|_| Errno::MFILE)
    }

    pub(crate) fn ftruncate(_device: impl AsFd, _length: u64) -> Result<()> {
        Ok(())
    }

    /// # Safety
    /// As mmap; `device` comes from `memfd_create` and is mapped once, from its beginning.
    pub(crate) unsafe fn mmap(
        _at: *mut c_void,
        length: usize,
        _protection: ProtFlags,
        flags: MapFlags,
        device: BorrowedFd<'_>,
        _offset: u64,
    ) -> Result<*mut c_void> {
        if flags.contains(MapFlags::SYNC) {
            return Err(Errno::OPNOTSUPP);
        }
        // SAFETY: no device has length 0.
        let base = unsafe { alloc_zeroed(layout(length)) };
        let mut devices = DEVICES.lock().expect("nobody panics with it");
        devices.retain(|(number, ..)| *number != device.as_raw_fd());
        devices.push((device.as_raw_fd(), base.expose_provenance(), length));
        Ok(base.cast())
    }

    /// # Safety
    /// As munmap, for the whole of one `mmap`.
    pub(crate) unsafe fn munmap(base: *mut c_void, length: usize) -> Result<()> {
        // SAFETY: allocated by `mmap` with this layout.
        unsafe { dealloc(base.cast(), layout(length)) };
        Ok(())
    }

    /// Fills the hole with zeros, as a plain write: reading what another thread is giving back is a race that Miri
    /// shall report.
    pub(crate) fn fallocate(device: impl AsFd, flags: FallocateFlags, offset: u64, length: u64) -> Result<()> {
        if !flags.contains(FallocateFlags::PUNCH_HOLE) {
            return Err(Errno::OPNOTSUPP);
        }
        let (base, end) = memory(device)?;
        if offset as usize >= end {
            return Ok(()); // the caller asks whether holes are possible
        }
        // SAFETY: `Region::punch` has checked the range, and keeps the mapping.
        unsafe { base.add(offset as usize).write_bytes(0, length as usize) };
        Ok(())
    }

    pub(crate) fn flock(_device: impl AsFd, _operation: FlockOperation) -> Result<()> {
        Ok(())
    }

    /// # Safety
    /// As madvise.
    pub(crate) unsafe fn madvise(_at: *mut c_void, _length: usize, advice: Advice) -> Result<()> {
        // The caller then makes the hole with `fallocate`.
        if matches!(advice, Advice::LinuxRemove) { Err(Errno::INVAL) } else { Ok(()) }
    }

    /// Finds holes: a page of zeros is one. It uses plain reads, for a caller that owns the range or reads while no
    /// thread writes.
    pub(crate) fn seek(device: impl AsFd, to: SeekFrom) -> Result<u64> {
        let (base, length) = memory(device)?;
        let (from, data) = match to {
            SeekFrom::Data(from) => (from, true),
            SeekFrom::Hole(from) => (from, false),
            _ => return Err(Errno::INVAL),
        };
        let holds_data = |page: usize| {
            // SAFETY: within the memory, which stays as long as the descriptor is open.
            unsafe { std::slice::from_raw_parts(base.add(page), PAGE) != [0; PAGE] }
        };
        let mut pages = (from as usize / PAGE * PAGE..length).step_by(PAGE);
        let found = pages.find(|page| holds_data(*page) == data).or((!data).then_some(length));
        found.map(|page| from.max(page as u64)).ok_or(Errno::NXIO)
    }

    pub(crate) fn pread(_device: impl AsFd, _buffer: &mut [u8], _offset: u64) -> Result<usize> {
        Err(Errno::INVAL)
    }

    pub(crate) fn fstat(_device: impl AsFd) -> Result<Stat> {
        Err(Errno::INVAL)
    }

    pub(crate) fn fstatfs(_device: impl AsFd) -> Result<StatFs> {
        Err(Errno::INVAL)
    }
}
