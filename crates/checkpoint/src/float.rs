//! The types that floats have in files. On devices, what is loaded is always f32.

use half::{bf16, f16};
use safetensors::Dtype;

/// Type of a tensor's elements in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FloatType {
    /// IEEE single.
    F32,
    /// The upper half of an IEEE single.
    BF16,
    /// IEEE half.
    F16,
}

impl FloatType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            FloatType::F32 => 4,
            FloatType::BF16 | FloatType::F16 => 2,
        }
    }

    /// What config.json calls it.
    pub const fn name(self) -> &'static str {
        match self {
            FloatType::F32 => "float32",
            FloatType::BF16 => "bfloat16",
            FloatType::F16 => "float16",
        }
    }

    /// From a tensor file's type, if it is one of these.
    pub(crate) const fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(FloatType::F32),
            Dtype::BF16 => Some(FloatType::BF16),
            Dtype::F16 => Some(FloatType::F16),
            _ => None,
        }
    }

    /// A tensor file's type.
    pub(crate) const fn dtype(self) -> Dtype {
        match self {
            FloatType::F32 => Dtype::F32,
            FloatType::BF16 => Dtype::BF16,
            FloatType::F16 => Dtype::F16,
        }
    }

    /// Converts a file's bytes, exactly. There are as many elements as `values` has.
    pub(crate) fn decode(self, bytes: &[u8], values: &mut [f32]) {
        match self {
            FloatType::F32 => each(bytes, values, f32::from_le_bytes),
            FloatType::BF16 => each(bytes, values, |b| bf16::from_le_bytes(b).to_f32()),
            FloatType::F16 => each(bytes, values, |b| f16::from_le_bytes(b).to_f32()),
        }
    }

    /// A file's bytes of these values, rounding to nearest, ties to even: those of f32 as they are, halves in `room`, which has
    /// two bytes for each. What is too large becomes infinite.
    pub(crate) fn encode<'a>(self, values: &'a [f32], room: &'a mut [u8]) -> &'a [u8] {
        match self {
            // Files are little-endian, and so is every machine that devices run on.
            FloatType::F32 => return bytemuck::cast_slice(values),
            FloatType::BF16 => put(values, room, |v| bf16::from_f32(v).to_le_bytes()),
            FloatType::F16 => put(values, room, |v| f16::from_f32(v).to_le_bytes()),
        }
        &room[..values.len() * self.bytes()]
    }

    /// Makes each value what it is once it was in a file.
    pub(crate) fn round(self, values: &mut [f32]) {
        match self {
            FloatType::F32 => {}
            FloatType::BF16 => values.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32()),
            FloatType::F16 => values.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32()),
        }
    }
}

fn each<const N: usize>(bytes: &[u8], values: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (b, v) in bytes.as_chunks::<N>().0.iter().zip(values) {
        *v = decode(*b);
    }
}

fn put<const N: usize>(values: &[f32], bytes: &mut [u8], encode: impl Fn(f32) -> [u8; N]) {
    for (v, b) in values.iter().zip(bytes.as_chunks_mut::<N>().0) {
        *b = encode(*v);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a small float from its fields: sign, exponent and fraction, by the definition of IEEE 754.
    fn by_definition(bits: u16, fraction_bits: i32, bias: i32) -> f64 {
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let fraction = f64::from(bits & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
        let exponent = i32::from((bits & 0x7fff) >> fraction_bits);
        match exponent {
            0 => sign * fraction * 2f64.powi(1 - bias),
            e if e == 2 * bias + 1 => sign * if fraction == 0.0 { f64::INFINITY } else { f64::NAN },
            e => sign * (1.0 + fraction) * 2f64.powi(e - bias),
        }
    }

    #[test]
    fn every_half_is_read_as_ieee_754_defines_it() {
        for (kind, fraction, bias) in [(FloatType::BF16, 7, 127), (FloatType::F16, 10, 15)] {
            for bits in 0..=u16::MAX {
                let mut value = [0f32];
                kind.decode(&bits.to_le_bytes(), &mut value);
                let expected = by_definition(bits, fraction, bias);
                let same = f64::from(value[0]).to_bits() == expected.to_bits();
                assert!(same || (value[0].is_nan() && expected.is_nan()), "{kind:?} {bits:#x}");
            }
        }
    }

    #[test]
    fn every_half_is_written_as_itself_and_rounding_is_to_nearest_ties_to_even() {
        for kind in [FloatType::BF16, FloatType::F16] {
            let value = |bits: u16| {
                let mut v = [0f32];
                kind.decode(&bits.to_le_bytes(), &mut v);
                v[0]
            };
            let written = |v: f32| {
                let mut b = [0; 2];
                kind.encode(&[v], &mut b);
                let mut rounded = [v];
                kind.round(&mut rounded);
                assert_eq!(rounded[0].to_bits(), value(u16::from_le_bytes(b)).to_bits());
                u16::from_le_bytes(b)
            };
            for bits in 0..0x7fff_u16 {
                let (low, high) = (value(bits), value(bits + 1));
                if !high.is_finite() {
                    break;
                }
                assert_eq!((written(low), written(-low)), (bits, bits | 0x8000));
                // Halves lie so far apart that f32 holds the middle, and its neighbours, exactly.
                let middle = ((f64::from(low) + f64::from(high)) / 2.0) as f32;
                assert_eq!(written(middle), bits + (bits & 1), "the middle above {bits:#x}");
                assert_eq!(written(f32::from_bits(middle.to_bits() - 1)), bits);
                assert_eq!(written(f32::from_bits(middle.to_bits() + 1)), bits + 1);
            }
        }
    }
}
