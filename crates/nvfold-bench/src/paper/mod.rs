//! The evaluations of the papers.
mod rivals;
pub use rivals::RivalError;
