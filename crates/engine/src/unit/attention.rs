//! The attention half of a block: norm, projections, head norms, rotary embedding, attention, output projection.

use super::{Dense, Norm, Sequences, Site};
use crate::Lease;
use crate::sink::GradSink;
use memwall_model::{BlockSpec, ModelConfig, ProjectionSpec};
use memwall_tensor::device::{AttentionDims, Device};
use memwall_tensor::ops::{self, Attended, AttentionForward, AttentionGradients};
use memwall_tensor::{Category, Error, Tensor, View, ViewMut};

/// Sizes and layers.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    norm: Norm,
    projection: ProjectionSpec,
    head_norms: Option<(Norm, Norm)>,
    out: Dense,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
    dropout: f64,
    residual_dropout: f64,
    /// Number of the block.
    layer: usize,
}

/// Queries, keys and values.
#[derive(Debug)]
pub struct Qkv<D: Device> {
    /// `[tokens, heads x head_dim]`.
    pub q: Tensor<D>,
    /// `[tokens, kv_heads x head_dim]`.
    pub k: Tensor<D>,
    /// `[tokens, kv_heads x head_dim]`.
    pub v: Tensor<D>,
}

/// What the projections yield.
#[derive(Debug)]
pub struct Projected<D: Device> {
    /// Queries and keys as projected, where they have norms: their backward reads them.
    plain: Option<(Tensor<D>, Tensor<D>)>,
    /// As attention reads them: normed and turned.
    pub qkv: Qkv<D>,
}

impl<D: Device> Projected<D> {
    /// What is kept of it for backward.
    pub(super) fn into_kept(self) -> Qkv<D> {
        match self.plain {
            Some((q, k)) => Qkv { q, k, v: self.qkv.v },
            None => self.qkv,
        }
    }
}

impl Attention {
    pub(super) fn new(c: &ModelConfig, spec: &BlockSpec, layer: usize) -> Self {
        let norm = |spec| Norm { spec, eps: c.norm_eps };
        Self {
            norm: norm(spec.norm1),
            projection: spec.projection,
            head_norms: spec.qk_norms.map(|(q, k)| (norm(q), norm(k))),
            out: Dense(spec.out),
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            window: spec.window,
            dropout: c.dropout.attention,
            residual_dropout: c.dropout.residual,
            layer,
        }
    }

    /// Sizes of an attention of `queries` tokens over `keys` in each of `batch` sequences.
    fn dims(&self, batch: usize, queries: usize, keys: usize) -> AttentionDims {
        AttentionDims {
            batch,
            queries,
            keys,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            window: self.window,
        }
    }

    fn inputs<'a, D: Device>(
        &self,
        seq: Sequences<'a, D>,
        q: View<'a, D>,
        k: View<'a, D>,
        v: View<'a, D>,
    ) -> Attended<'a, D> {
        let dropout = seq.dropout(Site::Attention(self.layer), self.dropout);
        Attended { q, k, v, positions: seq.positions, dropout, first_head: None }
    }

    /// Norm, projections, head norms and rotary embedding of the residual stream `x`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn project<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        seq: Sequences<'_, D>,
        x: View<'_, D>,
    ) -> Result<Projected<D>, Error> {
        let n = self.norm.forward(device, w, x)?.y;
        let n = n.view();
        let qkv = match self.projection {
            ProjectionSpec::Split { q, k, v } => Qkv {
                q: Dense(q).forward(device, w, n)?,
                k: Dense(k).forward(device, w, n)?,
                v: Dense(v).forward(device, w, n)?,
            },
            ProjectionSpec::Fused(dense) => {
                let all = Dense(dense).forward(device, w, n)?;
                let [q, k, v] = self.widths();
                let part = |start, cols| ops::columns(device, all.view(), start, cols);
                Qkv { q: part(0, q)?, k: part(q, k)?, v: part(q + k, v)? }
            }
        };
        self.turned(device, w, seq, qkv)
    }

    /// Columns of queries, keys and values.
    fn widths(&self) -> [usize; 3] {
        [self.heads, self.kv_heads, self.kv_heads].map(|h| h * self.head_dim)
    }

    /// Head norms and rotary embedding.
    fn turned<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        seq: Sequences<'_, D>,
        Qkv { q, k, v }: Qkv<D>,
    ) -> Result<Projected<D>, Error> {
        let (plain, mut q, mut k) = match self.head_norms {
            None => (None, q, k),
            Some((q_norm, k_norm)) => {
                let normed = |norm: Norm, x: &Tensor<D>| -> Result<Tensor<D>, Error> {
                    let y = norm.forward(device, w, x.view().in_rows_of(self.head_dim))?.y;
                    Ok(y.in_rows_of(x.shape().cols()))
                };
                let (nq, nk) = (normed(q_norm, &q)?, normed(k_norm, &k)?);
                (Some((q, k)), nq, nk)
            }
        };
        seq.turn(device, q.view_mut(), false)?;
        seq.turn(device, k.view_mut(), false)?;
        Ok(Projected { plain, qkv: Qkv { q, k, v } })
    }

    /// What [`Attention::project`] yielded, from what was kept of it.
    pub(super) fn restored<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        seq: Sequences<'_, D>,
        kept: Qkv<D>,
    ) -> Result<Projected<D>, Error> {
        match self.head_norms {
            Some(_) => self.turned(device, w, seq, kept),
            None => Ok(Projected { plain: None, qkv: kept }),
        }
    }

    /// Attention within each sequence.
    ///
    /// # Errors
    /// Out of memory.
    pub fn attend<D: Device>(
        &self,
        device: &D,
        seq: Sequences<'_, D>,
        qkv: &Qkv<D>,
    ) -> Result<AttentionForward<D>, Error> {
        let (q, k, v) = (qkv.q.view(), qkv.k.view(), qkv.v.view());
        ops::attention(device, self.dims(seq.batch, seq.length, seq.length), self.inputs(seq, q, k, v))
    }

    /// Attention of one sequence's newest queries over all keys and values so far.
    ///
    /// # Errors
    /// Out of memory.
    pub fn attend_cached<D: Device>(
        &self,
        device: &D,
        seq: Sequences<'_, D>,
        q: View<'_, D>,
        k: View<'_, D>,
        v: View<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        let dims = self.dims(1, seq.length, k.shape.rows());
        Ok(ops::attention(device, dims, self.inputs(seq, q, k, v))?.out)
    }

    /// Adds the projected result of attention to the residual stream `x`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn add<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        seq: Sequences<'_, D>,
        out: View<'_, D>,
        mut x: Tensor<D>,
    ) -> Result<Tensor<D>, Error> {
        seq.add_dropped(device, w, self.out, out, x.view_mut(), self.residual())?;
        Ok(x)
    }

    fn residual(&self) -> (Site, f64) {
        (Site::AttentionResidual(self.layer), self.residual_dropout)
    }

    /// From the gradient of the stream after attention to that of the block's input `x`.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn backward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        seq: Sequences<'_, D>,
        x: Tensor<D>,
        projected: Projected<D>,
        attention: AttentionForward<D>,
        mut dx: Tensor<D>,
        sink: &mut GradSink<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        let dropped = seq.dropped_gradient(device, dx.view(), self.residual())?;
        let dy = dropped.as_ref().unwrap_or(&dx).view();
        self.out.weight_gradients(device, sink, dy, attention.out.view())?;
        let dout = self.out.input_gradient(device, w, dy)?;
        drop(dropped);
        let Projected { plain, qkv } = projected;
        let inputs = self.inputs(seq, qkv.q.view(), qkv.k.view(), qkv.v.view());
        let dims = self.dims(seq.batch, seq.length, seq.length);
        let mut d = ops::attention_backward(device, dims, inputs, &attention, dout.view())?;
        drop((qkv, attention, dout));
        seq.turn(device, d.dq.view_mut(), true)?;
        seq.turn(device, d.dk.view_mut(), true)?;
        if let (Some((q, k)), Some((q_norm, k_norm))) = (plain, self.head_norms) {
            d.dq = self.head_norm_backward(device, w, q_norm, q, d.dq, sink)?;
            d.dk = self.head_norm_backward(device, w, k_norm, k, d.dk, sink)?;
        }
        let n = self.norm.forward(device, w, x.view())?;
        let dn = self.projection_backward(device, w, n.y.view(), d, sink)?;
        self.norm.backward(device, w, sink, x.view(), &n, dn.view(), dx.view_mut())?;
        Ok(dx)
    }

    /// From the gradient of normed heads to that of the heads `x`.
    fn head_norm_backward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        norm: Norm,
        x: Tensor<D>,
        dy: Tensor<D>,
        sink: &mut GradSink<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        fn heads<D: Device>(t: View<'_, D>, head_dim: usize) -> View<'_, D> {
            t.in_rows_of(head_dim)
        }
        let rows = heads(x.view(), self.head_dim);
        let normed = norm.forward(device, w, rows)?;
        device.ledger().operation("norm backward for the input");
        let mut dx = Tensor::new(device, x.shape(), x.dtype(), x.placements(), Category::Activations)?;
        device.zero(dx.view_mut().slice);
        let to: ViewMut<'_, D> = dx.view_mut().in_rows_of(self.head_dim);
        norm.backward(device, w, sink, rows, &normed, heads(dy.view(), self.head_dim), to)?;
        Ok(dx)
    }

    /// From the gradients of queries, keys and values to that of the normed stream `n`.
    fn projection_backward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        n: View<'_, D>,
        d: AttentionGradients<D>,
        sink: &mut GradSink<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        match self.projection {
            ProjectionSpec::Split { q, k, v } => {
                let parts = [(Dense(q), &d.dq), (Dense(k), &d.dk), (Dense(v), &d.dv)];
                for (dense, dy) in parts {
                    dense.weight_gradients(device, sink, dy.view(), n)?;
                }
                let mut dn = parts[0].0.input_gradient(device, w, d.dq.view())?;
                for (dense, dy) in &parts[1..] {
                    dense.add_input_gradient(device, w, dy.view(), dn.view_mut())?;
                }
                Ok(dn)
            }
            ProjectionSpec::Fused(dense) => {
                let [q, k, v] = self.widths();
                let shape = memwall_tensor::Shape::matrix(n.shape.rows(), q + k + v);
                let (dtype, placements) = (d.dq.dtype(), d.dq.placements());
                device.ledger().operation("columns");
                let mut all = Tensor::new(device, shape, dtype, placements, Category::Activations)?;
                for (part, start) in [(&d.dq, 0), (&d.dk, q), (&d.dv, q + k)] {
                    ops::set_columns(device, part.view(), all.view_mut(), start)?;
                }
                drop(d);
                Dense(dense).weight_gradients(device, sink, all.view(), n)?;
                Dense(dense).input_gradient(device, w, all.view())
            }
        }
    }
}
