//! The machine of a run: its class, never its identity.

use crate::{Doing, Result};
use serde::{Deserialize, Serialize};
use std::fs::read_to_string;

/// Instructions that determine the cost of hashing, comparing and flushing.
const TELLING_FLAGS: [&str; 5] = ["avx2", "avx512f", "sha_ni", "clflushopt", "clwb"];

/// Class of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    /// Name, family and model of the processor.
    pub cpu: String,
    /// Its instructions that matter here.
    pub instructions: Vec<String>,
    /// Number of processors.
    pub processors: usize,
    /// Memory, whole GiB.
    pub memory_gib: u64,
    /// Whether it is a virtual machine.
    pub is_virtual: bool,
}

impl Machine {
    /// Describes this machine.
    pub(super) fn here() -> Result<Machine> {
        let cpu = read_to_string("/proc/cpuinfo").doing("read /proc/cpuinfo")?;
        let memory = read_to_string("/proc/meminfo").doing("read /proc/meminfo")?;
        let field = |name: &str| {
            let mut lines = cpu.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| key.trim() == name).map_or("unknown", |(_, value)| value.trim())
        };
        let flags: Vec<&str> = field("flags").split(' ').collect();
        let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
        let kib: u64 = kib.and_then(|kib| kib.parse().ok()).unwrap_or(0);
        Ok(Machine {
            cpu: format!("{}, family {} model {}", field("model name"), field("cpu family"), field("model")),
            instructions: TELLING_FLAGS.into_iter().filter(|flag| flags.contains(flag)).map(String::from).collect(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: kib.div_ceil(1 << 20),
            is_virtual: flags.contains(&"hypervisor"),
        })
    }

    /// Describes it in one line.
    pub(super) fn line(&self) -> String {
        let kind = if self.is_virtual { "virtual machine, " } else { "" };
        let (cpu, instructions) = (&self.cpu, self.instructions.join(", "));
        format!("{kind}{} processors ({cpu}; {instructions}), {} GiB of memory", self.processors, self.memory_gib)
    }
}
