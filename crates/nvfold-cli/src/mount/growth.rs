//! Asks the server of a mount to make its file system longer, from a command; [`nvfold_mount::growth`] says how.

use super::clones::{Refusal, source};
use super::snapshots::{not_understood, repeated};
use std::fs::File;
use std::io;

pub(crate) use nvfold_mount::growth::{Grown, GrowthQuestion};

/// Gives a mounted file system so many bytes, or what its device has. `any`: a directory of the mount.
pub(crate) fn grow(any: &File, device_bytes: Option<u64>) -> io::Result<Result<Grown, Refusal>> {
    match repeated(any, || Ok(GrowthQuestion { any: source(any)?, device_bytes }.to_message()))? {
        Ok(numbers) => Ok(Ok(Grown::of_numbers(&numbers).ok_or_else(not_understood)?)),
        Err(refusal) => Ok(Err(refusal)),
    }
}
