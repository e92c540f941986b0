//! Finds a program and checks, before it starts, whether preloading works for it.
//!
//! The problem: a preloaded library sees only calls that go through libc. Programs that make system calls directly,
//! or for which the loader ignores LD_PRELOAD, would find an empty prefix, or another one. The idea: look at the
//! program's file:
//!
//! | program | recognised by |
//! |---|---|
//! | statically linked | an ELF file without PT_INTERP |
//! | setuid, setgid, or with capabilities | mode bits, attribute `security.capability`: the loader drops LD_PRELOAD |
//! | of another architecture | the ELF header |
//! | Go | a note named `Go`: the Go runtime makes system calls directly |
//! | uses io_uring | needs liburing: the kernel reads and writes for it, past libc |
//! | a script | `#!`: its interpreter is checked instead |
//!
//! A program built with AddressSanitizer needs the sanitizer's runtime, which refuses to start unless it is the first
//! library. So it is preloaded before ours. (A runtime that is linked statically is part of the program and comes first.)

use crate::failure::{Doing, Failure, Outcome};
use rustix::fs::getxattr;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Exit code, as of env(1): there is no such program.
const NOT_FOUND: u8 = 127;
/// The deepest nesting of scripts as interpreters, as in Linux.
const INTERPRETERS_MAX: usize = 4;
const ANY_EXECUTES: u32 = 0o111;
const SET_ID: u32 = 0o6000;
/// The longest `#!` line, as in Linux.
const LINE_BYTES_MAX: usize = 256;

/// Returns the path of a program. A name without a slash is looked up in PATH.
pub(super) fn find(name: &OsStr) -> Outcome<PathBuf> {
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.mode() & ANY_EXECUTES != 0)
    };
    let not_found = |why: &'static str| Failure::new(format!("run {}", name.display()), why).exits_with(NOT_FOUND);
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return if path.exists() { Ok(path) } else { Err(not_found("there is no such program")) };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(is_program);
    found.ok_or_else(|| not_found("no folder of PATH has it"))
}

/// Refuses a program for which preloading does not work. Returns the library that must be preloaded before any other.
pub(super) fn check(program: &Path) -> Outcome<Option<OsString>> {
    let mut program = program.to_owned();
    for _ in 0..INTERPRETERS_MAX {
        let refuse = |why: &'static str| Err(Failure::new(format!("run {}", program.display()), why));
        let file = File::open(&program).doing(format!("look at {}", program.display()))?;
        let metadata = file.metadata().doing(format!("look at {}", program.display()))?;
        if metadata.is_dir() {
            return refuse("it is a directory");
        }
        let has_capabilities = getxattr(&program, "security.capability", &mut [0_u8; 64][..]).is_ok();
        let start = read(&file, 0, LINE_BYTES_MAX).doing(format!("read {}", program.display()))?;
        if let Some(line) = start.strip_prefix(b"#!") {
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let words = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\r'));
            let Some(interpreter) = words.into_iter().find(|word| !word.is_empty()) else {
                return refuse("its first line is #! without an interpreter");
            };
            program = PathBuf::from(OsStr::from_bytes(interpreter));
            continue;
        }
        if metadata.mode() & SET_ID != 0 || has_capabilities {
            return refuse(
                "it is setuid, setgid or has capabilities: the loader ignores what is preloaded for such programs",
            );
        }
        if !start.starts_with(b"\x7fELF") {
            // A script without `#!` is run by a shell, for which preloading works.
            return Ok(None);
        }
        return match look(&file) {
            Ok(Ok(first)) => Ok(first),
            Ok(Err(why)) => refuse(why),
            Err(error) => Err(Failure::new(format!("read {}", program.display()), error)),
        };
    }
    Err(Failure::new(format!("run {}", program.display()), "scripts are interpreted by scripts too many times"))
}

fn read(file: &File, at: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut done = 0;
    // Offsets beyond this are past the end of any file.
    while done < length && at < i64::MAX as u64 - length as u64 {
        match file.read_at(&mut bytes[done..], at + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// Little-endian numbers of a structure. A number beyond its end reads as 0.
struct Fields(Vec<u8>);

impl Fields {
    fn number(&self, at: usize, bytes: usize) -> u64 {
        let part = self.0.get(at..at + bytes).unwrap_or_default();
        part.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }
}

/// An ELF program header.
struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    bytes: u64,
}

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const PT_NOTE: u64 = 4;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const X86_64: u64 = 62;
/// The part of a note or a dynamic section that is examined, in bytes.
const SECTION_BYTES_MAX: u64 = 1 << 16;

/// Beginnings of the names of AddressSanitizer's runtime: gcc's and clang's.
const SANITIZERS: [&[u8]; 2] = [b"libasan.so", b"libclang_rt.asan"];

/// Returns the library that must come first for an ELF file, or why preloading does not work for it.
fn look(file: &File) -> io::Result<Result<Option<OsString>, &'static str>> {
    let header = Fields(read(file, 0, 64)?);
    if header.number(4, 1) != 2 || header.number(18, 2) != X86_64 {
        return Ok(Err("it is not a program for x86-64, which libnvfold_preload is made for"));
    }
    let (table, entry_bytes, entries) = (header.number(32, 8), header.number(54, 2), header.number(56, 2));
    let mut segments = Vec::new();
    for entry in 0..entries {
        let fields = Fields(read(file, table.saturating_add(entry * entry_bytes), 56)?);
        segments.push(Segment {
            kind: fields.number(0, 4),
            offset: fields.number(8, 8),
            address: fields.number(16, 8),
            bytes: fields.number(32, 8),
        });
    }
    let has = |kind| segments.iter().any(|segment| segment.kind == kind);
    if !has(PT_INTERP) {
        return Ok(Err("it is statically linked: nothing can be preloaded"));
    }
    for segment in segments.iter().filter(|segment| segment.kind == PT_NOTE) {
        let note = read(file, segment.offset, segment.bytes.min(SECTION_BYTES_MAX) as usize)?;
        if note.windows(4).skip(12).step_by(4).any(|name| name == b"Go\0\0") {
            return Ok(Err("it is a Go program, whose runtime calls the kernel past libc"));
        }
    }
    let needed = needed(file, &segments)?;
    if needed.iter().any(|name| name.starts_with(b"liburing.so")) {
        return Ok(Err("it uses io_uring, by which the kernel reads and writes past libc"));
    }
    let is_sanitizer = |name: &Vec<u8>| SANITIZERS.iter().any(|start| name.starts_with(start));
    Ok(Ok(needed.into_iter().find(is_sanitizer).map(OsString::from_vec)))
}

/// Returns the names of the libraries that the file needs.
fn needed(file: &File, segments: &[Segment]) -> io::Result<Vec<Vec<u8>>> {
    let Some(dynamic) = segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else { return Ok(Vec::new()) };
    let section = Fields(read(file, dynamic.offset, dynamic.bytes.min(SECTION_BYTES_MAX) as usize)?);
    let entries: Vec<(u64, u64)> =
        (0..section.0.len() / 16).map(|at| (section.number(at * 16, 8), section.number(at * 16 + 8, 8))).collect();
    let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB).map_or(0, |(_, address)| *address);
    let holds = |segment: &&Segment| {
        segment.kind == PT_LOAD && (segment.address..segment.address.saturating_add(segment.bytes)).contains(&strings)
    };
    let Some(segment) = segments.iter().find(holds) else { return Ok(Vec::new()) };
    let start = segment.offset.saturating_add(strings - segment.address);
    let name = |offset: u64| {
        let bytes = read(file, start.saturating_add(offset), LINE_BYTES_MAX)?;
        Ok(bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec())
    };
    entries.iter().filter(|(tag, _)| *tag == DT_NEEDED).map(|(_, offset)| name(*offset)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamically_linked_program_can_be_served() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(look(&file).unwrap(), Ok(None));
        assert!(read(&file, 0, 4).unwrap() == b"\x7fELF");
    }

    #[test]
    fn a_malformed_elf_file_causes_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("elf");
        for length in [4, 63, 64, 200] {
            let mut bytes = vec![0xff; length];
            bytes[..4].copy_from_slice(b"\x7fELF");
            if length > 20 {
                (bytes[4], bytes[18], bytes[19]) = (2, 62, 0);
            }
            if length > 60 {
                // A few entries, at offsets beyond the end of the file.
                (bytes[56], bytes[57]) = (9, 0);
                bytes[32..40].copy_from_slice(&40_u64.to_le_bytes());
            }
            fs::write(&path, bytes).unwrap();
            assert!(look(&File::open(&path).unwrap()).is_ok());
        }
    }
}
