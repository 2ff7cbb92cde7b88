//! Causal attention and its gradients.

use super::{activation, require};
use crate::device::{Attention, AttentionDims, AttentionSaved};
use crate::{Category, DType, Error, Shape, Tensor, View};
use memwall_layout::rules;

/// What attention yields.
#[derive(Debug)]
pub struct AttentionForward<D: Attention> {
    /// `[tokens, heads x head_dim]`.
    pub out: Tensor<D>,
    /// Log-sum-exp of the scores, `[tokens, heads]`.
    pub lse: Tensor<D>,
}

/// Gradients of attention's operands, each shaped like its operand.
#[derive(Debug)]
pub struct AttentionGradients<D: Attention> {
    /// For the queries.
    pub dq: Tensor<D>,
    /// For the keys.
    pub dk: Tensor<D>,
    /// For the values.
    pub dv: Tensor<D>,
}

fn check<D: Attention>(
    operation: &'static str,
    d: &AttentionDims,
    q: View<'_, D>,
    k: View<'_, D>,
    v: View<'_, D>,
) -> Result<(), Error> {
    let fits = q.shape == Shape::matrix(d.batch * d.queries, d.heads * d.head_dim)
        && k.shape == Shape::matrix(d.batch * d.keys, d.kv_heads * d.head_dim)
        && v.shape == k.shape
        && d.keys >= d.queries
        && d.head_dim <= AttentionDims::MAX_HEAD_DIM
        && d.heads.checked_rem(d.kv_heads) == Some(0);
    Ok(require(fits, operation, &[q.shape, k.shape, v.shape])?)
}

/// Forward.
///
/// # Errors
/// Shapes or placements that do not fit; out of memory.
pub fn attention<D: Attention>(
    device: &D,
    dims: AttentionDims,
    q: View<'_, D>,
    k: View<'_, D>,
    v: View<'_, D>,
) -> Result<AttentionForward<D>, Error> {
    check("attention", &dims, q, k, v)?;
    let placements = rules::attention(&q.placements, &k.placements, &v.placements)?;
    let mut out = activation(device, q.shape, placements)?;
    let mut lse = activation(device, Shape::matrix(q.shape.rows(), dims.heads), placements)?;
    device.attention(dims, q.slice, k.slice, v.slice, out.view_mut().slice, lse.view_mut().slice);
    Ok(AttentionForward { out, lse })
}

/// Backward.
///
/// # Errors
/// Shapes or placements that do not fit; out of memory.
pub fn attention_backward<D: Attention>(
    device: &D,
    dims: AttentionDims,
    q: View<'_, D>,
    k: View<'_, D>,
    v: View<'_, D>,
    forward: &AttentionForward<D>,
    dout: View<'_, D>,
) -> Result<AttentionGradients<D>, Error> {
    const NAME: &str = "attention backward";
    check(NAME, &dims, q, k, v)?;
    let (out, lse) = (forward.out.shape(), forward.lse.shape());
    let fits = dout.shape == q.shape && out == q.shape && lse == Shape::matrix(q.shape.rows(), dims.heads);
    require(fits, NAME, &[q.shape, out, lse, dout.shape])?;
    let placements =
        rules::elementwise(NAME, [&q.placements, &k.placements, &v.placements, &dout.placements])?;
    let mut dq = activation(device, q.shape, placements)?;
    let mut dk = activation(device, k.shape, placements)?;
    let mut dv = activation(device, v.shape, placements)?;
    let mut delta = Tensor::new(device, forward.lse.shape(), DType::F32, placements, Category::Workspace)?;
    let saved = AttentionSaved {
        q: q.slice,
        k: k.slice,
        v: v.slice,
        out: forward.out.view().slice,
        lse: forward.lse.view().slice,
    };
    device.attention_backward(
        dims,
        saved,
        dout.slice,
        delta.view_mut().slice,
        dq.view_mut().slice,
        dk.view_mut().slice,
        dv.view_mut().slice,
    );
    Ok(AttentionGradients { dq, dk, dv })
}
