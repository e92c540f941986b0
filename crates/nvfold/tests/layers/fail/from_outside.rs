//! Each layer has the methods of those below it, by the names that the other programs here look for; none of them leaves
//! the crate.

use nvfold::internals::layers::{Core, Jobs};

fn all(core: &Core, jobs: &Jobs<'_>) {
    core.rename();
    core.publish_written();
    jobs.inode(1);
    jobs.reclaim_segment();
    jobs.share_step();
}

fn main() {
    let _: fn(&Core, &Jobs<'_>) = all;
}
