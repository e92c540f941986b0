//! A file system simple enough to be right, to compare with.
//!
//! The same operations go to several [`Subject`]s: the [`oracle::Oracle`] (maps and vectors in memory), the library
//! ([`library::Library`]) and any directory through system calls ([`posix::Posix`]). After each operation the answers
//! must be equal, including errno. An answer contains nothing that a subject may choose freely: no inode numbers, no
//! sizes of directories, and only times that were set.
//!
//! ```text
//! generate(seed) -> [Op] -> each Subject -> [Answer] -> equal, or shrink to the few operations
//!                                                       that still differ
//! ```
//!
//! [`exercise`] has sequences of its own, for the content of few files and for what works on it in the background.

pub mod exercise;
pub mod library;
pub mod op;
pub mod oracle;
pub mod posix;
pub mod script;
pub mod shrink;

pub use op::{Answer, Kind, NodePath, Op, Stat};

/// An implementation that carries out operations.
pub trait Subject {
    /// Its name, for messages.
    fn name(&self) -> &'static str;
    /// Carries out one operation.
    fn apply(&mut self, op: &Op) -> Answer;
}

/// Applies the operations to all subjects, then compares everything; returns the first difference.
pub fn compare(ops: &[Op], subjects: &mut [&mut dyn Subject]) -> Result<(), String> {
    let mut oracle = oracle::Oracle::new();
    for (step, op) in ops.iter().enumerate() {
        step_equal(step, op, &mut oracle, subjects)?;
    }
    for op in oracle.questions() {
        step_equal(ops.len(), &op, &mut oracle, subjects)?;
    }
    Ok(())
}

fn step_equal(
    step: usize,
    op: &Op,
    oracle: &mut oracle::Oracle,
    subjects: &mut [&mut dyn Subject],
) -> Result<(), String> {
    let expected = oracle.apply(op);
    for subject in subjects {
        let got = subject.apply(op);
        if !got.agrees_with(&expected) {
            return Err(format!("step {step}, {op:?}:\n  {} answers {got:?}\n  expected {expected:?}", subject.name()));
        }
    }
    Ok(())
}
