//! Opens devices, and protects other data from being formatted over.

use crate::dedup_options::DedupOptions;
use crate::failure::{Doing, Failure, Outcome, eprint_line, warn};
use crate::mounts;
use crate::option_list::RESEARCH;
use crate::size;
use clap::Args;
use nvfold::{Clock, FileSystem, MountOptions, Share, Stopwatch};
use pmem::{DeviceSpec, FlushMode, OpenOptions, PersistenceLevel, PmemError, Profile, Region, Trust};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// How many bytes of a file are read at once.
const READ_BYTES: usize = 1 << 20;

/// How to treat the device; the same for every command.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DeviceOptions {
    /// Emulate a device: native, nvdimm-8x, nvdimm-600, optane, pcm, rram, stt-ram, or custom:NAME=VALUE,...
    #[arg(long, value_parser = parse_profile, help_heading = RESEARCH, hide = true)]
    pub profile: Option<Profile>,
    /// When to issue cache-line flushes: auto (where they make data power-safe) or always
    #[arg(long, value_parser = parse_flush, value_name = "WHEN", help_heading = RESEARCH, hide = true)]
    pub flush: Option<FlushMode>,
}

/// Parses the name of a profile.
pub(crate) fn parse_profile(text: &str) -> Result<Profile, String> {
    text.parse::<Profile>().map_err(|error| error.to_string())
}

/// Parses a flush mode.
pub(crate) fn parse_flush(text: &str) -> Result<FlushMode, String> {
    match text {
        "auto" => Ok(FlushMode::Auto),
        "always" => Ok(FlushMode::Always),
        _ => Err("must be auto or always".into()),
    }
}

impl DeviceOptions {
    /// Returns the options in the form that the library takes.
    pub(crate) fn open_options(&self, read_only: bool) -> OpenOptions {
        OpenOptions {
            read_only,
            profile: self.profile.clone().unwrap_or_default(),
            flush: self.flush.unwrap_or_default(),
            ..OpenOptions::default()
        }
    }
}

/// Returns the device that a command line names.
pub(crate) fn spec(device: &Path) -> DeviceSpec {
    if device == Path::new("mem:") { DeviceSpec::Memory } else { DeviceSpec::Path(device.to_owned()) }
}

/// Opens an existing device.
pub(crate) fn open(device: &Path, options: &DeviceOptions, read_only: bool) -> Outcome<Region> {
    if device == Path::new("mem:") {
        return Err(Failure::usage("mem:", "a memory device exists only while it is mounted"));
    }
    Region::open(&spec(device), &options.open_options(read_only)).doing("open the device")
}

/// Opens a device to mount it. If the mount is for others than its owner, nobody else may read or write the device past it.
/// `opened_by`: the path by which it is opened, if that is another.
pub(crate) fn open_to_mount(
    device: &Path,
    opened_by: Option<&Path>,
    options: &DeviceOptions,
    read_only: bool,
    for_others: bool,
    force: bool,
) -> Outcome<Region> {
    let trust = if for_others { Trust::OwnerAlone } else { Trust::Owner };
    let opened_by = || opened_by.map(Path::to_owned);
    let options =
        |trust| OpenOptions { trust, opened_by: opened_by(), can_grow: true, ..options.open_options(read_only) };
    let open = |trust| Region::open(&spec(device), &options(trust));
    open_trusted(trust, |_| force, open, "open the device")
}

/// Opens a device that is to be trusted so far. If that is refused and tolerated, warns, and opens it all the same.
pub(crate) fn open_trusted(
    trust: Trust,
    is_tolerated: impl Fn(&PmemError) -> bool,
    open: impl Fn(Trust) -> Result<Region, PmemError>,
    doing: &str,
) -> Outcome<Region> {
    let opened = open(trust);
    let less = match &opened {
        Err(PmemError::OpenToOthers { .. }) => Trust::Owner,
        Err(PmemError::ForeignOwner { .. }) => Trust::Any,
        _ => return opened.doing(doing),
    };
    match opened {
        Err(error) if is_tolerated(&error) => {
            warn(&error);
            open(less).doing(doing)
        }
        refused => refused.doing(doing).map_err(|failure| failure.hint("--force uses it as it is")),
    }
}

/// Returns the clock of every file system we mount: the kernel's coarse one, as in other file systems.
pub(crate) fn clock() -> Clock {
    Arc::new(pmem::clock::coarse_now_ns)
}

/// Returns the clock with which costs are measured.
pub(crate) fn stopwatch() -> Stopwatch {
    let start = Instant::now();
    // Includes the charged time of an emulated device that the thread has not spun yet.
    Arc::new(move || pmem::clock::device_ns(start))
}

/// Checks the size of a new device. The error is part of a sentence.
pub(crate) fn check_size(bytes: u64) -> Result<(), String> {
    use nvfold::{BLOCK_BYTES, DEVICE_BYTES_MAX, DEVICE_BYTES_MIN};
    if (DEVICE_BYTES_MIN..=DEVICE_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(BLOCK_BYTES) {
        return Ok(());
    }
    let of = |bytes| size::show(bytes);
    Err(if bytes < DEVICE_BYTES_MIN {
        format!("a device of {} is too small; the smallest has {}", of(bytes), of(DEVICE_BYTES_MIN))
    } else if bytes > DEVICE_BYTES_MAX {
        format!("a device of {} is too large; the largest has {}", of(bytes), of(DEVICE_BYTES_MAX))
    } else {
        format!("a device cannot have {bytes} bytes; the size must be a multiple of {BLOCK_BYTES}")
    })
}

/// Explains why a mount by a user other than root may have failed.
pub(crate) fn why_no_mount() -> &'static str {
    match File::options().read(true).write(true).open("/dev/fuse") {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            "this user may not open /dev/fuse: change its permissions (chmod 666 /dev/fuse), or mount as root"
        }
        Err(_) => "/dev/fuse cannot be opened: is the kernel module loaded, and may this container use the device?",
        Ok(_) => "without root, fusermount3 must be installed (package fuse3) and the directory be yours",
    }
}

/// Returns the number of threads worth starting: the number of processors.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Opens a device and mounts its file system in this process.
pub(crate) fn mount_embedded(
    device: &Path,
    options: &DeviceOptions,
    dedup: &DedupOptions,
    read_only: bool,
    threads: usize,
) -> Outcome<FileSystem> {
    let region = open(device, options, read_only)?;
    let (clock, stopwatch) = (clock(), Some(stopwatch()));
    let (superblock, _) = nvfold::read_superblock(&region).doing(mounts::show(device))?;
    let share = Share::of_device(&superblock);
    let options = MountOptions { share, read_only, cores: threads, clock, stopwatch, ..MountOptions::default() };
    let fs = dedup.mount(region, options, &mounts::show(device))?;
    if let Err(error) = fs.reconcile() {
        eprint_line(&format!("nvfold: {}: {error}; what it held before the crash is kept", mounts::show(device)));
    }
    Ok(fs)
}

/// Names the foreign format on a device; `None` if none is known.
pub(crate) fn foreign_signature(device: &Path) -> Option<&'static str> {
    let file = File::open(device).ok()?;
    SIGNATURES.iter().find(|signature| signature.is_on(&file)).map(|signature| signature.of)
}

/// Returns the offset of the first nonzero byte of a file, skipping holes; `None` if there is none. Also `None` if
/// the device is not a regular file: a device-dax node cannot be read.
pub(crate) fn first_data(device: &Path) -> io::Result<Option<u64>> {
    if !device.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(None);
    }
    let file = File::open(device)?;
    let mut buffer = vec![0; READ_BYTES];
    let mut offset = 0;
    loop {
        match rustix::fs::seek(&file, SeekFrom::Data(offset)) {
            Ok(data) => offset = data,
            // Only a hole follows.
            Err(Errno::NXIO) => return Ok(None),
            // This file system cannot report holes.
            Err(_) => {}
        }
        let length = file.read_at(&mut buffer, offset)?;
        if length == 0 {
            return Ok(None);
        }
        if let Some(at) = buffer[..length].iter().position(|byte| *byte != 0) {
            return Ok(Some(offset + at as u64));
        }
        offset += length as u64;
    }
}

/// Bytes at an offset that identify a format.
struct Signature {
    of: &'static str,
    at: u64,
    bytes: &'static [u8],
}

impl Signature {
    fn is_on(&self, file: &File) -> bool {
        let mut found = vec![0; self.bytes.len()];
        file.read_exact_at(&mut found, self.at).is_ok() && found == self.bytes
    }
}

const SIGNATURES: [Signature; 16] = [
    Signature { of: "an ext2, ext3 or ext4 file system", at: 0x438, bytes: &[0x53, 0xef] },
    Signature { of: "an XFS file system", at: 0, bytes: b"XFSB" },
    Signature { of: "a btrfs file system", at: 0x10040, bytes: b"_BHRfS_M" },
    Signature { of: "an f2fs file system", at: 0x400, bytes: &[0x10, 0x20, 0xf5, 0xf2] },
    Signature { of: "a bcachefs file system", at: 0x1018, bytes: &[0xc6, 0x85, 0x73, 0xf6] },
    Signature { of: "a NOVA file system", at: 0x4, bytes: b"NOVA" },
    Signature { of: "an NTFS file system", at: 3, bytes: b"NTFS    " },
    Signature { of: "an exFAT file system", at: 3, bytes: b"EXFAT   " },
    Signature { of: "a FAT file system", at: 0x52, bytes: b"FAT32   " },
    Signature { of: "a FAT file system", at: 0x36, bytes: b"FAT1" },
    Signature { of: "a squashfs image", at: 0, bytes: b"hsqs" },
    Signature { of: "an ISO 9660 image", at: 0x8001, bytes: b"CD001" },
    Signature { of: "a LUKS volume", at: 0, bytes: b"LUKS\xba\xbe" },
    Signature { of: "an LVM volume", at: 0x218, bytes: b"LVM2 001" },
    Signature { of: "swap space", at: 4086, bytes: b"SWAPSPACE2" },
    Signature { of: "a GPT partition table", at: 512, bytes: b"EFI PART" },
];

/// Describes what a fence guarantees at a persistence level, and no more.
pub(crate) fn level_words(level: PersistenceLevel) -> &'static str {
    match level {
        PersistenceLevel::Dax => "dax: acknowledged data survives power loss",
        PersistenceLevel::Memory => "memory: data survives the process, not power loss",
        PersistenceLevel::File => {
            "file: data survives power loss and a killed process once it is synced \
             (by fsync, `nvfold sync`, a second after writing stops, and every 5 s)"
        }
    }
}

/// Makes a path absolute, for a process that will have another working directory.
pub(crate) fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).doing(mounts::show(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_nonzero_byte_is_found_after_holes_and_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        assert_eq!(first_data(&path).unwrap(), None, "no file");
        std::fs::write(&path, []).unwrap();
        assert_eq!(first_data(&path).unwrap(), None, "empty");
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        assert_eq!(first_data(&path).unwrap(), None, "a hole");
        file.write_all_at(&[0; 8192], 3 << 30).unwrap();
        assert_eq!(first_data(&path).unwrap(), None, "zeros that were written");
        file.write_all_at(&[0, 0, 7], 1 << 39).unwrap();
        assert_eq!(first_data(&path).unwrap(), Some((1 << 39) + 2));
        file.write_all_at(&[1], 0).unwrap();
        assert_eq!(first_data(&path).unwrap(), Some(0));
    }

    #[test]
    fn file_systems_of_other_formats_are_recognised_and_noise_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, vec![0; 128 << 10]).unwrap();
        assert_eq!(foreign_signature(&path), None);
        for signature in &SIGNATURES {
            let mut image = vec![0; 128 << 10];
            let at = signature.at as usize;
            image[at..at + signature.bytes.len()].copy_from_slice(signature.bytes);
            std::fs::write(&path, &image).unwrap();
            assert_eq!(foreign_signature(&path), Some(signature.of));
        }
        std::fs::write(&path, b"XF").unwrap();
        assert_eq!(foreign_signature(&path), None, "shorter than the signature");
    }
}
