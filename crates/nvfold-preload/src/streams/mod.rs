//! stdio on files of ours.
//!
//! The problem: stdio is part of libc, and reads and writes by calls that no interposition sees. The idea:
//! `fopencookie` makes a libc stream that calls us to read, write, seek and close, so every function of stdio works
//! on it unchanged. We set the stream's number to a placeholder. So `fileno` returns it, and C++ streams, which read
//! and write by number, come to us.
//!
//! ```text
//! fopen   open our file -> number 5 -> fopencookie(5) -> the stream's number := 5
//! fread   libc: read(cookie 5) into the stream's buffer, then into the program's: recorded here, by stream position
//! fwrite  libc: from program memory to the stream's buffer: recorded here as a copy, before it is written
//! ```
//!
//! stdin, stdout and stderr are streams that libc makes on numbers 0 to 2, and it reads and writes those numbers
//! directly. When such a number becomes a file of ours (dup2, freopen), the variable gets a stream of ours; when it
//! is the host's again, the variable gets the old stream back.
//!
//! The structure behind `FILE` is public (`bits/types/struct_FILE.h`), because macros of old programs access it.

mod front;
mod making;
mod noting;
mod standard;
