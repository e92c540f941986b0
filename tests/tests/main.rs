//! The end-to-end tests. They are a module of the library that they share, so one program has all of them: to link one
//! takes a moment, to link seventeen minutes. Each file is a module; a filter by its name selects it
//! (`cargo test -p nvfold-tests names::`).
//!
//! Tests run at the same time, on as many threads as there are processors, and `crash_states` and `mutations` use all
//! processors for minutes. So no test changes the state of the process (working directory, umask, environment,
//! signals). A test that needs its own process starts this program again, with the name of a test that is otherwise
//! ignored. A time limit detects a *hang*, not *slowness*.

mod backup;
mod badinput;
mod book;
mod broken_collections;
mod cgroup;
mod clones;
mod copies;
mod crash;
mod crash_states;
mod damage;
mod databases;
mod denova;
mod direct;
mod errnos;
mod exerciser;
mod faults;
mod followed;
mod fsx;
mod full_mount;
mod fuzz;
mod grow;
mod handles;
mod hints;
mod host_disk;
mod host_memory;
mod hostile_images;
mod hostile_names;
mod idmapped;
mod images;
mod limits;
mod logs;
mod metrics;
mod model;
mod mount8;
mod mutations;
mod names;
mod neighbours;
mod nospace;
mod operating;
mod oracle_defects;
mod overlay;
mod pjdfstest;
mod power_cut;
mod programs;
mod remount;
mod requests;
mod resharing;
mod rooms;
mod share;
mod sharing;
mod snapshots;
mod space;
mod tidy;
mod times;
mod toy_policy;
mod umount;
mod users;
mod written;
mod zeros;
