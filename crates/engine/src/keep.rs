//! What a block keeps for its backward: a value, so that every kind of recomputation is one code path.

/// The named intermediates that a transformer block keeps from forward to backward. What is not kept is
/// rebuilt by calling the same pieces again, so the choice changes memory and time, never a bit.
///
/// Normed inputs and the MLP's gate x up product are never kept: they are cheap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// The block's input. Without it there is no backward.
    pub input: bool,
    /// Queries, keys and values, after the rotary embedding.
    pub projections: bool,
    /// Attention's result and log-sum-exp.
    pub attention: bool,
    /// The residual stream between attention and MLP.
    pub middle: bool,
    /// The MLP's gate and up projections.
    pub gate_up: bool,
}

impl Keep {
    /// Keeps everything that costs a matrix product: no recomputation.
    pub const ALL: Keep =
        Keep { input: true, projections: true, attention: true, middle: true, gate_up: true };
    /// Keeps the block's input alone: full recomputation.
    pub const INPUT: Keep =
        Keep { input: true, projections: false, attention: false, middle: false, gate_up: false };
    /// Keeps nothing: forward only.
    pub const NOTHING: Keep =
        Keep { input: false, projections: false, attention: false, middle: false, gate_up: false };
}
