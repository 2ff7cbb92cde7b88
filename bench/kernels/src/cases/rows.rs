//! Norms, elementwise operations, lookups, the loss and the optimizer: kernels that memory bounds.

use super::{Case, Kernel, Maker};
use memwall_tensor::device::{
    AdamW, LayerNorm, Loss, Memory, Norms, Optimizer, Pointwise, RopeDims, RowStats,
};
use memwall_tensor::{DType, OutOfMemory, Slice, SliceMut, fixed};

const F32: DType = DType::F32;
const EPS: f32 = 1e-6;
const HEAD_DIM: usize = 64;

pub(super) fn kernels(
    rows: (usize, usize),
    logits: (usize, usize),
    parameters: usize,
    dtype: DType,
) -> Vec<Kernel> {
    let mut all = norms(rows, dtype);
    all.extend(elements(rows, dtype));
    all.extend(lookups(rows, dtype));
    all.extend(optimizer(parameters, dtype));
    if dtype == F32 {
        // Logits are f32 whatever the model's type; a cast has both types.
        all.extend(loss(logits));
        all.extend(casts(rows));
    }
    all
}

fn kernel(
    name: &str,
    (rows, width): (usize, usize),
    dtype: DType,
    build: impl for<'d> Fn(Maker<'d>) -> Result<Case<'d>, OutOfMemory> + 'static,
) -> Kernel {
    Kernel { name: name.into(), size: format!("{rows} x {width}"), dtype, build: Box::new(build) }
}

/// A case without FLOPs to speak of.
fn moving<'d>(bytes: usize, run: impl FnMut() + 'd) -> Result<Case<'d>, OutOfMemory> {
    Ok(Case { flops: 0.0, bytes: bytes as f64, run: Box::new(run) })
}

fn norms(size: (usize, usize), dtype: DType) -> Vec<Kernel> {
    let (rows, width) = size;
    let (n, tensor) = (rows * width, rows * width * dtype.bytes());
    vec![
        kernel("rms_norm", size, dtype, move |make| {
            let (x, w) = (make.values(n, dtype)?, make.values(width, dtype)?);
            let (mut y, mut rstd) = (make.zeros(n, dtype)?, make.zeros(rows, F32)?);
            moving(2 * tensor, move || {
                let (y, rstd) = (SliceMut::all(&mut y), SliceMut::all(&mut rstd));
                make.device.rms_norm(Slice::all(&x), Slice::all(&w), EPS, y, rstd);
            })
        }),
        kernel("rms_norm, gradient of the input", size, dtype, move |make| {
            let (x, w) = (make.values(n, dtype)?, make.values(width, dtype)?);
            let (rstd, dy) = (make.values(rows, F32)?, make.values(n, dtype)?);
            let mut dx = make.zeros(n, dtype)?;
            moving(4 * tensor, move || {
                let (x, w, rstd) = (Slice::all(&x), Slice::all(&w), Slice::all(&rstd));
                make.device.rms_norm_input_gradient(x, w, rstd, Slice::all(&dy), SliceMut::all(&mut dx));
            })
        }),
        kernel("rms_norm, gradient of the weight", size, dtype, move |make| {
            let (x, rstd, dy) = (make.values(n, dtype)?, make.values(rows, F32)?, make.values(n, dtype)?);
            let mut dw = make.zeros(width, F32)?;
            moving(2 * tensor, move || {
                let (x, rstd, dy) = (Slice::all(&x), Slice::all(&rstd), Slice::all(&dy));
                make.device.rms_norm_weight_gradient(x, rstd, dy, SliceMut::all(&mut dw), false);
            })
        }),
        kernel("layer_norm", size, dtype, move |make| {
            let x = make.values(n, dtype)?;
            let (w, b) = (make.values(width, dtype)?, make.values(width, dtype)?);
            let mut y = make.zeros(n, dtype)?;
            let (mut mean, mut rstd) = (make.zeros(rows, F32)?, make.zeros(rows, F32)?);
            moving(2 * tensor, move || {
                let parameters = LayerNorm { w: Slice::all(&w), b: Slice::all(&b), eps: EPS };
                let (mean, rstd) = (SliceMut::all(&mut mean), SliceMut::all(&mut rstd));
                make.device.layer_norm(Slice::all(&x), parameters, SliceMut::all(&mut y), mean, rstd);
            })
        }),
        kernel("layer_norm, gradient of the input", size, dtype, move |make| {
            let (x, w) = (make.values(n, dtype)?, make.values(width, dtype)?);
            let (mean, rstd) = (make.values(rows, F32)?, make.values(rows, F32)?);
            let (dy, mut dx) = (make.values(n, dtype)?, make.zeros(n, dtype)?);
            moving(4 * tensor, move || {
                let stats = RowStats { mean: Slice::all(&mean), rstd: Slice::all(&rstd) };
                let (x, w, dy) = (Slice::all(&x), Slice::all(&w), Slice::all(&dy));
                make.device.layer_norm_input_gradient(x, w, stats, dy, SliceMut::all(&mut dx));
            })
        }),
        kernel("layer_norm, gradient of the weight", size, dtype, move |make| {
            let (mean, rstd) = (make.values(rows, F32)?, make.values(rows, F32)?);
            let (x, dy) = (make.values(n, dtype)?, make.values(n, dtype)?);
            let mut dw = make.zeros(width, F32)?;
            moving(2 * tensor, move || {
                let stats = RowStats { mean: Slice::all(&mean), rstd: Slice::all(&rstd) };
                let (x, dy) = (Slice::all(&x), Slice::all(&dy));
                make.device.layer_norm_weight_gradient(x, stats, dy, SliceMut::all(&mut dw), false);
            })
        }),
    ]
}

fn elements(size: (usize, usize), dtype: DType) -> Vec<Kernel> {
    let (rows, width) = size;
    let (n, tensor) = (rows * width, rows * width * dtype.bytes());
    vec![
        kernel("rope", size, dtype, move |make| {
            let mut x = make.values(n, dtype)?;
            let positions = make.integers(rows, |i| i as i32)?;
            // A turn by 45 degrees, which any number of times leaves values as large as they are.
            let mut table = make.zeros(rows * HEAD_DIM, F32)?;
            make.device.fill(SliceMut::all(&mut table), std::f32::consts::FRAC_1_SQRT_2);
            let dims = RopeDims { rows, heads: width / HEAD_DIM, head_dim: HEAD_DIM };
            moving(2 * tensor, move || {
                let (positions, table) = (Slice::all(&positions), Slice::all(&table));
                make.device.rope(dims, SliceMut::all(&mut x), positions, table, false);
            })
        }),
        kernel("swiglu", size, dtype, move |make| {
            let (gate, up, mut out) = (make.values(n, dtype)?, make.values(n, dtype)?, make.zeros(n, dtype)?);
            moving(3 * tensor, move || {
                make.device.swiglu(Slice::all(&gate), Slice::all(&up), SliceMut::all(&mut out));
            })
        }),
        kernel("swiglu backward", size, dtype, move |make| {
            let (mut gate, mut up) = (make.values(n, dtype)?, make.values(n, dtype)?);
            let dout = make.values(n, dtype)?;
            moving(5 * tensor, move || {
                let (gate, up) = (SliceMut::all(&mut gate), SliceMut::all(&mut up));
                make.device.swiglu_backward(gate, up, Slice::all(&dout));
            })
        }),
        kernel("gelu", size, dtype, move |make| {
            let (x, mut out) = (make.values(n, dtype)?, make.zeros(n, dtype)?);
            moving(2 * tensor, move || make.device.gelu(Slice::all(&x), SliceMut::all(&mut out)))
        }),
        kernel("gelu backward", size, dtype, move |make| {
            let (mut x, dout) = (make.values(n, dtype)?, make.values(n, dtype)?);
            moving(3 * tensor, move || make.device.gelu_backward(SliceMut::all(&mut x), Slice::all(&dout)))
        }),
        kernel("add", size, dtype, move |make| {
            let (mut x, y) = (make.values(n, dtype)?, make.values(n, dtype)?);
            moving(3 * tensor, move || make.device.add(SliceMut::all(&mut x), Slice::all(&y)))
        }),
        kernel("sum_rows", size, dtype, move |make| {
            let (x, mut sums) = (make.values(n, dtype)?, make.zeros(width, F32)?);
            moving(tensor, move || make.device.sum_rows(Slice::all(&x), SliceMut::all(&mut sums), false))
        }),
    ]
}

fn lookups(size: (usize, usize), dtype: DType) -> Vec<Kernel> {
    let (rows, width) = size;
    let n = rows * width;
    // A table four times as long as there are tokens; tokens are spread over it.
    let ids = move |i: usize| (i * 7919 % (4 * rows)) as i32;
    vec![
        kernel("embedding", size, dtype, move |make| {
            let (ids, table) = (make.integers(rows, ids)?, make.values(4 * n, dtype)?);
            let mut out = make.zeros(n, dtype)?;
            moving(2 * n * dtype.bytes(), move || {
                let (ids, table) = (Slice::all(&ids), Slice::all(&table));
                make.device.embedding(ids, table, width, SliceMut::all(&mut out), false);
            })
        }),
        kernel("embedding, gradient", size, dtype, move |make| {
            let (ids, dy) = (make.integers(rows, ids)?, make.values(n, dtype)?);
            let mut dtable = make.zeros(4 * n, F32)?;
            moving(n * (dtype.bytes() + 8), move || {
                let (ids, dy) = (Slice::all(&ids), Slice::all(&dy));
                make.device.embedding_gradient(ids, dy, width, SliceMut::all(&mut dtable), true);
            })
        }),
    ]
}

fn loss(size: (usize, usize)) -> Vec<Kernel> {
    let (rows, vocabulary) = size;
    let n = rows * vocabulary;
    [("cross_entropy", None, n * 4), ("cross_entropy with its gradient", Some(1.0), n * 8)]
        .map(|(name, scale, bytes)| {
            kernel(name, size, F32, move |make| {
                let (mut logits, mut losses) = (make.values(n, F32)?, make.zeros(rows, F32)?);
                let targets = make.integers(rows, |i| (i * 7919 % vocabulary) as i32)?;
                moving(bytes, move || {
                    let (logits, losses) = (SliceMut::all(&mut logits), SliceMut::all(&mut losses));
                    make.device.cross_entropy(logits, Slice::all(&targets), losses, scale);
                })
            })
        })
        .into()
}

fn casts(size: (usize, usize)) -> Vec<Kernel> {
    let n = size.0 * size.1;
    [("cast to bf16", F32, DType::BF16), ("cast from bf16", DType::BF16, F32)]
        .map(|(name, from, to)| {
            kernel(name, size, F32, move |make| {
                let (src, mut dst) = (make.values(n, from)?, make.zeros(n, to)?);
                moving(6 * n, move || make.device.cast(Slice::all(&src), SliceMut::all(&mut dst)))
            })
        })
        .into()
}

/// With `dtype` that of the gradient; in bf16 the weight that the model reads is written too.
fn optimizer(parameters: usize, dtype: DType) -> Vec<Kernel> {
    let n = parameters;
    let size = (1, n);
    let settings =
        AdamW { learning_rate: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 10 };
    let mut all = vec![
        kernel("sum_squares", size, dtype, move |make| {
            let (gradient, mut sum) = (make.values(n, dtype)?, make.zeros(fixed::Wide::LEN, DType::I64)?);
            moving(n * dtype.bytes(), move || {
                make.device.sum_squares(Slice::all(&gradient), SliceMut::all(&mut sum));
            })
        }),
        kernel("AdamW", size, dtype, move |make| {
            let mut clip = make.zeros(2, F32)?;
            make.device.fill(SliceMut::all(&mut clip), 1.0);
            let (gradient, mut parameter) = (make.values(n, dtype)?, make.values(n, F32)?);
            let (mut first, mut second) = (make.zeros(n, F32)?, make.zeros(n, F32)?);
            let mut rounded = if dtype == F32 { None } else { Some(make.zeros(n, dtype)?) };
            // Reads the gradient, reads and writes the parameter and both moments.
            let bytes = n * (dtype.bytes() + 24 + if dtype == F32 { 0 } else { dtype.bytes() });
            moving(bytes, move || {
                let (clip, gradient) = (Slice::all(&clip), Slice::all(&gradient));
                let (first, second) = (SliceMut::all(&mut first), SliceMut::all(&mut second));
                let rounded = rounded.as_mut().map(SliceMut::all);
                let parameter = SliceMut::all(&mut parameter);
                make.device.adamw(settings, clip, gradient, parameter, first, second, rounded);
            })
        }),
    ];
    if dtype == F32 {
        all.push(kernel("accumulate", size, dtype, move |make| {
            let (values, mut sums) = (make.values(n, F32)?, make.zeros(n, F32)?);
            moving(12 * n, move || {
                make.device.accumulate(Slice::all(&values), SliceMut::all(&mut sums), false)
            })
        }));
    }
    all
}
