use nvfold::*;
use pmem::*;
use std::time::Instant;
fn main() {
    const N: u64 = 512 << 20;
    let mut src = vec![0u8; 256 << 20];
    let mut s = 1u64;
    for c in src.chunks_exact_mut(8) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        c.copy_from_slice(&s.to_le_bytes());
    }
    let raw = Region::create(&DeviceSpec::Memory, N, &OpenOptions::default()).unwrap();
    let _ = raw.fence(raw.stream_zeros(0, N));
    for flush in [FlushMode::Auto, FlushMode::Always] {
        let mut fss = vec![];
        for policy in [Policy::Off, Policy::Inline] {
            let region =
                Region::create(&DeviceSpec::Memory, 3 * N, &OpenOptions { flush, ..Default::default() }).unwrap();
            FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
            let fs = FileSystem::mount(
                region,
                MountOptions { policy, clock: std::sync::Arc::new(clock::coarse_now_ns), ..Default::default() },
            )
            .unwrap();
            let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
            let f = fs.open(fs.create(InodeNumber::ROOT, b"f", &new).unwrap().ino).unwrap();
            fss.push((policy, fs, f));
        }
        for rep in 0..4 {
            for sz in [4096u64, 131072] {
                let t = Instant::now();
                let mut o = 0;
                while o < N {
                    let a = (o as usize) % (256 << 20);
                    let _ = raw.fence(raw.stream(o, &src[a..a + sz as usize]));
                    o += sz;
                }
                let r = t.elapsed().as_nanos() as f64 / (N / sz) as f64;
                print!("{flush:?} rep {rep} sz {sz}: raw {r:.0}ns");
                for (p, _fs, f) in &fss {
                    // change content each rep so inline finds no dups: rotate by 8 bytes*rep
                    let t = Instant::now();
                    let mut o = 0;
                    while o < N {
                        let a = ((o as usize) + 8 * (rep * 2 + 1) * (1 + (o >= (256 << 20)) as usize))
                            % ((256 << 20) - (sz as usize));
                        f.write_at(o, &src[a..a + sz as usize]).unwrap();
                        o += sz;
                    }
                    let e = t.elapsed().as_nanos() as f64 / (N / sz) as f64;
                    print!("  {p:?} {e:.0}ns ratio {:.2}", r / e);
                }
                println!();
            }
        }
        println!("{:?}", fss[1].1.stats());
    }
}
