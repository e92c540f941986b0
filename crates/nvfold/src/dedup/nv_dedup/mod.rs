//! Policy `nv-dedup`: NV-Dedup's workload-adaptive fingerprinting (4.4).

pub mod model;
pub mod sampling;
