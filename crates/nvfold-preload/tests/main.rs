//! Programs under the library, as `nvfold run` starts them: C programs of these tests, and real ones.

mod chains;
mod cost;
mod differential;
mod generated;
mod lab;
mod library;
mod processes;
mod programs;
/// The seeds of all random tests.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../tests/src/random.rs"]
mod random;
