//! Attention, forward and backward.

use super::{Buf, Case, Kernel, Maker};
use memwall_tensor::device::{Attention, AttentionDims, AttentionInput, AttentionSaved};
use memwall_tensor::{DType, Slice, SliceMut};

const HEADS: usize = 4;
const HEAD_DIM: usize = 64;

pub(super) fn kernels(tokens: usize, batch: usize, dtype: DType) -> [Kernel; 2] {
    [("attention", false), ("attention backward", true)].map(|(name, backward)| Kernel {
        name: name.into(),
        size: format!("{batch} x {tokens} tokens, {HEADS} heads of {HEAD_DIM}"),
        dtype,
        build: Box::new(move |make| case(make, tokens, batch, dtype, backward)),
    })
}

fn case(
    make: Maker<'_>,
    tokens: usize,
    batch: usize,
    dtype: DType,
    backward: bool,
) -> Result<Case<'_>, memwall_tensor::OutOfMemory> {
    let (rows, width) = (batch * tokens, HEADS * HEAD_DIM);
    let dims = AttentionDims {
        batch,
        queries: tokens,
        keys: tokens,
        heads: HEADS,
        kv_heads: HEADS,
        head_dim: HEAD_DIM,
        window: None,
    };
    let tensor = || make.values(rows * width, dtype);
    let (q, k, v, dout) = (tensor()?, tensor()?, tensor()?, tensor()?);
    let positions = make.integers(rows, |i| (i % tokens) as i32)?;
    let (mut out, mut lse) = (make.zeros(rows * width, dtype)?, make.zeros(rows * HEADS, DType::F32)?);
    let (mut delta, mut dq) = (make.zeros(rows * HEADS, DType::F32)?, make.zeros(rows * width, DType::F32)?);
    let (mut dk, mut dv) = (make.zeros(rows * width, dtype)?, make.zeros(rows * width, dtype)?);
    let device = make.device;
    // Each query sees itself and what is before it; a pair takes two products forward, and five backward: the scores again,
    // and the gradients of probabilities, queries, keys and values.
    let pairs = (batch * HEADS) as f64 * tokens as f64 * (tokens + 1) as f64 / 2.0;
    let products = if backward { 5.0 } else { 2.0 };
    let tensors = if backward { 5 * dtype.bytes() + 4 + 2 * dtype.bytes() } else { 4 * dtype.bytes() };
    let bytes = (rows * width * tensors) as f64;
    let (saved_out, saved_lse) = (SliceMut::all(&mut out), SliceMut::all(&mut lse));
    device.attention(dims, input(&q, &k, &v, &positions), saved_out, saved_lse);
    let run: Box<dyn FnMut() + '_> = if backward {
        Box::new(move || {
            let saved = AttentionSaved { out: Slice::all(&out), lse: Slice::all(&lse) };
            let (delta, dq) = (SliceMut::all(&mut delta), SliceMut::all(&mut dq));
            let (dk, dv) = (SliceMut::all(&mut dk), SliceMut::all(&mut dv));
            let input = input(&q, &k, &v, &positions);
            device.attention_backward(dims, input, saved, Slice::all(&dout), delta, dq, dk, dv);
        })
    } else {
        Box::new(move || {
            let (out, lse) = (SliceMut::all(&mut out), SliceMut::all(&mut lse));
            device.attention(dims, input(&q, &k, &v, &positions), out, lse);
        })
    };
    Ok(Case { flops: 2.0 * products * HEAD_DIM as f64 * pairs, bytes, run })
}

fn input<'a>(q: &'a Buf, k: &'a Buf, v: &'a Buf, positions: &'a Buf) -> AttentionInput<'a, Buf> {
    let (q, k, v, positions) = (Slice::all(q), Slice::all(k), Slice::all(v), Slice::all(positions));
    AttentionInput { q, k, v, positions, dropout: None }
}
