//! stdio on files of ours.
//!
//! The problem: stdio is within libc, and reads and writes by calls that no interposition sees. The idea: `fopencookie` makes a
//! stream of libc's own that calls us to read, write, seek and close, so every function of stdio works on it as it is. The
//! stream is told its number, a placeholder, so `fileno` tells it too, and C++ streams, which read and write by that, come to us.
//!
//! ```text
//! fopen   open our file -> number 5 -> fopencookie(5) -> the stream's number := 5
//! fread   libc: read(cookie 5) into the stream's buffer, from there to the program's: noted here, by the stream's position
//! fwrite  libc: from the program's memory to the stream's buffer: noted here as a copy, before the buffer is written
//! ```
//!
//! stdin, stdout and stderr are streams that libc makes on numbers 0 to 2, which it reads and writes by itself. When one of these
//! numbers becomes a file of ours (dup2, freopen) the variable gets a stream of ours, and the old one when it is host's again.
//!
//! The structure behind `FILE` is public (`bits/types/struct_FILE.h`), as macros of old programs look into it.

mod front;
mod making;
mod noting;
mod standard;
