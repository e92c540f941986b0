//! The functions of libc, a file for each family.
//!
//! Each function asks whether its path or number is ours (`serve`). If not, libc gets the program's arguments; if so,
//! nvfold-c does the work.

mod asks;
mod asynchronous;
mod attributes;
pub(crate) mod by_number;
pub(crate) mod children;
mod descriptors;
mod directories;
mod folders;
mod formatted;
mod memory;
mod names;
mod opening;
mod refused;
mod serve;
pub(crate) mod signals;
mod status;
mod temporary;
mod times;
mod transfers;
mod walks;
mod words;
mod xattrs;

pub(crate) use descriptors::{close, duplicate, nvfold_preload_lseek as lseek};
pub(crate) use opening::{last_link, open_path};
pub(crate) use serve::{host, next};
pub(crate) use transfers::{read, write};
