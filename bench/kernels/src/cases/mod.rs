//! The kernels with their sizes, FLOPs and bytes.

mod attention;
mod matmul;
mod rows;

pub(crate) use matmul::{Model, Product, products};

use memwall_cli::profile;
use memwall_engine::unit::Head;
use memwall_tensor::device::Memory;
use memwall_tensor::{Category, Cpu, DType, OutOfMemory, Slice, SliceMut};

/// A buffer of the CPU device.
pub(crate) type Buf = <Cpu as Memory>::Buf;

/// One kernel at one size, ready to run.
pub(crate) struct Case<'d> {
    /// FLOPs that it cannot do without; elementary functions count as nothing.
    pub(crate) flops: f64,
    /// Bytes that it has to read and to write.
    pub(crate) bytes: f64,
    /// One call.
    pub(crate) run: Box<dyn FnMut() + 'd>,
}

/// Makes a case on a device.
type Build = Box<dyn for<'d> Fn(Maker<'d>) -> Result<Case<'d>, OutOfMemory>>;

/// A kernel that can be made ready.
pub(crate) struct Kernel {
    /// Its name.
    pub(crate) name: String,
    /// Its sizes, for people.
    pub(crate) size: String,
    /// Type of activations and weights.
    pub(crate) dtype: DType,
    /// Makes it ready.
    pub(crate) build: Build,
}

/// Makes buffers.
#[derive(Clone, Copy)]
pub(crate) struct Maker<'d> {
    /// Where.
    pub(crate) device: &'d Cpu,
}

impl Maker<'_> {
    /// A buffer of zeros.
    pub(crate) fn zeros(self, len: usize, dtype: DType) -> Result<Buf, OutOfMemory> {
        let mut buf = self.device.alloc(len, dtype, Category::Workspace)?;
        self.device.zero(SliceMut::all(&mut buf));
        Ok(buf)
    }

    /// A buffer of random values around zero.
    pub(crate) fn values(self, len: usize, dtype: DType) -> Result<Buf, OutOfMemory> {
        let mut wide = self.device.alloc(len, DType::F32, Category::Workspace)?;
        self.device.fill_normal(SliceMut::all(&mut wide), len as u64, 0, 0.5);
        let mut buf = self.device.alloc(len, dtype, Category::Workspace)?;
        self.device.cast(Slice::all(&wide), SliceMut::all(&mut buf));
        Ok(buf)
    }

    /// A buffer of integers.
    pub(crate) fn integers(self, len: usize, value: impl Fn(usize) -> i32) -> Result<Buf, OutOfMemory> {
        let mut buf = self.device.alloc(len, DType::I32, Category::Workspace)?;
        let bytes: Vec<u8> = (0..len).flat_map(|i| value(i).to_ne_bytes()).collect();
        self.device.write(SliceMut::all(&mut buf), &bytes);
        Ok(buf)
    }
}

/// As many tokens as the larger vocabularies in use have (Qwen2.5's, with a hidden size of 896 in the smallest model).
const LARGE_VOCABULARY: usize = 151_936;

/// Sizes to measure at.
pub(crate) struct Sizes {
    /// Models whose matrix products are measured.
    models: Vec<Model>,
    /// Matrices beside those, `(tokens, outputs, inputs)`, and what they are.
    linears: Vec<(&'static str, (usize, usize, usize))>,
    /// Tokens of an attention, and how many sequences of them.
    attention: Vec<(usize, usize)>,
    /// Rows and columns of norms and the like: more than caches hold.
    rows: (usize, usize),
    /// Rows and columns of logits.
    logits: (usize, usize),
    /// Parameters of an optimizer's step.
    parameters: usize,
}

impl Sizes {
    /// Those of training.
    pub(crate) fn full() -> Self {
        Self {
            models: vec![Model::S, Model::XS],
            linears: vec![
                ("large head", (Head::chunk(LARGE_VOCABULARY), LARGE_VOCABULARY, 896)),
                ("one row", (1, 4096, 4096)),
            ],
            attention: vec![(512, 4), (2048, 1), (8192, 1)],
            rows: (8192, 1024),
            logits: (256, 32000),
            parameters: 1 << 24,
        }
    }

    /// Those of a test.
    pub(crate) fn tiny() -> Self {
        Self {
            models: vec![Model::TINY],
            linears: vec![("tiny row", (1, 24, 16))],
            attention: vec![(32, 2)],
            rows: (8, 64),
            logits: (4, 96),
            parameters: 2048,
        }
    }
}

/// All kernels.
pub(crate) fn all(sizes: &Sizes) -> Vec<Kernel> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        for model in &sizes.models {
            for product in products(model) {
                all.push(matmul::kernel(model.name, product, dtype));
            }
        }
        for (of, sizes) in &sizes.linears {
            all.extend(matmul::linear(*sizes, 1).map(|product| matmul::kernel(of, product, dtype)));
        }
        for &(tokens, batch) in &sizes.attention {
            all.extend(attention::kernels(tokens, batch, dtype));
        }
        all.extend(rows::kernels(sizes.rows, sizes.logits, sizes.parameters, dtype));
    }
    all
}

/// Name of a type.
pub(crate) fn type_name(dtype: DType) -> &'static str {
    if dtype == DType::BF16 { "bf16" } else { "f32" }
}

/// FLOPs of a product.
pub(crate) fn product_flops(product: &Product) -> f64 {
    profile::flops(product.dims)
}
