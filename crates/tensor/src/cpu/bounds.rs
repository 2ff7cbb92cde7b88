//! What bounds every kernel: fused multiply-adds on registers alone, and bytes of memory moved. Kernels are measured
//! against these; nothing in training calls them.

use super::family::kernel;
use super::simd::Simd;
use super::{Cpu, Family, M, S, Shared};
use std::hint::black_box;

/// A way to go through memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Reads `y`.
    Read,
    /// Reads `y`, writes `x`.
    Copy,
    /// Reads `x` and `y`, writes `x`, as `x += c y` does.
    Update,
}

impl Traffic {
    /// All of them.
    pub const ALL: [Traffic; 3] = [Traffic::Read, Traffic::Copy, Traffic::Update];

    /// Bytes that the program moves for an element of f32; what caches fetch in order to write is not counted.
    fn bytes(self) -> u64 {
        match self {
            Traffic::Read => 4,
            Traffic::Copy => 8,
            Traffic::Update => 12,
        }
    }
}

impl Cpu {
    /// Carries out `rounds` rounds of independent fused multiply-adds on every thread, in registers; returns the FLOPs of all
    /// of them. Whoever times it learns the peak.
    pub fn multiply_adds(&self, rounds: usize) -> u64 {
        let threads = self.description.threads;
        self.together(false, &|_| register_loop(self.family, rounds));
        threads as u64 * rounds as u64 * 2 * lanes(self.family) as u64
    }

    /// Goes through two f32 buffers once, with every thread; returns the bytes moved.
    ///
    /// # Panics
    /// When the buffers differ in length, or are not f32.
    pub fn stream(&self, traffic: Traffic, x: M<'_>, y: S<'_>) -> u64 {
        let (x, y) = (x.get::<f32>(), y.get::<f32>());
        assert_eq!(x.len(), y.len(), "both buffers are gone through together");
        // One contiguous part a thread.
        let size = y.len().div_ceil(self.description.threads).max(1);
        let x = Shared::of(x);
        self.parallel(y.len().div_ceil(size), |t| {
            let part = t * size..((t + 1) * size).min(y.len());
            // SAFETY: task `t` takes the `t`-th part.
            let x = unsafe { x.part(part.start, part.len()) };
            match traffic {
                Traffic::Read => read(self.family, &y[part]),
                Traffic::Copy => x.copy_from_slice(&y[part]),
                Traffic::Update => update(self.family, x, &y[part]),
            }
        });
        y.len() as u64 * traffic.bytes()
    }
}

kernel! {
    fn read(y: &[f32]) {
        let mut sums = [0f32; 64];
        for line in y.chunks_exact(64) {
            for (sum, v) in sums.iter_mut().zip(line) {
                *sum += v;
            }
        }
        black_box(sums);
    }
}

kernel! {
    fn update(x: &mut [f32], y: &[f32]) {
        for (x, y) in x.iter_mut().zip(y) {
            *x = y.mul_add(0.5, *x);
        }
    }
}

/// Chains of whole vectors in a round: more than any machine needs to hide an addition's latency, in fewer registers than the
/// family has.
const AVX512: usize = 24;
const AVX2: usize = 12;
const PORTABLE: usize = 6;

/// Elements of one round.
fn lanes(family: Family) -> usize {
    match family {
        Family::Avx512 => AVX512 * 16,
        Family::Avx2 => AVX2 * 8,
        Family::Portable => PORTABLE * 8,
    }
}

fn register_loop(family: Family, rounds: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m256, __m512};
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
        fn avx512(rounds: usize) {
            chains::<__m512, AVX512>(rounds);
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2(rounds: usize) {
            chains::<__m256, AVX2>(rounds);
        }
        match family {
            // SAFETY: a device is only made for a family that the machine has.
            Family::Avx512 => return unsafe { avx512(rounds) },
            // SAFETY: as above.
            Family::Avx2 => return unsafe { avx2(rounds) },
            Family::Portable => {}
        }
    }
    let _ = family;
    chains::<[f32; 8], PORTABLE>(rounds);
}

/// `CHAINS` chains of fused multiply-adds, each of which tends to 2. By vectors that are named: out of loops over floats the
/// compiler makes gathers and scatters where there are 32 registers.
#[inline(always)]
fn chains<V: Simd, const CHAINS: usize>(rounds: usize) {
    // SAFETY: the caller is compiled for the family whose vectors these are.
    unsafe {
        let mut sums = black_box([V::splat(1.0); CHAINS]);
        let (factor, term) = (V::splat(black_box(0.5)), V::splat(black_box(1.0)));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = term.fma(*sum, factor);
            }
        }
        black_box(sums);
    }
}
