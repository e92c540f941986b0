//! Direct writes (O_DIRECT) and the page cache: a buffered read sees every direct write that ended before it. That
//! holds also while several direct writes are under way and others read the file through the page cache.

use std::process::Command;

use nvfold_tests::mount::Mount;
use nvfold_tests::probe::compiled;
use nvfold_tests::random::soak_factor;
use nvfold_tests::{requires, run};

#[test]
fn a_buffered_read_sees_completed_direct_writes() {
    requires!(fuse, tool("cc"));
    let rounds = (300 * soak_factor()).to_string();
    for options in ["writeback=on", "writeback=off"] {
        let mut mount = Mount::with_options(64, options);
        let program = compiled("direct_writes", mount.scratch());
        for how in ["aio", "threads"] {
            let run = run::run(Command::new(&program).arg(mount.join(how)).args([&rounds, how]));
            assert_eq!(run.code(), 0, "{options}, {how}: {}", run.report());
        }
        mount.check();
    }
}
