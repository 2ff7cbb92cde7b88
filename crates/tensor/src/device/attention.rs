//! Causal attention with grouped heads, sliding windows, packed documents and dropout.

use crate::device::Memory;
use crate::{Slice, SliceMut};

/// Sizes of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionDims {
    /// Sequences.
    pub batch: usize,
    /// Queries in each sequence.
    pub queries: usize,
    /// Keys in each sequence; query `i` is at the place of key `keys - queries + i`.
    pub keys: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; `heads / kv_heads` query heads share one.
    pub kv_heads: usize,
    /// Dims of a head.
    pub head_dim: usize,
    /// Keys that a query sees at most, that at its own place included; `None` for all before it.
    pub window: Option<usize>,
}

impl AttentionDims {
    /// Longest head that devices take: their working space is sized for it.
    pub const MAX_HEAD_DIM: usize = 256;
}

/// Random zeros, keyed so that neither layout nor recomputation can change them: element `i` of a sequence whose key is
/// `k` stays where `survives(mix(k ^ mix(salt)), i, rate)`, with these functions of [`crate::math`]. For the
/// probabilities of an attention's head `h`, `h x 2^32` is added to the salt, and that which query `q` gives key `j`
/// is element `q x 2^32 + j`.
#[derive(Debug)]
pub struct Dropout<'a, B> {
    /// A key for each sequence, i64: a function of seed and sample.
    pub keys: Slice<'a, B>,
    /// Which of a model's dropouts it is.
    pub salt: u64,
    /// Share of elements that become zero; the others grow by `1 / (1 - rate)`.
    pub rate: f32,
}

impl<B> Clone for Dropout<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Dropout<'_, B> {}

/// What an attention reads.
#[derive(Debug)]
pub struct AttentionInput<'a, B> {
    /// Queries, after the rotary embedding: `[batch x queries, heads x head_dim]`.
    pub q: Slice<'a, B>,
    /// Keys, after the rotary embedding: `[batch x keys, kv_heads x head_dim]`.
    pub k: Slice<'a, B>,
    /// Values, like keys.
    pub v: Slice<'a, B>,
    /// Position of each query in its document, `[batch x queries]`, i32. A query sees its document alone: the key
    /// at its own place, and as many before it as its position says.
    pub positions: Slice<'a, B>,
    /// Zeros among the probabilities.
    pub dropout: Option<Dropout<'a, B>>,
}

impl<B> Clone for AttentionInput<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for AttentionInput<'_, B> {}

/// What the backward of attention reads of the forward.
#[derive(Debug)]
pub struct AttentionSaved<'a, B> {
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

/// Attention, `softmax(q k^T / sqrt(head_dim)) v` (Vaswani et al., eq. 1), in memory linear in the sequence.
///
/// `out` is like the queries, `lse` (log of the softmax's denominator) `[batch x queries, heads]`, f32.
pub trait Attention: Memory {
    /// Forward.
    fn attention(
        &self,
        dims: AttentionDims,
        input: AttentionInput<'_, Self::Buf>,
        out: SliceMut<'_, Self::Buf>,
        lse: SliceMut<'_, Self::Buf>,
    );

    /// Backward. `delta` is working space like `lse`. `dq` is f32 whatever the type of the others: it is summed over
    /// tiles of keys.
    fn attention_backward(
        &self,
        dims: AttentionDims,
        input: AttentionInput<'_, Self::Buf>,
        saved: AttentionSaved<'_, Self::Buf>,
        dout: Slice<'_, Self::Buf>,
        delta: SliceMut<'_, Self::Buf>,
        dq: SliceMut<'_, Self::Buf>,
        dk: SliceMut<'_, Self::Buf>,
        dv: SliceMut<'_, Self::Buf>,
    );
}
