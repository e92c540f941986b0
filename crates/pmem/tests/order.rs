//! Order as types: each file in `order/` breaks one rule, and the compiler says so. Beside it lies what it says
//! (`refused.rs`).

mod in_order;

use crate::refused::all_are_refused;

#[test]
fn programs_with_correct_store_order_compile_and_run() {
    in_order::main();
}

#[test]
fn programs_with_wrong_store_order_do_not_compile() {
    all_are_refused("pmem", "tests/order/fail");
}
