//! Devices, data and comparisons that these tests share.
#![allow(dead_code, reason = "each test program uses a part of this")]

pub mod attention;
pub mod misfits;

use memwall_layout::Placements;
use memwall_tensor::device::Memory;
use memwall_tensor::{Category, Cpu, DType, Description, Dry, Family, Shape, SliceMut, Tensor, bf16};
use proptest::prelude::*;

/// Unit roundoff of f32: a rounded operation is off by at most this, relatively.
pub const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// Unit roundoff of bf16, whose fractions have 8 bits with the leading one.
pub const LOW_UNIT: f64 = 1.0 / (1u64 << 8) as f64;

/// The types that kernels compute on.
pub const FLOATS: [DType; 2] = [DType::F32, DType::BF16];

/// Relative error that `math::exp` states for itself.
pub const EXP_ERROR: f64 = 2e-7;

/// Error of a central difference of an f64 function with step `h = STEP` whose values and derivatives are of
/// order `size`: `h^2 / 6` of truncation and `2^-52 / h` of cancellation, with two digits to spare.
pub const DIFFERENCE_ERROR: f64 = 1e-8;

/// Step of [`derivative`].
const STEP: f64 = 1e-5;

/// Budget of test devices, bytes. Only touched pages cost anything.
pub const BUDGET: u64 = 1 << 28;

/// Thread counts that must not matter.
pub const THREADS: [usize; 4] = [1, 2, 3, 5];

/// A property tried on `cases` random inputs, or as many as `PROPTEST_CASES` says, without files that keep failures.
pub fn cases(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(cases);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Elements of memory that [`with_family`] makes unusable as zeros.
const POISONED: usize = 1 << 18;

/// Not a number, nor is any half of it one in bf16.
const POISON: u32 = 0x7fc0_7fc0;

/// A CPU device whose memory holds what is not a number: fresh pages would be zero, and hide an operation
/// that forgets to begin with a zero.
fn with_family(threads: usize, family: Family) -> Cpu {
    let device = Cpu::with_family(Description { threads }, BUDGET, family).unwrap();
    let mut poison = device.alloc(POISONED, DType::F32, Category::Workspace).unwrap();
    device.fill(SliceMut::all(&mut poison), f32::from_bits(POISON));
    device
}

/// The CPU device with `threads` threads.
pub fn cpu(threads: usize) -> Cpu {
    with_family(threads, Family::detect())
}

/// The dry twin of [`cpu`].
pub fn dry(threads: usize) -> Dry {
    Dry::new(Description { threads }, BUDGET).unwrap()
}

/// A CPU device of every instruction family that this machine has and every count of threads.
pub fn all_cpus() -> Vec<Cpu> {
    let families = Family::ALL.into_iter().filter(|f| f.available());
    families.flat_map(|family| THREADS.map(|threads| with_family(threads, family))).collect()
}

/// A Rust type of elements.
pub trait Element: bytemuck::Pod {
    /// The buffer type that holds it.
    const DTYPE: DType;
}
impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for bf16 {
    const DTYPE: DType = DType::BF16;
}
impl Element for i32 {
    const DTYPE: DType = DType::I32;
}
impl Element for i64 {
    const DTYPE: DType = DType::I64;
}

/// A replicated tensor that holds `values`.
pub fn upload<D: Memory, T: Element>(device: &D, shape: Shape, values: &[T]) -> Tensor<D> {
    assert_eq!(shape.len(), values.len());
    let mut t = Tensor::new(device, shape, T::DTYPE, Placements::REPLICATED, Category::Activations).unwrap();
    device.write(t.view_mut().slice, bytemuck::cast_slice(values));
    t
}

/// [`upload`] as a vector.
pub fn vector<D: Memory, T: Element>(device: &D, values: &[T]) -> Tensor<D> {
    upload(device, Shape::vector(values.len()), values)
}

/// [`upload`] as a matrix of `rows` rows.
pub fn matrix<D: Memory>(device: &D, rows: usize, values: &[f32]) -> Tensor<D> {
    upload(device, Shape::matrix(rows, values.len() / rows), values)
}

/// Values rounded to bf16, by the library and not by the kernels' code.
pub fn low(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|x| bf16::from_f32(*x)).collect()
}

/// A tensor of type `dtype` whose elements are `values` rounded to bf16, whatever the type: so that both types hold
/// the same numbers.
pub fn typed<D: Memory>(device: &D, dtype: DType, shape: Shape, values: &[f32]) -> Tensor<D> {
    let rounded = low(values);
    match dtype {
        DType::BF16 => upload(device, shape, &rounded),
        _ => upload(device, shape, &rounded.iter().map(|x| x.to_f32()).collect::<Vec<_>>()),
    }
}

/// The elements of a tensor.
pub fn download<D: Memory, T: Element>(device: &D, tensor: &Tensor<D>) -> Vec<T> {
    let mut out = vec![T::zeroed(); tensor.shape().len()];
    device.read(tensor.view().slice, bytemuck::cast_slice_mut(&mut out));
    out
}

/// The f32 elements of a tensor.
pub fn floats<D: Memory>(device: &D, tensor: &Tensor<D>) -> Vec<f32> {
    download(device, tensor)
}

/// Bytes of tensors of any type.
pub fn bytes<D: Memory>(device: &D, tensors: &[&Tensor<D>]) -> Vec<u8> {
    let mut all = Vec::new();
    for t in tensors {
        let start = all.len();
        all.resize(start + t.shape().len() * t.dtype().bytes(), 0);
        device.read(t.view().slice, &mut all[start..]);
    }
    all
}

/// Fails unless `run` yields the same bytes on every device of [`all_cpus`].
pub fn same_everywhere(run: impl Fn(&Cpu) -> Vec<u8>) {
    let devices = all_cpus();
    let want = run(&devices[0]);
    for device in &devices[1..] {
        let got = run(device);
        let differs = got.iter().zip(&want).position(|(a, b)| a != b);
        assert!(got.len() == want.len() && differs.is_none(), "{device:?} differs from byte {differs:?}");
    }
}

/// The elements of a tensor of f32 or bf16, widened.
pub fn values<D: Memory>(device: &D, tensor: &Tensor<D>) -> Vec<f32> {
    match tensor.dtype() {
        DType::BF16 => download::<_, bf16>(device, tensor).iter().map(|x| x.to_f32()).collect(),
        _ => floats(device, tensor),
    }
}

/// Bits of f32 elements, to compare exactly.
pub fn bits(xs: &[f32]) -> Vec<u32> {
    xs.iter().map(|x| x.to_bits()).collect()
}

/// As f64, exactly.
pub fn wide(xs: &[f32]) -> Vec<f64> {
    xs.iter().map(|x| f64::from(*x)).collect()
}

/// Fails unless every `got[i]` is within `bound(i)` of `want[i]`.
pub fn assert_near(what: &str, got: &[f32], want: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let (error, bound) = ((f64::from(*g) - w).abs(), bound(i));
        assert!(error <= bound, "{what}[{i}]: got {g}, want {w}: off by {error:e}, allowed {bound:e}");
    }
}

/// Partial derivative of `f` at `at` along coordinate `i`, by a central difference.
pub fn derivative(f: impl Fn(&[f64]) -> f64, at: &[f64], i: usize) -> f64 {
    let moved = |by: f64| {
        let mut x = at.to_vec();
        x[i] += by;
        f(&x)
    };
    (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
}

/// A repeatable stream of test data (Marsaglia's xorshift64*); unrelated to the generator under test.
pub struct Stream(u64);

impl Stream {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15 | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    /// `n` numbers, uniform within `-size .. size`.
    pub fn floats(&mut self, n: usize, size: f32) -> Vec<f32> {
        (0..n).map(|_| ((self.next() >> 40) as f32 * (2.0 / (1u64 << 24) as f32) - 1.0) * size).collect()
    }

    /// `n` ids below `below`.
    pub fn ids(&mut self, n: usize, below: usize) -> Vec<i32> {
        (0..n).map(|_| self.below(below) as i32).collect()
    }

    /// Puts `xs` in a random order.
    pub fn shuffle<T>(&mut self, xs: &mut [T]) {
        for i in (1..xs.len()).rev() {
            xs.swap(i, self.below(i + 1));
        }
    }
}

/// A tensor of random numbers within `-size .. size` that both types of [`FLOATS`] hold.
pub fn random(device: &Cpu, dtype: DType, shape: Shape, size: f32, s: &mut Stream) -> Tensor<Cpu> {
    typed(device, dtype, shape, &s.floats(shape.len(), size))
}

/// The types of [`FLOATS`].
pub fn floating() -> impl Strategy<Value = DType> {
    prop::sample::select(&FLOATS[..])
}
