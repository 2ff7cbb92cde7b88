//! Products, attention, norms, losses and the optimizer yield the same bits for any number of threads and any
//! instruction family.

mod common;

use common::attention::{Case, across_tiles, cases_of};
use common::*;
use memwall_tensor::device::{AdamW, Epilogue, Linear, MatmulDims, MatmulLayout, Memory, Optimizer};
use memwall_tensor::fixed::{OVERFLOWED, Wide};
use memwall_tensor::ops::NormWeights;
use memwall_tensor::{Cpu, DType, Shape, bf16, ops};
use proptest::prelude::*;

/// A product in `layout`, into random values.
fn matmul(
    device: &Cpu,
    layout: MatmulLayout,
    dims: MatmulDims,
    types: [DType; 3],
    accumulate: bool,
    seed: u64,
) -> Vec<u8> {
    let MatmulDims { m, n, k } = dims;
    let mut s = Stream::new(seed);
    let [a, b, mut c] = [(m * k, types[0]), (n * k, types[1]), (m * n, types[2])]
        .map(|(len, dtype)| random(device, dtype, Shape::vector(len), 1.0, &mut s));
    device.matmul(
        layout,
        dims,
        a.view().slice,
        b.view().slice,
        c.view_mut().slice,
        Epilogue::accumulate(accumulate),
    );
    bytes(device, &[&c])
}

/// Attention and its gradients.
fn attention(device: &Cpu, case: &Case, dtype: DType) -> Vec<u8> {
    let loaded = case.load(device, dtype);
    let f = ops::attention(device, case.dims, loaded.input()).unwrap();
    let b = ops::attention_backward(device, case.dims, loaded.input(), &f, loaded.dout.view()).unwrap();
    bytes(device, &[&f.out, &f.lse, &b.dq, &b.dk, &b.dv])
}

fn layouts() -> impl Strategy<Value = MatmulLayout> {
    prop::sample::select(&[MatmulLayout::Nt, MatmulLayout::Nn, MatmulLayout::Tn][..])
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn of_matrix_products(
        layout in layouts(), m in 1usize..50, n in 1usize..70, k in 1usize..70,
        types in [floating(), floating(), floating()], accumulate: bool, seed: u64,
    ) {
        same_everywhere(|d| matmul(d, layout, MatmulDims { m, n, k }, types, accumulate, seed));
    }

    #[test]
    fn of_products_of_one_row(
        n in 1usize..300, k in 1usize..300, types in [floating(), floating(), floating()], accumulate: bool,
        seed: u64,
    ) {
        same_everywhere(|d| matmul(d, MatmulLayout::Nt, MatmulDims { m: 1, n, k }, types, accumulate, seed));
    }

    #[test]
    fn of_attention_and_its_gradients(case in cases_of(80), dtype in floating()) {
        same_everywhere(|d| attention(d, &case, dtype));
    }

    #[test]
    fn of_norms_and_their_gradients(
        rows in 1usize..40, dim in 1usize..200, bias: bool, dtype in floating(), accumulate: bool, seed: u64,
    ) {
        same_everywhere(|d| {
            let mut s = Stream::new(seed);
            let [x, dy, mut dx] =
                [(); 3].map(|()| random(d, dtype, Shape::matrix(rows, dim), 2.0, &mut s));
            let [w, b] = [(); 2].map(|()| random(d, dtype, Shape::vector(dim), 2.0, &mut s));
            let mut dw = vector(d, &s.floats(dim, 1.0));
            let weights = NormWeights { w: w.view(), b: bias.then(|| b.view()), eps: 1e-5 };
            let f = ops::norm(d, x.view(), weights).unwrap();
            ops::norm_input_gradient(d, x.view(), w.view(), &f, dy.view(), dx.view_mut()).unwrap();
            ops::norm_weight_gradient(d, x.view(), &f, dy.view(), dw.view_mut(), accumulate).unwrap();
            let mut all = bytes(d, &[&f.y, &f.rstd, &dx, &dw]);
            all.extend(f.mean.iter().flat_map(|mean| bytes(d, &[mean])));
            all
        });
    }

    #[test]
    fn of_cross_entropy(
        rows in 1usize..30, vocabulary in 1usize..300, size in 0.1f32..80.0,
        scale in prop::option::of(0.1f32..2.0), seed: u64,
    ) {
        same_everywhere(|d| {
            let mut s = Stream::new(seed);
            let mut logits = matrix(d, rows, &s.floats(rows * vocabulary, size));
            let targets: Vec<i32> = s.ids(rows, vocabulary + 1).iter().map(|t| t - 1).collect();
            let mut losses = vector(d, &vec![0f32; rows]);
            ops::cross_entropy(d, logits.view_mut(), vector(d, &targets).view(), losses.view_mut(), scale)
                .unwrap();
            bytes(d, &[&logits, &losses])
        });
    }

    #[test]
    fn of_sums_and_steps_of_the_optimizer(
        n in 1usize..9000, form in prop::sample::select(&[DType::F32, DType::BF16, DType::I64][..]),
        overflow: bool, fresh: bool, limit in prop::option::of(0.1f32..9.0),
        seed: u64,
    ) {
        let settings =
            AdamW { learning_rate: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 3 };
        same_everywhere(|d| {
            let mut s = Stream::new(seed);
            let g = vector(d, &s.floats(n, 1.0));
            let mut start = vec![5i64; n];
            start[s.below(n)] = if overflow { OVERFLOWED } else { -5 };
            let mut sums = match form {
                DType::I64 => vector(d, &start),
                _ => random(d, form, Shape::vector(n), 1.0, &mut s),
            };
            d.accumulate(g.view().slice, sums.view_mut().slice, fresh);
            let [mut wide, mut squares] = [(); 2].map(|()| vector(d, &[0i64; Wide::LEN]));
            ops::sum_wide(d, g.view(), 0.3, wide.view_mut()).unwrap();
            d.sum_squares(sums.view().slice, squares.view_mut().slice);
            let mut clip = vector(d, &[0f32; 2]);
            d.clip_factor(squares.view().slice, limit, clip.view_mut().slice);
            let [mut p, mut m] = [(); 2].map(|()| vector(d, &s.floats(n, 1.0)));
            let mut v = vector(d, &s.floats(n, 1.0).iter().map(|x| x.abs()).collect::<Vec<_>>());
            let (pm, mm, vm) = (p.view_mut().slice, m.view_mut().slice, v.view_mut().slice);
            let mut copy = vector(d, &vec![bf16::ZERO; n]);
            let rounded = Some(copy.view_mut().slice);
            d.adamw(settings, clip.view().slice, sums.view().slice, pm, mm, vm, rounded);
            bytes(d, &[&sums, &wide, &squares, &clip, &p, &m, &v, &copy])
        });
    }

    #[test]
    fn of_normal_numbers(n in 1usize..3000, key: u64, first in 0u64..1 << 40) {
        same_everywhere(|d| {
            let mut x = vector(d, &vec![0f32; n]);
            d.fill_normal(x.view_mut().slice, key, first, 0.02);
            bytes(d, &[&x])
        });
    }
}

#[test]
fn of_products_beyond_the_blocks() {
    for (layout, m, n, k) in [
        (MatmulLayout::Nt, 170, 40, 400),
        (MatmulLayout::Nn, 30, 780, 100),
        (MatmulLayout::Tn, 260, 260, 20),
        (MatmulLayout::Nt, 1030, 20, 10),
        (MatmulLayout::Nn, 700, 1200, 4),
        (MatmulLayout::Nt, 2, 151_936, 3),
        (MatmulLayout::Tn, 151_936, 2, 3),
        (MatmulLayout::Nn, 3, 2, 151_936),
    ] {
        for types in [[DType::F32; 3], [DType::BF16; 3]] {
            same_everywhere(|d| matmul(d, layout, MatmulDims { m, n, k }, types, true, 9));
        }
    }
}

#[test]
fn of_attention_across_tiles() {
    for (case, dtype) in across_tiles().iter().zip(FLOATS.into_iter().cycle()) {
        same_everywhere(|d| attention(d, case, dtype));
    }
}
