//! Flushing cache lines with the best instruction that the CPU has, chosen once at run time.

/// The instruction that flushes a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instruction {
    /// Writes the line back and keeps it.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Clwb,
    /// Writes back and evicts; not ordered with other flushes.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    ClflushOpt,
    /// Writes back and evicts, in order.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Clflush,
    /// None is known for this CPU: the compiler barrier of the fence is all there is.
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    None,
}

impl Instruction {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    pub(crate) fn detect() -> Instruction {
        // CPUID leaf 7: EBX bit 24 clwb, bit 23 clflushopt. The standard library has no names for them.
        let features =
            if std::arch::x86_64::__cpuid(0).eax >= 7 { std::arch::x86_64::__cpuid_count(7, 0).ebx } else { 0 };
        match features {
            _ if features & (1 << 24) != 0 => Instruction::Clwb,
            _ if features & (1 << 23) != 0 => Instruction::ClflushOpt,
            _ => Instruction::Clflush,
        }
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    pub(crate) fn detect() -> Instruction {
        Instruction::None
    }

    /// Flushes the lines that `length` bytes at `start` touch.
    ///
    /// # Safety
    /// The bytes are mapped, and this CPU has the instruction (`detect` said so).
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    pub(crate) unsafe fn flush(self, start: *const u8, length: usize) {
        let first = start.addr() & !63;
        for line in (first..start.addr() + length).step_by(64) {
            let line = start.with_addr(line);
            // SAFETY: the line holds at least one mapped byte, so it is mapped; flushing changes no value.
            unsafe {
                match self {
                    Instruction::Clwb => {
                        std::arch::asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags))
                    }
                    Instruction::ClflushOpt => {
                        std::arch::asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                    }
                    Instruction::Clflush => std::arch::x86_64::_mm_clflush(line),
                }
            }
        }
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    pub(crate) unsafe fn flush(self, _start: *const u8, _length: usize) {}
}

/// Waits until this thread's flushes and non-temporal stores have been accepted by the memory.
#[inline]
pub(crate) fn store_fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: sfence exists on every x86-64 and touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flush_instruction_of_this_cpu_keeps_the_bytes() {
        let bytes: Vec<u8> = (0..1000).map(|at| at as u8).collect();
        for instruction in [
            Instruction::detect(),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Instruction::Clflush,
        ] {
            // SAFETY: the bytes are a live vector, the instructions are baseline or detected.
            unsafe { instruction.flush(bytes.as_ptr().add(3), 900) };
            store_fence();
        }
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }
}
