//! Every operation yields the same bits for any number of threads and any instruction family.

mod common;

use common::*;
use memwall_tensor::device::{AdamW, AttentionDims, Linear, MatmulDims, MatmulLayout, Memory, Optimizer};
use memwall_tensor::fixed::{OVERFLOWED, Wide};
use memwall_tensor::{Cpu, Tensor, ops};
use proptest::prelude::*;

/// Bytes of tensors of any type.
fn bytes(device: &Cpu, tensors: &[&Tensor<Cpu>]) -> Vec<u8> {
    let mut all = Vec::new();
    for t in tensors {
        let start = all.len();
        all.resize(start + t.shape().len() * t.dtype().bytes(), 0);
        device.read(t.view().slice, &mut all[start..]);
    }
    all
}

/// Fails unless `run` yields the same bytes on every device.
fn same_everywhere(run: impl Fn(&Cpu) -> Vec<u8>) {
    let devices = all_cpus();
    let want = run(&devices[0]);
    for device in &devices[1..] {
        let got = run(device);
        let differs = got.iter().zip(&want).position(|(a, b)| a != b);
        assert!(got.len() == want.len() && differs.is_none(), "{device:?} differs from byte {differs:?}");
    }
}

/// A product in `layout`, into random values.
fn matmul(device: &Cpu, layout: MatmulLayout, dims: MatmulDims, accumulate: bool, seed: u64) -> Vec<u8> {
    let MatmulDims { m, n, k } = dims;
    let mut s = Stream::new(seed);
    let [a, b, mut c] = [m * k, n * k, m * n].map(|len| vector(device, &s.floats(len, 1.0)));
    device.matmul(layout, dims, a.view().slice, b.view().slice, c.view_mut().slice, accumulate);
    bytes(device, &[&c])
}

fn layouts() -> impl Strategy<Value = MatmulLayout> {
    prop::sample::select(&[MatmulLayout::Nt, MatmulLayout::Nn, MatmulLayout::Tn][..])
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn of_matrix_products(
        layout in layouts(), m in 1usize..50, n in 1usize..70, k in 1usize..70, accumulate: bool,
        seed: u64,
    ) {
        same_everywhere(|d| matmul(d, layout, MatmulDims { m, n, k }, accumulate, seed));
    }

    #[test]
    fn of_products_of_one_row(n in 1usize..300, k in 1usize..300, accumulate: bool, seed: u64) {
        same_everywhere(|d| matmul(d, MatmulLayout::Nt, MatmulDims { m: 1, n, k }, accumulate, seed));
    }

    #[test]
    fn of_attention_and_its_gradients(
        batch in 1usize..3, queries in 1usize..80, ahead in 0usize..40, kv_heads in 1usize..3,
        group in 1usize..3, head_dim in prop::sample::select(&[2usize, 6, 7, 12, 24][..]), seed: u64,
    ) {
        let (keys, heads) = (queries + ahead, kv_heads * group);
        let dims = AttentionDims { batch, queries, keys, heads, kv_heads, head_dim };
        same_everywhere(|d| {
            let mut s = Stream::new(seed);
            let [q, dout] = [(); 2]
                .map(|()| matrix(d, batch * queries, &s.floats(batch * queries * heads * head_dim, 1.0)));
            let [k, v] =
                [(); 2].map(|()| matrix(d, batch * keys, &s.floats(batch * keys * kv_heads * head_dim, 1.0)));
            let f = ops::attention(d, dims, q.view(), k.view(), v.view()).unwrap();
            let b = ops::attention_backward(d, dims, q.view(), k.view(), v.view(), &f, dout.view()).unwrap();
            bytes(d, &[&f.out, &f.lse, &b.dq, &b.dk, &b.dv])
        });
    }

    #[test]
    fn of_norms_and_their_gradients(
        rows in 1usize..40, dim in 1usize..200, accumulate: bool, seed: u64,
    ) {
        same_everywhere(|d| {
            let mut s = Stream::new(seed);
            let [x, dy, mut dx] = [(); 3].map(|()| matrix(d, rows, &s.floats(rows * dim, 2.0)));
            let [w, mut dw] = [(); 2].map(|()| vector(d, &s.floats(dim, 2.0)));
            let f = ops::rms_norm(d, x.view(), w.view(), 1e-5).unwrap();
            ops::rms_norm_input_gradient(d, x.view(), w.view(), f.rstd.view(), dy.view(), dx.view_mut())
                .unwrap();
            ops::rms_norm_weight_gradient(d, x.view(), f.rstd.view(), dy.view(), dw.view_mut(), accumulate)
                .unwrap();
            bytes(d, &[&f.y, &f.rstd, &dx, &dw])
        });
    }

    #[test]
    fn of_rope(
        rows in 1usize..40, heads in 1usize..4, half in 1usize..40, inverse: bool, seed: u64,
    ) {
        same_everywhere(|d| {
            let mut s = Stream::new(seed);
            let mut x = matrix(d, rows, &s.floats(rows * heads * 2 * half, 2.0));
            let (table, positions) =
                (matrix(d, 30, &s.floats(30 * 2 * half, 1.0)), vector(d, &s.ids(rows, 30)));
            ops::rope(d, x.view_mut(), positions.view(), table.view(), inverse).unwrap();
            bytes(d, &[&x])
        });
    }

    #[test]
    fn of_swiglu_and_its_gradients(n in 1usize..2000, size in 0.1f32..100.0, seed: u64) {
        same_everywhere(|d| {
            let mut s = Stream::new(seed);
            let [mut gate, mut up, dout] = [(); 3].map(|()| vector(d, &s.floats(n, size)));
            let out = ops::swiglu(d, gate.view(), up.view()).unwrap();
            ops::swiglu_backward(d, gate.view_mut(), up.view_mut(), dout.view()).unwrap();
            bytes(d, &[&out, &gate, &up])
        });
    }

    #[test]
    fn of_lookups_and_their_gradients(
        tokens in 1usize..60, vocabulary in 1usize..20, dim in 1usize..200, accumulate: bool, seed: u64,
    ) {
        same_everywhere(|d| {
            let mut s = Stream::new(seed);
            let (ids, mut table) = (
                vector(d, &s.ids(tokens, vocabulary)),
                matrix(d, vocabulary, &s.floats(vocabulary * dim, 1.0)),
            );
            let (out, dy) = (
                ops::embedding(d, ids.view(), table.view()).unwrap(),
                matrix(d, tokens, &s.floats(tokens * dim, 1.0)),
            );
            ops::embedding_gradient(d, ids.view(), dy.view(), table.view_mut(), accumulate).unwrap();
            bytes(d, &[&out, &table])
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
        n in 1usize..9000, fixed: bool, overflow: bool, limit in prop::option::of(0.1f32..9.0),
        seed: u64,
    ) {
        let settings =
            AdamW { learning_rate: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 3 };
        same_everywhere(|d| {
            let mut s = Stream::new(seed);
            let g = vector(d, &s.floats(n, 1.0));
            let mut start = vec![5i64; n];
            start[s.below(n)] = if overflow { OVERFLOWED } else { -5 };
            let mut sums = vector(d, &start);
            d.accumulate_fixed(g.view().slice, sums.view_mut().slice);
            let gradient = if fixed { &sums } else { &g };
            let [mut wide, mut squares] = [(); 2].map(|()| vector(d, &[0i64; Wide::LEN]));
            ops::sum_wide(d, g.view(), 0.3, wide.view_mut()).unwrap();
            d.sum_squares(gradient.view().slice, squares.view_mut().slice);
            let mut clip = vector(d, &[0f32; 2]);
            d.clip_factor(squares.view().slice, limit, clip.view_mut().slice);
            let [mut p, mut m] = [(); 2].map(|()| vector(d, &s.floats(n, 1.0)));
            let mut v = vector(d, &s.floats(n, 1.0).iter().map(|x| x.abs()).collect::<Vec<_>>());
            let (pm, mm, vm) = (p.view_mut().slice, m.view_mut().slice, v.view_mut().slice);
            d.adamw(settings, clip.view().slice, gradient.view().slice, pm, mm, vm);
            bytes(d, &[&sums, &wide, &squares, &clip, &p, &m, &v])
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
    for (layout, m, n, k) in
        [(MatmulLayout::Nt, 170, 40, 270), (MatmulLayout::Nn, 30, 270, 100), (MatmulLayout::Tn, 180, 260, 20)]
    {
        same_everywhere(|d| matmul(d, layout, MatmulDims { m, n, k }, true, 9));
    }
}
