//! What this machine has: cores, memory, and how fast it multiplies matrices.

use memwall_tensor::device::{Epilogue, Linear, MatmulDims, MatmulLayout, Memory};
use memwall_tensor::{Category, Cpu, DType, Description, OutOfMemory, Slice, SliceMut};
use std::fs::read_to_string;
use std::time::{Duration, Instant};

/// No budget is larger: a region of this size can still be mapped.
pub(crate) const ADDRESS_SPACE: u64 = 1 << 46;

/// Threads to compute with when the job does not say.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes that a new process may use: the kernel's estimate, or the control group's limit where that is lower.
pub(crate) fn available_memory() -> u64 {
    let available = field("/proc/meminfo", "MemAvailable:").unwrap_or(u64::MAX);
    let limit = read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|t| t.trim().parse().ok());
    available.min(limit.unwrap_or(u64::MAX)).min(ADDRESS_SPACE)
}

/// The most bytes that this process has had resident.
pub(crate) fn peak_resident() -> Option<u64> {
    field("/proc/self/status", "VmHWM:")
}

/// A "Name:   123 kB" line, in bytes.
fn field(file: &str, name: &str) -> Option<u64> {
    let text = read_to_string(file).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The best rate of a square matrix product on this machine with these threads, FLOP/s: what MFU refers to.
/// Takes about half a second.
///
/// # Errors
/// Out of memory.
pub(crate) fn gemm_peak(description: Description) -> Result<f64, OutOfMemory> {
    const N: usize = 768;
    const BYTES: u64 = 3 * (N * N * 4) as u64;
    let device = Cpu::new(description, BYTES + description.scratch_bytes() as u64 + 4096)?;
    let new = || device.alloc(N * N, DType::F32, Category::Workspace);
    let (mut a, mut b, mut c) = (new()?, new()?, new()?);
    device.fill(SliceMut::all(&mut a), 0.5);
    device.fill(SliceMut::all(&mut b), 0.25);
    let dims = MatmulDims { m: N, n: N, k: N };
    let mut best = Duration::MAX;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(400) {
        let t = Instant::now();
        device.matmul(
            MatmulLayout::Nt,
            dims,
            Slice::all(&a),
            Slice::all(&b),
            SliceMut::all(&mut c),
            Epilogue::store(),
        );
        best = best.min(t.elapsed());
    }
    Ok(2.0 * (N as f64).powi(3) / best.as_secs_f64())
}
