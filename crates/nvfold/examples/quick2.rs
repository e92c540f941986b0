use nvfold::*;
use pmem::*;
use std::time::Instant;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let policy = if a[1] == "off" { Policy::Off } else { Policy::Inline };
    let sz: u64 = a[2].parse().unwrap();
    let reps: u64 = a[3].parse().unwrap();
    const N: u64 = 256 << 20;
    let mut src = vec![0u8; 260 << 20];
    let mut s = 1u64;
    for c in src.chunks_exact_mut(8) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        c.copy_from_slice(&s.to_le_bytes());
    }
    let region = Region::create(&DeviceSpec::Memory, 3 * N, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let fs = FileSystem::mount(
        region,
        MountOptions { policy, clock: std::sync::Arc::new(clock::coarse_now_ns), ..Default::default() },
    )
    .unwrap();
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    let f = fs.open(fs.create(InodeNumber::ROOT, b"f", &new).unwrap().ino).unwrap();
    for rep in 0..reps {
        let t = Instant::now();
        let mut o = 0;
        while o < N {
            let a = (o + 8 * rep) as usize;
            f.write_at(o, &src[a..a + sz as usize]).unwrap();
            o += sz;
        }
        let e = t.elapsed().as_nanos() as f64 / (N / sz) as f64;
        println!("rep {rep} {e:.0}ns");
    }
}
