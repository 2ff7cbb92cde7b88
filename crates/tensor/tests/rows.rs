//! Operations on rows and columns: lookups, biases, sums of tensors, copies.

mod common;

use common::*;
use memwall_tensor::{Cpu, DType, Shape, Tensor, ops};
use proptest::prelude::*;

/// A sum of two elements in f32, which is exact but for one rounding, in f32 or in bf16.
fn sum(dtype: DType, a: f32, b: f32) -> f32 {
    if dtype == DType::BF16 { low(&[a + b])[0].to_f32() } else { a + b }
}

/// A matrix of random numbers, on the device and as stored.
fn filled(device: &Cpu, dtype: DType, rows: usize, cols: usize, s: &mut Stream) -> (Tensor<Cpu>, Vec<f32>) {
    let t = random(device, dtype, Shape::matrix(rows, cols), 1.0, s);
    let stored = values(device, &t);
    (t, stored)
}

proptest! {
    #![proptest_config(cases(48))]

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
    fn an_embedding_that_is_added_is_a_sum_of_rows(
        tokens in 1usize..80, vocabulary in 1usize..20, dim in 1usize..150, dtype in floating(),
        threads in 1usize..=3, seed: u64,
    ) {
        let (device, mut s) = (cpu(threads), Stream::new(seed));
        let ids = s.ids(tokens, vocabulary);
        let (table, entries) = filled(&device, dtype, vocabulary, dim, &mut s);
        let (mut x, before) = filled(&device, dtype, tokens, dim, &mut s);
        ops::add_embedding(&device, vector(&device, &ids).view(), table.view(), x.view_mut()).unwrap();
        let want: Vec<f32> = (0..tokens * dim)
            .map(|at| sum(dtype, before[at], entries[ids[at / dim] as usize * dim + at % dim]))
            .collect();
        prop_assert_eq!(bits(&values(&device, &x)), bits(&want));
    }

    #[test]
    fn the_gradient_of_a_bias_is_the_sum_of_rows_in_order(
        rows in 1usize..60, cols in 1usize..200, dtype in floating(), accumulate: bool,
        threads in 1usize..=3, seed: u64,
    ) {
        let (device, mut s) = (cpu(threads), Stream::new(seed));
        let (x, want) = filled(&device, dtype, rows, cols, &mut s);
        let start = s.floats(cols, 1.0);
        let mut db = vector(&device, &start);
        ops::bias_gradient(&device, x.view(), db.view_mut(), accumulate).unwrap();
        let first = |c: usize| if accumulate { start[c] } else { 0.0 };
        let sums: Vec<f32> = (0..cols)
            .map(|c| want.iter().skip(c).step_by(cols).fold(first(c), |sum, x| sum + x))
            .collect();
        prop_assert_eq!(bits(&floats(&device, &db)), bits(&sums));
    }

    #[test]
    fn a_tensor_is_added_element_by_element(
        n in 1usize..2000, dtype in floating(), threads in 1usize..=3, seed: u64,
    ) {
        let (device, mut s) = (cpu(threads), Stream::new(seed));
        let ((mut x, a), (y, b)) =
            (filled(&device, dtype, 1, n, &mut s), filled(&device, dtype, 1, n, &mut s));
        ops::add(&device, x.view_mut(), y.view()).unwrap();
        let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| sum(dtype, *a, *b)).collect();
        prop_assert_eq!(bits(&values(&device, &x)), bits(&want));
        prop_assert_eq!(bits(&values(&device, &y)), bits(&b));
    }

    #[test]
    fn columns_are_taken_and_put_back_where_they_were(
        rows in 0usize..20, widths in prop::collection::vec(1usize..40, 1..5), dtype in floating(), seed: u64,
    ) {
        let (device, mut s) = (cpu(2), Stream::new(seed));
        let cols: usize = widths.iter().sum();
        let (x, original) = filled(&device, dtype, rows, cols, &mut s);
        let (mut again, mut start) = (filled(&device, dtype, rows, cols, &mut s).0, 0);
        for (part, width) in widths.iter().enumerate() {
            let taken = ops::columns(&device, x.view(), start, *width).unwrap();
            prop_assert_eq!((taken.shape(), taken.dtype()), (Shape::matrix(rows, *width), dtype));
            let want: Vec<f32> = (0..rows * width)
                .map(|at| original[at / width * cols + start + at % width])
                .collect();
            prop_assert_eq!(bits(&values(&device, &taken)), bits(&want));

            // What is put back changes its own columns alone.
            let before = values(&device, &again);
            ops::set_columns(&device, taken.view(), again.view_mut(), start).unwrap();
            let after = values(&device, &again);
            for at in 0..rows * cols {
                let own = (start..start + width).contains(&(at % cols));
                let want = if own { original[at] } else { before[at] };
                prop_assert_eq!(after[at].to_bits(), want.to_bits(), "part {} element {}", part, at);
            }
            start += width;
        }
        prop_assert_eq!(bits(&values(&device, &again)), bits(&original));
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
#[should_panic(expected = "an id outside a table of 3 rows")]
fn a_gradient_for_an_id_outside_the_table_is_not_written_elsewhere() {
    let device = cpu(1);
    let (ids, dy, mut table) =
        (vector(&device, &[3i32]), matrix(&device, 1, &[7.0; 4]), matrix(&device, 3, &[0.0; 12]));
    let _ = ops::embedding_gradient(&device, ids.view(), dy.view(), table.view_mut(), true);
}
