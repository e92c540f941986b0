//! Races between a change of a file's owner and whatever gives fingerprints to what the file references, where each owner has a
//! sharing domain. When the owner has changed, nothing that the old one stores is shared with the file.

use super::*;

const OLD: u32 = 1;
const NEW: u32 = 2;

/// Runs `others` beside a change of the owner of a file of two blocks, and then stores the same as the old owner.
fn explore_change(policy: Policy, index: IndexKind, others: fn(&Device, &File) -> [Task; 2]) {
    explore(move || {
        let share = Share::Owner { new_secret: [7; 16] };
        let options = MountOptions { policy, share, cores: 4, ..MountOptions::default() };
        let device = Device::made(&MkfsOptions { index, ..MkfsOptions::default() }, options);
        let file = device.file("file");
        change_owner(&device.fs, &file, OLD);
        file.write_at(0, &[block(1), block(2)].concat()).unwrap();
        let [one, two] = others(&device, &file);
        let (fs, given) = (device.fs.clone(), file.clone());
        race([one, two, task(move || change_owner(&fs, &given, NEW))]);
        let guess = device.file("guess");
        change_owner(&device.fs, &guess, OLD);
        guess.write_at(0, &content(&file)).unwrap();
        while !device.fs.drain_step().unwrap() {}
        while !device.fs.fill_step().unwrap() {}
        let named: Vec<u64> = addresses(&file);
        assert!(addresses(&guess).iter().all(|address| !named.contains(address)), "{policy:?}, {index:?}");
        device.settle();
    });
}

fn change_owner(fs: &FileSystem, file: &File, uid: u32) {
    fs.setattr(file.ino(), &SetAttr { uid: Some(uid), ..SetAttr::default() }).unwrap();
}

fn addresses(file: &File) -> Vec<u64> {
    let extents = file.extents(0, 100).unwrap();
    let blocks = |extent: &MappedExtent| (extent.address..extent.address + extent.length).step_by(BLOCK);
    extents.iter().flat_map(blocks).collect()
}

#[test]
fn a_file_is_written_and_gets_fingerprints_while_its_owner_changes() {
    for index in [IndexKind::Dram, IndexKind::Pm] {
        explore_change(Policy::Inline, index, |device, file| {
            let (fs, writer) = (device.fs.clone(), file.clone());
            [task(move || writer.write_at(0, &block(3)).unwrap()), task(move || fs.fill_step().unwrap())]
        });
    }
}

#[test]
fn a_file_is_shared_later_while_its_owner_changes() {
    explore_change(Policy::DeNova, IndexKind::Pm, |device, file| {
        let (fs, writer) = (device.fs.clone(), file.clone());
        [task(move || while !fs.drain_step().unwrap() {}), task(move || writer.write_at(0, &block(3)).unwrap())]
    });
}

/// Of two changes at once one is the last, and the file is in the domain of that owner.
#[test]
fn two_threads_change_the_owner_of_a_file_at_once() {
    explore_change(Policy::Inline, IndexKind::Dram, |device, file| {
        let ([fs, same], [one, other]) = ([device.fs.clone(), device.fs.clone()], [file.clone(), file.clone()]);
        [task(move || change_owner(&fs, &one, 3)), task(move || change_owner(&same, &other, NEW))]
    });
}
