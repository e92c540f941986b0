//! libnvfold: an nvfold device inside a C or C++ program, with calls shaped like those of POSIX.
//!
//! The problem: C hands over bare pointers, sizes and numbers, and expects `-1` and `errno`. The idea: one thin layer takes
//! them, and everything within is ordinary safe Rust on [`nvfold::FileSystem`].
//!
//! ```text
//!  C        nvfold_pread(fd, buffer, length, offset)
//!  exports  a function a symbol: numbers and pointers become values, an error becomes -1 and errno
//!  caller   the pointers of C, as types that only a C call can make: NULL, misaligned and absurd ones are refused here
//!  table    fd -> the open file, which keeps its device alive while the call lasts
//!  files    what the call does, in safe Rust
//!  device   the file system, its background thread, orderly closing
//! ```
//!
//! | room | question it answers |
//! |---|---|
//! | `exports` | which symbols there are (`symbols.txt`); from them the headers are made |
//! | `transfers` | between memory and files: reading, writing, copying |
//! | `mapping` | memory filled with what a file held |
//! | `shared` | pages of files that several mappings have in common, and that are written back (`nvfold run`) |
//! | `listing` | directories that are being read |
//! | `files` | open files: reads, writes, positions |
//! | `written` | how much a program writes, and a watcher of each file opened and each write |
//! | `table` | which descriptor is which open file |
//! | `causality` | which memory came from which file |
//! | `names` | what is asked of a path |
//! | `paths` | from a path to an inode |
//! | `status` | `struct stat` and its like |
//! | `device`, `background`, `options` | opening and closing devices, what goes on meanwhile |
//! | `caller` | memory of the C program |
//! | `failure` | errno, the sentence for it, and panics, which end here |
//!
//! The crate nvfold-preload uses the rooms below `exports` for programs that were never written for any of this.
//!
//! `unsafe` is in `caller`, `failure`, `mapping` and `exports` alone (a test holds that): the first three touch memory and
//! errno, and the last exports symbols by name.
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(missing_docs)]

#[cfg(panic = "abort")]
compile_error!("libnvfold turns panics into EIO, which needs panic=unwind");
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("exports/icid.rs knows how C passes the third argument of a variadic call on x86-64 and AArch64 alone");

mod background;
mod exports;
mod mapping;
mod table;

// The rooms that nvfold-preload puts the names of libc on. They are no API for anybody else.
#[doc(hidden)]
pub mod caller;
#[doc(hidden)]
pub mod causality;
#[doc(hidden)]
pub mod device;
#[doc(hidden)]
pub mod failure;
#[doc(hidden)]
pub mod files;
#[doc(hidden)]
pub mod listing;
#[doc(hidden)]
pub mod names;
#[doc(hidden)]
pub mod options;
#[doc(hidden)]
pub mod paths;
#[doc(hidden)]
pub mod shared;
#[doc(hidden)]
pub mod status;
#[doc(hidden)]
pub mod transfers;
#[doc(hidden)]
pub mod written;
