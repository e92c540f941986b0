//! Names that no nvfold writes, on a device that is otherwise whole: the entry of a name is changed in its directory's
//! log, and its checksum corrected.

use std::path::Path;

use nvfold::InodeNumber;
use nvfold::internals::media::log_entry::{LINE, NAME_OFFSET};

use super::damage::entry_checksum;

/// Kind of an entry that gives a directory a name, and the offsets of its fields.
const NAME: u8 = 3;
const NAME_BYTES: usize = 2;
const CHECK: usize = 4;
const INO: usize = 8;

/// Changes the only entry of the name `old` in a directory of an unmounted device: the name becomes `new`, and leads to
/// `target` if there is one. `new` needs no more lines than `old`.
#[track_caller]
pub fn forge_name(device: &Path, dir: InodeNumber, old: &[u8], new: &[u8], target: Option<InodeNumber>) {
    let mut bytes = std::fs::read(device).expect("read the device");
    let name = NAME_OFFSET as usize;
    let is_it = |at: &usize| {
        let entry = &bytes[*at..];
        let lines = usize::from(entry[1]) * LINE as usize;
        entry[0] == NAME
            && lines >= name + old.len()
            && usize::from(entry[NAME_BYTES]) == old.len()
            && entry.get(name..name + old.len()) == Some(old)
            && entry_checksum(dir.0, &entry[..lines]).to_le_bytes() == entry[CHECK..CHECK + 4]
    };
    let found: Vec<usize> = (0..bytes.len()).step_by(LINE as usize).filter(is_it).collect();
    let [at] = found[..] else { panic!("{} entries of this name", found.len()) };
    let lines = usize::from(bytes[at + 1]) * LINE as usize;
    let entry = &mut bytes[at..at + lines];
    entry[NAME_BYTES] = new.len() as u8;
    entry[name..].fill(0);
    entry[name..name + new.len()].copy_from_slice(new);
    if let Some(target) = target {
        entry[INO..INO + 8].copy_from_slice(&target.0.to_le_bytes());
    }
    let check = entry_checksum(dir.0, entry);
    entry[CHECK..CHECK + 4].copy_from_slice(&check.to_le_bytes());
    std::fs::write(device, bytes).expect("write the device");
}
