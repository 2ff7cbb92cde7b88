//! The rotary embedding, SwiGLU, lookups and their gradients.

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
    fn embedding_copies_rows_and_its_gradient_adds_them_in_order(
        tokens in 1usize..80, vocabulary in 1usize..20, dim in 1usize..150, accumulate: bool,
        threads in 1usize..=3, seed: u64,
    ) {
        let device = cpu(threads);
        let mut s = Stream::new(seed);
        let (ids, values) = (s.ids(tokens, vocabulary), s.floats(vocabulary * dim, 1.0));
        let (it, mut table) = (vector(&device, &ids), matrix(&device, vocabulary, &values));
        let out = ops::embedding(&device, it.view(), table.view()).unwrap();
        let row = |id: &i32| *id as usize * dim..(*id as usize + 1) * dim;
        let want: Vec<f32> = ids.iter().flat_map(|id| values[row(id)].to_vec()).collect();
        prop_assert_eq!(floats(&device, &out), want);

        let dy = s.floats(tokens * dim, 1.0);
        let dyt = matrix(&device, tokens, &dy);
        ops::embedding_gradient(&device, it.view(), dyt.view(), table.view_mut(), accumulate).unwrap();
        let mut want = if accumulate { values } else { vec![0.0; values.len()] };
        for (id, dy) in ids.iter().zip(dy.chunks(dim)) {
            for (w, d) in want[row(id)].iter_mut().zip(dy) {
                *w += d;
            }
        }
        prop_assert_eq!(bits(&floats(&device, &table)), bits(&want));
    }

    #[test]
    fn a_copy_has_the_same_bits(n in 1usize..500, seed: u64) {
        let device = cpu(2);
        let x = Stream::new(seed).floats(n, 1e30);
        let copy = ops::copy_like(&device, vector(&device, &x).view()).unwrap();
        prop_assert_eq!(bits(&floats(&device, &copy)), bits(&x));
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
#[should_panic(expected = "an id outside a table of 3 rows")]
fn a_gradient_for_an_id_outside_the_table_is_not_written_elsewhere() {
    let device = cpu(1);
    let (ids, dy, mut table) =
        (vector(&device, &[3i32]), matrix(&device, 1, &[7.0; 4]), matrix(&device, 3, &[0.0; 12]));
    let _ = ops::embedding_gradient(&device, ids.view(), dy.view(), table.view_mut(), true);
}
