//! The element types that kernels compute on: loaded as f32, rounded once where they are stored.

use crate::DType;
pub use half::bf16;

/// An element that kernels compute on as f32.
pub trait Float: bytemuck::Pod + Send + Sync {
    /// Its type in buffers.
    const DTYPE: DType;

    /// The number, exactly.
    fn wide(self) -> f32;

    /// The nearest number of this type; ties go to the even one.
    fn narrow(x: f32) -> Self;
}

impl Float for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }
}

// Not by `half`'s own conversions: they are calls, and these stand in vectorised loops.
impl Float for bf16 {
    const DTYPE: DType = DType::BF16;

    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        // What is not a number stays so: rounding could carry it to infinity, or to zero.
        bf16::from_bits(if x.is_nan() { (bits >> 16) | 0x40 } else { rounded } as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn narrowing_rounds_as_the_library_does(bits: u32) {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (<bf16 as Float>::narrow(x), bf16::from_f32(x));
            prop_assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan());
        }
    }

    #[test]
    fn widening_is_exact() {
        for bits in 0..=u16::MAX {
            let x = bf16::from_bits(bits);
            assert!(x.wide() == x.to_f32() || x.is_nan() && x.wide().is_nan());
        }
    }

    #[test]
    fn a_small_term_is_lost_in_bf16_and_kept_by_a_master() {
        let (mut low, mut master) = (bf16::from_f32(1.0), 1f32);
        for _ in 0..10_000 {
            low = <bf16 as Float>::narrow(low.wide() + 1e-4);
            master += 1e-4;
        }
        assert_eq!(low.wide(), 1.0);
        assert!((<bf16 as Float>::narrow(master).wide() - 2.0).abs() < 0.01);
    }
}
