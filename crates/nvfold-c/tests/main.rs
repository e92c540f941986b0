//! The C library as C programs see it.

mod headers;
mod library;
mod programs;
mod symbols;
