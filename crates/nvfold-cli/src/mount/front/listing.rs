//! Listings of directories.
//!
//! A listing is told piece by piece, and programs rename and remove what they find between the pieces. A renamed entry
//! gets a younger cookie, so a listing that went on to the end of the directory would meet it again, for ever. So each
//! listing ends at the cookie that was the youngest when it began.
//!
//! ```text
//! position   0    1 FIRST    2 SECOND    cookie + 2 ...    youngest cookie + 2
//! entry      .    ..         the entries of the directory, by cookie         (those that came later)
//! ```

use super::{Answer, Front};
use crate::mount::convert;
use nvfold::{DirEntry, FileKind, InodeNumber};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names read from a directory at a time.
pub const NAMES_AT_A_TIME: usize = 128;
/// Positions: `.` is before `FIRST`, `..` before `SECOND`, entries before their cookie + `SECOND`.
const FIRST: u64 = 1;
pub const SECOND: u64 = 2;

/// Open directories.
pub struct Listings {
    /// Where each listing ends: the youngest cookie when it began.
    last_cookies: Mutex<HashMap<u64, u64>>,
    next_handle: AtomicU64,
}

impl Listings {
    pub fn new() -> Listings {
        Listings { last_cookies: Mutex::default(), next_handle: AtomicU64::new(1) }
    }
}

impl Front {
    pub fn begin_listing(&self, dir: InodeNumber) -> Answer<u64> {
        let last = self.fs.last_cookie(dir).map_err(convert::errno)?;
        let handle = self.listings.next_handle.fetch_add(1, Ordering::Relaxed);
        self.listings.last_cookies.lock().insert(handle, last);
        Ok(handle)
    }

    pub fn end_listing(&self, listing: u64) {
        self.listings.last_cookies.lock().remove(&listing);
    }

    /// Calls `add` for each entry of a directory from position `offset` until it says that the reply is full.
    pub fn list(
        &self,
        dir: InodeNumber,
        listing: u64,
        offset: u64,
        mut add: impl FnMut(u64, &DirEntry) -> bool,
    ) -> Answer<()> {
        let last_cookie = self.last_cookie_of(dir, listing, offset)?;
        let own = |ino, name: &[u8]| DirEntry { ino, kind: FileKind::Directory, cookie: 0, name: name.to_vec() };
        if offset < FIRST && add(FIRST, &own(dir, b".")) {
            return Ok(());
        }
        if offset < SECOND && add(SECOND, &own(self.fs.parent(dir).map_err(convert::errno)?, b"..")) {
            return Ok(());
        }
        let mut cookie = offset.saturating_sub(SECOND);
        while cookie < last_cookie {
            let names = self.names_after(dir, cookie)?;
            for entry in names.iter().filter(|entry| entry.cookie <= last_cookie) {
                if add(entry.cookie + SECOND, entry) {
                    return Ok(());
                }
            }
            match names.last() {
                Some(last) if names.len() == NAMES_AT_A_TIME => cookie = last.cookie,
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// Some entries, gathered first: the directory is locked while it is read, and its entries need locks of their own.
    pub fn names_after(&self, dir: InodeNumber, cookie: u64) -> Answer<Vec<DirEntry>> {
        let mut names = Vec::with_capacity(NAMES_AT_A_TIME);
        let mut gather = |entry| {
            names.push(entry);
            names.len() < NAMES_AT_A_TIME
        };
        self.fs.readdir(dir, cookie, &mut gather).map_err(convert::errno)?;
        Ok(names)
    }

    /// Where a listing ends. It begins anew at offset 0.
    fn last_cookie_of(&self, dir: InodeNumber, listing: u64, offset: u64) -> Answer<u64> {
        if offset == 0 {
            let last = self.fs.last_cookie(dir).map_err(convert::errno)?;
            self.listings.last_cookies.lock().insert(listing, last);
        }
        Ok(self.listings.last_cookies.lock().get(&listing).copied().unwrap_or(u64::MAX))
    }
}
