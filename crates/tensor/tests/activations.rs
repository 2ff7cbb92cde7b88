//! The rotary embedding, SwiGLU, GELU and their gradients.

mod common;

use common::*;
use memwall_tensor::ops;
use proptest::prelude::*;

/// A turned element is `x cos - y sin`, in two roundings, with a table rounded once: `3 u (|x| + |y|)`.
/// Rounded up for the second-order terms.
const ROPE_ERROR: f64 = 4.0 * UNIT;

/// A sigmoid is off by `exp`'s error, a sum and a quotient; two products follow; doubled for the gradients,
/// where `1 - sigmoid` appears beside the sigmoid itself, with room for 4 more roundings.
const SWIGLU_ERROR: f64 = 2.0 * (EXP_ERROR + 4.0 * UNIT) + 4.0 * UNIT;

/// Angle of pair `i` at `position` (Su et al., with base 10000).
fn angle(position: i32, i: usize, head_dim: usize) -> f64 {
    f64::from(position) * 10_000f64.powf(-2.0 * i as f64 / head_dim as f64)
}

/// Cosines, then sines, of each position.
fn rope_table(positions: usize, head_dim: usize) -> Vec<f32> {
    let line =
        |p: usize, f: fn(f64) -> f64| (0..head_dim / 2).map(move |i| f(angle(p as i32, i, head_dim)) as f32);
    (0..positions).flat_map(|p| line(p, f64::cos).chain(line(p, f64::sin))).collect()
}

/// A GELU's sigmoid `s(t)`, `t = 2 sqrt(2 / pi) (x + 0.044715 x^3)`: `t` is off by 5 roundings, its own size times `5 u`,
/// and the sigmoid relatively by that and `exp`'s error, a sum and a quotient; a product follows.
fn gelu_error(x: f64) -> f64 {
    EXP_ERROR + (5.0 * twice(x).abs() + 4.0) * UNIT
}

/// Below e^-88 the sigmoid does not sink; times operands of up to a hundred.
const GELU_FLOOR: f64 = 1e-36;

/// What the hyperbolic tangent in GELU is taken of, doubled.
fn twice(x: f64) -> f64 {
    2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))
}

/// `x (1 + tanh) / 2` (Hendrycks and Gimpel, section 2).
fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + (twice(x) / 2.0).tanh())
}

/// `silu(gate) * up`.
fn swiglu(gate: f64, up: f64) -> f64 {
    gate / (1.0 + (-gate).exp()) * up
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn rope_turns_pairs_by_their_angles_and_its_inverse_turns_back(
        rows in 1usize..20, heads in 1usize..5, half in 1usize..40, inverse: bool,
        threads in 1usize..=3, seed: u64,
    ) {
        const POSITIONS: usize = 100;
        let (device, head_dim) = (cpu(threads), 2 * half);
        let mut s = Stream::new(seed);
        let (x, ids) = (s.floats(rows * heads * head_dim, 1.0), s.ids(rows, POSITIONS));
        let (mut xt, positions) = (matrix(&device, rows, &x), vector(&device, &ids));
        let table = matrix(&device, POSITIONS, &rope_table(POSITIONS, head_dim));
        ops::rope(&device, xt.view_mut(), positions.view(), table.view(), inverse).unwrap();

        let (mut want, mut size) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        for pair in 0..x.len() / 2 {
            let a = pair / half * head_dim + pair % half;
            let b = a + half;
            let turn =
                angle(ids[a / (heads * head_dim)], pair % half, head_dim) * if inverse { -1.0 } else { 1.0 };
            let (p, q) = (f64::from(x[a]), f64::from(x[b]));
            (want[a], want[b]) = (p * turn.cos() - q * turn.sin(), p * turn.sin() + q * turn.cos());
            size[a] = p.abs() + q.abs();
            size[b] = size[a];
        }
        let turned = floats(&device, &xt);
        assert_near("turned", &turned, &want, |i| ROPE_ERROR * size[i]);

        // The transpose of a turn is the turn back: <rope(x), y> = <x, rope_inverse(y)>.
        let y = s.floats(x.len(), 1.0);
        let mut yt = matrix(&device, rows, &y);
        ops::rope(&device, yt.view_mut(), positions.view(), table.view(), !inverse).unwrap();
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let difference = dot(&turned, &y) - dot(&x, &floats(&device, &yt));
        // Elements are at most 1 in size, and turned ones are off by ROPE_ERROR times two of them.
        prop_assert!(difference.abs() <= 2.0 * 2.0 * ROPE_ERROR * x.len() as f64);

        // Back again: both turns' errors, the second of elements at most sqrt(2) times as large.
        ops::rope(&device, xt.view_mut(), positions.view(), table.view(), !inverse).unwrap();
        assert_near("back", &floats(&device, &xt), &wide(&x), |i| 4.0 * ROPE_ERROR * size[i]);
    }

    #[test]
    fn swiglu_and_its_gradients_are_those_of_f64(
        n in 1usize..400, size in 0.01f32..80.0, threads in 1usize..=3, seed: u64,
    ) {
        let device = cpu(threads);
        let mut s = Stream::new(seed);
        let (gate, up, dout) = (s.floats(n, size), s.floats(n, 3.0), s.floats(n, 1.0));
        let [mut g, mut u, d] = [&gate, &up, &dout].map(|x| vector(&device, x));
        let out = ops::swiglu(&device, g.view(), u.view()).unwrap();
        let (gate, up, dout) = (wide(&gate), wide(&up), wide(&dout));
        let want: Vec<f64> = (0..n).map(|i| swiglu(gate[i], up[i])).collect();
        assert_near("out", &floats(&device, &out), &want, |i| SWIGLU_ERROR * want[i].abs());

        ops::swiglu_backward(&device, g.view_mut(), u.view_mut(), d.view()).unwrap();
        let slope =
            |i: usize, which: usize| dout[i] * derivative(|x| swiglu(x[0], x[1]), &[gate[i], up[i]], which);
        let dgate: Vec<f64> = (0..n).map(|i| slope(i, 0)).collect();
        let dup: Vec<f64> = (0..n).map(|i| slope(i, 1)).collect();
        // The slope s (1 + g (1 - s)) of silu is made of terms of size s (1 + |g|) that may cancel.
        let terms = |i: usize| (dout[i] * up[i]).abs() * (1.0 + gate[i].abs()) / (1.0 + (-gate[i]).exp());
        // The differences are of values of order |g u|.
        let difference = |i: usize| DIFFERENCE_ERROR * (1.0 + gate[i].abs());
        assert_near("dgate", &floats(&device, &g), &dgate, |i| SWIGLU_ERROR * terms(i) + difference(i));
        assert_near("dup", &floats(&device, &u), &dup, |i| SWIGLU_ERROR * dup[i].abs() + difference(i));
    }

    #[test]
    fn gelu_and_its_gradient_are_those_of_f64(
        n in 1usize..400, size in 0.01f32..15.0, threads in 1usize..=3, seed: u64,
    ) {
        let device = cpu(threads);
        let mut s = Stream::new(seed);
        let (x, dout) = (s.floats(n, size), s.floats(n, 1.0));
        let [mut t, d] = [&x, &dout].map(|x| vector(&device, x));
        let out = ops::gelu(&device, t.view()).unwrap();
        prop_assert_eq!(out.shape(), t.shape());
        let (x, dout) = (wide(&x), wide(&dout));
        // The reference's own `1 + tanh` cancels where x is far below zero.
        let reference = |x: f64| f64::EPSILON * x.abs();
        let want: Vec<f64> = x.iter().map(|x| gelu(*x)).collect();
        assert_near("out", &floats(&device, &out), &want, |i| {
            gelu_error(x[i]) * want[i].abs() + GELU_FLOOR + reference(x[i])
        });

        ops::gelu_backward(&device, t.view_mut(), d.view()).unwrap();
        let slope: Vec<f64> = (0..n).map(|i| dout[i] * derivative(|x| gelu(x[0]), &x[i..=i], 0)).collect();
        // s + x s (1 - s) t': each term with the sigmoid's error, 6 roundings and as many as t has; 1 - s is off by
        // 2 u at least, but exactly zero, as it should be to 1 in 10^8, where x is above 6.
        assert_near("slope", &floats(&device, &t), &slope, |i| {
            let s = 1.0 / (1.0 + (-twice(x[i])).exp());
            let steep = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * 0.044715 * x[i] * x[i]);
            let last = x[i].abs() * s * steep;
            let error = 2.0 * gelu_error(x[i]) + 6.0 * UNIT;
            dout[i].abs() * (error * (s + last * (1.0 - s)) + 2.0 * UNIT * last + GELU_FLOOR)
                + DIFFERENCE_ERROR * (1.0 + x[i].abs())
        });
    }
}

#[test]
fn swiglu_far_from_zero_is_zero_or_the_product() {
    let device = cpu(1);
    let gate = [-1e30f32, -1000.0, -100.0, 100.0, 1000.0];
    let [mut g, mut u, d] = [&gate, &[1.0; 5], &[1.0f32; 5]].map(|x| vector(&device, x));
    let out = floats(&device, &ops::swiglu(&device, g.view(), u.view()).unwrap());
    // Below -88 the sigmoid stays at e^-88 = 6e-39, and 1e30 times that is not small against 1e-30.
    assert!(out[1..3].iter().all(|x| x.abs() < 1e-30));
    assert_eq!(out[3..], [100.0, 1000.0]);
    ops::swiglu_backward(&device, g.view_mut(), u.view_mut(), d.view()).unwrap();
    let dgate = floats(&device, &g);
    assert!(dgate[1..3].iter().all(|x| x.abs() < 1e-30));
    assert_eq!(dgate[3..], [1.0, 1.0]);
    assert!(out.iter().chain(&dgate).all(|x| x.is_finite()));
}

#[test]
fn gelu_far_from_zero_is_zero_or_its_argument() {
    let device = cpu(1);
    let x = [-1e6f32, -1000.0, -20.0, 0.0, 20.0, 1000.0, 1e6];
    let mut t = vector(&device, &x);
    let out = floats(&device, &ops::gelu(&device, t.view()).unwrap());
    assert!(out[..3].iter().all(|x| x.abs() < 1e-30), "{out:?}");
    assert_eq!(out[3..], x[3..]);
    let ones = vector(&device, &[1f32; 7]);
    ops::gelu_backward(&device, t.view_mut(), ones.view()).unwrap();
    let slope = floats(&device, &t);
    assert!(slope[1..3].iter().all(|x| x.abs() < 1e-25), "{slope:?}");
    assert_eq!(slope[3..], [0.5, 1.0, 1.0, 1.0]);
}
