//! The tests of the command, in one program: each file is a module, and a filter by its name
//! (`cargo test -p nvfold-cli --test all top`) chooses it.

mod bench;
mod common;
mod compress;
mod denova;
mod devices;
mod ended;
mod figures;
mod messages;
mod mounts;
mod nv_dedup;
mod reclaim;
mod remove;
mod run;
mod scripting;
mod sharing;
mod top;
mod trees;
mod trust;
