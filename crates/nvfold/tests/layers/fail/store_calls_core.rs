//! What places and publishes knows no name: a store has no way up to the files.

use nvfold::internals::layers::Store;

fn publish(store: &Store) {
    store.rename();
    store.inode(1);
}

fn main() {
    let _: fn(&Store) = publish;
}
