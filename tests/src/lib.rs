//! End-to-end tests of nvfold: what the suites in `tests/` share.
//!
//! A test of a file system needs three things that are easy to get wrong: its own place that is gone afterwards, a
//! mount that never outlives the test (also when the test panics or hangs), and random input that can be reproduced.
//! Each is one module here:
//!
//! | module | gives |
//! |---|---|
//! | [`scratch`] | a temporary directory in memory, gone on drop |
//! | [`mount`] | the real `nvfold` binary mounting the test's own device; killed on drop |
//! | [`device`] | the same device through the library |
//! | [`random`] | a seeded generator that prints its seed when the test fails |
//! | [`crash`] | every state that a crash can leave behind, checked |
//! | [`model`] | a file system simple enough to be right, to compare with |
//! | [`causality`] | the rec-tree compared with a naive model |
//! | [`block`] | blocks that prove that they are intact, in place and current |
//! | [`hostile`] | images that no nvfold would write |
//! | [`shared`] | the blocks that files reference, and what sharing saves |
//! | [`slate`] | a device in memory that gets new content again and again |
//! | [`pages`] | pages of documentation, whose commands are run |
//! | [`probe`] | small C programs, for system calls that no safe Rust has |
//! | [`tree`] | all that `stat` and related calls report about a directory tree, to compare with |
//! | [`run`] | programs with a time limit, their output shown on failure |
//! | [`requires`](mod@requires) | needs of a test that may be missing: prints why it skips, fails under `CI=true` |
//!
//! Environment variables: `NVFOLD_BIN` (the binary to test instead of building it), `NVFOLD_SEED` (replay a random
//! test), `NVFOLD_TEST_DIR` (run the suites for mounts in this directory instead of a mount: distinguishes a wrong test from
//! a wrong file system), `NVFOLD_SOAK` (a factor for the length of the random tests; `make soak` sets it),
//! `NVFOLD_CRASH` (only the crash states of workloads whose names begin so), `NVFOLD_SUBJECT` (only those of one
//! subject).
#![forbid(unsafe_code)]

// The tests are a module of this library, so that it is compiled once for them, with its own unit tests.
#[cfg(test)]
extern crate self as nvfold_tests;
#[cfg(test)]
#[path = "../tests/main.rs"]
mod tests;

pub mod block;
pub mod causality;
pub mod crash;
pub mod device;
pub mod hostile;
pub mod model;
pub mod mount;
pub mod pages;
pub mod probe;
pub mod random;
pub mod requires;
pub mod run;
pub mod scratch;
pub mod shared;
pub mod slate;
pub mod tree;

/// Prints figures that are worth seeing even if the test passes. They bypass the capture of the test harness.
pub fn show(figures: &str) {
    use std::io::Write;
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "\n{figures}");
}
