//! Housekeeping of a mount, once a second: removes trees whose time has come, frees removed trees and dead space in
//! packed segments, gives freed memory back to the host, ends backups whose command has gone, and checks the device.
//!
//! A device that is lost (truncated under the mount, or on a host without memory for it) answers every request with
//! EIO and never recovers. So the mount ends: it is detached from the tree.

use crate::access::Access;
use crate::background::{Background, Stop};
use crate::events::{Event, Events};
use crate::notices::Notices;
use crate::shortages::{Shortages, ShortagesTold};
use crate::switches::SwitchesTold;
use nvfold::{Error, ExpiredTree, FileSystem, Victims};
use nvfold_fuse::mount::unmount;
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tracing::debug;

/// The target of what is logged about work beside the requests.
const TARGET: &str = "nvfold::background";

const EVERY: Duration = Duration::from_secs(1);

/// What the thread works with.
pub(crate) struct Housekeeping {
    pub fs: FileSystem,
    /// The mount point, if this process has mounted it.
    pub unmounts: Option<PathBuf>,
    pub access: Access,
    pub notices: Weak<Notices>,
    /// Ends backups whose command has gone.
    pub end_left_backup: Box<dyn Fn() + Send>,
    pub shortages: Arc<Shortages>,
    pub events: Events,
}

impl Housekeeping {
    /// Starts the thread.
    pub(crate) fn start(self) -> Background {
        Background::start(move |stop| self.work(stop))
    }

    fn work(&self, stop: &Stop) {
        let Housekeeping { fs, unmounts, events, .. } = self;
        let mut told = Told::default();
        self.remove_expired(&mut told);
        stop.rest(EVERY);
        while !stop.is_asked() {
            if !fs.region().probe() {
                let error = fs.sync().err();
                let _ = unmounts.as_ref().map(|dir| unmount(dir, UnmountFlags::DETACH));
                return events(Event::DeviceLost { error });
            }
            told.tell(fs, &self.shortages, events);
            (self.end_left_backup)();
            self.remove_expired(&mut told);
            self.tidy_up(stop);
            stop.rest(EVERY);
        }
    }

    /// Removes the trees whose time has come, and tells of each. After a crash this waits until recovery knows the trees.
    fn remove_expired(&self, told: &mut Told) {
        let recovery = self.fs.recovery();
        let is_recovering = !recovery.reconciled && !recovery.stalled;
        if self.access.is_read_only() || is_recovering {
            return;
        }
        match self.fs.remove_expired() {
            Ok(expired) => expired.into_iter().for_each(|tree| self.tell_expired(tree)),
            Err(Error::ReadOnly { .. }) => {}
            Err(error) if !told.expired_stays => {
                told.expired_stays = true;
                (self.events)(Event::LeftOut { error: format!("remove a tree whose time has come: {error}") });
            }
            Err(_) => {}
        }
    }

    fn tell_expired(&self, expired: ExpiredTree) {
        let name = expired.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if let Some(notices) = self.notices.upgrade() {
            notices.has_lost_a_tree(expired.tree.top, expired.parent, OsStr::from_bytes(name));
        }
        (self.events)(Event::Expired(expired));
    }

    /// Frees space and gives memory back. A failure costs space or memory, never data; the next round tries again.
    fn tidy_up(&self, stop: &Stop) {
        let Housekeeping { fs, access, .. } = self;
        let goes_on = || !access.is_read_only() && !stop.is_asked();
        let all = |what: &str, step: &dyn Fn() -> nvfold::Result<bool>| {
            let mut steps = 0;
            while goes_on() && !step().unwrap_or(true) {
                steps += 1;
            }
            if steps > 0 {
                debug!(target: TARGET, steps, "{what}");
            }
        };
        all("freed removed trees", &|| fs.remove_step());
        all("emptied packed segments", &|| fs.reclaim_step(Victims::Worthwhile));
        all("gave memory back to the host", &|| fs.trim_step());
    }
}

/// What the events so far have told.
#[derive(Default)]
struct Told {
    bad_ranges: usize,
    unreadable: u64,
    syncs_fail: bool,
    expired_stays: bool,
    shortages: ShortagesTold,
    switches: SwitchesTold,
}

impl Told {
    /// Reports what is new.
    fn tell(&mut self, fs: &FileSystem, shortages: &Shortages, events: &Events) {
        for bad in fs.region().bad_ranges().into_iter().skip(self.bad_ranges) {
            events(Event::BadMemory { offset: bad.start, bytes: bad.end - bad.start });
            self.bad_ranges += 1;
        }
        let errors = fs.region().sync_errors();
        if errors.is_failing != self.syncs_fail {
            self.syncs_fail = errors.is_failing;
            events(Event::Syncs(errors));
        }
        let stats = fs.figures();
        let unreadable = stats.recovery.unreadable;
        if unreadable > self.unreadable {
            events(Event::Unreadable { inodes: unreadable });
            self.unreadable = unreadable;
        }
        self.shortages.tell(shortages, fs, events);
        self.switches.tell(&stats, events);
    }
}
