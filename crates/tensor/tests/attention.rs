//! Attention and its gradients against f64 formulas over the full matrix of probabilities.

mod common;

use common::attention::*;
use common::*;
use memwall_tensor::device::AttentionDims;
use proptest::prelude::*;

/// Bits of rows of results, every head's: `width` elements a row.
fn rows(x: &[f32], first: usize, n: usize, width: usize) -> Vec<u32> {
    bits(&x[first * width..(first + n) * width])
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn attention_and_its_gradients_are_those_of_the_full_matrix(
        d in dims(150), threads in 1usize..=3, seed: u64,
    ) {
        Case::random(d, 1.0, seed).check(&cpu(threads));
    }

    #[test]
    fn windows_documents_and_dropout_are_masks_of_the_full_matrix(
        case in cases_of(150), threads in 1usize..=3,
    ) {
        case.check(&cpu(threads));
    }

    #[test]
    fn any_positions_will_do_and_one_beyond_the_sequence_reaches_to_its_beginning(d in dims(150), seed: u64) {
        let (mut case, mut s) = (Case::random(d, 1.0, seed), Stream::new(seed));
        // A neighbour may see far more than the first query of a tile, or far less.
        case.positions.fill_with(|| if s.below(2) == 0 { 0 } else { s.below(3 * d.keys) as i32 });
        case.check(&cpu(2));
    }

    #[test]
    fn a_query_depends_on_no_key_that_it_does_not_see(case in cases_of(150), seed: u64) {
        let (device, d) = (cpu(2), case.dims);
        let before = case.run(&device);
        let mut s = Stream::new(seed);
        let (b, i) = (s.below(d.batch), s.below(d.queries));
        let (mut changed, width) = (case.clone(), d.kv_heads * d.head_dim);
        for other in 0..d.batch {
            for l in (0..d.keys).filter(|l| other != b || !case.sees(b, i, *l)) {
                let row = (other * d.keys + l) * width..(other * d.keys + l + 1) * width;
                changed.k[row.clone()].fill(f32::NAN);
                changed.v[row].fill(f32::NAN);
            }
        }
        let after = changed.run(&device);
        let (row, width) = (b * d.queries + i, d.heads * d.head_dim);
        prop_assert_eq!(rows(&before.out, row, 1, width), rows(&after.out, row, 1, width));
        prop_assert_eq!(rows(&before.lse, row, 1, d.heads), rows(&after.lse, row, 1, d.heads));
        prop_assert_eq!(rows(&before.dq, row, 1, width), rows(&after.dq, row, 1, width));
    }

    #[test]
    fn a_key_learns_nothing_from_queries_that_do_not_see_it(case in cases_of(150), seed: u64) {
        let (device, d) = (cpu(2), case.dims);
        let before = case.run(&device);
        let mut s = Stream::new(seed);
        let (b, l) = (s.below(d.batch), s.below(d.keys));
        let (mut changed, width) = (case.clone(), d.heads * d.head_dim);
        for other in 0..d.batch {
            for i in (0..d.queries).filter(|i| other != b || !case.sees(b, *i, l)) {
                let row = (other * d.queries + i) * width..(other * d.queries + i + 1) * width;
                changed.q[row.clone()].fill(f32::NAN);
                changed.dout[row].fill(f32::NAN);
            }
        }
        let after = changed.run(&device);
        let (row, width) = (b * d.keys + l, d.kv_heads * d.head_dim);
        prop_assert_eq!(rows(&before.dk, row, 1, width), rows(&after.dk, row, 1, width));
        prop_assert_eq!(rows(&before.dv, row, 1, width), rows(&after.dv, row, 1, width));
    }

    #[test]
    fn a_query_has_the_same_bits_with_cached_keys_as_among_all(
        d in dims(300), window in prop::option::of(1usize..300), longest in 1usize..400, seed: u64,
    ) {
        let d = AttentionDims { keys: d.queries, window, ..d };
        let whole = Case::random(d, 1.0, seed).packed(longest, seed ^ 1).0;
        let all = whole.run(&cpu(1));
        let mut s = Stream::new(seed);
        // Few as in generation, or many as in a prompt.
        let most = if s.below(2) == 0 { d.queries.min(4) } else { d.queries };
        let queries = 1 + s.below(most);
        let mut last = whole.clone();
        last.dims.queries = queries;
        let skip = d.queries - queries;
        let rows_of = |x: &[f32], width: usize| -> Vec<f32> {
            let cut = |b: usize| x[(b * d.queries + skip) * width..(b + 1) * d.queries * width].to_vec();
            (0..d.batch).flat_map(cut).collect()
        };
        let wide = d.heads * d.head_dim;
        (last.q, last.dout) = (rows_of(&whole.q, wide), rows_of(&whole.dout, wide));
        last.positions = (0..d.batch)
            .flat_map(|b| whole.positions[b * d.queries + skip..(b + 1) * d.queries].to_vec())
            .collect();
        let cached = last.run(&cpu(2));
        prop_assert_eq!(bits(&cached.out), bits(&rows_of(&all.out, wide)));
        prop_assert_eq!(bits(&cached.lse), bits(&rows_of(&all.lse, d.heads)));
        prop_assert_eq!(bits(&cached.dq), bits(&rows_of(&all.dq, wide)));
    }

    #[test]
    fn functionary_265_packed_documents_do_not_see_each_other(
        d in dims(200), longest in 1usize..150, window in prop::option::of(1usize..200), seed: u64,
    ) {
        let d = AttentionDims { keys: d.queries, window, ..d };
        let (case, documents) = Case::random(d, 1.0, seed).packed(longest, seed ^ 1);
        let packed = case.run(&cpu(2));
        let (wide, narrow) = (d.heads * d.head_dim, d.kv_heads * d.head_dim);
        for (b, documents) in documents.iter().enumerate() {
            for document in documents {
                let n = document.len();
                let cut = |x: &[f32], width: usize| {
                    let first = b * d.keys + document.start;
                    x[first * width..(first + n) * width].to_vec()
                };
                // The document by itself: its formula knows of no positions but its own.
                let alone = Case {
                    dims: AttentionDims { batch: 1, queries: n, keys: n, ..d },
                    q: cut(&case.q, wide),
                    k: cut(&case.k, narrow),
                    v: cut(&case.v, narrow),
                    dout: cut(&case.dout, wide),
                    positions: (0..n as i32).collect(),
                    zeros: None,
                };
                alone.compare(&Outcome {
                    out: cut(&packed.out, wide),
                    lse: cut(&packed.lse, d.heads),
                    dq: cut(&packed.dq, wide),
                    dk: cut(&packed.dk, narrow),
                    dv: cut(&packed.dv, narrow),
                });
            }
        }
    }
}

#[test]
fn the_largest_head_and_the_edges_of_tiles_are_no_exception() {
    let device = cpu(2);
    for (queries, keys, head_dim) in
        [(64, 64, 256), (65, 129, 256), (1, 128, 8), (63, 192, 10), (128, 128, 4)]
    {
        for window in [None, Some(1), Some(63), Some(64), Some(65), Some(128)] {
            let d = AttentionDims { batch: 1, queries, keys, heads: 2, kv_heads: 1, head_dim, window };
            Case::random(d, 1.0, 5).check(&device);
        }
    }
}

#[test]
fn many_tiles_of_queries_and_of_keys_are_no_exception() {
    for (case, threads) in across_tiles().into_iter().zip([1, 2, 3].into_iter().cycle()) {
        case.check(&cpu(threads));
    }
}

#[test]
fn documents_may_begin_and_end_at_the_edges_of_tiles_and_beside_them() {
    let device = cpu(2);
    let d =
        AttentionDims { batch: 1, queries: 200, keys: 200, heads: 2, kv_heads: 2, head_dim: 5, window: None };
    for start in [1, 5, 6, 13, 14, 62, 63, 64, 65, 127, 128, 129, 199] {
        let mut case = Case::random(d, 1.0, 6);
        for place in start..d.keys {
            case.positions[place] = (place - start) as i32;
        }
        case.check(&device);
    }
}

#[test]
fn scores_of_hundreds_do_not_overflow() {
    let d =
        AttentionDims { batch: 1, queries: 70, keys: 70, heads: 1, kv_heads: 1, head_dim: 64, window: None };
    let case = Case::random(d, 20.0, 11);
    assert!(case.reference().lse.iter().any(|x| x.abs() > 100.0));
    case.check(&cpu(1));
}
