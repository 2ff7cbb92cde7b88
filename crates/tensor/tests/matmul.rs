//! Matrix products: their order of sums to the bit, and their distance to an f64 product.

mod common;

use common::*;
use memwall_tensor::device::{Linear, MatmulDims, MatmulLayout};
use memwall_tensor::{Cpu, Shape, ops};
use proptest::prelude::*;
use std::fmt;

const LAYOUTS: [MatmulLayout; 3] = [MatmulLayout::Nt, MatmulLayout::Nn, MatmulLayout::Tn];

/// Sizes around and beyond the blocks of 168 x 256 x 256, and the thin ones.
const LARGE: [[usize; 3]; 5] =
    [[200, 300, 300], [169, 257, 257], [2, 300, 520], [400, 3, 600], [168, 256, 256]];

/// `c (+)= a b` with random operands.
struct Product {
    layout: MatmulLayout,
    dims: MatmulDims,
    accumulate: bool,
    seed: u64,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

impl fmt::Debug for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} accumulate {} seed {}", self.layout, self.dims, self.accumulate, self.seed)
    }
}

impl Product {
    fn random(layout: MatmulLayout, [m, n, k]: [usize; 3], accumulate: bool, seed: u64) -> Self {
        let mut s = Stream::new(seed);
        let (a, b, c) = (s.floats(m * k, 1.0), s.floats(n * k, 1.0), s.floats(m * n, 1.0));
        Self { layout, dims: MatmulDims { m, n, k }, accumulate, seed, a, b, c }
    }

    fn run(&self, device: &Cpu) -> Vec<f32> {
        let (a, b, mut c) = (vector(device, &self.a), vector(device, &self.b), vector(device, &self.c));
        let into = c.view_mut().slice;
        device.matmul(self.layout, self.dims, a.view().slice, b.view().slice, into, self.accumulate);
        floats(device, &c)
    }

    /// For each element of the result, `f(start, factors)`: what the sum begins at, and its factors over k.
    fn elements<T>(&self, f: impl Fn(f32, &mut dyn Iterator<Item = (f32, f32)>) -> T) -> Vec<T> {
        let MatmulDims { m, n, k } = self.dims;
        let element = |i: usize, j: usize| {
            let mut factors = (0..k).map(|p| match self.layout {
                MatmulLayout::Nt => (self.a[i * k + p], self.b[j * k + p]),
                MatmulLayout::Nn => (self.a[i * k + p], self.b[p * n + j]),
                MatmulLayout::Tn => (self.a[p * m + i], self.b[p * n + j]),
            });
            f(if self.accumulate { self.c[i * n + j] } else { 0.0 }, &mut factors)
        };
        (0..m * n).map(|at| element(at / n, at % n)).collect()
    }

    /// A sum of `k` products that is rounded `k` times, and once more where a finished sum is added to `c`,
    /// is off by at most `(k + 1) u (|c| + sum |a||b|)` (Higham, "Accuracy and Stability", eq. 3.5). The
    /// bound's second-order part is below `k u` of it, under 1 in 10^4 here: the 1.001.
    fn check_distance(&self, device: &Cpu) {
        let exact = self.elements(|c, f| f.fold(f64::from(c), |s, (a, b)| s + f64::from(a) * f64::from(b)));
        let size = self.elements(|c, f| f.fold(f64::from(c.abs()), |s, (a, b)| s + f64::from((a * b).abs())));
        let factor = 1.001 * (self.dims.k + 1) as f64 * UNIT;
        assert_near("c", &self.run(device), &exact, |i| factor * size[i]);
    }

    /// What `Linear::matmul` documents.
    fn check_chain(&self, device: &Cpu) {
        let chain = self.elements(|c, f| f.fold(c, |s, (a, b)| a.mul_add(b, s)));
        assert_eq!(bits(&self.run(device)), bits(&chain));
    }
}

fn products(rows: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Product> {
    let layout = prop::sample::select(&LAYOUTS[..]);
    (layout, rows, 1usize..=70, 1usize..=70, any::<bool>(), any::<u64>())
        .prop_map(|(layout, m, n, k, accumulate, seed)| Product::random(layout, [m, n, k], accumulate, seed))
}

fn large_products() -> impl Iterator<Item = Product> {
    LARGE.into_iter().flat_map(|dims| {
        LAYOUTS
            .into_iter()
            .flat_map(move |layout| [false, true].map(|acc| Product::random(layout, dims, acc, 7)))
    })
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn products_are_within_the_rounding_bound_of_f64(p in products(1..=70), threads in 1usize..=3) {
        p.check_distance(&cpu(threads));
    }

    #[test]
    fn every_element_of_several_rows_is_one_chain_of_fused_multiply_adds(p in products(2..=70)) {
        p.check_chain(&cpu(2));
    }

    #[test]
    fn the_gradients_of_linear_are_its_adjoints(
        m in 1usize..40, n in 1usize..40, k in 1usize..40, seed: u64,
    ) {
        let device = cpu(2);
        let mut s = Stream::new(seed);
        let (xs, ws, gs) = (s.floats(m * k, 1.0), s.floats(n * k, 1.0), s.floats(m * n, 1.0));
        let (x, w, dy) = (matrix(&device, m, &xs), matrix(&device, n, &ws), matrix(&device, m, &gs));
        let y = ops::linear(&device, x.view(), w.view()).unwrap();
        let dx = ops::linear_input_gradient(&device, dy.view(), w.view()).unwrap();
        let mut dw = matrix(&device, n, &vec![0.0; n * k]);
        ops::linear_weight_gradient(&device, dy.view(), x.view(), dw.view_mut(), false).unwrap();
        let dot = |a: &[f32], b: &[f32]| wide(a).iter().zip(wide(b)).map(|(a, b)| a * b).sum::<f64>();
        let through_y = dot(&gs, &floats(&device, &y));
        // Each of the three forms is off by a product's bound summed with the other factor, all of which are
        // sums of |dy||w||x| <= m n k.
        let bound = 2.0 * (m.max(n).max(k) + 1) as f64 * UNIT * (m * n * k) as f64;
        prop_assert!((dot(&xs, &floats(&device, &dx)) - through_y).abs() <= bound);
        prop_assert!((dot(&ws, &floats(&device, &dw)) - through_y).abs() <= bound);

        // What adds, adds: doubling is exact, and the chain begun at a value is only bounded.
        let (mut y2, mut dx2) = (y, dx);
        let (y1, dx1) = (wide(&floats(&device, &y2)), wide(&floats(&device, &dx2)));
        ops::linear_into(&device, x.view(), w.view(), y2.view_mut(), true).unwrap();
        ops::linear_input_gradient_into(&device, dy.view(), w.view(), dx2.view_mut(), true).unwrap();
        let twice = |xs: &[f64]| xs.iter().map(|x| 2.0 * x).collect::<Vec<_>>();
        let sums = |k: usize| 2.0 * (k + 1) as f64 * UNIT * 2.0 * k as f64;
        assert_near("y", &floats(&device, &y2), &twice(&y1), |_| sums(k));
        assert_near("dx", &floats(&device, &dx2), &twice(&dx1), |_| sums(n));
    }
}

#[test]
fn products_beyond_the_blocks_are_within_the_bound_and_one_chain() {
    let device = cpu(2);
    for p in large_products() {
        p.check_distance(&device);
        p.check_chain(&device);
    }
}

#[test]
fn a_product_over_no_terms_is_zero_or_what_was_there() {
    let device = cpu(1);
    for layout in LAYOUTS {
        for m in [1, 3] {
            for accumulate in [false, true] {
                let p = Product::random(layout, [m, 5, 0], accumulate, 3);
                let want = if accumulate { p.c.clone() } else { vec![0.0; m * 5] };
                assert_eq!(p.run(&device), want, "{layout:?}, m = {m}, accumulate = {accumulate}");
            }
        }
    }
}

#[test]
fn parts_of_a_buffer_are_operands() {
    let device = cpu(2);
    let xs: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let (x, w) = (matrix(&device, 6, &xs), matrix(&device, 3, &xs[..12]));
    let mut y = matrix(&device, 6, &[-1.0; 18]);
    ops::linear_into(&device, x.view().rows(2, 2), w.view(), y.view_mut().rows(3, 2), true).unwrap();
    let got = floats(&device, &y);
    assert_eq!(y.shape(), Shape::matrix(6, 3));
    for i in 0..6 {
        for j in 0..3 {
            let row = if (3..5).contains(&i) { Some(i - 1) } else { None };
            let product = row.map_or(0.0, |r| (0..4).map(|p| xs[r * 4 + p] * xs[j * 4 + p]).sum());
            assert_eq!(got[i * 3 + j], product - 1.0);
        }
    }
}
