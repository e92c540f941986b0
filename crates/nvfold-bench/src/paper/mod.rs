//! The evaluations of the papers.
mod rivals;
