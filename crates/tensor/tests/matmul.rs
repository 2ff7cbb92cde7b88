//! Matrix products: their order of sums to the bit, and their distance to an f64 product, for every mix of types.

mod common;

use common::*;
use memwall_tensor::device::{Epilogue, Linear, MatmulDims, MatmulLayout};
use memwall_tensor::ops::Matrix;
use memwall_tensor::{Cpu, DType, Shape, bf16, ops};
use proptest::prelude::*;
use std::fmt;

const LAYOUTS: [MatmulLayout; 3] = [MatmulLayout::Nt, MatmulLayout::Nn, MatmulLayout::Tn];

/// Sizes around and beyond the families' blocks (of 256, 768 or 1152 columns by 256 or 384 steps), groups of strips (of 48 or
/// 112 rows) and the rows whose sums a bf16 result keeps apart (1024 and fewer), the thin ones, and a large vocabulary in
/// every place.
const LARGE: [[usize; 3]; 13] = [
    [200, 300, 300],
    [113, 257, 257],
    [2, 800, 520],
    [400, 3, 800],
    [112, 768, 384],
    [60, 780, 300],
    [1030, 20, 10],
    [30, 10, 400],
    [700, 1200, 20],
    [1, 151_936, 3],
    [2, 151_936, 3],
    [151_936, 2, 3],
    [3, 2, 151_936],
];

/// `c (+)= a b` with random operands.
struct Product {
    layout: MatmulLayout,
    dims: MatmulDims,
    /// Of `a`, `b` and `c`.
    types: [DType; 3],
    accumulate: bool,
    seed: u64,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

impl fmt::Debug for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layout, dims, types, accumulate, seed, .. } = self;
        write!(f, "{layout:?} {dims:?} {types:?} accumulate {accumulate} seed {seed}")
    }
}

impl Product {
    fn random(
        layout: MatmulLayout,
        [m, n, k]: [usize; 3],
        types: [DType; 3],
        accumulate: bool,
        seed: u64,
    ) -> Self {
        let mut s = Stream::new(seed);
        let mut draw = |len, dtype| {
            let x = s.floats(len, 1.0);
            if dtype == DType::BF16 { low(&x).iter().map(|x| x.to_f32()).collect() } else { x }
        };
        let (a, b, c) = (draw(m * k, types[0]), draw(n * k, types[1]), draw(m * n, types[2]));
        Self { layout, dims: MatmulDims { m, n, k }, types, accumulate, seed, a, b, c }
    }

    fn run(&self, device: &Cpu) -> Vec<f32> {
        let load = |x: &[f32], dtype| match dtype {
            DType::BF16 => vector(device, &low(x)),
            _ => vector(device, x),
        };
        let [a, b, mut c] = [(&self.a, 0), (&self.b, 1), (&self.c, 2)].map(|(x, i)| load(x, self.types[i]));
        let into = c.view_mut().slice;
        device.matmul(
            self.layout,
            self.dims,
            a.view().slice,
            b.view().slice,
            into,
            Epilogue::accumulate(self.accumulate),
        );
        values(device, &c)
    }

    /// Whether each element is sixteen chains, as of one row by a transposed matrix, see `Linear::matmul`.
    fn is_of_sixteen_chains(&self) -> bool {
        self.dims.m == 1 && self.layout == MatmulLayout::Nt
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
    /// is off by at most `g (|c| + sum |a||b|)` with `g = (k + 1) u / (1 - (k + 1) u)` (Higham, "Accuracy and
    /// Stability", eq. 3.5). A result in bf16 is rounded to it once.
    fn check_distance(&self, device: &Cpu) {
        let (exact, size): (Vec<f64>, Vec<f64>) = self
            .elements(|c, factors| {
                let start = f64::from(c);
                factors.fold((start, start.abs()), |(sum, size), (a, b)| {
                    let product = f64::from(a) * f64::from(b);
                    (sum + product, size + product.abs())
                })
            })
            .into_iter()
            .unzip();
        let roundings = (self.dims.k + 1) as f64 * UNIT;
        let factor = roundings / (1.0 - roundings);
        let last = if self.types[2] == DType::BF16 { LOW_UNIT } else { 0.0 };
        assert_near("c", &self.run(device), &exact, |i| {
            factor * size[i] + last * (exact[i].abs() + factor * size[i])
        });
    }

    /// What `Linear::matmul` documents.
    fn check_chain(&self, device: &Cpu) {
        let last = |x: f32| if self.types[2] == DType::BF16 { bf16::from_f32(x).to_f32() } else { x };
        let chain = self.elements(|c, f| {
            if !self.is_of_sixteen_chains() {
                return last(f.fold(c, |s, (a, b)| a.mul_add(b, s)));
            }
            let mut sums = [0f32; 16];
            f.enumerate().for_each(|(p, (a, b))| sums[p % 16] = a.mul_add(b, sums[p % 16]));
            let mut sums = sums.to_vec();
            while sums.len() > 1 {
                let (low, high) = sums.split_at(sums.len() / 2);
                sums = low.iter().zip(high).map(|(a, b)| a + b).collect();
            }
            last(c + sums[0])
        });
        assert_eq!(bits(&self.run(device)), bits(&chain));
    }
}

/// All mixes of types of `a`, `b` and `c`.
fn mixes() -> Vec<[DType; 3]> {
    (0..8).map(|i| [i & 1, i >> 1 & 1, i >> 2].map(|low| FLOATS[low])).collect()
}

fn products() -> impl Strategy<Value = Product> {
    let (layout, types) = (prop::sample::select(&LAYOUTS[..]), prop::sample::select(mixes()));
    (
        layout,
        prop_oneof![1 => Just(1), 7 => 1usize..=70],
        1usize..=70,
        1usize..=70,
        types,
        any::<bool>(),
        any::<u64>(),
    )
        .prop_map(|(layout, m, n, k, types, accumulate, seed)| {
            Product::random(layout, [m, n, k], types, accumulate, seed)
        })
}

/// Each of the large sizes in each layout: in f32, and in a mix with bf16 that goes round.
fn large_products() -> Vec<Product> {
    let mut all = Vec::new();
    for (i, dims) in LARGE.into_iter().enumerate() {
        for (j, layout) in LAYOUTS.into_iter().enumerate() {
            for accumulate in [false, true] {
                let mix = mixes()[1 + (3 * i + 2 * j + usize::from(accumulate)) % 7];
                for types in [mixes()[0], mix] {
                    all.push(Product::random(layout, dims, types, accumulate, 7));
                }
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn products_are_within_the_rounding_bound_of_f64(p in products(), threads in 1usize..=3) {
        p.check_distance(&cpu(threads));
    }

    #[test]
    fn every_element_is_its_chains_of_fused_multiply_adds_rounded_once(p in products()) {
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

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn a_matrix_that_lies_transposed_is_the_same_layer(
        m in 2usize..40, n in 1usize..40, k in 1usize..40, low in 0usize..2, accumulate: bool, seed: u64,
    ) {
        let (device, dtype, mut s) = (cpu(2), FLOATS[low], Stream::new(seed));
        let load = |rows, cols, x: &[f32]| typed(&device, dtype, Shape::matrix(rows, cols), x);
        let (xs, ws, gs) = (s.floats(m * k, 1.0), s.floats(n * k, 1.0), s.floats(m * n, 1.0));
        let lying: Vec<f32> = (0..k * n).map(|at| ws[at % n * k + at / n]).collect();
        let (x, w, t, dy) = (load(m, k, &xs), load(n, k, &ws), load(k, n, &lying), load(m, n, &gs));
        let t = Matrix { view: t.view(), transposed: true };
        // One chain over the same factors in the same order: the same bits.
        let y = ops::linear(&device, x.view(), w.view()).unwrap();
        let y_t = ops::linear(&device, x.view(), t).unwrap();
        prop_assert_eq!((y_t.shape(), y_t.dtype()), (Shape::matrix(m, n), dtype));
        prop_assert_eq!(bytes(&device, &[&y_t]), bytes(&device, &[&y]));
        let dx = ops::linear_input_gradient(&device, dy.view(), w.view()).unwrap();
        let dx_t = ops::linear_input_gradient(&device, dy.view(), t).unwrap();
        prop_assert_eq!((dx_t.shape(), dx_t.dtype()), (Shape::matrix(m, k), dtype));
        prop_assert_eq!(bytes(&device, &[&dx_t]), bytes(&device, &[&dx]));
        let (mut y, mut y_t, mut dx, mut dx_t) = (y, y_t, dx, dx_t);
        ops::linear_into(&device, x.view(), w.view(), y.view_mut(), accumulate).unwrap();
        ops::linear_into(&device, x.view(), t, y_t.view_mut(), accumulate).unwrap();
        ops::linear_input_gradient_into(&device, dy.view(), w.view(), dx.view_mut(), accumulate).unwrap();
        ops::linear_input_gradient_into(&device, dy.view(), t, dx_t.view_mut(), accumulate).unwrap();
        prop_assert_eq!(bytes(&device, &[&y_t, &dx_t]), bytes(&device, &[&y, &dx]));

        // The gradient lies as the matrix does, where operands change places.
        let [mut dw, mut dw_t] = [(n, k), (k, n)].map(|(r, c)| load(r, c, &vec![0.5; r * c]));
        ops::linear_weight_gradient(&device, dy.view(), x.view(), dw.view_mut(), accumulate).unwrap();
        ops::linear_weight_gradient(&device, x.view(), dy.view(), dw_t.view_mut(), accumulate).unwrap();
        let (dw, dw_t) = (values(&device, &dw), values(&device, &dw_t));
        let turned: Vec<f32> = (0..k * n).map(|at| dw[at % n * k + at / n]).collect();
        prop_assert_eq!(bits(&dw_t), bits(&turned));
    }
}

#[test]
fn products_beyond_the_blocks_are_within_the_bound_and_one_chain() {
    let device = cpu(2);
    for p in large_products() {
        p.check_chain(&device);
        // A chain that is rounded once more is as near as it should be.
        if p.types == [DType::F32; 3] {
            p.check_distance(&device);
        }
    }
}

#[test]
fn a_product_over_no_terms_is_zero_or_what_was_there() {
    let device = cpu(1);
    for layout in LAYOUTS {
        for m in [1, 3] {
            for accumulate in [false, true] {
                for types in mixes() {
                    let p = Product::random(layout, [m, 5, 0], types, accumulate, 3);
                    let want = if accumulate { p.c.clone() } else { vec![0.0; m * 5] };
                    assert_eq!(p.run(&device), want, "{p:?}");
                }
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
