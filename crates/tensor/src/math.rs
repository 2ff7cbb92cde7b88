//! Elementary functions as our own polynomials: the same bits on every machine and in every vector width.

use crate::Float;

/// `e^x`, relative error below 2e-7; 0 below -87.3, and the largest finite power of two's range above 88.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0; // 1.5 x 2^23: adding it rounds to an integer in the low bits
    let clamped = x.clamp(-87.3, 88.0);
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    // ln 2 in two parts: n times the first is exact.
    let r = n.mul_add(-0.693_359_4, clamped);
    let r = n.mul_add(2.121_944_4e-4, r);
    let p = 1.0 / 5040.0;
    let p = r.mul_add(p, 1.0 / 720.0);
    let p = r.mul_add(p, 1.0 / 120.0);
    let p = r.mul_add(p, 1.0 / 24.0);
    let p = r.mul_add(p, 1.0 / 6.0);
    let p = r.mul_add(p, 0.5);
    let p = r.mul_add(p, 1.0);
    let p = r.mul_add(p, 1.0);
    let power = f32::from_bits(shifted.to_bits().wrapping_sub(MAGIC.to_bits()).wrapping_add(127) << 23);
    if x < -87.3 {
        0.0
    } else if x.is_nan() {
        x
    } else {
        p * power
    }
}

/// `e^x` for `x` up to 88, in fewer operations than [`exp`] and as exact: what a softmax takes of differences from its
/// maximum. 0 from about -87.7 down; what is not a number comes back so.
#[inline(always)]
pub fn exp_below(x: f32) -> f32 {
    // As in `exp`, and 127 more, so that the low bits are the power's biased exponent.
    const MAGIC: f32 = 12_583_039.0;
    // From here down that exponent is 0, and the power as well.
    let clamped = if x < -88.0 { -88.0 } else { x };
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = n.mul_add(-0.693_359_4, clamped);
    let r = n.mul_add(2.121_944_4e-4, r);
    // Remez' polynomial of this form on |r| <= ln 2 / 2: relative error 3.1e-9.
    let p = 1.381_454e-3;
    let p = r.mul_add(p, 8.368_745e-3);
    let p = r.mul_add(p, 4.166_839e-2);
    let p = r.mul_add(p, 0.166_665_2);
    let p = r.mul_add(p, 0.499_999_93);
    let p = r.mul_add(p, 1.0);
    let p = r.mul_add(p, 1.0);
    p * f32::from_bits(shifted.to_bits() << 23)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Natural logarithm of a positive normal number, error below 1e-15 relative to 1. Infinity and what is not a
/// number come back as they are.
#[inline(always)]
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    // Mantissa in [sqrt(1/2), sqrt(2)): the series below converges fastest around 1.
    let e = (bits.wrapping_sub(0x3fe6_a09e_667f_3bcd) as i64) >> 52;
    let m = f64::from_bits(bits.wrapping_sub((e as u64) << 52));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let mut p = 1.0 / 23.0;
    for d in [21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        p = z.mul_add(p, 1.0 / d);
    }
    let ln = (e as f64).mul_add(std::f64::consts::LN_2, 2.0 * s * p);
    if x.is_finite() { ln } else { x }
}

/// Sine and cosine, error below 1e-11 for angles up to a million radians.
#[inline(always)]
pub fn sin_cos(x: f64) -> (f64, f64) {
    let n = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    // pi/2 in two parts; fused, so that the products are exact.
    let r = n.mul_add(-std::f64::consts::FRAC_PI_2, x);
    let r = n.mul_add(-6.123_233_995_736_766e-17, r);
    let z = r * r;
    let (mut s, mut c) = (1.0, 1.0);
    for k in (1..=9).rev() {
        let k = f64::from(k);
        s = (-z / ((2.0 * k) * (2.0 * k + 1.0))).mul_add(s, 1.0);
        c = (-z / ((2.0 * k - 1.0) * (2.0 * k))).mul_add(c, 1.0);
    }
    let s = s * r;
    match (n as i64) & 3 {
        0 => (s, c),
        1 => (c, -s),
        2 => (-s, -c),
        _ => (-c, s),
    }
}

/// Sum of `f(i)` for `i < n`: 16 strided partial sums, then a fixed tree, whatever the vector width.
#[inline(always)]
pub fn sum16(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut acc = [0f32; 16];
    let whole = n / 16 * 16;
    let mut i = 0;
    while i < whole {
        for (l, a) in acc.iter_mut().enumerate() {
            *a += f(i + l);
        }
        i += 16;
    }
    for (l, a) in acc.iter_mut().enumerate().take(n - whole) {
        *a += f(whole + l);
    }
    tree(acc)
}

/// Largest of `x`; what is not a number does not count. Lane by lane, since one chain of comparisons waits for itself.
#[inline(always)]
pub fn max16(x: &[f32]) -> f32 {
    let mut top = [f32::NEG_INFINITY; 16];
    let chunks = x.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (t, x) in top.iter_mut().zip(chunk) {
            *t = if *x > *t { *x } else { *t };
        }
    }
    top.iter().chain(rest).fold(f32::NEG_INFINITY, |m, x| m.max(*x))
}

/// Sum of the squares of `x`, each exact, in the order of [`sum16`].
#[inline(always)]
pub fn squares16(x: &[f32]) -> f64 {
    let mut acc = [0f64; 16];
    let chunks = x.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks.chain(std::iter::once(rest)) {
        for (a, x) in acc.iter_mut().zip(chunk) {
            *a = f64::from(*x).mul_add(f64::from(*x), *a);
        }
    }
    tree(acc)
}

/// Dot product in [`sum16`]'s order, with fused multiply-adds.
#[inline(always)]
pub fn dot16<A: Float, B: Float>(a: &[A], b: &[B]) -> f32 {
    let mut acc = [0f32; 16];
    let n = a.len().min(b.len());
    let (ca, cb) = (a[..n].chunks_exact(16), b[..n].chunks_exact(16));
    let (ra, rb) = (ca.remainder(), cb.remainder());
    for (x, y) in ca.zip(cb) {
        for l in 0..16 {
            acc[l] = x[l].wide().mul_add(y[l].wide(), acc[l]);
        }
    }
    for l in 0..ra.len() {
        acc[l] = ra[l].wide().mul_add(rb[l].wide(), acc[l]);
    }
    tree(acc)
}

#[inline(always)]
fn tree<T: Copy + std::ops::AddAssign>(mut acc: [T; 16]) -> T {
    let mut width = 8;
    while width > 0 {
        for l in 0..width {
            acc[l] += acc[l + width];
        }
        width /= 2;
    }
    acc[0]
}

/// A random stream's key from a seed and a name: FNV-1a over both, then mixed.
pub fn stream_key(seed: u64, name: &str) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    for b in seed.to_le_bytes().iter().chain(name.as_bytes()) {
        h = (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
    }
    mix(h)
}

/// Finalizer of splitmix64 (Steele, Lea, Flood): a bijection that scatters bits.
#[inline(always)]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Element `counter` of the random stream `key`: a function of both alone.
#[inline(always)]
pub fn random_u64(key: u64, counter: u64) -> u64 {
    mix(mix(counter.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(key)) ^ key)
}

/// Whether element `index` of the random stream `key` survives a dropout that sets `rate` of all to zero.
#[inline(always)]
pub fn survives(key: u64, index: u64, rate: f32) -> bool {
    (random_u64(key, index) >> 40) as f32 >= rate * (1u32 << 24) as f32
}

/// Element `index` of a standard normal stream (Box and Muller).
#[inline(always)]
pub fn random_normal(key: u64, index: u64) -> f64 {
    let unit = |bits: u64| ((bits >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64);
    let radius = (-2.0 * ln(unit(random_u64(key, 2 * index)))).sqrt();
    radius * sin_cos(std::f64::consts::TAU * unit(random_u64(key, 2 * index + 1))).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn exp_is_within_its_bound(x in -87.0f32..88.0) {
            let want = f64::from(x).exp();
            prop_assert!((f64::from(exp(x)) / want - 1.0).abs() < 2e-7);
            prop_assert!((f64::from(exp_below(x)) / want - 1.0).abs() < 2e-7);
        }

        #[test]
        fn ln_is_within_its_bound(x in prop_oneof![1e-300f64..1e300, 0.5f64..2.0]) {
            prop_assert!((ln(x) - x.ln()).abs() < 1e-15 * x.ln().abs().max(1.0));
        }

        #[test]
        fn sin_cos_is_within_its_bound(x in -1e6f64..1e6) {
            let (s, c) = sin_cos(x);
            prop_assert!((s - x.sin()).abs() < 1e-11 && (c - x.cos()).abs() < 1e-11);
        }

        #[test]
        fn strided_sums_are_sums(xs in prop::collection::vec(-1f32..1.0, 0..100)) {
            let want: f64 = xs.iter().map(|x| f64::from(*x)).sum();
            prop_assert!((f64::from(sum16(xs.len(), |i| xs[i])) - want).abs() < 1e-5);
            let want: f64 = xs.iter().map(|x| f64::from(*x).powi(2)).sum();
            prop_assert!((f64::from(dot16(&xs, &xs)) - want).abs() < 1e-5);
            prop_assert!((squares16(&xs) - want).abs() < 1e-13);
            let largest = xs.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
            prop_assert_eq!(max16(&xs), largest);
        }
    }

    #[test]
    fn ln_of_what_is_not_finite_is_not_finite() {
        assert!(ln(f64::NAN).is_nan());
        assert_eq!(ln(f64::INFINITY), f64::INFINITY);
    }

    #[test]
    fn exp_at_its_edges() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(1e9).is_finite());
        for x in [-87.8, -88.0, -1e3, -1e30, f32::NEG_INFINITY] {
            assert_eq!(exp_below(x), 0.0);
        }
        assert_eq!(exp_below(0.0), 1.0);
        assert!(exp_below(f32::NAN).is_nan() && exp_below(-f32::NAN).is_nan());
    }

    #[test]
    fn normal_numbers_have_the_moments_of_a_normal_distribution() {
        let key = stream_key(1, "w");
        let n = 200_000;
        let xs: Vec<f64> = (0..n).map(|i| random_normal(key, i)).collect();
        let mean = xs.iter().sum::<f64>() / n as f64;
        let var = xs.iter().map(|x| x * x).sum::<f64>() / n as f64;
        let fourth = xs.iter().map(|x| x.powi(4)).sum::<f64>() / n as f64;
        // Five standard errors of each estimate.
        assert!(mean.abs() < 0.0112 && (var - 1.0).abs() < 0.0158 && (fourth - 3.0).abs() < 0.11);
    }

    #[test]
    fn streams_of_other_names_and_seeds_differ() {
        let a = random_u64(stream_key(1, "a"), 0);
        assert_ne!(a, random_u64(stream_key(1, "b"), 0));
        assert_ne!(a, random_u64(stream_key(2, "a"), 0));
    }
}
