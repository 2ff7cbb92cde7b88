//! Attention and its backward.

use super::{activation, require, require_types};
use crate::device::{Attention, AttentionDims, AttentionInput, AttentionSaved, Dropout};
use crate::{Category, DType, Error, Shape, Tensor, View};
use memwall_layout::{Placements, rules};

/// What attention reads, with shapes and placements; see [`AttentionInput`].
#[derive(Debug)]
pub struct Attended<'a, D: Attention> {
    /// Queries.
    pub q: View<'a, D>,
    /// Keys.
    pub k: View<'a, D>,
    /// Values.
    pub v: View<'a, D>,
    /// Position of each query in its document.
    pub positions: View<'a, D>,
    /// Zeros among the probabilities.
    pub dropout: Option<Dropout<'a, D::Buf>>,
    /// The number, in the whole layer, of the first head here: where heads are sharded, dropout depends on it.
    pub first_head: Option<usize>,
}

impl<D: Attention> Clone for Attended<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Attention> Copy for Attended<'_, D> {}

impl<'a, D: Attention> Attended<'a, D> {
    fn input(&self) -> AttentionInput<'a, D::Buf> {
        AttentionInput {
            q: self.q.slice,
            k: self.k.slice,
            v: self.v.slice,
            positions: self.positions.slice,
            dropout: self.dropout.map(|d| Dropout { salt: d.salt.wrapping_add(self.head_salt()), ..d }),
        }
    }

    /// What [`Dropout`] adds to the salt for the first head here.
    fn head_salt(&self) -> u64 {
        (self.first_head.unwrap_or(0) as u64) << 32
    }

    /// Placements of the result.
    fn check(&self, operation: &'static str, d: &AttentionDims) -> Result<Placements, Error> {
        let placed = [&self.q, &self.k, &self.v, &self.positions].map(|view| &view.placements);
        let placements = rules::attention(operation, placed[0], placed[1], placed[2], placed[3])?;
        if self.dropout.is_some() {
            rules::attention_dropout(operation, &placements, self.first_head.is_some())?;
        }
        let (q, k, v, positions) = (self.q.shape, self.k.shape, self.v.shape, self.positions.shape);
        let fits = q == Shape::matrix(d.batch * d.queries, d.heads * d.head_dim)
            && k == Shape::matrix(d.batch * d.keys, d.kv_heads * d.head_dim)
            && v == k
            && positions == Shape::vector(q.rows())
            && d.keys >= d.queries
            && d.head_dim <= AttentionDims::MAX_HEAD_DIM
            && d.window != Some(0)
            && d.head_dim > 0
            && d.heads.checked_rem(d.kv_heads) == Some(0);
        require(fits, operation, &[q, k, v, positions])?;
        let alike = [self.q.dtype(), self.k.dtype(), self.v.dtype()];
        require_types(operation, &alike, &[(self.positions.dtype(), DType::I32)])?;
        if let Some(dropout) = self.dropout {
            let keys = Shape::vector(dropout.keys.len());
            require(keys == Shape::vector(d.batch), operation, &[q, keys])?;
            require_types(operation, &[], &[(dropout.keys.dtype(), DType::I64)])?;
        }
        Ok(placements)
    }
}

/// What attention yields.
#[derive(Debug)]
pub struct AttentionForward<D: Attention> {
    /// Result, like the queries.
    pub out: Tensor<D>,
    /// Log-sum-exp of the scores, `[tokens, heads]`, f32.
    pub lse: Tensor<D>,
}

/// Gradients of attention's inputs.
#[derive(Debug)]
pub struct AttentionGradients<D: Attention> {
    /// Of the queries.
    pub dq: Tensor<D>,
    /// Of the keys.
    pub dk: Tensor<D>,
    /// Of the values.
    pub dv: Tensor<D>,
}

/// Forward.
///
/// # Errors
/// Shapes, types or placements that do not fit; out of memory.
pub fn attention<D: Attention>(
    device: &D,
    dims: AttentionDims,
    input: Attended<'_, D>,
) -> Result<AttentionForward<D>, Error> {
    const NAME: &str = "attention";
    let placements = input.check(NAME, &dims)?;
    let q = input.q;
    let mut out = activation(device, NAME, q.dtype(), q.shape, placements)?;
    let rows = Shape::matrix(q.shape.rows(), dims.heads);
    let mut lse = activation(device, NAME, DType::F32, rows, placements)?;
    device.attention(dims, input.input(), out.view_mut().slice, lse.view_mut().slice);
    Ok(AttentionForward { out, lse })
}

/// Backward.
///
/// # Errors
/// Shapes, types or placements that do not fit; out of memory.
pub fn attention_backward<D: Attention>(
    device: &D,
    dims: AttentionDims,
    input: Attended<'_, D>,
    forward: &AttentionForward<D>,
    dout: View<'_, D>,
) -> Result<AttentionGradients<D>, Error> {
    const NAME: &str = "attention backward";
    let placements = input.check(NAME, &dims)?;
    let (made, like) = (forward.out.placements(), forward.lse.placements());
    let placements = rules::attention_gradient(&placements, &made, &like, &dout.placements)?;
    let Attended { q, k, v, .. } = input;
    let (out, lse) = (forward.out.shape(), forward.lse.shape());
    let fits = dout.shape == q.shape && out == q.shape && lse == Shape::matrix(q.shape.rows(), dims.heads);
    require(fits, NAME, &[q.shape, out, lse, dout.shape])?;
    let alike = [q.dtype(), forward.out.dtype(), dout.dtype()];
    require_types(NAME, &alike, &[(forward.lse.dtype(), DType::F32)])?;
    let mut dk = activation(device, NAME, k.dtype(), k.shape, placements)?;
    let mut dv = activation(device, NAME, v.dtype(), v.shape, placements)?;
    let mut dq = activation(device, NAME, DType::F32, q.shape, placements)?;
    let mut delta = Tensor::new(device, lse, DType::F32, placements, Category::Workspace)?;
    let saved = AttentionSaved { out: forward.out.view().slice, lse: forward.lse.view().slice };
    device.attention_backward(
        dims,
        input.input(),
        saved,
        dout.slice,
        delta.view_mut().slice,
        dq.view_mut().slice,
        dk.view_mut().slice,
        dv.view_mut().slice,
    );
    drop(delta);
    if q.dtype() != DType::F32 {
        let mut rounded = activation(device, NAME, q.dtype(), q.shape, placements)?;
        device.cast(dq.view().slice, rounded.view_mut().slice);
        dq = rounded;
    }
    Ok(AttentionGradients { dq, dk, dv })
}
