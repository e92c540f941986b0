//! Workloads, baselines and plots.
