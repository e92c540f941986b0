//! The functions of libc, a file for each family.
//!
//! Each function asks whether its path or number is ours (`serve`). If not, libc gets the program's arguments; if so,
//! nvfold-c does the work.

mod asks;
mod asynchronous;
mod attributes;
pub mod by_number;
pub mod children;
mod descriptors;
mod directories;
mod folders;
mod formatted;
mod memory;
mod names;
mod opening;
mod refused;
mod serve;
pub mod signals;
mod status;
mod temporary;
mod times;
mod transfers;
mod walks;
mod words;
mod xattrs;

pub use descriptors::{close, duplicate, nvfold_preload_lseek as lseek};
pub use opening::{last_link, open_path};
pub(crate) use serve::{host, next};
pub use transfers::{read, write};
