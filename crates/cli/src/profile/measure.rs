//! Measuring this machine: arithmetic in registers, memory, and matrix products.

use super::saved::{Bandwidth, MatmulRate, MultiplyAdds, Profile};
use crate::figures::counted;
use crate::machine::cores;
use memwall_tensor::device::{Epilogue, Linear, MatmulDims, MatmulLayout, Memory};
use memwall_tensor::{Category, Cpu, DType, Description, OutOfMemory, Slice, SliceMut, Traffic};
use std::time::{Duration, Instant};

/// Layouts with their names in a profile.
pub const LAYOUTS: [(MatmulLayout, &str); 3] =
    [(MatmulLayout::Nt, "nt"), (MatmulLayout::Nn, "nn"), (MatmulLayout::Tn, "tn")];

/// Rounds of multiply-adds that take some milliseconds.
const ROUNDS: usize = 100_000;

/// A linear layer: tokens, outputs, inputs.
type Layer = (usize, usize, usize);

/// How much is measured.
pub(super) struct Effort {
    /// Sides of square products.
    squares: &'static [usize],
    /// Layers whose products are measured.
    layers: &'static [Layer],
    /// Elements of the buffers that memory traffic goes through.
    stream: usize,
    /// Time for each figure.
    time: Duration,
}

impl Effort {
    /// Sizes of training: layers of widths 256 and 768, and a chunk of a large vocabulary's head.
    pub(super) const FULL: Effort = Effort {
        squares: &[128, 256, 512, 1024, 2048],
        layers: &[
            (2048, 256, 256),
            (2048, 768, 768),
            (2048, 2048, 768),
            (2048, 768, 2048),
            (256, 32000, 768),
        ],
        stream: 1 << 25,
        time: Duration::from_millis(200),
    };
    /// A taste of each.
    pub(super) const QUICK: Effort = Effort {
        squares: &[64, 256],
        layers: &[(256, 256, 128)],
        stream: 1 << 20,
        time: Duration::from_millis(10),
    };

    /// Sizes of all products, each with its layout: a layer makes one of each layout.
    fn products(&self) -> Vec<(MatmulLayout, &'static str, MatmulDims)> {
        let mut all = Vec::new();
        for (layout, name) in LAYOUTS {
            all.extend(self.squares.iter().map(|&n| (layout, name, MatmulDims { m: n, n, k: n })));
            all.extend(self.layers.iter().map(|&layer| (layout, name, product(layout, layer))));
        }
        all
    }
}

/// Sizes of a layer's product in a layout: forward, gradient of the input, gradient of the weight.
#[must_use]
pub fn product(layout: MatmulLayout, (tokens, out, inputs): Layer) -> MatmulDims {
    match layout {
        MatmulLayout::Nt => MatmulDims { m: tokens, n: out, k: inputs },
        MatmulLayout::Nn => MatmulDims { m: tokens, n: inputs, k: out },
        MatmulLayout::Tn => MatmulDims { m: out, n: inputs, k: tokens },
    }
}

/// FLOPs of a product.
#[must_use]
pub fn flops(d: MatmulDims) -> f64 {
    2.0 * d.m as f64 * d.n as f64 * d.k as f64
}

/// The shortest of several runs that together take `time`, but at least two, after one that does not count.
fn best(time: Duration, mut run: impl FnMut()) -> f64 {
    run();
    let (start, mut best, mut runs) = (Instant::now(), Duration::MAX, 0);
    while runs < 2 || start.elapsed() < time {
        let t = Instant::now();
        run();
        best = best.min(t.elapsed());
        runs += 1;
    }
    best.as_secs_f64()
}

/// A device for `bytes` of buffers.
///
/// # Errors
/// The operating system does not give the memory.
pub fn device(threads: usize, bytes: usize) -> Result<Cpu, OutOfMemory> {
    let description = Description { threads };
    // Room for the alignment of some dozens of buffers.
    Cpu::new(description, bytes as u64 + description.scratch_bytes() as u64 + (1 << 16))
}

/// Peak of fused multiply-adds in registers, FLOP/s.
#[must_use]
pub fn multiply_adds(device: &Cpu, time: Duration) -> f64 {
    let mut flops = 0;
    let seconds = best(time, || flops = device.multiply_adds(ROUNDS));
    flops as f64 / seconds
}

/// Bytes a second of a way through memory, with buffers of so many f32.
///
/// # Errors
/// Out of memory.
pub fn bandwidth(
    threads: usize,
    traffic: Traffic,
    elements: usize,
    time: Duration,
) -> Result<f64, OutOfMemory> {
    let device = device(threads, 2 * 4 * elements)?;
    let mut x = device.alloc(elements, DType::F32, Category::Workspace)?;
    let mut y = device.alloc(elements, DType::F32, Category::Workspace)?;
    device.fill(SliceMut::all(&mut x), 0.0);
    device.fill(SliceMut::all(&mut y), 1.0);
    let mut bytes = 0;
    let seconds = best(time, || bytes = device.stream(traffic, SliceMut::all(&mut x), Slice::all(&y)));
    Ok(bytes as f64 / seconds)
}

/// FLOP/s of a matrix product: operands of a type, the result as training has it (gradients of weights are f32).
///
/// # Errors
/// Out of memory.
pub(super) fn matmul(
    threads: usize,
    operands: DType,
    layout: MatmulLayout,
    dims: MatmulDims,
    time: Duration,
) -> Result<f64, OutOfMemory> {
    let device = matmul_device(threads, dims)?;
    let [a, b, mut c] = matrices(&device, operands, layout, dims)?;
    let run = || {
        device.matmul(layout, dims, Slice::all(&a), Slice::all(&b), SliceMut::all(&mut c), Epilogue::store())
    };
    Ok(flops(dims) / best(time, run))
}

/// A device for [`matrices`]: all that they ever ask for fits side by side, so that it does not matter where gaps are.
fn matmul_device(threads: usize, MatmulDims { m, n, k }: MatmulDims) -> Result<Cpu, OutOfMemory> {
    device(threads, 4 * m * n + 8 * (m * k + n * k))
}

/// The operands of a product, of a type, and its result.
fn matrices(
    device: &Cpu,
    operands: DType,
    layout: MatmulLayout,
    MatmulDims { m, n, k }: MatmulDims,
) -> Result<[<Cpu as Memory>::Buf; 3], OutOfMemory> {
    let operand = |len: usize| {
        let mut values = device.alloc(len, DType::F32, Category::Workspace)?;
        device.fill(SliceMut::all(&mut values), 0.5);
        let mut buffer = device.alloc(len, operands, Category::Workspace)?;
        device.cast(Slice::all(&values), SliceMut::all(&mut buffer));
        Ok(buffer)
    };
    let result = if layout == MatmulLayout::Tn { DType::F32 } else { operands };
    Ok([operand(m * k)?, operand(n * k)?, device.alloc(m * n, result, Category::Workspace)?])
}

/// One thread, and all.
pub(super) fn thread_counts() -> Vec<usize> {
    let mut counts = vec![1, cores()];
    counts.dedup();
    counts
}

/// Fills a profile; calls `progress` with what comes next.
///
/// # Errors
/// Out of memory.
pub(super) fn fill(
    profile: &mut Profile,
    effort: &Effort,
    progress: impl Fn(&str),
) -> Result<(), OutOfMemory> {
    for threads in thread_counts() {
        let with = counted(threads, "thread");
        progress(&format!("{with}: arithmetic and memory"));
        let flops_per_second = multiply_adds(&device(threads, 0)?, effort.time);
        profile.multiply_adds.push(MultiplyAdds { threads, flops_per_second });
        for traffic in Traffic::ALL {
            let bytes_per_second = bandwidth(threads, traffic, effort.stream, effort.time)?;
            let kind = format!("{traffic:?}").to_lowercase();
            profile.memory.push(Bandwidth { threads, kind, bytes_per_second });
        }
        for operands in [DType::F32, DType::BF16] {
            progress(&format!("{with}: products of {operands:?}"));
            for (layout, name, dims) in effort.products() {
                let flops_per_second = matmul(threads, operands, layout, dims, effort.time)?;
                let MatmulDims { m, n, k } = dims;
                let operands = format!("{operands:?}").to_lowercase();
                profile.matmul.push(MatmulRate {
                    threads,
                    operands,
                    layout: name.into(),
                    m,
                    n,
                    k,
                    flops_per_second,
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_product_of_the_full_profile_has_room() {
        for (layout, _, dims) in Effort::FULL.products() {
            for operands in [DType::F32, DType::BF16] {
                let device = matmul_device(1, dims).unwrap();
                matrices(&device, operands, layout, dims)
                    .unwrap_or_else(|e| panic!("{layout:?} {dims:?}: {e}"));
            }
        }
    }
}
