//! Which symbols there are. The comments of these functions are those of `nvfold.h` and `icid.h`.
//!
//! A function here says what its arguments are and which operation it is, in a line or two; `symbols.txt` lists all of them.
//! The one unsafe thing about them is that each claims a name in a program that may have something else of that name, and
//! that is why all begin with `nvfold_` or `ICID_`.

mod attributes;
mod changes;
mod descriptors;
mod devices;
mod directories;
mod icid;
mod limits;
mod memory;
mod names;

use crate::caller::Out;
use crate::device::Device;
use crate::failure::{Answer, Outcome};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// `nvfold_device *`. C gets and gives it as a pointer, so that the compiler tells it from other handles; it is a number,
/// and is never followed.
#[repr(transparent)]
pub(crate) struct DeviceHandle(*mut c_void);

/// `nvfold_dir *`: as `DeviceHandle`.
#[repr(transparent)]
pub(crate) struct DirectoryHandle(*mut c_void);

// Here and not beside the structures: the generator of the headers takes them for C types (cbindgen.toml).
/// `struct nvfold_stats *`
type OutStats<'c> = Out<'c, devices::Stats>;
/// `struct nvfold_limits *`
type OutLimits<'c> = Out<'c, limits::Limits>;
/// `struct nvfold_dirent *`
type OutDirent<'c> = Out<'c, directories::Dirent>;

impl DeviceHandle {
    fn of(handle: usize) -> DeviceHandle {
        DeviceHandle(ptr::without_provenance_mut(handle))
    }

    /// EBADF.
    fn device(&self) -> Outcome<Arc<Device>> {
        crate::device::of(self.0.addr())
    }
}

impl Answer for DeviceHandle {
    const FAILED: DeviceHandle = DeviceHandle(ptr::null_mut());
}

impl Answer for DirectoryHandle {
    const FAILED: DirectoryHandle = DirectoryHandle(ptr::null_mut());
}
