//! A transformer block: attention and gated MLP, each behind a norm and beside the residual stream.
//!
//! Forward and backward are made of the same named pieces: [`Block::project`], [`Block::attend`],
//! [`Block::add_attention`], [`Block::mlp_in`], [`Block::add_mlp`]. Backward rebuilds what was not kept by
//! calling them again.

use super::Sequences;
use crate::sink::GradSink;
use crate::{Keep, Lease};
use memwall_model::{ModelConfig, ParamId, UnitSpec};
use memwall_tensor::device::{AttentionDims, Device};
use memwall_tensor::ops::{self, AttentionForward, Normed};
use memwall_tensor::{Error, Tensor, View};

/// A block's sizes and parameters.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    norm1: ParamId,
    q: ParamId,
    k: ParamId,
    v: ParamId,
    o: ParamId,
    norm2: ParamId,
    gate: ParamId,
    up: ParamId,
    down: ParamId,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    eps: f64,
}

/// Queries, keys and values.
#[derive(Debug)]
pub struct Qkv<D: Device> {
    /// `[tokens, heads x head_dim]`, turned.
    pub q: Tensor<D>,
    /// `[tokens, kv_heads x head_dim]`, turned.
    pub k: Tensor<D>,
    /// `[tokens, kv_heads x head_dim]`.
    pub v: Tensor<D>,
}

/// The MLP's two inner projections, `[tokens, intermediate]`.
#[derive(Debug)]
pub struct Mlp<D: Device> {
    /// What goes through the activation.
    pub gate: Tensor<D>,
    /// What it multiplies.
    pub up: Tensor<D>,
}

/// What a block keeps for its backward; see [`Keep`].
#[derive(Debug)]
pub struct Kept<D: Device> {
    input: Option<Tensor<D>>,
    qkv: Option<Qkv<D>>,
    attention: Option<AttentionForward<D>>,
    middle: Option<Tensor<D>>,
    mlp: Option<Mlp<D>>,
}

impl Block {
    /// From the config and the unit's parameters.
    ///
    /// # Panics
    /// When the unit is not a block.
    pub fn new(config: &ModelConfig, spec: &UnitSpec) -> Self {
        let [norm1, q, k, v, o, norm2, gate, up, down] = spec.params[..] else {
            panic!("a block has nine parameters, not {}", spec.params.len());
        };
        Self {
            norm1,
            q,
            k,
            v,
            o,
            norm2,
            gate,
            up,
            down,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            eps: config.norm_eps,
        }
    }

    /// Sizes of an attention of `queries` tokens over `keys` in each of `batch` sequences.
    pub fn attention_dims(&self, batch: usize, queries: usize, keys: usize) -> AttentionDims {
        AttentionDims {
            batch,
            queries,
            keys,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }

    /// Norm, projections and rotary embedding.
    ///
    /// # Errors
    /// Out of memory.
    pub fn project<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        seq: Sequences<'_, D>,
        x: View<'_, D>,
    ) -> Result<Qkv<D>, Error> {
        let n = ops::rms_norm(device, x, w.get(self.norm1), self.eps)?.y;
        let mut q = ops::linear(device, n.view(), w.get(self.q))?;
        let mut k = ops::linear(device, n.view(), w.get(self.k))?;
        let v = ops::linear(device, n.view(), w.get(self.v))?;
        ops::rope(device, q.view_mut(), seq.positions, seq.table, false)?;
        ops::rope(device, k.view_mut(), seq.positions, seq.table, false)?;
        Ok(Qkv { q, k, v })
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
        let dims = self.attention_dims(seq.batch, seq.length, seq.length);
        ops::attention(device, dims, qkv.q.view(), qkv.k.view(), qkv.v.view())
    }

    /// `x += out o^T`, the first residual.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn add_attention<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        out: View<'_, D>,
        mut x: Tensor<D>,
    ) -> Result<Tensor<D>, Error> {
        ops::linear_into(device, out, w.get(self.o), x.view_mut(), true)?;
        Ok(x)
    }

    /// Norm and inner projections of the MLP.
    ///
    /// # Errors
    /// Out of memory.
    pub fn mlp_in<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        middle: View<'_, D>,
    ) -> Result<Mlp<D>, Error> {
        let n = ops::rms_norm(device, middle, w.get(self.norm2), self.eps)?.y;
        let gate = ops::linear(device, n.view(), w.get(self.gate))?;
        let up = ops::linear(device, n.view(), w.get(self.up))?;
        Ok(Mlp { gate, up })
    }

    /// `middle += swiglu(gate, up) down^T`, the second residual.
    ///
    /// # Errors
    /// Out of memory.
    pub fn add_mlp<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        mlp: &Mlp<D>,
        mut middle: Tensor<D>,
    ) -> Result<Tensor<D>, Error> {
        let a = ops::swiglu(device, mlp.gate.view(), mlp.up.view())?;
        ops::linear_into(device, a.view(), w.get(self.down), middle.view_mut(), true)?;
        Ok(middle)
    }

    /// Forward of `x [tokens, hidden]`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn forward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        seq: Sequences<'_, D>,
        x: Tensor<D>,
        keep: &Keep,
    ) -> Result<(Tensor<D>, Kept<D>), Error> {
        let qkv = self.project(device, w, seq, x.view())?;
        let attention = self.attend(device, seq, &qkv)?;
        let qkv = keep.projections.then_some(qkv);
        let (input, stream) = kept_or_moved(device, x, keep.input)?;
        let middle = self.add_attention(device, w, attention.out.view(), stream)?;
        let attention = keep.attention.then_some(attention);
        let mlp = self.mlp_in(device, w, middle.view())?;
        let (middle, stream) = kept_or_moved(device, middle, keep.middle)?;
        let y = self.add_mlp(device, w, &mlp, stream)?;
        let mlp = keep.gate_up.then_some(mlp);
        Ok((y, Kept { input, qkv, attention, middle, mlp }))
    }

    /// Backward: consumes what was kept and the gradient of the result, hands weight gradients to the sink and
    /// returns the gradient of the input.
    ///
    /// # Errors
    /// Out of memory.
    ///
    /// # Panics
    /// When the input was not kept.
    pub fn backward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        seq: Sequences<'_, D>,
        kept: Kept<D>,
        dy: Tensor<D>,
        sink: &mut GradSink<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        let x = kept.input.expect("a block that is trained keeps its input");
        let qkv = match kept.qkv {
            Some(t) => t,
            None => self.project(device, w, seq, x.view())?,
        };
        let attention = match kept.attention {
            Some(t) => t,
            None => self.attend(device, seq, &qkv)?,
        };
        let middle = match kept.middle {
            Some(t) => t,
            None => {
                let stream = ops::copy_like(device, x.view())?;
                self.add_attention(device, w, attention.out.view(), stream)?
            }
        };
        let mlp = match kept.mlp {
            Some(t) => t,
            None => self.mlp_in(device, w, middle.view())?,
        };
        let dmiddle = self.mlp_backward(device, w, middle, mlp, dy, sink)?;
        self.attention_backward(device, w, seq, x, qkv, attention, dmiddle, sink)
    }

    /// From the gradient of the block's result to that of the stream between attention and MLP.
    fn mlp_backward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        middle: Tensor<D>,
        mut mlp: Mlp<D>,
        mut dy: Tensor<D>,
        sink: &mut GradSink<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        let a = ops::swiglu(device, mlp.gate.view(), mlp.up.view())?;
        weight_gradient(device, sink, self.down, dy.view(), a.view())?;
        drop(a);
        let da = ops::linear_input_gradient(device, dy.view(), w.get(self.down))?;
        ops::swiglu_backward(device, mlp.gate.view_mut(), mlp.up.view_mut(), da.view())?;
        drop(da);
        let n = ops::rms_norm(device, middle.view(), w.get(self.norm2), self.eps)?;
        weight_gradient(device, sink, self.gate, mlp.gate.view(), n.y.view())?;
        weight_gradient(device, sink, self.up, mlp.up.view(), n.y.view())?;
        let mut dn = ops::linear_input_gradient(device, mlp.gate.view(), w.get(self.gate))?;
        ops::linear_input_gradient_into(device, mlp.up.view(), w.get(self.up), dn.view_mut(), true)?;
        drop(mlp);
        norm_backward(device, sink, self.norm2, w, middle.view(), n, dn, &mut dy)?;
        Ok(dy)
    }

    /// From the gradient of the stream after attention to that of the block's input.
    #[allow(clippy::too_many_arguments)]
    fn attention_backward<D: Device>(
        &self,
        device: &D,
        w: &Lease<'_, D>,
        seq: Sequences<'_, D>,
        x: Tensor<D>,
        qkv: Qkv<D>,
        attention: AttentionForward<D>,
        mut dmiddle: Tensor<D>,
        sink: &mut GradSink<'_, D>,
    ) -> Result<Tensor<D>, Error> {
        weight_gradient(device, sink, self.o, dmiddle.view(), attention.out.view())?;
        let dout = ops::linear_input_gradient(device, dmiddle.view(), w.get(self.o))?;
        let dims = self.attention_dims(seq.batch, seq.length, seq.length);
        let (q, k, v) = (qkv.q.view(), qkv.k.view(), qkv.v.view());
        let mut d = ops::attention_backward(device, dims, q, k, v, &attention, dout.view())?;
        drop((qkv, attention, dout));
        ops::rope(device, d.dq.view_mut(), seq.positions, seq.table, true)?;
        ops::rope(device, d.dk.view_mut(), seq.positions, seq.table, true)?;
        let n = ops::rms_norm(device, x.view(), w.get(self.norm1), self.eps)?;
        weight_gradient(device, sink, self.q, d.dq.view(), n.y.view())?;
        weight_gradient(device, sink, self.k, d.dk.view(), n.y.view())?;
        weight_gradient(device, sink, self.v, d.dv.view(), n.y.view())?;
        let mut dn = ops::linear_input_gradient(device, d.dq.view(), w.get(self.q))?;
        ops::linear_input_gradient_into(device, d.dk.view(), w.get(self.k), dn.view_mut(), true)?;
        ops::linear_input_gradient_into(device, d.dv.view(), w.get(self.v), dn.view_mut(), true)?;
        drop(d);
        norm_backward(device, sink, self.norm1, w, x.view(), n, dn, &mut dmiddle)?;
        Ok(dmiddle)
    }
}

/// The tensor to keep, and a stream to add to: a copy where it is kept, itself where it is not.
fn kept_or_moved<D: Device>(
    device: &D,
    t: Tensor<D>,
    keep: bool,
) -> Result<(Option<Tensor<D>>, Tensor<D>), Error> {
    if keep {
        let stream = ops::copy_like(device, t.view())?;
        Ok((Some(t), stream))
    } else {
        Ok((None, t))
    }
}

fn weight_gradient<D: Device>(
    device: &D,
    sink: &mut GradSink<'_, D>,
    param: ParamId,
    dy: View<'_, D>,
    x: View<'_, D>,
) -> Result<(), Error> {
    sink.add(param, |dw, accumulate| ops::linear_weight_gradient(device, dy, x, dw, accumulate))
}

/// Gradient of a norm whose input is the residual stream: the weight's goes to the sink, the input's is added
/// to the stream's.
#[allow(clippy::too_many_arguments)]
pub(super) fn norm_backward<D: Device>(
    device: &D,
    sink: &mut GradSink<'_, D>,
    weight: ParamId,
    w: &Lease<'_, D>,
    x: View<'_, D>,
    normed: Normed<D>,
    dn: Tensor<D>,
    dstream: &mut Tensor<D>,
) -> Result<(), Error> {
    let rstd = normed.rstd.view();
    sink.add(weight, |dw, acc| ops::rms_norm_weight_gradient(device, x, rstd, dn.view(), dw, acc))?;
    ops::rms_norm_input_gradient(device, x, w.get(weight), rstd, dn.view(), dstream.view_mut())
}
