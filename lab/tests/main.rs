//! The tests of the laboratory, in one program: each file is a module.

mod common;
mod cost;
mod experiments;
mod icid;
