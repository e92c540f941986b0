//! Asks the server of a mount about the limits of trees, from a command; [`nvfold_mount::limits`] says how.

use super::clones::{Refusal, SourceToken, source};
use super::snapshots::{not_understood, repeated};
use std::fs::File;
use std::io;

pub(crate) use nvfold_mount::limits::{KnownLimits, LimitsChange, LimitsQuestion};

/// Changes the limits of a directory; returns what is known of them then.
pub(crate) fn set(directory: &File, change: LimitsChange) -> io::Result<Result<KnownLimits, Refusal>> {
    asked(directory, &|directory| LimitsQuestion::Set { directory, change })
}

/// Returns what is known of the limits at a directory, and what the files there alone store, if this user may know.
pub(crate) fn get(directory: &File) -> io::Result<Result<KnownLimits, Refusal>> {
    asked(directory, &|directory| LimitsQuestion::Get { directory })
}

fn asked(
    directory: &File,
    question: &dyn Fn(SourceToken) -> LimitsQuestion,
) -> io::Result<Result<KnownLimits, Refusal>> {
    match repeated(directory, || Ok(question(source(directory)?).to_message()))? {
        Ok(numbers) => Ok(Ok(KnownLimits::of_numbers(&numbers).ok_or_else(not_understood)?)),
        Err(refusal) => Ok(Err(refusal)),
    }
}
