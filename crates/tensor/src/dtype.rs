//! Element types.

/// Type of a buffer's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single.
    F32,
    /// The upper half of an IEEE single.
    BF16,
    /// Token ids, targets and positions.
    I32,
    /// Fixed-point sums (see [`crate::fixed`]), and keys of random streams.
    I64,
    /// Bytes that collectives carry for whoever knows what they mean.
    U8,
}

impl DType {
    /// Whether kernels compute on it: see [`crate::Float`].
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::BF16)
    }

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::BF16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::I64 => 8,
        }
    }
}
