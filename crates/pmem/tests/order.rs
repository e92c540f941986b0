//! Order as types: each file in `order/` breaks one rule, and the compiler says so. Beside it lies what it says
//! (`refused.rs`).

mod in_order;

use crate::refused::all_are_refused;

#[test]
fn what_is_in_order_compiles_and_runs() {
    in_order::main();
}

#[test]
fn what_is_out_of_order_does_not_compile() {
    all_are_refused("pmem", "tests/order/fail");
}
