//! libnvfold_preload: lets an unmodified program use files on an nvfold device, below a prefix, without the kernel.
//!
//! The problem: a program calls `open`, `read` and `memcpy` of libc. `nvfold run` loads this library before libc, so
//! its functions get the calls. Most calls concern other objects (a host file, a socket) and must go on to libc
//! unchanged and at once. They come from anywhere: signal handlers, constructors of other libraries, children of fork
//! and vfork.
//!
//! The idea: before each call one question is asked without a lock: is this path below the prefix, or is this
//! descriptor one of ours? If not, the next library's function of the same name gets the call, unchanged. If so, the
//! modules of nvfold-c do the work, as for a program that is linked to libnvfold.
//!
//! ```text
//! program    open("/nvfold/a")      read(3, ..)          memcpy(..)           fread(.., file)
//! calls      prefix: below? yes     numbers: ours? yes   copies: noted        streams: a cookie stream that calls read
//! nvfold-c   files::open            transfers::read      causality            transfers
//! kernel     a placeholder, 3       -                    -                    -
//! ```
//!
//! **On a mount.** With `nvfold run --mount` no path is ours: all calls go to libc. `mounted` records which bytes
//! reads return, and sends the server of the mount the origins of the bytes of a write.
//!
//! **Names.** The functions here are called `nvfold_preload_open` and so on. `scripts/preload-library.sh` links the
//! library so that it exports `open`, which asks the question, and so that `open` *within* it (in this crate, the core,
//! Rust's std) is libc's: the linker renames every such reference (`--wrap`). So the core never runs through an
//! interposition, its own or another library's, and `libc::open` in this crate is libc's. `host!(libc::open(..))` is
//! the next library's. `interposed.txt` lists the names, with their questions; `passed-on.txt` lists all other names
//! of libc, with the reason why they are left alone.
//!
//! | room | question it answers |
//! |---|---|
//! | `start` | what did `nvfold run` ask for? opening the device, closing it at exit |
//! | `evaluation` | what did the program write, and what was done for it? (`nvfold-lab paper icid`) |
//! | `streams` | stdio: streams on our files, and what their buffers hold |
//! | `calls` | the functions, a file for each family |
//! | `prefix` | is this path ours, and where does it lead? |
//! | `host` | what does the host have at a path? |
//! | `working` | the working directory, which may be on the device |
//! | `mounted` | files on a mount, served by the kernel: where do the bytes of a write come from? |
//! | `numbers` | which descriptor is which open file |
//! | `mappings` | which memory is a shared mapping of our files |
//! | `device` | the device that paths lead to |
//! | `copies` | memcpy and its like |
//! | `answer` | errno, and calls that come when there is no device |
//! | `raw` | system calls that are made past libc |
//! | `process` | are we the process that has the device? |
#![deny(unsafe_op_in_unsafe_fn)]
// These are functions of libc; their manual pages state the contracts.
#![allow(clippy::missing_safety_doc)]

mod answer;
mod calls;
pub mod copies;
mod device;
mod evaluation;
mod host;
mod mappings;
mod mounted;
mod numbers;
mod prefix;
mod process;
mod raw;
mod start;
mod streams;
mod working;
