//! Order as types: each file in `order/` breaks one rule, and the compiler says so. Beside it lies what it says.
//! `TRYBUILD=overwrite cargo test -p pmem --test order` writes that anew when the compiler's words change.

#[test]
fn what_is_out_of_order_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/order/in_order.rs");
    cases.compile_fail("tests/order/fail/*.rs");
}
