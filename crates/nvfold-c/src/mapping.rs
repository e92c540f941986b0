//! Memory filled with what a file held: `nvfold_mmap`.
//!
//! The kernel cannot map a file that it does not know, and media itself must never be mapped into a program: it changes under
//! the reader (blocks are freed and used again), and a stray store would go past all that keeps it consistent. So a mapping is
//! memory of the process's own, filled once. It is a snapshot: what is written to the file later does not show, and what the
//! program stores there (it may, with PROT_WRITE) goes nowhere else.
//!
//! The table says which memory that is, so that only what was mapped here is unmapped.

use crate::failure::{Failure, Outcome};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, ptr, slice};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Mappings by their first address. `T`: what is known of the file.
pub(crate) struct Mappings<T> {
    by_start: RwLock<BTreeMap<usize, Mapping<T>>>,
    /// Something was ever mapped.
    is_used: AtomicBool,
}

/// A mapping, or what is left of one.
#[derive(Clone)]
struct Mapping<T> {
    bytes: usize,
    file: T,
}

fn os_failure(doing: &str) -> Failure {
    let error = io::Error::last_os_error();
    Failure::new(error.raw_os_error().unwrap_or(libc::ENOMEM), format!("{doing}: {error}"))
}

/// What a program may ask for. EINVAL, ENODEV, EACCES, EOPNOTSUPP.
fn check(length: usize, prot: c_int, flags: c_int, offset: libc::off_t) -> Outcome<()> {
    if length == 0 || length > isize::MAX as usize - PAGE_BYTES {
        return Err(Failure::invalid(format!("a mapping cannot have {length} bytes")));
    }
    if offset < 0 || !(offset as u64).is_multiple_of(PAGE_BYTES as u64) {
        return Err(Failure::invalid(format!("offset {offset} is not a multiple of {PAGE_BYTES}")));
    }
    if prot & !(libc::PROT_READ | libc::PROT_WRITE) != 0 {
        return Err(Failure::new(libc::EACCES, "a mapping may be read and written, not executed"));
    }
    match flags & libc::MAP_TYPE {
        libc::MAP_PRIVATE => {}
        libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE if prot & libc::PROT_WRITE != 0 => {
            let why =
                "a shared mapping that is written to would have to change the file, and this one is a snapshot of it";
            return Err(Failure::new(libc::ENODEV, why));
        }
        libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE => {}
        _ => return Err(Failure::invalid("the flags have neither MAP_PRIVATE nor MAP_SHARED")),
    }
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_ANONYMOUS) != 0 {
        return Err(Failure::new(libc::EOPNOTSUPP, "there is neither MAP_FIXED nor MAP_ANONYMOUS here"));
    }
    Ok(())
}

impl<T: Clone> Mappings<T> {
    pub(crate) const fn new() -> Mappings<T> {
        Mappings { by_start: RwLock::new(BTreeMap::new()), is_used: AtomicBool::new(false) }
    }

    /// Makes memory of `length` bytes and lets `read` fill it: it gets the memory and puts there what the file holds from
    /// `offset` on. What lies behind the end of the file is zeros.
    pub(crate) fn map(
        &self,
        (length, prot, flags, offset): (usize, c_int, c_int, libc::off_t),
        file: T,
        read: impl FnOnce(u64, &mut [u8]) -> Outcome<()>,
    ) -> Outcome<*mut c_void> {
        check(length, prot, flags, offset)?;
        let bytes = length.next_multiple_of(PAGE_BYTES);
        let (may_write, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at a place that the kernel chooses; nothing that there was is touched.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, may_write, flags | libc::MAP_NORESERVE, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(os_failure("make memory for the mapping"));
        }
        // SAFETY: the kernel has just given us so many bytes, zeros; nobody else knows the address before this call returns.
        let memory = unsafe { slice::from_raw_parts_mut(start.cast::<u8>(), length) };
        let filled = read(offset as u64, memory).and_then(|()| {
            // SAFETY: `memory` is not used any more, and the memory is ours, whole pages of it.
            match unsafe { libc::mprotect(start, bytes, prot) } {
                0 => Ok(()),
                _ => Err(os_failure("protect the mapping")),
            }
        });
        if let Err(failure) = filled {
            // SAFETY: it is ours, `memory` is not used any more, and nobody else knows the address.
            unsafe { libc::munmap(start, bytes) };
            return Err(failure);
        }
        self.is_used.store(true, Ordering::Release);
        self.by_start.write().insert(start.addr(), Mapping { bytes, file });
        Ok(start)
    }

    /// Whether anything was ever mapped. Takes no lock.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Changes what is known of the files; the memory stays.
    pub(crate) fn change_files(&self, mut change: impl FnMut(&mut T)) {
        let mut mappings = self.by_start.write();
        mappings.values_mut().for_each(|mapping| change(&mut mapping.file));
    }

    /// Gives back whole pages of one mapping: all, or a part of it. EINVAL when they were not mapped here.
    /// `forget` is called when that is clear, and before others can get the memory.
    pub(crate) fn unmap(&self, start: *mut c_void, length: usize, forget: impl FnOnce(usize)) -> Outcome<()> {
        let address = start.addr();
        if length == 0 || length > isize::MAX as usize - PAGE_BYTES || !address.is_multiple_of(PAGE_BYTES) {
            return Err(Failure::invalid("what is unmapped must begin at a page and have a length"));
        }
        let bytes = length.next_multiple_of(PAGE_BYTES);
        let mut mappings = self.by_start.write();
        let found = mappings.range(..=address).next_back().map(|(start, mapping)| (*start, mapping.clone()));
        let found = found.filter(|(first, mapping)| address - first + bytes <= mapping.bytes);
        let (first, mapping) = found.ok_or_else(|| Failure::invalid("this memory was not mapped by nvfold_mmap"))?;
        forget(bytes);
        // SAFETY: the table says that these pages were made by `map` and not given back since: they are no memory of anybody
        // else's. Who unmaps them promises, as for munmap(2), that no thread uses them any more.
        if unsafe { libc::munmap(start, bytes) } != 0 {
            return Err(os_failure("unmap"));
        }
        let whole = mappings.remove(&first);
        let (before, after) = (address - first, mapping.bytes - (address - first) - bytes);
        if before > 0 {
            mappings.insert(first, Mapping { bytes: before, ..mapping.clone() });
        }
        if after > 0 {
            mappings.insert(address + bytes, Mapping { bytes: after, ..mapping.clone() });
        }
        drop(mappings);
        // What is known of the file may end here, which takes locks of its own.
        drop((whole, mapping));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: c_int = libc::PROT_READ;

    fn errno<T>(outcome: Outcome<T>) -> c_int {
        outcome.err().map_or(0, |failure| failure.errno)
    }

    #[test]
    fn each_part_of_a_mapping_is_unmapped_once() {
        let mappings = Mappings::new();
        let fill = |_: u64, memory: &mut [u8]| {
            memory.fill(7);
            Ok(())
        };
        let start = mappings.map((5 * PAGE_BYTES - 10, READ, libc::MAP_SHARED, 4096), 'a', fill).unwrap();
        let page = |number: usize| start.wrapping_byte_add(number * PAGE_BYTES);
        let unmap = |start, length| mappings.unmap(start, length, |_| {});
        assert_eq!(errno(unmap(page(4), 2 * PAGE_BYTES)), libc::EINVAL, "past its end");
        assert_eq!(errno(unmap(start.wrapping_byte_add(1), 1)), libc::EINVAL);
        assert_eq!(errno(unmap(start, 0)), libc::EINVAL);
        assert_eq!(errno(unmap(page(1), 2 * PAGE_BYTES)), 0);
        assert_eq!(errno(unmap(page(1), 1)), libc::EINVAL, "it is gone");
        let left: Vec<_> = mappings.by_start.read().values().map(|mapping| mapping.bytes).collect();
        assert_eq!(left, [PAGE_BYTES, 2 * PAGE_BYTES]);
        assert_eq!(errno(unmap(page(3), 1)) + errno(unmap(page(4), 1)), 0);
        assert_eq!(errno(unmap(start, PAGE_BYTES)), 0);
        assert!(mappings.by_start.read().is_empty());
    }

    #[test]
    fn mappings_with_unsupported_arguments_are_refused() {
        let mappings = Mappings::new();
        let map = |length, prot, flags, offset| {
            errno(mappings.map((length, prot, flags, offset), (), |_, _| panic!("it is read before it is refused")))
        };
        let (private, write) = (libc::MAP_PRIVATE, libc::PROT_WRITE);
        assert_eq!(map(0, READ, private, 0), libc::EINVAL);
        assert_eq!(map(1 << 63, READ, private, 0), libc::EINVAL);
        assert_eq!(map(4096, READ, private, -4096), libc::EINVAL);
        assert_eq!(map(4096, READ, private, 100), libc::EINVAL);
        assert_eq!(map(4096, READ, 0, 0), libc::EINVAL);
        assert_eq!(map(4096, READ | write, libc::MAP_SHARED, 0), libc::ENODEV);
        assert_eq!(map(4096, libc::PROT_EXEC, private, 0), libc::EACCES);
        assert_eq!(map(4096, READ, private | libc::MAP_FIXED, 0), libc::EOPNOTSUPP);
        assert_eq!(map(1 << 62, READ, private, 0), libc::ENOMEM);
    }

    #[test]
    fn a_mapping_is_removed_if_its_content_cannot_be_read() {
        let mappings = Mappings::new();
        let failed = mappings.map((4096, READ, libc::MAP_PRIVATE, 0), (), |_, _| Err(Failure::new(libc::EIO, "no")));
        assert_eq!(errno(failed), libc::EIO);
        assert!(mappings.by_start.read().is_empty());
    }
}
