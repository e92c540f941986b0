//! The tests of the library as its users see it, in one program: each file is a module, and a filter by its name
//! (`cargo test -p nvfold --features papers --test all fact`) chooses it.

#[cfg(not(feature = "papers"))]
compile_error!("the tests need the functions of the papers: cargo test -p nvfold --features papers");

mod append;
mod auto;
mod check;
mod collect;
mod compress;
mod cut_off;
mod deext;
mod denova;
mod examples;
mod exerciser;
mod fact;
mod faults;
mod grow;
mod layers;
mod limits;
mod logs;
mod nv_dedup;
mod origins;
mod overwrite;
mod reclaim;
mod reference;
#[path = "../../pmem/tests/refused.rs"]
mod refused;
mod removed;
mod repair;
mod room;
mod sample;
mod segments;
mod share;
mod threads;
mod times;
mod trees;
mod vector;
mod watched;
mod whiteout;
mod xattrs;
mod zeros;
