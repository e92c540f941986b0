//! The tests of `pmem` as its users see it, in one program: each file is a module, and a filter by its name
//! (`cargo test -p nvfold-pmem --test all recorder`) chooses it.

mod descriptor;
mod device;
mod faults;
mod order;
mod owner;
mod recorder;
mod refused;
mod signals;
mod threads;
mod trust;
mod writeback;
