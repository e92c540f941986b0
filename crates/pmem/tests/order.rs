//! Order as types: each file in `order/` breaks one rule, and the compiler says so. Beside it lies what it says.
//! `TRYBUILD=overwrite cargo test -p pmem --test all order` writes that anew when the compiler's words change.

mod in_order;

#[test]
fn what_is_in_order_compiles_and_runs() {
    in_order::main();
}

#[test]
fn what_is_out_of_order_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/order/fail/*.rs");
}
