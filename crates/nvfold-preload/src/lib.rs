//! libnvfold_preload: an unmodified program whose files below a prefix are on an nvfold device, with no kernel between.
//!
//! The problem: a program calls `open`, `read` and `memcpy` of libc. `nvfold run` puts this library before libc, and its
//! functions get the calls. Most are none of ours (a host file, a socket) and must go on to libc unchanged, at once, from
//! anywhere: signal handlers, other libraries' constructors, children of fork and vfork.
//!
//! The idea: each function asks one question, lock-free: is this path below the prefix, is this number one of ours? If not, it
//! calls libc with what it was given. If so, the rooms of nvfold-c do the work, as for a program that was linked to libnvfold.
//!
//! ```text
//! program    open("/nvfold/a")      read(3, ..)          memcpy(..)           fread(.., file)
//! calls      prefix: below? yes     numbers: ours? yes   copies: noted        streams: a cookie stream that calls read
//! nvfold-c   files::open            transfers::read      causality            transfers
//! kernel     a placeholder, 3       -                    -                    -
//! ```
//!
//! **On a mount.** With `nvfold run --mount` nothing is ours: all calls go to libc, and `mounted` notes what reads bring and
//! tells the server of the mount where the bytes of writes are from.
//!
//! **Names.** The functions here are called `nvfold_preload_open` and so on. `scripts/preload-library.sh` links the library so
//! that it exports them as `open`, and so that `open` *within* it (in this crate, the core, Rust's std) means the next library's:
//! the linker renames every such reference (`--wrap`). So the core never runs through its own interposition, whatever it calls,
//! and `libc::open` in this crate is libc's. `interposed.txt` lists the names.
//!
//! | room | question it answers |
//! |---|---|
//! | `start` | what `nvfold run` asked for; opening the device, closing it at exit |
//! | `evaluation` | what did the program write, and what was done for it? (`nvfold bench paper icid`) |
//! | `streams` | stdio: streams on our files, and what their buffers hold |
//! | `calls` | the functions, a file for each family |
//! | `prefix` | is this path ours, and where does it lead? |
//! | `working` | the working directory, which may be on the device |
//! | `mounted` | files on a mount, where the kernel does the work: where are the bytes from that are being written? |
//! | `numbers` | which descriptor is which open file |
//! | `device` | the device that paths lead to |
//! | `copies` | memcpy and its like |
//! | `answer` | errno, and calls that come when there is no device (any more) |
//! | `process` | are we the process that has the device? |
#![deny(unsafe_op_in_unsafe_fn)]
// The functions of libc: what they ask of their caller stands in their manual pages.
#![allow(clippy::missing_safety_doc)]

mod answer;
mod calls;
pub mod copies;
mod device;
mod evaluation;
mod mounted;
mod numbers;
mod prefix;
mod process;
mod start;
mod streams;
mod working;
