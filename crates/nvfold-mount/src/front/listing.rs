//! Listings of directories.
//!
//! The problem: a listing takes several requests, and programs rename and remove entries between them. A renamed
//! entry gets a newer cookie, so a listing that ran to the end of the directory could meet it again, for ever.
//!
//! The idea: a listing ends at the cookie that was the newest when the listing began.
//!
//! ```text
//! position   0    1 FIRST    2 SECOND    cookie + 2 ...    youngest cookie + 2
//! entry      .    ..         the entries of the directory, by cookie         (those that came later)
//! ```

use super::{Answer, Front};
use crate::convert;
use nvfold::{DirEntry, FileKind, InodeNumber};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of names read from a directory at a time.
pub(crate) const NAMES_AT_A_TIME: usize = 128;
/// Offsets in a listing: `.` is before `FIRST`, `..` before `SECOND`, an entry before its cookie + `SECOND`.
const FIRST: u64 = 1;
pub(crate) const SECOND: u64 = 2;

/// The open directories.
pub(crate) struct Listings {
    /// The end of each listing: the newest cookie when it began.
    last_cookies: Mutex<HashMap<u64, u64>>,
    next_handle: AtomicU64,
}

impl Listings {
    pub(crate) fn new() -> Listings {
        Listings { last_cookies: Mutex::default(), next_handle: AtomicU64::new(1) }
    }
}

impl Front {
    /// Opens a directory and returns its handle.
    pub(crate) fn begin_listing(&self, dir: InodeNumber) -> Answer<u64> {
        let last = self.fs.last_cookie(dir).map_err(convert::errno)?;
        let handle = self.listings.next_handle.fetch_add(1, Ordering::Relaxed);
        self.listings.last_cookies.lock().insert(handle, last);
        Ok(handle)
    }

    /// Closes a directory.
    pub(crate) fn end_listing(&self, listing: u64) {
        self.listings.last_cookies.lock().remove(&listing);
    }

    /// Calls `add` for each entry of a directory from `offset` on, until `add` returns true because the reply is
    /// full.
    pub(crate) fn list(
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

    /// Reads up to `NAMES_AT_A_TIME` entries after a cookie. Only reads them, because the directory is locked
    /// meanwhile and work on its entries needs locks of their own.
    pub(crate) fn names_after(&self, dir: InodeNumber, cookie: u64) -> Answer<Vec<DirEntry>> {
        let mut names = Vec::with_capacity(NAMES_AT_A_TIME);
        let mut gather = |entry| {
            names.push(entry);
            names.len() < NAMES_AT_A_TIME
        };
        self.fs.readdir(dir, cookie, &mut gather).map_err(convert::errno)?;
        Ok(names)
    }

    /// Returns the end of a listing. At offset 0 the listing begins anew.
    fn last_cookie_of(&self, dir: InodeNumber, listing: u64, offset: u64) -> Answer<u64> {
        if offset == 0 {
            let last = self.fs.last_cookie(dir).map_err(convert::errno)?;
            self.listings.last_cookies.lock().insert(listing, last);
        }
        Ok(self.listings.last_cookies.lock().get(&listing).copied().unwrap_or(u64::MAX))
    }
}
