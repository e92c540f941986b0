//! The little of HTTP/1.1 that a scrape needs: GET and HEAD of one path, and an answer that ends the connection.
//!
//! A client may be hostile: what it sends is bounded in bytes, and the whole exchange in time.

use super::text::Format;
use super::{Scrape, encode};
use nvfold_mount::Reader;
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// The longest time from the first byte of a request to the last one of the answer, but for making it.
const EXCHANGE_WITHIN: Duration = Duration::from_secs(5);
/// What a client may send after its request, which is read so that the answer is not lost.
const REST_BYTES_MAX: usize = 64 << 10;

/// A connection whose calls can be bounded in time.
pub(super) trait Connection: Read + Write {
    fn set_timeout(&self, time: Duration) -> io::Result<()>;
    fn end_output(&self) -> io::Result<()>;
}

/// How an endpoint answers.
pub(super) struct Site {
    pub scrape: Scrape,
    pub reader: Reader,
    /// Only names of this machine are answered, so that no page in a browser can have figures read by a name of its own.
    pub is_local: bool,
}

/// An answer.
struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

/// Answers one request.
pub(super) fn answer(mut connection: impl Connection, site: &Site) -> io::Result<()> {
    let end = Instant::now() + EXCHANGE_WITHIN;
    let mut head = Vec::new();
    let read = read_head(&mut connection, &mut head, end);
    let (answer, is_head_only) = match read {
        Ok(()) => answered(&String::from_utf8_lossy(&head), site),
        Err(Refused::TooLong) => (plain("431 Request Header Fields Too Large", "the request is too long\n"), false),
        Err(Refused::TooSlow) => (plain("408 Request Timeout", "the request came too slowly\n"), false),
        Err(Refused::Gone(error)) => return Err(error),
    };
    // Making the figures has taken its time, too.
    send(&mut connection, &answer, is_head_only, Instant::now() + EXCHANGE_WITHIN)?;
    connection.end_output()?;
    read_rest(&mut connection, Instant::now() + Duration::from_secs(1));
    Ok(())
}

enum Refused {
    TooLong,
    TooSlow,
    Gone(io::Error),
}

/// Reads up to the empty line after the header fields.
fn read_head(connection: &mut impl Connection, head: &mut Vec<u8>, end: Instant) -> Result<(), Refused> {
    let mut part = [0; 1024];
    loop {
        if head.windows(4).any(|bytes| bytes == b"\r\n\r\n") || head.windows(2).any(|bytes| bytes == b"\n\n") {
            return Ok(());
        }
        if head.len() >= HEAD_BYTES_MAX {
            return Err(Refused::TooLong);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Refused::TooSlow);
        }
        let read = connection.set_timeout(left).and_then(|()| connection.read(&mut part));
        match read {
            Ok(0) => return Err(Refused::Gone(ErrorKind::UnexpectedEof.into())),
            Ok(length) => head.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(Refused::TooSlow);
            }
            Err(error) => return Err(Refused::Gone(error)),
        }
    }
}

fn plain(status: &'static str, body: &str) -> Answer {
    Answer { status, content_type: "text/plain; charset=utf-8", body: body.to_owned() }
}

/// Returns the answer to a request, and whether its body is left out.
fn answered(head: &str, site: &Site) -> (Answer, bool) {
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some("HTTP/1.0" | "HTTP/1.1"), None) = (method, target, version, words.next())
    else {
        return (plain("400 Bad Request", "this is no request of HTTP/1.1\n"), false);
    };
    let field = |wanted: &str| {
        let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.filter(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim()).next()
    };
    let is_head_only = method == "HEAD";
    if !["GET", "HEAD"].contains(&method) {
        return (plain("405 Method Not Allowed", "only GET and HEAD\n"), false);
    }
    if site.is_local && !field("host").is_none_or(is_name_of_this_machine) {
        return (plain("403 Forbidden", "ask by the name localhost or a loopback address\n"), is_head_only);
    }
    if target.split('?').next() != Some("/metrics") {
        return (plain("404 Not Found", "the metrics are at /metrics\n"), is_head_only);
    }
    let format = Format::accepted(field("accept").unwrap_or_default());
    let body = encode(&(site.scrape)(site.reader), format);
    (Answer { status: "200 OK", content_type: format.content_type(), body }, is_head_only)
}

fn is_name_of_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.chars().all(|c| c.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    name.is_empty() || name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn send(connection: &mut impl Connection, answer: &Answer, is_head_only: bool, end: Instant) -> io::Result<()> {
    let Answer { status, content_type, body } = answer;
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    if !is_head_only {
        bytes.extend_from_slice(body.as_bytes());
    }
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        connection.set_timeout(left)?;
        match connection.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(length) => rest = &rest[length..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads what the client still sends: with unread bytes, closing the connection would discard the answer.
fn read_rest(connection: &mut impl Connection, end: Instant) {
    let (mut part, mut all) = ([0; 4096], 0);
    while all < REST_BYTES_MAX {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || connection.set_timeout(left).is_err() {
            return;
        }
        match connection.read(&mut part) {
            Ok(0) | Err(_) => return,
            Ok(length) => all += length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn status(head: &str) -> &'static str {
        let site = Site { scrape: Arc::new(|_| Vec::new()), reader: Reader::Other, is_local: true };
        answered(head, &site).0.status
    }

    #[test]
    fn only_get_and_head_of_the_metrics_are_answered() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: localhost:9617\r\n\r\n"), "200 OK");
        assert_eq!(status("HEAD /metrics?x=1 HTTP/1.0\r\n\r\n"), "200 OK");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "404 Not Found");
        assert_eq!(status("GET /../metrics HTTP/1.1\r\n\r\n"), "404 Not Found");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405 Method Not Allowed");
        for wrong in [
            "",
            "\r\n\r\n",
            "GET /metrics\r\n\r\n",
            "GET  /metrics HTTP/1.1\r\n\r\n",
            "\u{16}\u{3}\u{1}",
            "GET /metrics HTTP/2\r\n\r\n",
        ] {
            assert_eq!(status(wrong), "400 Bad Request", "{wrong:?}");
        }
    }

    #[test]
    fn a_page_that_has_this_machine_asked_by_another_name_gets_nothing() {
        let of = |host: &str| status(&format!("GET /metrics HTTP/1.1\r\nHOST:{host}\r\n\r\n"));
        for host in ["localhost", " 127.0.0.1:9617", "[::1]:9617", "127.8.9.1", ""] {
            assert_eq!(of(host), "200 OK", "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:9617", "10.0.0.1", "127.0.0.1.evil.example"] {
            assert_eq!(of(host), "403 Forbidden", "{host}");
        }
    }
}
