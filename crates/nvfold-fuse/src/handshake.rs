//! The handshake (INIT), in which kernel and server agree on features before the first request.
//!
//! ```text
//! kernel: version, features that it offers, read-ahead  ->  server: version, those of them that it wants, limits
//! ```

use crate::protocol::{InHeader, InitIn, InitOut, OutHeader, feature, opcode};
use rustix::io::Errno as Os;
use rustix::param::page_size;
use std::io;
use std::os::fd::OwnedFd;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The version of the protocol whose requests this crate reads.
const MAJOR: u32 = 7;
const MINOR: u32 = 40;
/// The oldest version that the kernel may have (Linux 3.15): before it, the answer was shorter.
const MINOR_LEAST: u32 = 23;
/// Features that every server takes: they concern the form of requests alone.
pub const ALWAYS: u64 = feature::ASYNC_READ | feature::BIG_WRITES | feature::MAX_PAGES | feature::INIT_EXT;
/// Room for the first request. The kernel sends nothing to a reader with less than 8 KiB.
const ROOM: usize = 64 << 10;
/// The bytes of [`InitIn`] that every kernel sends.
const OFFER_BYTES_LEAST: usize = 16;

/// What a server wants from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Features ([`feature`]); those that the kernel does not offer are left out.
    pub features: u64,
    /// The largest write request, in bytes.
    pub max_write_bytes: u32,
    /// The largest read-ahead, in bytes; the kernel may have a lower bound of its own.
    pub read_ahead_bytes: u32,
    /// How many background requests (read-ahead, writeback) the kernel may send at once.
    pub background: u16,
}

impl Wanted {
    fn answer(&self, offer: &InitIn) -> InitOut {
        let features = self.agreed(offer);
        // The kernel takes no more than the mount has, which root may have raised since the kernel made its offer.
        let read_ahead_bytes = self.read_ahead_bytes;
        let pages_max = self.max_write_bytes.max(read_ahead_bytes).div_ceil(page_size() as u32);
        InitOut {
            read_ahead_bytes,
            flags: features as u32,
            flags2: (features >> 32) as u32,
            background: self.background,
            // The kernel throttles writers from here on.
            congested: (u32::from(self.background) * 3 / 4) as u16,
            max_write_bytes: self.max_write_bytes,
            time_granularity_ns: 1,
            pages_max: u16::try_from(pages_max).unwrap_or(u16::MAX),
            ..version()
        }
    }

    fn agreed(&self, offer: &InitIn) -> u64 {
        let upper = if u64::from(offer.flags) & feature::INIT_EXT != 0 { offer.flags2 } else { 0 };
        (self.features | ALWAYS) & (u64::from(offer.flags) | u64::from(upper) << 32)
    }
}

/// Does the handshake on a new connection, and returns the features that both sides have.
///
/// # Errors
/// Those of reading and writing. `NotConnected` if the mount is gone, `Unsupported` if the kernel's protocol is too
/// old, `InvalidData` if the kernel sends something else.
pub fn agree(connection: &OwnedFd, wanted: &Wanted) -> io::Result<u64> {
    let mut request = vec![0; ROOM];
    loop {
        let length = receive(connection, &mut request)?;
        let (header, offer) = decode(&request[..length]).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "the kernel's first request is not the handshake")
        })?;
        match (offer.major, offer.minor) {
            (MAJOR, MINOR_LEAST..) => {
                send(connection, &header, 0, wanted.answer(&offer).as_bytes())?;
                return Ok(wanted.agreed(&offer));
            }
            // A newer kernel asks again, in this version.
            (major, _) if major > MAJOR => send(connection, &header, 0, version().as_bytes())?,
            (major, minor) => {
                let _ = send(connection, &header, -libc::EPROTO, &[]);
                let why = format!("the kernel's FUSE protocol is {major}.{minor}, and {MAJOR}.{MINOR_LEAST} is needed");
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
        }
    }
}

fn version() -> InitOut {
    InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() }
}

fn receive(connection: &OwnedFd, request: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::io::read(connection, &mut *request) {
            Err(Os::NOENT | Os::INTR | Os::AGAIN) => {}
            Err(Os::NODEV) => {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "it was unmounted during the handshake"));
            }
            read => return Ok(read?),
        }
    }
}

/// Decodes the request; fields that an older kernel does not send are 0. `None` if it is another request.
fn decode(request: &[u8]) -> Option<(InHeader, InitIn)> {
    let (header, argument) = InHeader::read_from_prefix(request).ok()?;
    if header.opcode != opcode::INIT || argument.len() < OFFER_BYTES_LEAST {
        return None;
    }
    let mut offer = InitIn::new_zeroed();
    let length = argument.len().min(size_of::<InitIn>());
    offer.as_mut_bytes()[..length].copy_from_slice(&argument[..length]);
    Some((header, offer))
}

fn send(connection: &OwnedFd, request: &InHeader, error: i32, answer: &[u8]) -> io::Result<()> {
    let len = (size_of::<OutHeader>() + answer.len()) as u32;
    let header = OutHeader { len, error, unique: request.unique };
    rustix::io::write(connection, &[header.as_bytes(), answer].concat())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    /// What Linux 6.18 offers.
    const OFFER: InitIn = InitIn {
        major: 7,
        minor: 45,
        read_ahead_bytes: 128 << 10,
        flags: 0x73ff_fffb,
        flags2: 0x05fd,
        unused: [0; 11],
    };
    const WANTED: Wanted = Wanted {
        features: feature::WRITEBACK_CACHE | feature::ALLOW_IDMAP | feature::OVER_IO_URING,
        max_write_bytes: 1 << 20,
        read_ahead_bytes: 1 << 20,
        background: 64,
    };

    /// Plays the kernel, which sends these bytes; returns what the server makes of it and its first answer.
    fn shake(opcode: u32, argument: &[u8]) -> (io::Result<u64>, Option<Vec<u8>>) {
        let (kernel, server) = UnixDatagram::pair().unwrap();
        let header = InHeader { opcode, unique: 9, ..InHeader::default() };
        kernel.send(&[header.as_bytes(), argument].concat()).unwrap();
        let agreed = agree(&server.into(), &WANTED);
        kernel.set_nonblocking(true).unwrap();
        let mut answer = vec![0; 256];
        let answer = kernel.recv(&mut answer).ok().map(|length| answer[..length].to_vec());
        (agreed, answer)
    }

    fn header_of(answer: &[u8]) -> (u32, i32, u64) {
        let (OutHeader { len, error, unique }, _) = OutHeader::read_from_prefix(answer).unwrap();
        (len, error, unique)
    }

    #[test]
    fn the_handshake_agrees_on_features_that_both_sides_have() {
        let (agreed, answer) = shake(opcode::INIT, OFFER.as_bytes());
        assert_eq!(agreed.unwrap(), ALWAYS | feature::WRITEBACK_CACHE | feature::ALLOW_IDMAP, "it offers no io_uring");
        let answer = answer.unwrap();
        assert_eq!(header_of(&answer), (80, 0, 9));
        let (out, _) = InitOut::read_from_prefix(&answer[size_of::<OutHeader>()..]).unwrap();
        assert_eq!((out.major, out.minor, out.flags, out.flags2), (7, 40, 0x4041_0021, 0x100));
        assert_eq!((out.background, out.congested, out.time_granularity_ns), (64, 48, 1));
        assert_eq!((out.max_write_bytes, out.read_ahead_bytes), (1 << 20, 1 << 20));
        assert_eq!(u64::from(out.pages_max), (1 << 20) / page_size() as u64);
    }

    #[test]
    fn an_older_kernel_sends_fewer_fields_and_offers_fewer_features() {
        let old = InitIn { minor: 31, flags: OFFER.flags & !(1 << 30), ..OFFER };
        let (agreed, _) = shake(opcode::INIT, &old.as_bytes()[..OFFER_BYTES_LEAST]);
        assert_eq!(agreed.unwrap(), ALWAYS & !feature::INIT_EXT | feature::WRITEBACK_CACHE);
    }

    #[test]
    fn a_handshake_without_agreement_fails() {
        let too_old = InitIn { minor: 22, ..OFFER };
        let (agreed, answer) = shake(opcode::INIT, too_old.as_bytes());
        assert_eq!(agreed.unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert_eq!(header_of(&answer.unwrap()), (16, -libc::EPROTO, 9));
        for (opcode, argument) in [(opcode::LOOKUP, OFFER.as_bytes()), (opcode::INIT, &OFFER.as_bytes()[..15])] {
            let (agreed, answer) = shake(opcode, argument);
            assert_eq!(agreed.unwrap_err().kind(), io::ErrorKind::InvalidData);
            assert_eq!(answer, None);
        }
    }

    #[test]
    fn a_kernel_of_a_later_protocol_asks_again() {
        let (kernel, server) = UnixDatagram::pair().unwrap();
        let header = InHeader { opcode: opcode::INIT, unique: 9, ..InHeader::default() };
        let later = InitIn { major: 8, ..OFFER };
        for offer in [later, OFFER] {
            kernel.send(&[header.as_bytes(), offer.as_bytes()].concat()).unwrap();
        }
        assert!(agree(&server.into(), &WANTED).is_ok());
        let mut answer = [0; 256];
        assert_eq!(kernel.recv(&mut answer).unwrap(), 80);
        let (first, _) = InitOut::read_from_prefix(&answer[size_of::<OutHeader>()..]).unwrap();
        assert_eq!((first.major, first.max_write_bytes), (7, 0), "the version alone");
    }
}
