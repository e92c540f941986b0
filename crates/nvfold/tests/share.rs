//! `share=owner`: equal data of two owners is never shared, whatever stores it, moves it or finds it again; that of one
//! owner is.

use nvfold::check::{CheckOptions, check};
use nvfold::*;
use pmem::{Action, DeviceSpec, OpenOptions, Region, StoreOrder};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const ROOT: InodeNumber = InodeNumber::ROOT;
const BLOCK: usize = 4096;
const OWNER: Share = Share::Owner { new_secret: *b"no one knows it." };
const OWNERS: [u32; 2] = [1001, 1002];
/// The smallest device on which ends of files are packed.
const DEVICE_BYTES: u64 = 128 << 20;
const INDEXES: [IndexKind; 2] = [IndexKind::Dram, IndexKind::Pm];

/// A device in memory that is mounted again and again.
struct Site {
    region: Region,
    policy: Policy,
    share: Share,
    fs: Option<FileSystem>,
}

impl Site {
    fn new(policy: Policy, index: IndexKind, share: Share) -> Site {
        Site::of(DEVICE_BYTES, &OpenOptions::default(), policy, index, share)
    }

    fn of(bytes: u64, open: &OpenOptions, policy: Policy, index: IndexKind, share: Share) -> Site {
        let region = Region::create(&DeviceSpec::Memory, bytes, open).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
        let mut site = Site { region, policy, share, fs: None };
        site.mount();
        site
    }

    fn mount(&mut self) {
        let now = Arc::new(AtomicI64::new(0));
        let options = MountOptions {
            policy: self.policy,
            share: self.share,
            pack: Pack::On,
            // Ends of files rest and are packed, because time flies.
            clock: Arc::new(move || now.fetch_add(2_000_000_000, Ordering::Relaxed)),
            ..MountOptions::default()
        };
        let fs = FileSystem::mount(self.region.clone(), options).unwrap();
        fs.reconcile().unwrap();
        self.fs = Some(fs);
    }

    fn fs(&self) -> &FileSystem {
        self.fs.as_ref().unwrap()
    }

    fn check(&self, is_clean: bool) {
        let found = check(&self.region, &CheckOptions { data: true, ..CheckOptions::default() }).unwrap();
        assert!(found.findings.is_empty() && found.clean == is_clean, "{found:?}");
    }

    fn remount(&mut self) {
        self.fs.take().unwrap().unmount().unwrap();
        self.check(true);
        self.mount();
    }

    /// Mounts again as after a crash of the process.
    fn crash(&mut self) {
        drop(self.fs.take());
        self.check(false);
        self.mount();
    }

    fn convert(&mut self, to: IndexKind) {
        self.fs.take().unwrap().unmount().unwrap();
        convert_index(&self.region, to, Default::default(), &mut |_, _| {}).unwrap();
        self.check(true);
        self.mount();
    }

    /// Does all work in the background to its end.
    fn work(&self) {
        let fs = self.fs();
        while !fs.drain_step().unwrap() {}
        while !fs.fill_step().unwrap() {}
        while !fs.reorder_step().unwrap() {}
        while !fs.reclaim_step(Victims::All).unwrap() {}
        fs.empty_segments_of_blocks();
        while !fs.fill_step().unwrap() {}
    }

    fn create(&self, name: &str, uid: u32) -> File {
        let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid, gid: 0, rdev: 0 };
        self.fs().open(self.fs().create(ROOT, name.as_bytes(), &new).unwrap().ino).unwrap()
    }

    fn open(&self, name: &str) -> File {
        self.fs().open(self.fs().lookup(ROOT, name.as_bytes()).unwrap().ino).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut each = |entry: DirEntry| {
            names.push(String::from_utf8(entry.name).unwrap());
            true
        };
        self.fs().readdir(ROOT, 0, &mut each).unwrap();
        names
    }

    /// Returns what is stored: the media range of each block or packed chunk, with the files that reference it.
    fn chunks(&self) -> BTreeMap<u64, Vec<File>> {
        let mut chunks: BTreeMap<u64, Vec<File>> = BTreeMap::new();
        for name in self.names() {
            let file = self.open(&name);
            for address in addresses(&file) {
                let named = chunks.entry(address).or_default();
                if named.iter().all(|other| other.ino() != file.ino()) {
                    named.push(self.open(&name));
                }
            }
        }
        chunks
    }

    /// Returns how many chunks are referenced by files of one owner, and of several.
    fn shared(&self) -> (usize, usize) {
        let (mut within, mut across) = (0, 0);
        for files in self.chunks().values().filter(|files| files.len() > 1) {
            match files.iter().all(|file| file.attr().uid == files[0].attr().uid) {
                true => within += 1,
                false => across += 1,
            }
        }
        (within, across)
    }

    fn assert_apart(&self, when: &str) {
        let (_, across) = self.shared();
        assert_eq!(across, 0, "{:?}, {when}: chunks that two owners share", self.policy);
    }

    fn chown(&self, file: &File, uid: u32) {
        let change = SetAttr { uid: Some(uid), ..SetAttr::default() };
        self.fs().setattr(file.ino(), &change).unwrap();
    }
}

/// Returns the address of each block of a file, and of each packed chunk as far as it can be told.
fn addresses(file: &File) -> Vec<u64> {
    let mut addresses = Vec::new();
    let mut from = 0;
    loop {
        let extents = file.extents(from, 1000).unwrap();
        let Some(last) = extents.last() else { return addresses };
        from = last.offset + last.length;
        for extent in extents.iter().filter(|extent| !extent.unwritten) {
            if extent.class > 0 {
                addresses.push(extent.address);
            } else {
                let first = extent.address / BLOCK as u64 * BLOCK as u64;
                addresses.extend((first..extent.address + extent.length).step_by(BLOCK));
            }
        }
    }
}

/// Bytes that differ from those of other seeds in every block, a part of them text.
fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        match length >= 65_536 && bytes.len() % 32_768 < 16_384 {
            true => bytes.extend_from_slice(format!("line {} of a text\n", next() % 5000).as_bytes()),
            false => bytes.extend_from_slice(&next().to_le_bytes()),
        }
    }
    bytes.truncate(length);
    bytes
}

/// What each owner stores: all forms of data that a policy treats in different ways.
const FORMS: [&str; 5] = ["blocks", "19 bytes", "stream", "records", "end"];

/// Makes a file of this form. What it contains follows from the form and `seed` alone.
fn store(site: &Site, form: &str, name: &str, uid: u32, seed: u64) {
    let file = site.create(name, uid);
    match form {
        "blocks" => file.write_at(0, &bytes(40 * BLOCK, seed)).unwrap(),
        "19 bytes" => file.write_at(0, &bytes(19, seed)).unwrap(),
        "stream" => {
            let all = bytes(200_000, seed + 1);
            all.chunks(30_000).zip(0u64..).for_each(|(part, nth)| file.write_at(nth * 30_000, part).unwrap());
        }
        "records" => {
            let all = bytes(10_000, seed + 2);
            all.chunks(700).for_each(|part| _ = file.append(part).unwrap());
        }
        _ => file.write_at(0, &bytes(3 * BLOCK + 1000, seed + 3)).unwrap(),
    }
}

/// Each owner stores the same twice, and a copy of his own file and of the other one's, as a policy would be told.
fn store_all(site: &Site, round: u64) {
    for nth in 0..2 {
        for (form, uid) in FORMS.iter().flat_map(|form| OWNERS.map(|uid| (form, uid))) {
            store(site, form, &format!("{uid} {form} {round} {nth}"), uid, round * 100);
        }
    }
    for (uid, source) in OWNERS.iter().flat_map(|uid| OWNERS.map(|source| (*uid, source))) {
        let from = site.open(&format!("{source} blocks {round} 0"));
        let copy = site.create(&format!("{uid} copy {round} of {source}"), uid);
        let mut content = bytes(40 * BLOCK, round * 100);
        // The fingerprints of its blocks do not find it.
        content.insert(100, 0);
        let origin = |at, length, source_offset| Origin { at, length, source: &from, source_offset };
        let origins = [origin(0, 100, 0), origin(101, content.len() as u64 - 101, 100)];
        copy.write_at_from(0, &content, &origins).unwrap();
    }
}

fn dedup_all(site: &Site) {
    for name in site.names() {
        let file = site.open(&name);
        while file.dedup_range(0, u64::MAX).unwrap().changed_bytes > 0 {}
        file.compress_range(0, u64::MAX, Compression::Lz4).unwrap();
    }
}

fn keep_apart(policy: Policy, index: IndexKind) {
    let mut site = Site::new(policy, index, OWNER);
    store_all(&site, 1);
    site.assert_apart("stored");
    site.work();
    site.assert_apart("worked");
    let shares = !matches!(policy, Policy::Off | Policy::Auto | Policy::NvDedup);
    assert!(!shares || site.shared().0 > 0, "{policy:?}, {index:?}: an owner's own data is not shared");
    for round in 2..6 {
        let when = match round {
            2 => {
                site.remount();
                "after a remount"
            }
            3 => {
                site.crash();
                "after a crash"
            }
            4 => {
                site.convert(INDEXES[usize::from(index == IndexKind::Dram)]);
                "with the other index"
            }
            _ => {
                site.convert(index);
                "with its index again"
            }
        };
        site.assert_apart(when);
        let before = site.fs().stats().stored_bytes;
        // What was stored before, and something new.
        store_all(&site, 1 + round * 1000);
        for (form, uid) in FORMS.iter().flat_map(|form| OWNERS.map(|uid| (form, uid))) {
            store(&site, form, &format!("{uid} {form} again {round}"), uid, 100);
        }
        site.assert_apart(when);
        site.work();
        site.assert_apart(&format!("{when}, worked"));
        assert!(site.fs().stats().stored_bytes > before, "{when}");
    }
    dedup_all(&site);
    site.assert_apart("after dedup");
    assert!(site.shared().0 > 0, "{policy:?}, {index:?}: dedup shares what one owner has");
    site.remount();
    site.work();
    site.assert_apart("at the end");
    site.fs.take().unwrap().unmount().unwrap();
    site.check(true);
}

macro_rules! for_each_policy {
    ($($name:ident $policy:ident,)*) => {
        $(mod $name {
            use super::*;

            #[test]
            fn equal_data_of_two_owners_is_never_shared() {
                INDEXES.into_iter().for_each(|index| keep_apart(Policy::$policy, index));
            }

            #[test]
            fn after_a_change_of_owner_data_is_shared_with_the_new_owner() {
                INDEXES.into_iter().for_each(|index| change_hands(Policy::$policy, index));
            }
        })*
    };
}

for_each_policy! {
    off Off,
    inline Inline,
    nv_dedup NvDedup,
    denova DeNova,
    deext DeExt,
    icid Icid,
    icid_inline IcidInline,
    icid_deext IcidDeExt,
    auto Auto,
}

/// The same without domains: what the tests above look for is there.
#[test]
fn by_default_equal_data_is_shared_across_owners() {
    for policy in [Policy::Inline, Policy::DeNova, Policy::DeExt, Policy::Icid] {
        let mut site = Site::new(policy, IndexKind::Dram, Share::All);
        store_all(&site, 1);
        site.work();
        assert!(site.shared().1 > 0, "{policy:?}");
        site.remount();
        let (superblock, _) = read_superblock(&site.region).unwrap();
        assert_eq!((superblock.secret(), superblock.share_secret), (None, [0; 16]));
        assert!(!site.fs().shares_by_owner());
    }
}

/// Neither the old owner nor the new one shares what he stores with the other.
fn change_hands(policy: Policy, index: IndexKind) {
    let [old, new] = OWNERS;
    let mut site = Site::new(policy, index, OWNER);
    for form in FORMS {
        store(&site, form, form, old, 100);
    }
    site.work();
    for form in FORMS {
        site.chown(&site.open(form), new);
        store(&site, form, &format!("{form} of the old owner"), old, 100);
        site.assert_apart("when chown returns");
        store(&site, form, &format!("{form} of the new owner"), new, 100);
        site.assert_apart("when chown returns");
    }
    site.work();
    site.assert_apart("once it is filled");
    for round in 0..3 {
        match round {
            0 => {}
            1 => site.remount(),
            _ => site.crash(),
        }
        for (form, uid) in FORMS.iter().flat_map(|form| OWNERS.map(|uid| (form, uid))) {
            store(&site, form, &format!("{form} {uid} {round}"), uid, 100);
        }
        site.work();
        site.assert_apart("stored again");
    }
    if matches!(policy, Policy::Inline | Policy::DeNova | Policy::IcidInline) {
        let file = addresses(&site.open("blocks"));
        let own = addresses(&site.open(&format!("blocks {new} 2")));
        assert_eq!(file, own, "{policy:?}, {index:?}: the new owner shares with his file");
    }
    site.fs.take().unwrap().unmount().unwrap();
    site.check(true);
}

/// It was the same owner's. But nobody finds it in the old domain.
#[test]
fn data_shared_before_a_change_of_owner_stays_shared() {
    for index in INDEXES {
        let [old, new] = OWNERS;
        let site = Site::new(Policy::Inline, index, OWNER);
        ["one", "two"].iter().for_each(|name| store(&site, "blocks", name, old, 100));
        assert_eq!(addresses(&site.open("one")), addresses(&site.open("two")));
        site.chown(&site.open("two"), new);
        assert_eq!(addresses(&site.open("one")), addresses(&site.open("two")));
        store(&site, "blocks", "three", old, 100);
        assert_ne!(addresses(&site.open("one")), addresses(&site.open("three")), "the fingerprint is gone");
    }
}

/// Somebody who may read the source has asked for it.
#[test]
fn a_clone_shares_across_owners_and_keeps_its_domain() {
    let policies = [Policy::Inline, Policy::DeNova, Policy::DeExt];
    for (policy, index) in policies.iter().flat_map(|policy| INDEXES.map(|index| (*policy, index))) {
        let [one, other] = OWNERS;
        let mut site = Site::new(policy, index, OWNER);
        store(&site, "blocks", "source", one, 100);
        let clone = site.create("clone", other);
        clone.clone_from(&site.open("source"), 0, 0, u64::MAX / 4).unwrap();
        assert_eq!(addresses(&clone), addresses(&site.open("source")));
        drop(clone);
        // Both files wait for the daemon of `denova`.
        site.work();
        site.remount();
        site.work();
        site.fs().unlink(ROOT, b"source").unwrap();
        // fsck knows the domain, though no file of its owner is left.
        site.remount();
        store(&site, "blocks", "of the other", other, 100);
        site.work();
        assert_ne!(addresses(&site.open("of the other")), addresses(&site.open("clone")), "{policy:?}, {index:?}");
        site.fs.take().unwrap().unmount().unwrap();
        site.check(true);
    }
}

/// A freed block may still be in a slot of the dram index, and 7 bits of two fingerprints may agree.
#[test]
fn after_a_change_of_owner_a_block_is_not_found_in_the_old_domain() {
    let [one, other] = OWNERS;
    let site = Site::of(16 << 20, &OpenOptions::default(), Policy::Inline, IndexKind::Dram, OWNER);
    for seed in 0..2000 {
        // The freed block is the next one to be used.
        store(&site, "end", "own", one, seed);
        site.fs().unlink(ROOT, b"own").unwrap();
        store(&site, "end", "secret", other, seed);
        store(&site, "end", "guess", one, seed);
        site.assert_apart("in its last owner's block");
        ["secret", "guess"].iter().for_each(|name| site.fs().unlink(ROOT, name.as_bytes()).unwrap());
    }
}

/// What is written while the owner changes is in the domain of the old or of the new owner, and never in that of the old
/// one once the new one has it.
#[test]
fn writes_during_a_change_of_owner_are_not_found_by_other_owners() {
    for (policy, index) in
        [(Policy::Inline, IndexKind::Dram), (Policy::DeNova, IndexKind::Pm), (Policy::DeExt, IndexKind::Dram)]
    {
        let [old, new] = OWNERS;
        let site = Site::new(policy, index, OWNER);
        for round in 0..12u64 {
            let name = format!("file {round}");
            let file = site.create(&name, old);
            let content = bytes(32 * BLOCK, 1000 + round);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let parts = content.chunks(2 * BLOCK).zip(0u64..);
                    parts.for_each(|(part, nth)| file.write_at(nth * 2 * BLOCK as u64, part).unwrap());
                });
                scope.spawn(|| while !site.fs().drain_step().unwrap() {});
                scope.spawn(|| while !site.fs().fill_step().unwrap() {});
                site.chown(&site.open(&name), new);
            });
            site.create(&format!("guess {round}"), old).write_at(0, &content).unwrap();
            site.work();
            site.assert_apart(&format!("round {round}"));
        }
        let region = site.region.clone();
        site.fs.unwrap().unmount().unwrap();
        let found = check(&region, &CheckOptions { data: true, ..CheckOptions::default() }).unwrap();
        assert!(found.findings.is_empty(), "{found:?}");
    }
}

/// A crash at any moment of a change of the owner leaves nothing that the old owner finds in the file of the new one.
#[test]
fn a_crash_in_a_change_of_the_owner_leaves_nothing_in_the_domain_of_the_old_one() {
    const SMALL: u64 = 16 << 20;
    let [old, new] = OWNERS;
    for (policy, index) in
        INDEXES.iter().flat_map(|index| [Policy::Inline, Policy::DeExt].map(|policy| (policy, *index)))
    {
        let open = OpenOptions { record: true, huge_pages: false, ..OpenOptions::default() };
        let site = Site::of(SMALL, &open, policy, index, OWNER);
        let content = bytes(3 * BLOCK, 7);
        for (name, uid) in [("file", old), ("twin", old)] {
            site.create(name, uid).write_at(0, &content).unwrap();
        }
        site.fs().unlink(ROOT, b"twin").unwrap();
        site.region.take_recording();
        let before = site.region.to_vec(0, SMALL);
        site.chown(&site.open("file"), new);
        drop(site.fs);
        let recording = site.region.take_recording();
        let fences = recording.events.iter().enumerate().filter(|(_, event)| event.action == Action::Fence);
        let mut owners = BTreeMap::new();
        for (fence, kept) in fences.flat_map(|(at, _)| (0..3).map(move |kept| (at, kept))) {
            let image = recording.image(&before, fence, StoreOrder::AnyWord, |word| match kept {
                0 => false,
                1 => true,
                _ => word.offset / 8 % 2 == 0,
            });
            let region = Region::create(&DeviceSpec::Memory, SMALL, &OpenOptions::default()).unwrap();
            let _ = region.fence(region.write(0, &image[..]).flush());
            let mut crashed = Site { region, policy, share: OWNER, fs: None };
            crashed.check(false);
            crashed.mount();
            *owners.entry(crashed.open("file").attr().uid).or_insert(0) += 1;
            crashed.create("guess", old).write_at(0, &content).unwrap();
            let owner = crashed.open("file").attr().uid;
            let is_shared = addresses(&crashed.open("guess")) == addresses(&crashed.open("file"));
            assert!(owner == old || !is_shared, "{policy:?}, {index:?}: fence {fence}, kept {kept}");
            crashed.work();
            crashed.fs.take().unwrap().unmount().unwrap();
            crashed.check(true);
        }
        assert_eq!(owners.len(), 2, "{policy:?}: {owners:?}");
    }
}

/// A device keeps its secret, and so its domains.
#[test]
fn the_secret_of_a_device_is_made_once_and_kept() {
    let mut site = Site::new(Policy::Inline, IndexKind::Dram, OWNER);
    store(&site, "blocks", "one", OWNERS[0], 100);
    site.share = Share::Owner { new_secret: [9; 16] };
    site.remount();
    store(&site, "blocks", "two", OWNERS[0], 100);
    assert_eq!(addresses(&site.open("one")), addresses(&site.open("two")), "the domains stay the same");
    site.fs.take().unwrap().unmount().unwrap();
    let (superblock, _) = read_superblock(&site.region).unwrap();
    assert_eq!(superblock.secret(), Some(*b"no one knows it."));
}
