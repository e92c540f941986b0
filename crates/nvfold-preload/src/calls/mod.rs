//! The functions of libc, a file for each family.
//!
//! Each function asks whether its path or number is ours (`serve`). If not, libc gets the program's arguments; if so,
//! nvfold-c does the work.

mod attributes;
mod descriptors;
mod directories;
mod folders;
mod memory;
mod names;
mod opening;
mod serve;
mod status;
mod temporary;
mod times;
mod transfers;
mod walks;
mod xattrs;

pub use descriptors::{close, duplicate, nvfold_preload_lseek as lseek};
pub use opening::{last_link, open_path};
pub(crate) use serve::host;
pub use transfers::{check_room, nvfold_preload_read as read, nvfold_preload_write as write};
