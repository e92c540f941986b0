//! Which descriptor is which open file.
//!
//! The problem: a descriptor of this library must not pass for one of the kernel's, and one that was closed must be recognised,
//! also after others were opened. The idea: numbers from 2^30 on, which no kernel table reaches (it would take 8 GiB and
//! a limit raised a thousandfold), each a slot and how often the slot was used:
//!
//! ```text
//! 0 1 | generation: 10 bits | slot: 20 bits        slots are used again in the order in which they were freed
//! ```
//!
//! So a closed descriptor is EBADF until its slot has been used 1024 times more; with the kernel's lowest number first
//! the next `open` would get it. One table a process: a descriptor says by itself which device it is on.
#![forbid(unsafe_code)]

use crate::device::Device;
use crate::failure::{Failure, Outcome};
use crate::files::Open;
use parking_lot::RwLock;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;

const BASE: u32 = 1 << 30;
const SLOT_BITS: u32 = 20;
const GENERATIONS: u32 = 1 << 10;
/// Descriptors there may be at once.
const OPEN_MAX: usize = 1 << SLOT_BITS;

#[derive(Default)]
struct Slot {
    generation: u32,
    open: Option<Arc<Open>>,
}

struct Table {
    slots: Vec<Slot>,
    free: VecDeque<usize>,
}

static TABLE: RwLock<Table> = RwLock::new(Table { slots: Vec::new(), free: VecDeque::new() });

fn bad(fd: c_int) -> Failure {
    Failure::new(libc::EBADF, format!("{fd} is no open descriptor of this library"))
}

impl Table {
    /// The slot of a descriptor that is open.
    fn slot_of(&self, fd: c_int) -> Option<usize> {
        let number = u32::try_from(fd).ok().filter(|number| number & BASE != 0)? - BASE;
        let (slot, generation) = (number as usize % OPEN_MAX, number >> SLOT_BITS);
        let found = self.slots.get(slot)?;
        (found.generation == generation && found.open.is_some()).then_some(slot)
    }

    fn take(&mut self, slot: usize) -> Option<Arc<Open>> {
        let open = self.slots[slot].open.take()?;
        self.slots[slot].generation = (self.slots[slot].generation + 1) % GENERATIONS;
        self.free.push_back(slot);
        Some(open)
    }
}

/// Gives an open file a descriptor. EMFILE; EBADF when its device is being closed.
pub(crate) fn insert(open: Arc<Open>) -> Outcome<c_int> {
    let mut table = TABLE.write();
    // Under the lock: closing the device sets its mark first and empties the table then.
    if open.device.is_closing() {
        return Err(Failure::new(libc::EBADF, "the device is being closed"));
    }
    let slot = match table.free.pop_front() {
        Some(slot) => slot,
        None if table.slots.len() < OPEN_MAX => {
            table.slots.push(Slot::default());
            table.slots.len() - 1
        }
        None => return Err(Failure::new(libc::EMFILE, format!("{OPEN_MAX} descriptors are open"))),
    };
    table.slots[slot].open = Some(open);
    Ok((BASE | table.slots[slot].generation << SLOT_BITS | slot as u32) as c_int)
}

/// What a descriptor is. EBADF.
pub(crate) fn get(fd: c_int) -> Outcome<Arc<Open>> {
    let table = TABLE.read();
    let slot = table.slot_of(fd).ok_or_else(|| bad(fd))?;
    table.slots[slot].open.clone().ok_or_else(|| bad(fd))
}

/// Closes a descriptor. EBADF.
pub(crate) fn remove(fd: c_int) -> Outcome<Arc<Open>> {
    let mut table = TABLE.write();
    let slot = table.slot_of(fd).ok_or_else(|| bad(fd))?;
    table.take(slot).ok_or_else(|| bad(fd))
}

/// Closes all descriptors on a device.
pub(crate) fn remove_all_of(device: &Arc<Device>) {
    let mut table = TABLE.write();
    let is_of = |slot: &Slot| slot.open.as_ref().is_some_and(|open| Arc::ptr_eq(&open.device, device));
    let slots: Vec<usize> = (0..table.slots.len()).filter(|slot| is_of(&table.slots[*slot])).collect();
    let closed: Vec<_> = slots.into_iter().filter_map(|slot| table.take(slot)).collect();
    drop(table);
    // Dropped without the lock: the last user of a file without a name frees what it holds.
    drop(closed);
}
