//! Activations: SwiGLU and GELU, forward and backward.

use super::family::kernel;
use crate::Float;
use crate::math::sigmoid;

/// `x sigmoid(x)`.
#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

kernel! {
    pub(super) fn swiglu<T: Float>(gate: &[T], up: &[T], out: &mut [T]) {
        for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
            *o = T::narrow(silu(g.wide()) * u.wide());
        }
    }
}

kernel! {
    pub(super) fn swiglu_backward<T: Float>(gate: &mut [T], up: &mut [T], dout: &[T]) {
        for ((gate, up), d) in gate.iter_mut().zip(up).zip(dout) {
            let (g, u, d) = (gate.wide(), up.wide(), d.wide());
            let s = sigmoid(g);
            let silu = g * s;
            let slope = s * (1.0 + g * (1.0 - s));
            (*gate, *up) = (T::narrow(d * u * slope), T::narrow(d * silu));
        }
    }
}

/// `0.5 (1 + tanh(u)) = sigmoid(2u)`, with `2u = 2 sqrt(2 / pi) (x + 0.044715 x^3)`: that sigmoid, and the slope of
/// `2u`.
#[inline(always)]
fn gate_of_gelu(x: f32) -> (f32, f32) {
    const SCALE: f32 = 1.595_769;
    let square = x * x;
    let twice = SCALE * x * square.mul_add(0.044_715, 1.0);
    (sigmoid(twice), SCALE * square.mul_add(3.0 * 0.044_715, 1.0))
}

/// `0.5 x (1 + tanh(u))`, with `u` as above.
#[inline(always)]
pub(super) fn gelu(x: f32) -> f32 {
    x * gate_of_gelu(x).0
}

kernel! {
    pub(super) fn gelus<T: Float>(x: &[T], out: &mut [T]) {
        for (o, x) in out.iter_mut().zip(x) {
            *o = T::narrow(gelu(x.wide()));
        }
    }
}

kernel! {
    pub(super) fn gelu_backward<T: Float>(x: &mut [T], dout: &[T]) {
        for (x, d) in x.iter_mut().zip(dout) {
            let at = x.wide();
            let (s, slope) = gate_of_gelu(at);
            *x = T::narrow(d.wide() * (s + at * s * (1.0 - s) * slope));
        }
    }
}
