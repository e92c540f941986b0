//! Sockets on which metrics are read. A socket file belongs to its mount: only its user may connect, and it goes with the
//! mount. One that is left of a mount that is gone is replaced; anything else at its place is not touched.

use super::Scrape;
use super::endpoint::Endpoint;
use super::http::{self, Connection, Site};
use crate::failure::{Doing, Failure, Outcome};
use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tracing::debug;

const TARGET: &str = "nvfold::metrics";
/// The largest number of connections that are answered at once. Others wait in the queue of the socket.
const CONNECTIONS_MAX: usize = 16;
/// The length of that queue.
const BACKLOG: i32 = 64;
/// How long to wait if no connection can be taken: there may be no descriptors left.
const WAIT_AFTER_ERROR: Duration = Duration::from_millis(100);
/// The stack of a thread that answers.
const STACK_BYTES: usize = 512 << 10;

/// A socket that is bound.
pub(crate) struct Listener {
    socket: Socket,
    bound: Bound,
    endpoint: Endpoint,
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Removes the file of a socket when it is dropped, if it is there still.
#[derive(Default)]
pub(crate) struct Bound(Option<(PathBuf, u64)>);

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some((path, inode)) = self.0.take()
            && fs::symlink_metadata(&path).is_ok_and(|now| now.ino() == inode)
        {
            let _ = fs::remove_file(path);
        }
    }
}

impl Listener {
    /// Binds.
    pub(crate) fn bind(endpoint: &Endpoint) -> Outcome<Listener> {
        let doing = format!("listen on {endpoint}");
        let (socket, bound) = match endpoint {
            Endpoint::Unix { path, group } => {
                let group = group.as_deref().map(group_number).transpose()?;
                let socket = bind_unix(path, group, &doing)?;
                let inode = fs::symlink_metadata(path).doing(&doing)?.ino();
                (Socket::Unix(socket), Bound(Some((path.clone(), inode))))
            }
            Endpoint::Tcp { address, .. } => {
                let socket = TcpListener::bind(address).map_err(|error| {
                    let is_used = error.kind() == ErrorKind::AddrInUse;
                    let failure = Failure::of(&doing, error);
                    if is_used { failure.hint("another program listens there; choose another port") } else { failure }
                })?;
                (Socket::Tcp(socket), Bound::default())
            }
            Endpoint::Textfile(_) => return Err(Failure::usage(doing, "a file is no socket")),
        };
        Ok(Listener { socket, bound, endpoint: endpoint.clone() })
    }

    /// Returns the port, if there is one: with port 0 the kernel has chosen it.
    pub(crate) fn port(&self) -> Option<u16> {
        match &self.socket {
            Socket::Tcp(socket) => socket.local_addr().ok().map(|address| address.port()),
            Socket::Unix(_) => None,
        }
    }

    /// Answers on threads of its own, until the process ends.
    pub(crate) fn serve(self, scrape: Scrape) -> Outcome<Bound> {
        let Listener { socket, bound, endpoint } = self;
        let is_local = matches!(endpoint, Endpoint::Tcp { address, .. } if address.ip().is_loopback());
        let site = Arc::new(Site { scrape, reader: endpoint.reader(), is_local });
        let work = move || match socket {
            Socket::Unix(socket) => accept_all(|| socket.accept().map(|(stream, _)| stream), &site),
            Socket::Tcp(socket) => accept_all(|| socket.accept().map(|(stream, _)| stream), &site),
        };
        let named = thread::Builder::new().name("nvfold-metrics".into());
        pmem::with_signals_blocked(|| named.spawn(work)).doing("serve metrics")?;
        Ok(bound)
    }
}

/// Takes connections, and answers a bounded number of them at once.
fn accept_all<C: Connection + Send + 'static>(accept: impl Fn() -> io::Result<C>, site: &Arc<Site>) {
    let turns = Arc::new(Turns::default());
    loop {
        turns.wait_for_one();
        let stream = match accept() {
            Ok(stream) => stream,
            Err(_) => {
                turns.give_back();
                thread::sleep(WAIT_AFTER_ERROR);
                continue;
            }
        };
        let (site, given_back) = (site.clone(), GivenBack(turns.clone()));
        let answer = move || {
            let _given_back = given_back;
            match http::answer(stream, &site) {
                Ok(()) => debug!(target: TARGET, "answered a scrape"),
                Err(error) => debug!(target: TARGET, %error, "a client has gone"),
            }
        };
        // Without a thread, the connection is closed.
        let _ = thread::Builder::new().stack_size(STACK_BYTES).name("nvfold-scrape".into()).spawn(answer);
    }
}

/// The connections that are answered now.
#[derive(Default)]
struct Turns {
    taken: Mutex<usize>,
    given_back: Condvar,
}

impl Turns {
    fn wait_for_one(&self) {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = self
            .given_back
            .wait_while(taken, |taken| *taken >= CONNECTIONS_MAX)
            .unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
    }

    fn give_back(&self) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.given_back.notify_one();
    }
}

struct GivenBack(Arc<Turns>);

impl Drop for GivenBack {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// Binds a socket that only this user, and a group, can connect to. Its mode is set before it has a name, so that there is
/// no moment in which others could.
fn bind_unix(path: &Path, group: Option<Gid>, doing: &str) -> Outcome<UnixListener> {
    make_way(path, doing)?;
    let flags = SocketFlags::CLOEXEC;
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).doing(doing)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).doing(doing)?;
    let address = SocketAddrUnix::new(path).map_err(|errno| match errno {
        Errno::NAMETOOLONG | Errno::INVAL => Failure::new(doing, "the path of a socket has at most 107 bytes"),
        errno => Failure::of(doing, errno),
    })?;
    rustix::net::bind(&socket, &address).doing(doing)?;
    if let Some(group) = group {
        let opened = rustix::fs::chown(path, None::<Uid>, Some(group))
            .and_then(|()| rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP));
        if let Err(errno) = opened {
            let _ = fs::remove_file(path);
            return Err(Failure::of(doing, errno).hint("only root can give it to a group that it is not a member of"));
        }
    }
    rustix::net::listen(&socket, BACKLOG).doing(doing)?;
    Ok(UnixListener::from(socket))
}

/// Removes a socket of this user at which nobody listens any more. Fails if something else is there.
fn make_way(path: &Path, doing: &str) -> Outcome<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.doing(doing)?,
    };
    let refused = |why: &'static str| Err(Failure::new(doing, why).hint("remove it, or choose another path"));
    if !found.file_type().is_socket() {
        return refused("something else than a socket is there");
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return refused("a socket of another user is there");
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path).doing(doing),
        Ok(_) => refused("another program listens there"),
        Err(error) => Err(error).doing(format!("{doing}: look whether anybody listens there")),
    }
}

/// Returns the number of a group: a number, or a name of /etc/group.
fn group_number(group: &str) -> Outcome<Gid> {
    let by_name = || {
        let groups = fs::read_to_string("/etc/group").ok()?;
        let fields = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
        fields.into_iter().find(|fields| fields.first() == Some(&group))?.get(2)?.parse::<u32>().ok()
    };
    let number = group.parse::<u32>().ok().or_else(by_name).filter(|number| *number != u32::MAX);
    number.map(Gid::from_raw).ok_or_else(|| {
        Failure::usage(format!("group {group}"), "there is no such group").hint("`getent group` lists the groups")
    })
}

impl Connection for TcpStream {
    fn set_timeout(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }

    fn end_output(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Connection for UnixStream {
    fn set_timeout(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }

    fn end_output(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    fn unix(path: &Path) -> Endpoint {
        Endpoint::Unix { path: path.to_owned(), group: None }
    }

    fn ask(path: &Path, request: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_socket_is_for_its_user_alone_and_goes_with_its_mount() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let bound = Listener::bind(&unix(&path)).unwrap().serve(Arc::new(|_| Vec::new())).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(ask(&path, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
        drop(bound);
        assert!(!path.exists());
    }

    #[test]
    fn only_a_dead_socket_of_ours_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let why = |path: &Path| format!("{:?}", Listener::bind(&unix(path)).err().unwrap());
        drop(UnixListener::bind(&path).unwrap());
        let bound = Listener::bind(&unix(&path)).unwrap();
        assert!(why(&path).contains("another program listens"));
        drop(bound);
        fs::write(&path, "a file").unwrap();
        assert!(why(&path).contains("something else than a socket"));
        assert_eq!(fs::read(&path).unwrap(), b"a file");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(why(&path).contains("something else than a socket"), "links are not followed");
        assert!(why(&dir.path().join("x".repeat(120))).contains("107 bytes"));
    }

    #[test]
    fn too_long_and_broken_requests_are_answered_and_others_still_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _bound = Listener::bind(&unix(&path)).unwrap().serve(Arc::new(|_| Vec::new())).unwrap();
        let long = [b"GET /metrics HTTP/1.1\r\nX: ".to_vec(), vec![b'a'; 20 << 10]].concat();
        assert!(ask(&path, &long).starts_with("HTTP/1.1 431"));
        assert!(ask(&path, b"\0\xff\r\n\r\n").starts_with("HTTP/1.1 400"));
        // Clients that say nothing hold all turns but one.
        let silent: Vec<_> = (1..CONNECTIONS_MAX).map(|_| UnixStream::connect(&path).unwrap()).collect();
        assert!(ask(&path, b"HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
        drop(silent);
        // More than there are turns: those that left make room.
        for _ in 0..3 * CONNECTIONS_MAX {
            drop(UnixStream::connect(&path).unwrap());
        }
        assert!(ask(&path, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }
}
