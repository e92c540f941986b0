//! From a failing sequence to the few operations that still fail.

use std::panic::{self, AssertUnwindSafe};

use super::Op;

/// Number of times that a sequence is tried while shrinking.
const TRIES_MAX: usize = 600;

/// Runs the sequence. If it fails, drops operations as long as it keeps failing and panics with the rest.
#[track_caller]
pub fn assert_holds(ops: Vec<Op>, check: impl Fn(&[Op]) -> Result<(), String>) {
    let check = |ops: &[Op]| -> Result<(), String> {
        panic::catch_unwind(AssertUnwindSafe(|| check(ops))).unwrap_or_else(|payload| Err(text(&payload)))
    };
    if let Err(first) = check(&ops) {
        eprintln!("{first}\nshrinking {} operations", ops.len());
        let (fewest, why) = shrink(ops, first, check);
        let listing: Vec<String> = fewest.iter().map(|op| format!("  {op:?}")).collect();
        panic!("{} operations that fail:\n{}\n{why}", fewest.len(), listing.join("\n"));
    }
}

/// Removes ever smaller runs of operations as long as the rest fails.
fn shrink(mut ops: Vec<Op>, mut why: String, check: impl Fn(&[Op]) -> Result<(), String>) -> (Vec<Op>, String) {
    let mut tries = 0;
    let mut run = ops.len().div_ceil(2);
    while run > 0 && tries < TRIES_MAX {
        let mut start = 0;
        let mut removed = false;
        while start < ops.len() && tries < TRIES_MAX {
            let end = ops.len().min(start + run);
            let fewer = [&ops[..start], &ops[end..]].concat();
            tries += 1;
            match check(&fewer) {
                Err(reason) => (ops, why, removed) = (fewer, reason, true),
                Ok(()) => start = end,
            }
        }
        // The single operations are tried again until none can be dropped.
        run = if run == 1 && removed { 1 } else { run / 2 };
    }
    (ops, why)
}

fn text(payload: &Box<dyn std::any::Any + Send>) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_else(|| "panicked".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrinking_keeps_only_operations_that_the_failure_needs() {
        let needle = |slot| Op::Close { slot };
        let mut ops = vec![Op::Remount; 100];
        ops[13] = needle(1);
        ops[77] = needle(2);
        let check = |ops: &[Op]| {
            if ops.contains(&needle(1)) && ops.contains(&needle(2)) { Err("both".into()) } else { Ok(()) }
        };
        let (fewest, _) = shrink(ops, "both".into(), check);
        assert_eq!(fewest, [needle(1), needle(2)]);
    }
}
