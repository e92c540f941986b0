//! What a memcpy costs under the library while nothing is tracked. Run by hand, on a quiet machine:
//! `cargo test -p nvfold-preload -- --ignored --nocapture cost`.

use crate::lab::{lab, ok};
use std::process::Command;

#[test]
#[ignore = "a measurement"]
fn an_interposed_memcpy_costs_little_more() {
    let Some(lab) = lab() else { return };
    let program = lab.compile("memcpy_cost.c");
    let measured = |mut command: Command| -> Vec<(u32, f64)> {
        let text = String::from_utf8(ok(&mut command).stdout).unwrap();
        let row = |line: &str| {
            let (size, time) = line.split_once(' ').expect("a size and a time");
            (size.parse().unwrap(), time.parse().unwrap())
        };
        text.lines().map(row).collect()
    };
    let (without, with) = (measured(Command::new(&program)), measured(lab.preloaded(&program)));
    for ((size, without), (_, with)) in without.iter().zip(&with) {
        println!("{size:>6} bytes: libc {without:.2} ns, preloaded {with:.2} ns, {:+.2} ns", with - without);
        match size {
            16 => assert!(with - without <= 1.5, "at most 1.5 ns more at 16 bytes"),
            128 => assert!(with - without <= 15.0, "at most 15 ns more at 128 bytes"),
            _ => {}
        }
    }
}
