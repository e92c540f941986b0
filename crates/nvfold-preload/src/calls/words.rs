//! wordexp(3): the words of a text, as a shell makes them.
//!
//! libc finds the names of patterns by calls that no interposition sees. So patterns below the prefix, which it leaves as
//! they are, are expanded here afterwards. That is right unless the pattern was quoted, which can no longer be seen: a
//! text with quotes is left as libc made it.

use super::asks::nvfold_preload_asks_pattern as is_below_prefix;
use super::serve::next;
use super::walks::{Glob, nvfold_preload_glob as glob};
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

const WRDE_DOOFFS: c_int = 1;
const WRDE_APPEND: c_int = 2;
const WRDE_NOSPACE: c_int = 1;

/// glibc's `wordexp_t`.
#[repr(C)]
pub(super) struct Words {
    count: usize,
    words: *mut *mut c_char,
    offset: usize,
}

type WordFunction = unsafe extern "C" fn(*const c_char, *mut Words, c_int) -> c_int;

/// wordexp(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_wordexp(
    text: *const c_char,
    into: *mut Words,
    flags: c_int,
    next: WordFunction,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        let before = if flags & WRDE_APPEND != 0 { (*into).count } else { 0 };
        let answer = next(text, into, flags);
        let is_quoted = CStr::from_ptr(text).to_bytes().iter().any(|byte| matches!(byte, b'"' | b'\'' | b'\\'));
        if answer != 0 || is_quoted {
            return answer;
        }
        let offset = if flags & WRDE_DOOFFS != 0 { (*into).offset } else { 0 };
        expand(&mut *into, offset, before)
    }
}

/// Expands the patterns among the words behind the first ones.
///
/// # Safety
///
/// libc has made the words, with as many NULLs before them as `offset` says.
unsafe fn expand(into: &mut Words, offset: usize, before: usize) -> c_int {
    // SAFETY: the caller's contract; all words are strings by malloc, and so is their array.
    unsafe {
        let old = std::slice::from_raw_parts(into.words.add(offset), into.count);
        let mut new = old[..before].to_vec();
        for word in &old[before..] {
            match names_of(*word) {
                Some(names) => {
                    new.extend(names);
                    libc::free((*word).cast());
                }
                None => new.push(*word),
            }
        }
        if new == old {
            return 0;
        }
        let size = (offset + new.len() + 1) * size_of::<*mut c_char>();
        let array = libc::realloc(into.words.cast(), size).cast::<*mut c_char>();
        if array.is_null() {
            return WRDE_NOSPACE;
        }
        ptr::copy_nonoverlapping(new.as_ptr(), array.add(offset), new.len());
        array.add(offset + new.len()).write(ptr::null_mut());
        (into.words, into.count) = (array, new.len());
    }
    0
}

/// Returns the names below the prefix that a word stands for; `None` if it is no pattern, or stands for none.
///
/// # Safety
///
/// `word` is a string.
unsafe fn names_of(word: *const c_char) -> Option<Vec<*mut c_char>> {
    // SAFETY: a string, and a list that glob fills and globfree frees.
    unsafe {
        let is_pattern = CStr::from_ptr(word).to_bytes().iter().any(|byte| b"*?[".contains(byte));
        if !is_pattern || !is_below_prefix(word) {
            return None;
        }
        let mut found: libc::glob_t = std::mem::zeroed();
        if glob(word, 0, None, (&raw mut found).cast::<Glob>(), next!("glob")) != 0 {
            return None;
        }
        let names = (0..found.gl_pathc).map(|at| libc::strdup(*found.gl_pathv.add(at))).collect();
        libc::globfree(&raw mut found);
        Some(names)
    }
}
