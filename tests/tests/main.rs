//! The end-to-end tests, in one program: linking one takes a moment, linking seventeen takes minutes. Each file is a
//! module, and a filter by its name (`cargo test -p nvfold-tests --test all names`) chooses it.
//!
//! Tests run beside each other, on as many threads as there are processors, and `crash_states` and `mutations` use all
//! processors for minutes. So no test changes what belongs to the process (working directory, umask, environment,
//! signals); one that needs a process of its own starts this program again, with the name of a test that is ignored
//! otherwise. A time limit says *hung*, not *slow*.

mod badinput;
mod copies;
mod cost;
mod crash;
mod crash_states;
mod damage;
mod denova;
mod direct;
mod faults;
mod followed;
mod fsx;
mod full_mount;
mod fuzz;
mod handles;
mod hints;
mod host_memory;
mod model;
mod mutations;
mod names;
mod nospace;
mod oracle_defects;
mod pjdfstest;
mod power_cut;
mod programs;
mod remount;
mod requests;
mod resharing;
mod rooms;
mod sharing;
mod space;
mod tidy;
mod toy_policy;
