//! Dropout of activations: which elements become zero, how the others grow, and its backward.

mod common;

use common::*;
use memwall_tensor::device::Dropout;
use memwall_tensor::math::{mix, survives};
use memwall_tensor::{Cpu, DType, Shape, bf16, ops};
use proptest::prelude::*;

/// `x`, some rows for each of the keys, after a dropout.
fn dropped(device: &Cpu, x: &[f32], rows: usize, keys: &[i64], salt: u64, rate: f32) -> Vec<f32> {
    let (mut t, keys) = (matrix(device, rows, x), vector(device, keys));
    ops::dropout(device, t.view_mut(), Dropout { keys: keys.view().slice, salt, rate }).unwrap();
    floats(device, &t)
}

/// Whether element `i` of a sequence survives, as [`Dropout`] documents.
fn kept(key: i64, salt: u64, rate: f32, i: usize) -> bool {
    survives(mix(key as u64 ^ mix(salt)), i as u64, rate)
}

/// Keys of sequences.
fn keys(s: &mut Stream, n: usize) -> Vec<i64> {
    (0..n).map(|_| (s.below(1 << 30) as i64 - (1 << 29)) << 20).collect()
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn elements_are_zero_or_grow_as_the_documented_function_says(
        sequences in 1usize..5, tokens in 1usize..12, dim in 1usize..80, rate in 0.01f32..0.95, salt: u64,
        threads in 1usize..=5, seed: u64,
    ) {
        let mut s = Stream::new(seed);
        let (each, rows) = (tokens * dim, sequences * tokens);
        let (x, keys) = (s.floats(rows * dim, 1.0), keys(&mut s, sequences));
        let got = dropped(&cpu(threads), &x, rows, &keys, salt, rate);
        let want: Vec<f64> = (0..x.len())
            .map(|at| {
                let grow = 1.0 / (1.0 - f64::from(rate));
                if kept(keys[at / each], salt, rate, at % each) { f64::from(x[at]) * grow } else { 0.0 }
            })
            .collect();
        // A difference, a quotient and a product; second-order terms are below the fourth.
        assert_near("dropped", &got, &want, |i| 4.0 * UNIT * want[i].abs());
        for (got, want) in got.iter().zip(&want) {
            prop_assert_eq!(*got == 0.0, *want == 0.0);
        }
    }

    #[test]
    fn zeros_of_a_sequence_do_not_depend_on_the_others_or_on_how_rows_are_cut(
        sequences in 1usize..5, tokens in 1usize..12, dim in 1usize..80, rate in 0.01f32..0.95, salt: u64,
        seed: u64,
    ) {
        let mut s = Stream::new(seed);
        let (each, rows) = (tokens * dim, sequences * tokens);
        let (x, keys) = (s.floats(rows * dim, 1.0), keys(&mut s, sequences));
        let together = dropped(&cpu(5), &x, rows, &keys, salt, rate);
        let apart: Vec<f32> = (0..sequences)
            .flat_map(|b| {
                dropped(&cpu(1), &x[b * each..(b + 1) * each], 1, &keys[b..=b], salt, rate)
            })
            .collect();
        prop_assert_eq!(bits(&together), bits(&apart));
    }

    #[test]
    fn a_dropout_is_its_own_backward(
        tokens in 1usize..12, dim in 1usize..80, rate in 0.01f32..0.9, salt: u64, seed: u64,
    ) {
        let (device, mut s) = (cpu(2), Stream::new(seed));
        let n = tokens * dim;
        let (x, dy, key) = (s.floats(n, 1.0), s.floats(n, 1.0), keys(&mut s, 1));
        let dot = |a: &[f32], b: &[f32]| wide(a).iter().zip(wide(b)).map(|(a, b)| a * b).sum::<f64>();
        let forward = dot(&dropped(&device, &x, tokens, &key, salt, rate), &dy);
        let backward = dot(&x, &dropped(&device, &dy, tokens, &key, salt, rate));
        // It is linear, with a diagonal matrix: <D x, dy> = <x, D dy>, each term with 4 roundings of up to
        // 1 / (1 - rate).
        let allowed = 2.0 * 4.0 * UNIT * n as f64 / (1.0 - f64::from(rate));
        prop_assert!((forward - backward).abs() <= allowed, "{forward} and {backward}");
    }

    #[test]
    fn key_salt_and_place_matter_and_the_share_of_zeros_is_the_rate(rate in 0.05f32..0.95, salt: u64, seed: u64) {
        const N: usize = 6000;
        let (device, key) = (cpu(2), keys(&mut Stream::new(seed), 1));
        let ones = vec![1f32; N];
        let mask = |key: &[i64], salt| {
            let out = dropped(&device, &ones, 1, key, salt, rate);
            out.iter().map(|x| *x != 0.0).collect::<Vec<_>>()
        };
        let (one, n, rate) = (mask(&key, salt), N as f64, f64::from(rate));
        // Six standard deviations of a share of n draws.
        let near = |count: usize, share: f64| {
            (count as f64 - share * n).abs() <= 6.0 * (share * (1.0 - share) * n).sqrt()
        };
        let kept = one.iter().filter(|kept| **kept).count();
        prop_assert!(near(kept, 1.0 - rate), "{kept} of {n} are kept at rate {rate}");
        let agreement = rate * rate + (1.0 - rate) * (1.0 - rate);
        let mut shifted = one.clone();
        shifted.rotate_left(1);
        for other in [mask(&[key[0] ^ 1], salt), mask(&key, salt ^ 1), shifted] {
            let alike = one.iter().zip(&other).filter(|(a, b)| a == b).count();
            prop_assert!(near(alike, agreement), "{alike} of {n} agree at rate {rate}");
        }
    }

    #[test]
    fn in_bf16_the_same_elements_are_zero_and_the_others_are_rounded_once(
        tokens in 1usize..12, dim in 1usize..80, rate in 0.01f32..0.95, salt: u64, seed: u64,
    ) {
        let (device, mut s) = (cpu(2), Stream::new(seed));
        let (shape, values, key) = (Shape::matrix(tokens, dim), s.floats(tokens * dim, 1.0), keys(&mut s, 1));
        let key = vector(&device, &key);
        let [wide, rounded] = FLOATS.map(|dtype: DType| {
            let mut t = typed(&device, dtype, shape, &values);
            ops::dropout(&device, t.view_mut(), Dropout { keys: key.view().slice, salt, rate }).unwrap();
            t
        });
        prop_assert_eq!(download::<_, bf16>(&device, &rounded), low(&floats(&device, &wide)));
    }
}
