//! End-to-end tests of nvfold: what the suites in `tests/` share.
//!
//! A test of a file system needs three things that are easy to get wrong: a place of its own that
//! is gone afterwards, a mount that never outlives the test (also when it panics or hangs), and
//! random input that can be had again. Each is one module here:
//!
//! | module | gives |
//! |---|---|
//! | [`scratch`] | a temporary directory in memory, gone on drop |
//! | [`mount`] | the real `nvfold` binary mounting a device of the test's own; killed on drop |
//! | [`device`] | the same device through the library |
//! | [`random`] | a seeded generator that prints its seed when the test fails |
//! | [`crash`] | every state that a crash can leave behind, judged |
//! | [`model`] | a file system so simple that it is right, to compare with |
//! | [`causality`] | the rec-tree beside a naive model |
//! | [`block`] | blocks that prove themselves whole, in place and current |
//! | [`hostile`] | images that no nvfold would have written |
//! | [`shared`] | which blocks files name, and what sharing saves of them |
//! | [`slate`] | a device in memory that gets another content again and again |
//! | [`probe`] | small C programs, for system calls that no safe Rust has |
//! | [`tree`] | all that `stat` and friends tell about a directory tree, to compare with |
//! | [`run`] | programs with a time limit, their output shown on failure |
//! | [`requires`] | what a test needs and may be missing: prints why it skips, fails under `CI=true` |
//!
//! Environment variables: `NVFOLD_BIN` (the binary to test instead of building it), `NVFOLD_SEED`
//! (replay a random test), `NVFOLD_TEST_DIR` (run the mount's suites on this directory instead of
//! a mount: tells a wrong test from a wrong file system), `NVFOLD_SOAK` (a factor for the length
//! of the random tests; `make soak` sets it), `NVFOLD_CRASH` (the crash states of the workloads whose
//! names begin so), `NVFOLD_SUBJECT` (those of one subject).
#![forbid(unsafe_code)]

pub mod block;
pub mod causality;
pub mod crash;
pub mod device;
pub mod hostile;
pub mod model;
pub mod mount;
pub mod probe;
pub mod random;
pub mod requires;
pub mod run;
pub mod scratch;
pub mod shared;
pub mod slate;
pub mod tree;

/// Prints figures that are worth seeing also when the test passes: past the capture of the test harness.
pub fn show(figures: &str) {
    use std::io::Write;
    // Nobody to read it is no reason to fail.
    let _ = writeln!(std::io::stderr(), "\n{figures}");
}
