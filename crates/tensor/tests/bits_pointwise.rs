//! Lookups and elementwise operations yield the same bits for any number of threads and any instruction family.

mod common;

use common::*;
use memwall_tensor::device::{Dropout, Memory};
use memwall_tensor::{Shape, ops};
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn of_rope(
        rows in 1usize..40, heads in 1usize..4, half in 1usize..40, inverse: bool, dtype in floating(), seed: u64,
    ) {
        same_everywhere(|d| {
            let mut s = Stream::new(seed);
            let mut x = random(d, dtype, Shape::matrix(rows, heads * 2 * half), 2.0, &mut s);
            let (table, positions) =
                (matrix(d, 30, &s.floats(30 * 2 * half, 1.0)), vector(d, &s.ids(rows, 30)));
            ops::rope(d, x.view_mut(), positions.view(), table.view(), inverse).unwrap();
            bytes(d, &[&x])
        });
    }

    #[test]
    fn of_activations_and_their_gradients(
        n in 1usize..2000, size in 0.1f32..100.0, dtype in floating(), seed: u64,
    ) {
        same_everywhere(|d| {
            let mut s = Stream::new(seed);
            let [mut gate, mut up, mut x, dout] =
                [(); 4].map(|()| random(d, dtype, Shape::vector(n), size, &mut s));
            let swiglu = ops::swiglu(d, gate.view(), up.view()).unwrap();
            ops::swiglu_backward(d, gate.view_mut(), up.view_mut(), dout.view()).unwrap();
            let gelu = ops::gelu(d, x.view()).unwrap();
            ops::gelu_backward(d, x.view_mut(), dout.view()).unwrap();
            bytes(d, &[&swiglu, &gate, &up, &gelu, &x])
        });
    }

    #[test]
    fn of_lookups_and_their_gradients(
        tokens in 1usize..60, vocabulary in 1usize..20, dim in 1usize..200, dtype in floating(),
        accumulate: bool, seed: u64,
    ) {
        same_everywhere(|d| {
            let mut s = Stream::new(seed);
            let ids = vector(d, &s.ids(tokens, vocabulary));
            let table = random(d, dtype, Shape::matrix(vocabulary, dim), 1.0, &mut s);
            let mut dtable = matrix(d, vocabulary, &s.floats(vocabulary * dim, 1.0));
            let mut out = ops::embedding(d, ids.view(), table.view()).unwrap();
            ops::add_embedding(d, ids.view(), table.view(), out.view_mut()).unwrap();
            let dy = random(d, dtype, Shape::matrix(tokens, dim), 1.0, &mut s);
            ops::embedding_gradient(d, ids.view(), dy.view(), dtable.view_mut(), accumulate).unwrap();
            bytes(d, &[&out, &dtable])
        });
    }

    #[test]
    fn of_sums_biases_columns_and_casts(
        rows in 1usize..60, cols in 1usize..200, dtype in floating(), accumulate: bool, seed: u64,
    ) {
        same_everywhere(|d| {
            let mut s = Stream::new(seed);
            let [mut x, y] = [(); 2].map(|()| random(d, dtype, Shape::matrix(rows, cols), 1.0, &mut s));
            let mut db = vector(d, &s.floats(cols, 1.0));
            ops::add(d, x.view_mut(), y.view()).unwrap();
            ops::bias_gradient(d, x.view(), db.view_mut(), accumulate).unwrap();
            let part = ops::columns(d, x.view(), cols / 2, cols - cols / 2).unwrap();
            let mut put = ops::copy_like(d, y.view()).unwrap();
            ops::set_columns(d, part.view(), put.view_mut(), 0).unwrap();
            let mut cast = matrix(d, rows, &vec![0.0; rows * cols]);
            d.cast(x.view().slice, cast.view_mut().slice);
            let mut back = ops::copy_like(d, y.view()).unwrap();
            d.cast(cast.view().slice, back.view_mut().slice);
            bytes(d, &[&x, &db, &part, &put, &cast, &back])
        });
    }

    #[test]
    fn of_dropout(
        sequences in 1usize..4, each in 1usize..900, rate in 0.01f32..0.9, dtype in floating(), seed: u64,
    ) {
        same_everywhere(|d| {
            let mut s = Stream::new(seed);
            let mut x = random(d, dtype, Shape::matrix(sequences, each), 1.0, &mut s);
            let keys: Vec<i64> = s.ids(sequences, 1 << 30).iter().map(|k| i64::from(*k)).collect();
            let keys = vector(d, &keys);
            let dropout = Dropout { keys: keys.view().slice, salt: seed, rate };
            ops::dropout(d, x.view_mut(), dropout).unwrap();
            bytes(d, &[&x])
        });
    }
}
