//! [`Mount`]: a mounted file system, from mount(2) to the end of its threads.

use crate::access::{Access, Watching};
use crate::background::Background;
use crate::connection::Connection;
use crate::counters::Counters;
use crate::events::Event;
use crate::front::Front;
use crate::handshake::{self, Agreed};
use crate::housekeeping::Housekeeping;
use crate::mounts::{self, Mounted};
use crate::notices::Notices;
use crate::options::{Options, WantedTransport};
use crate::shortages::Shortages;
use crate::{daemon, memory, reconcile};
use nvfold::FileSystem;
use nvfold_fuse::mount::unmount;
use nvfold_fuse::{Notifier, Session, Transport};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a mount that is dropped may stay busy.
const GRACE: Duration = Duration::from_secs(5);

/// Why a file system could not be mounted, or how its mount failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The mount asks for io_uring ([`WantedTransport::Ring`]), and this kernel or process has none.
    #[error("mount on {}: requests cannot come by io_uring: {why}", dir.display())]
    NoRing {
        /// The mount point.
        dir: PathBuf,
        /// What is missing.
        why: String,
    },
    /// The directory, mount(2), fusermount3 or the handshake. Nothing is mounted.
    #[error("mount on {}: {source}", dir.display())]
    Mount {
        /// The mount point.
        dir: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// The threads or the rings that answer requests could not be started. Nothing is mounted.
    #[error("mount on {}: {source}", dir.display())]
    Start {
        /// The mount point.
        dir: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// A thread that answers requests has failed. The mount is unusable.
    #[error("serve {}: {source}", dir.display())]
    Serve {
        /// The mount point.
        dir: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// The mount is in use (`ResourceBusy`), or this user may not unmount it. It stays.
    #[error("unmount {}: {source}", dir.display())]
    Unmount {
        /// The mount point.
        dir: PathBuf,
        /// What failed.
        source: io::Error,
    },
}

/// A mounted file system. Dropping it unmounts; a mount that is in use is detached from the tree, and ends when it is no
/// longer used, or after 5 seconds. What programs have written by then is in the file system.
///
/// The [`FileSystem`] stays mounted in this process: other handles of it can be used at any time, and
/// [`FileSystem::unmount`] leaves its device clean after the mount has ended.
pub struct Mount {
    dir: PathBuf,
    counters: Arc<Counters>,
    by_ring: bool,
    /// Its line in the mount table, by which it is told from one that is mounted there later.
    mounted: Option<Mounted>,
    /// Whether this process has mounted it, and so unmounts it.
    is_own: bool,
    /// `None`: it has ended.
    serving: Option<Session>,
    /// Gone when the session has ended.
    front: Weak<Front>,
    threads: Vec<Background>,
    watching: Option<Watching>,
}

impl Mount {
    /// Mounts on a directory, and starts the threads that answer requests.
    ///
    /// # Errors
    /// [`Error::NoRing`], [`Error::Mount`] and [`Error::Start`]; nothing is mounted then.
    pub fn new(fs: FileSystem, dir: impl AsRef<Path>, options: Options) -> Result<Mount, Error> {
        let named = dir.as_ref();
        let dir = named.canonicalize().map_err(|source| Error::Mount { dir: named.to_owned(), source })?;
        let access = access_at_start(&fs, &options);
        let served = Starting { fs: &fs, dir: &dir, options: &options, access: &access }.start()?;
        let mounted = mounts::at(&dir);
        if let Some(mounted) = &mounted {
            mounted.raise_read_ahead();
        }
        Ok(Mount::of(served, fs, Place { dir, mounted, is_own: true }, access, &options))
    }

    /// Starts the threads that answer the requests of a mount that another process has made. This process never unmounts
    /// it: [`unmount`](Mount::unmount) only waits. With [`WantedTransport::Auto`] requests come by io_uring if that is
    /// available; if the kernel then refuses it, this fails, because only a new mount can do without.
    ///
    /// # Errors
    /// [`Error::NoRing`], [`Error::Mount`] for the handshake, and [`Error::Start`]. The mount is unusable then.
    pub fn serve(fs: FileSystem, connection: Connection, options: Options) -> Result<Mount, Error> {
        let dir = connection.dir().to_owned();
        let Connection { descriptor, mounted, .. } = connection;
        let access = access_at_start(&fs, &options);
        let starting = Starting { fs: &fs, dir: &dir, options: &options, access: &access };
        let served = starting.start_on(descriptor)?;
        Ok(Mount::of(served, fs, Place { dir, mounted, is_own: false }, access, &options))
    }

    /// Starts the threads beside those that answer requests.
    fn of(served: Served, fs: FileSystem, place: Place, access: Access, options: &Options) -> Mount {
        let Served { session, front, notices, counters, shortages, agreed } = served;
        let Place { dir, mounted, is_own } = place;
        let events = &options.events;
        let (stored, written) = (fs.clone(), front.clone());
        let told = events.clone();
        let changed = move |read_only| {
            if read_only {
                write_back(&written);
                // `housekeeping` reports a device that fails.
                let _ = stored.sync();
            }
            told(Event::Remounted { read_only });
        };
        let watching = mounted.as_ref().and_then(|mounted| access.watch(mounted, changed));
        let asked = front.clone();
        let keeping = Housekeeping {
            fs: fs.clone(),
            unmounts: is_own.then(|| dir.clone()),
            access: access.clone(),
            notices: Arc::downgrade(&notices),
            end_left_backup: Box::new(move || asked.upgrade().iter().for_each(|front| front.end_left_backup())),
            shortages,
            events: events.clone(),
        };
        let mut threads = vec![keeping.start(), reconcile::start(fs.clone(), access.clone(), events.clone())];
        if !fs.is_read_only() {
            threads.push(daemon::start(fs, access, events.clone()));
        }
        let by_ring = agreed.by_ring;
        Mount { dir, counters, by_ring, mounted, is_own, serving: Some(session), front, threads, watching }
    }

    /// Returns the mount point, an absolute path without symbolic links.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the counts of the requests that it has answered.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the counts for another thread of the program: they stay when the mount has ended.
    pub fn shared_counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Returns true if requests come by io_uring.
    pub fn is_served_by_ring(&self) -> bool {
        self.by_ring
    }

    /// Returns what makes the kernel write back what it has cached, from any thread.
    pub fn flusher(&self) -> Flusher {
        Flusher { front: self.front.clone() }
    }

    /// Waits until the file system is unmounted, by whomever, and until all threads of the mount have ended.
    ///
    /// # Errors
    /// [`Error::Serve`].
    pub fn wait(&mut self) -> Result<(), Error> {
        let ended = self.serving.take().map_or(Ok(()), Session::wait);
        self.end_threads();
        ended.map_err(|source| Error::Serve { dir: self.dir.clone(), source })
    }

    /// Unmounts, and waits as [`wait`](Mount::wait) does. The kernel hands over first what it has cached.
    ///
    /// # Errors
    /// [`Error::Unmount`], if it is in use, for example; it stays mounted then. [`Error::Serve`].
    pub fn unmount(&mut self) -> Result<(), Error> {
        if self.is_in_tree() {
            unmount(&self.dir, UnmountFlags::empty())
                .map_err(|errno| Error::Unmount { dir: self.dir.clone(), source: errno.into() })?;
        }
        self.wait()
    }

    /// Returns whether it is mounted still by this process, and what is mounted on the directory is this mount.
    fn is_in_tree(&self) -> bool {
        let is_served = self.serving.as_ref().is_some_and(|session| !session.has_ended());
        let number = |mounted: Option<Mounted>| mounted.map(|mounted| mounted.number);
        self.is_own && is_served && number(mounts::at(&self.dir)) == number(self.mounted.clone())
    }

    /// Detaches a mount that is in use; makes the kernel write back its pages first.
    fn detach(&self) {
        write_back(&self.front);
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
    }

    fn end_threads(&mut self) {
        self.watching = None;
        self.threads.clear();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_in_tree() && unmount(&self.dir, UnmountFlags::empty()) == Err(Errno::BUSY) {
            self.detach();
        }
        if let Some(session) = self.serving.take()
            && !session.ends_within(GRACE)
            && let Some(mounted) = &self.mounted
        {
            mounted.abort();
            session.ends_within(GRACE);
        }
        self.end_threads();
    }
}

/// Where a mount is.
struct Place {
    dir: PathBuf,
    mounted: Option<Mounted>,
    is_own: bool,
}

/// Makes the kernel write back what it has cached of a [`Mount`].
#[derive(Clone)]
pub struct Flusher {
    front: Weak<Front>,
}

impl Flusher {
    /// Makes the kernel write back all pages of files that programs have written; returns when they are in the file
    /// system.
    pub fn write_back(&self) {
        write_back(&self.front);
    }

    /// Returns true once the session of the mount has ended.
    pub fn has_ended(&self) -> bool {
        self.front.strong_count() == 0
    }
}

/// The parts from which a session is made.
struct Starting<'m> {
    fs: &'m FileSystem,
    dir: &'m Path,
    options: &'m Options,
    access: &'m Access,
}

/// A session that answers requests.
struct Served {
    session: Session,
    front: Weak<Front>,
    notices: Arc<Notices>,
    counters: Arc<Counters>,
    shortages: Arc<Shortages>,
    agreed: Agreed,
}

impl Starting<'_> {
    /// Mounts and starts to answer requests, by io_uring if that is wanted and works. If the kernel agrees to
    /// io_uring in the handshake and then refuses the rings, mounts again without it.
    fn start(&self) -> Result<Served, Error> {
        let wants_ring = self.wants_ring()?;
        match self.start_by(wants_ring) {
            Err(Error::Start { .. }) if wants_ring && self.options.transport == WantedTransport::Auto => {
                self.start_by(false)
            }
            started => started,
        }
    }

    /// Starts to answer requests on a connection that is mounted.
    fn start_on(&self, connection: OwnedFd) -> Result<Served, Error> {
        let wants_ring = self.wants_ring()?;
        let background = memory::background_requests(self.fs.region().level());
        let agreed = handshake::shake_hands(&connection, self.options, wants_ring, background)
            .map_err(|source| Error::Mount { dir: self.dir.to_owned(), source })?;
        self.serve(connection, agreed).map_err(|source| Error::Start { dir: self.dir.to_owned(), source })
    }

    fn wants_ring(&self) -> Result<bool, Error> {
        match self.options.transport {
            WantedTransport::Device => Ok(false),
            WantedTransport::Auto => Ok(nvfold_fuse::is_ring_available().is_ok()),
            WantedTransport::Ring => nvfold_fuse::is_ring_available()
                .map(|()| true)
                .map_err(|why| Error::NoRing { dir: self.dir.to_owned(), why }),
        }
    }

    /// Mounts once.
    fn start_by(&self, wants_ring: bool) -> Result<Served, Error> {
        let background = memory::background_requests(self.fs.region().level());
        let (connection, agreed) =
            handshake::mount(self.options, self.dir, self.access.is_read_only(), wants_ring, background)
                .map_err(|source| Error::Mount { dir: self.dir.to_owned(), source })?;
        self.serve(connection, agreed).map_err(|source| {
            let _ = unmount(self.dir, UnmountFlags::DETACH);
            Error::Start { dir: self.dir.to_owned(), source }
        })
    }

    fn serve(&self, connection: OwnedFd, agreed: Agreed) -> io::Result<Served> {
        let (counters, shortages) = (Arc::new(Counters::default()), Arc::new(Shortages::default()));
        counters.requests_come_by_ring(agreed.by_ring);
        let transport = match agreed.by_ring {
            true => Transport::Ring,
            false => Transport::Device { threads: self.options.threads, spin: self.options.spins_for() },
        };
        let notifier = Notifier::new(connection.try_clone()?);
        // The threads that these start, too, receive no signals.
        let (session, front, notices) = pmem::with_signals_blocked(|| {
            let (fs, access) = (self.fs.clone(), self.access.clone());
            let notices = Arc::new(Notices::new(notifier));
            let counted = (counters.clone(), shortages.clone());
            let front = Front::new(fs, self.options, notices.clone(), counted, access, agreed);
            let front = Arc::new(front);
            let known = Arc::downgrade(&front);
            Session::start(front, connection, transport).map(|session| (session, known, notices))
        })?;
        Ok(Served { session, front, notices, counters, shortages, agreed })
    }
}

fn access_at_start(fs: &FileSystem, options: &Options) -> Access {
    Access::new(fs.is_read_only() || options.flags.contains(MountFlags::RDONLY))
}

/// Makes the kernel write back what it has cached, unless the session has ended.
fn write_back(front: &Weak<Front>) {
    if let Some(front) = front.upgrade() {
        front.write_back_known();
    }
}
