//! Programs under the library, as `nvfold run` starts them: C programs of these tests, and real ones.

mod chains;
mod cost;
mod differential;
mod lab;
mod library;
mod processes;
mod programs;
