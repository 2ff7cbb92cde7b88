//! Sums that do not depend on their order: integers.
//!
//! A gradient leaf (one micro-batch's gradient of one use of a parameter, already divided by the global
//! count of tokens) becomes a 64-bit fixed-point number; sums of leaves are integer sums, rounded once at
//! the end. Order cannot matter as long as every partial sum fits (below 2^11): beyond, an overflow is an error in
//! any order, or in some. Scalars (loss, squared norm) are wide sums: two integers and a count of faults.

/// Fixed-point scale of gradients: one unit is 2^-52.
pub const GRADIENT_SCALE: f64 = (1u64 << 52) as f64;

/// A leaf of this size or more does not fit: sums of up to two of them stay below 2^63 / 2^52 = 2^11.
pub const GRADIENT_LIMIT: f32 = 1024.0;

/// What an accumulator holds after an overflow or a value that is not finite. It sticks.
pub const OVERFLOWED: i64 = i64::MIN;

/// A gradient as fixed point, or [`OVERFLOWED`].
#[inline(always)]
pub fn from_f32(x: f32) -> i64 {
    if x.abs() < GRADIENT_LIMIT {
        (f64::from(x) * GRADIENT_SCALE).round_ties_even() as i64
    } else {
        OVERFLOWED
    }
}

/// A fixed-point gradient rounded to f32 once; NaN after an overflow.
#[inline(always)]
pub fn to_f32(x: i64) -> f32 {
    // i64 -> f64 -> f32 would round twice: values above 2^53 first lose bits that decide ties. Rounding
    // the first time to odd keeps the second exact (Boldo and Melquiond).
    if x == OVERFLOWED {
        return f32::NAN;
    }
    (round_to_odd(x) * (1.0 / GRADIENT_SCALE)) as f32
}

#[inline(always)]
fn round_to_odd(x: i64) -> f64 {
    let sign = x >> 63;
    let magnitude = (x ^ sign).wrapping_sub(sign) as u64;
    // Above 2^53 the lowest 10 bits cannot all be kept: fold them into a sticky bit.
    let kept = if magnitude >= 1 << 53 {
        (magnitude & !0x7ff) | (u64::from(magnitude & 0x7ff != 0) << 11)
    } else {
        magnitude
    };
    if sign < 0 { -(kept as f64) } else { kept as f64 }
}

/// Adds two fixed-point gradients; overflow sticks.
#[inline(always)]
pub fn add(a: i64, b: i64) -> i64 {
    if a == OVERFLOWED || b == OVERFLOWED { OVERFLOWED } else { a.checked_add(b).unwrap_or(OVERFLOWED) }
}

/// A wide sum: `(high x 2^32 + low) x 2^-60`, and how many summands were not finite or too large.
/// As three i64 it can be added across ranks by any transport's integer all-reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wide {
    /// Multiples of 2^-28.
    pub high: i64,
    /// Multiples of 2^-60; each summand adds less than 2^32.
    pub low: i64,
    /// Summands that could not be added.
    pub faults: i64,
}

impl Wide {
    /// Number of i64 elements in a buffer.
    pub const LEN: usize = 3;

    /// One summand. Exact to 2^-60; a fault if it is not finite or reaches 2^34.
    pub fn of(x: f64) -> Self {
        if x.is_nan() || x.abs() >= (1u64 << 34) as f64 {
            return Self { faults: 1, ..Self::default() };
        }
        let scaled = (x * (1u64 << 60) as f64).round_ties_even() as i128;
        Self { high: (scaled >> 32) as i64, low: (scaled & 0xffff_ffff) as i64, faults: 0 }
    }

    /// The sum of two.
    #[must_use]
    pub fn plus(self, o: Self) -> Self {
        Self {
            high: self.high.saturating_add(o.high),
            low: self.low.saturating_add(o.low),
            faults: self.faults.saturating_add(o.faults),
        }
    }

    /// The value, NaN if there were faults.
    pub fn value(self) -> f64 {
        if self.faults != 0 || self.high == i64::MAX || self.high == i64::MIN {
            return f64::NAN;
        }
        (((i128::from(self.high)) << 32) + i128::from(self.low)) as f64 / (1u64 << 60) as f64
    }

    /// From the elements of a buffer.
    pub fn from_elements(e: [i64; Self::LEN]) -> Self {
        Self { high: e[0], low: e[1], faults: e[2] }
    }

    /// As the elements of a buffer.
    pub fn to_elements(self) -> [i64; Self::LEN] {
        [self.high, self.low, self.faults]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The correctly rounded quotient, by exact integer arithmetic.
    fn reference_to_f32(x: i64) -> f32 {
        let neg = x < 0;
        let mut m = x.unsigned_abs();
        let mut e = 0;
        let mut sticky = false;
        while m >= 1 << 25 {
            sticky |= m & 1 == 1;
            m >>= 1;
            e += 1;
        }
        // m has 25 bits at most: 24 kept and one to decide.
        if m >= 1 << 24 {
            let half = m & 1 == 1;
            m >>= 1;
            e += 1;
            if half && (sticky || m & 1 == 1) {
                m += 1;
            }
        }
        let v = (m as f64) * 2f64.powi(e - 52);
        if neg { -v as f32 } else { v as f32 }
    }

    proptest! {
        #[test]
        fn rounding_to_f32_happens_once(x in any::<i64>().prop_filter("overflow mark", |x| *x != OVERFLOWED), s in 0u32..63) {
            let x = x >> s;
            prop_assert_eq!(to_f32(x).to_bits(), reference_to_f32(x).to_bits());
        }

        #[test]
        fn a_gradient_whose_bits_lie_above_2_to_minus_52_comes_back_exactly(m in 1u32..(1 << 24), e in -6i32..32, neg: bool) {
            let x = (m as f32) * 2f32.powi(e - 46) * if neg { -1.0 } else { 1.0 };
            prop_assert_eq!(to_f32(from_f32(x)), x);
        }

        #[test]
        fn wide_sums_do_not_depend_on_order(mut xs in prop::collection::vec(-1e6f64..1e6, 1..50)) {
            let sum = |xs: &[f64]| xs.iter().fold(Wide::default(), |s, x| s.plus(Wide::of(*x)));
            let forward = sum(&xs);
            xs.reverse();
            prop_assert_eq!(forward.value().to_bits(), sum(&xs).value().to_bits());
            prop_assert!((forward.value() - xs.iter().sum::<f64>()).abs() < 1e-6);
        }
    }

    #[test]
    fn overflow_and_nan_stick() {
        for x in [f32::NAN, f32::INFINITY, 1024.0, -1e30] {
            assert_eq!(from_f32(x), OVERFLOWED);
            assert!(to_f32(add(from_f32(x), from_f32(1.0))).is_nan());
        }
        assert_eq!(add(i64::MAX, 1), OVERFLOWED);
        assert!(Wide::of(f64::NAN).plus(Wide::of(1.0)).value().is_nan());
        assert!(Wide::of(1e300).value().is_nan());
    }
}
