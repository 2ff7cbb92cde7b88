//! Causal attention with grouped heads.

use crate::device::Memory;
use crate::{Slice, SliceMut};

/// Sizes of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionDims {
    /// Sequences.
    pub batch: usize,
    /// Queries in each sequence.
    pub queries: usize,
    /// Keys in each sequence; query `i` sees the keys `0 ..= keys - queries + i`.
    pub keys: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; `heads / kv_heads` query heads share one.
    pub kv_heads: usize,
    /// Dims of a head.
    pub head_dim: usize,
}

impl AttentionDims {
    /// Longest head that devices take: their working space is sized for it.
    pub const MAX_HEAD_DIM: usize = 256;
}

/// Attention, `softmax(q k^T / sqrt(head_dim)) v` (Vaswani et al., eq. 1), in memory linear in the sequence.
///
/// `q` and `out` are `[batch x queries, heads x head_dim]`, `k` and `v` `[batch x keys, kv_heads x head_dim]`,
/// `lse` (log of the softmax's denominator) `[batch x queries, heads]`.
pub trait Attention: Memory {
    /// Forward.
    fn attention(
        &self,
        dims: AttentionDims,
        q: Slice<'_, Self::Buf>,
        k: Slice<'_, Self::Buf>,
        v: Slice<'_, Self::Buf>,
        out: SliceMut<'_, Self::Buf>,
        lse: SliceMut<'_, Self::Buf>,
    );

    /// Backward. `delta` is working space like `lse`.
    fn attention_backward(
        &self,
        dims: AttentionDims,
        saved: AttentionSaved<'_, Self::Buf>,
        dout: Slice<'_, Self::Buf>,
        delta: SliceMut<'_, Self::Buf>,
        dq: SliceMut<'_, Self::Buf>,
        dk: SliceMut<'_, Self::Buf>,
        dv: SliceMut<'_, Self::Buf>,
    );
}

/// What the backward of attention reads of the forward.
#[derive(Debug)]
pub struct AttentionSaved<'a, B> {
    /// Queries, after the rotary embedding.
    pub q: Slice<'a, B>,
    /// Keys, after the rotary embedding.
    pub k: Slice<'a, B>,
    /// Values.
    pub v: Slice<'a, B>,
    /// Result.
    pub out: Slice<'a, B>,
    /// Log-sum-exp of the scores.
    pub lse: Slice<'a, B>,
}

impl<B> Clone for AttentionSaved<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for AttentionSaved<'_, B> {}
