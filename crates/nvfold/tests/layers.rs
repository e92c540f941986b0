//! The three layers as types: each file in `layers/fail/` calls a layer above, and the compiler says that there is no such
//! method. Beside it lies what it says (`refused.rs` of pmem's tests).

use crate::refused::all_are_refused;

#[test]
fn a_call_from_a_layer_to_one_above_it_does_not_compile() {
    all_are_refused("nvfold", "tests/layers/fail");
}
