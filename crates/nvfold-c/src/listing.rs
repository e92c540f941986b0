//! Directories that are being read.
//!
//! A listing gathers some names at a time, since the directory is locked while it is read. It ends at the entry that was the
//! youngest when it began: a renamed entry is a younger one, so a program that renames what it finds would list for ever.
#![forbid(unsafe_code)]

use crate::device::Device;
use crate::failure::{Failure, Outcome};
use nvfold::{DirEntry, File};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Names read at a time.
const NAMES_AT_A_TIME: usize = 128;
/// Handles are odd multiples of half of this, so that none is a device's.
const HANDLE_STEP: usize = 0x1000;

/// A directory that is being read.
pub struct Listing {
    device: Arc<Device>,
    /// Keeps it alive when it is removed meanwhile.
    directory: File,
    at: Mutex<At>,
}

/// How far it is.
#[derive(Default)]
struct At {
    /// Behind this entry it goes on.
    cookie: u64,
    /// Behind this one it ends. `None`: it has not begun.
    last_cookie: Option<u64>,
    gathered: VecDeque<DirEntry>,
}

static LISTINGS: RwLock<BTreeMap<usize, Arc<Listing>>> = RwLock::new(BTreeMap::new());

/// Begins to read a directory; returns the handle. ENOTDIR.
pub fn open(device: &Arc<Device>, directory: File) -> Outcome<usize> {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let listing = Arc::new(Listing::new(device, directory)?);
    let handle = LAST.fetch_add(1, Ordering::Relaxed) * HANDLE_STEP + HANDLE_STEP / 2;
    let mut listings = LISTINGS.write();
    // Under the lock, as for descriptors.
    if device.is_closing() {
        return Err(Failure::new(libc::EBADF, "the device is being closed"));
    }
    listings.insert(handle, listing);
    Ok(handle)
}

/// Returns the listing of a handle. EBADF.
pub fn of(handle: usize) -> Outcome<Arc<Listing>> {
    let found = LISTINGS.read().get(&handle).cloned();
    found.ok_or_else(|| Failure::new(libc::EBADF, "this handle is of no open directory"))
}

/// Ends one. EBADF.
pub fn close(handle: usize) -> Outcome<()> {
    let closed = LISTINGS.write().remove(&handle);
    closed.map(drop).ok_or_else(|| Failure::new(libc::EBADF, "this handle is of no open directory"))
}

/// Ends all on a device.
pub fn close_all_of(device: &Arc<Device>) {
    let mut listings = LISTINGS.write();
    let is_of = |listing: &Arc<Listing>| Arc::ptr_eq(&listing.device, device);
    let handles: Vec<usize> =
        listings.iter().filter(|(_, listing)| is_of(listing)).map(|(handle, _)| *handle).collect();
    let closed: Vec<_> = handles.iter().filter_map(|handle| listings.remove(handle)).collect();
    drop(listings);
    drop(closed);
}

impl Listing {
    /// Makes the listing of a directory, from its start. ENOTDIR.
    pub fn new(device: &Arc<Device>, directory: File) -> Outcome<Listing> {
        device.run(|fs| Ok(fs.last_cookie(directory.ino())?))?;
        Ok(Listing { device: device.clone(), directory, at: Mutex::default() })
    }

    pub fn device(&self) -> Arc<Device> {
        self.device.clone()
    }

    /// Returns the next entry; `None` at the end.
    pub fn next(&self) -> Outcome<Option<DirEntry>> {
        let mut at = self.at.lock();
        if at.gathered.is_empty() {
            self.gather(&mut at)?;
        }
        let entry = at.gathered.pop_front();
        if let Some(entry) = &entry {
            at.cookie = entry.cookie;
        }
        Ok(entry)
    }

    fn gather(&self, at: &mut At) -> Outcome<()> {
        self.device.run(|fs| {
            let directory = self.directory.ino();
            let last = match at.last_cookie {
                Some(last) => last,
                None => *at.last_cookie.insert(fs.last_cookie(directory)?),
            };
            let At { cookie, gathered, .. } = at;
            fs.readdir(directory, *cookie, &mut |entry| {
                let is_listed = entry.cookie <= last;
                if is_listed {
                    gathered.push_back(entry);
                }
                is_listed && gathered.len() < NAMES_AT_A_TIME
            })?;
            Ok(())
        })
    }

    /// Goes on behind the entry with this cookie; 0: from the start, and to what is there now.
    pub fn seek(&self, cookie: u64) {
        let mut at = self.at.lock();
        let last_cookie = at.last_cookie.filter(|_| cookie != 0);
        *at = At { cookie, last_cookie, gathered: VecDeque::new() };
    }

    /// The cookie of the entry that was given last.
    pub fn tell(&self) -> u64 {
        self.at.lock().cookie
    }
}
