//! An operation on files waits for no work beside it: a core has no way up to the jobs.

use nvfold::internals::layers::Core;

fn write(core: &Core) {
    core.reclaim_segment();
    core.share_step();
}

fn main() {
    let _: fn(&Core) = write;
}
