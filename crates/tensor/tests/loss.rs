//! Cross-entropy and its gradient against f64.

mod common;

use common::*;
use memwall_tensor::{Cpu, Shape, ops};
use proptest::prelude::*;

/// Vocabularies: the smallest, odd ones, one past a power of two, one of many vectors.
const VOCABULARIES: [usize; 7] = [1, 2, 3, 17, 255, 257, 5000];

/// Below this distance from the maximum `exp` is zero.
const REACH: f64 = 88.0;

/// Relative error of a row's denominator: a sum of `vocabulary` positive terms in 16 strands, each term off
/// by `exp`'s error and by the rounding of its distance from the maximum.
fn sum_error(row: &[f64]) -> f64 {
    let (low, high) = row.iter().fold((f64::MAX, f64::MIN), |(l, h), x| (l.min(*x), h.max(*x)));
    EXP_ERROR + ((row.len() / 16 + 5) as f64 + (high - low).min(REACH)) * UNIT
}

fn log_sum_exp(row: &[f64]) -> f64 {
    let max = row.iter().fold(f64::MIN, |m, x| m.max(*x));
    max + row.iter().map(|x| (x - max).exp()).sum::<f64>().ln()
}

/// Losses, and the gradient or the logits as they were.
fn run(device: &Cpu, logits: &[f32], targets: &[i32], scale: Option<f32>) -> (Vec<f32>, Vec<f32>) {
    let mut l = matrix(device, targets.len(), logits);
    let mut losses = vector(device, &vec![f32::NAN; targets.len()]);
    let t = vector(device, targets);
    ops::cross_entropy(device, l.view_mut(), t.view(), losses.view_mut(), scale).unwrap();
    (floats(device, &losses), floats(device, &l))
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn losses_and_gradients_are_those_of_f64_and_ignored_rows_are_zero(
        rows in 1usize..12, vocabulary in prop::sample::select(&VOCABULARIES[..]),
        size in prop::sample::select(&[0.1f32, 5.0, 80.0][..]), scale in 1e-6f32..2.0,
        threads in 1usize..=3, seed: u64,
    ) {
        let device = cpu(threads);
        let mut s = Stream::new(seed);
        let logits = s.floats(rows * vocabulary, size);
        let mut targets = s.ids(rows, vocabulary);
        for t in &mut targets {
            if s.below(4) == 0 {
                *t = -100;
            }
        }
        let (losses, gradient) = run(&device, &logits, &targets, Some(scale));
        let (only_losses, untouched) = run(&device, &logits, &targets, None);
        prop_assert_eq!(bits(&losses), bits(&only_losses));
        prop_assert_eq!(bits(&untouched), bits(&logits));

        let scale = f64::from(scale);
        for (r, target) in targets.iter().enumerate() {
            let part = r * vocabulary..(r + 1) * vocabulary;
            if *target < 0 {
                prop_assert_eq!(losses[r].to_bits(), 0);
                prop_assert!(gradient[part].iter().all(|g| g.to_bits() == 0));
                continue;
            }
            let (row, target) = (wide(&logits[part.clone()]), *target as usize);
            let lse = log_sum_exp(&row);
            let loss = lse - row[target];
            // The sum's error becomes absolute in the logarithm; f64 does the rest; the result is rounded.
            assert_near("loss", &losses[r..=r], &[loss], |_| sum_error(&row) + UNIT * loss);
            let p: Vec<f64> = row.iter().map(|x| (x - lse).exp()).collect();
            let hot = |i: usize| f64::from(u8::from(i == target));
            let want: Vec<f64> = (0..vocabulary).map(|i| scale * (p[i] - hot(i))).collect();
            // Numerator and denominator, 3 roundings; then the difference from `scale`. What `exp` takes for
            // zero is below e^-87.
            let error = 2.0 * sum_error(&row) + 3.0 * UNIT;
            assert_near("gradient", &gradient[part], &want, |i| {
                scale * (error * p[i] + UNIT * hot(i) + 1e-37)
            });
        }
    }

    #[test]
    fn a_gradient_sums_to_zero(rows in 1usize..6, vocabulary in 1usize..600, seed: u64) {
        let mut s = Stream::new(seed);
        let (logits, targets) = (s.floats(rows * vocabulary, 8.0), s.ids(rows, vocabulary));
        let (_, gradient) = run(&cpu(2), &logits, &targets, Some(1.0));
        for (g, l) in gradient.chunks(vocabulary).zip(logits.chunks(vocabulary)) {
            // The probabilities' relative errors, of a total of 1, as above.
            let error = 2.0 * sum_error(&wide(l)) + 4.0 * UNIT;
            prop_assert!(wide(g).iter().sum::<f64>().abs() <= error);
        }
    }
}

#[test]
fn huge_logits_do_not_overflow_and_a_logit_that_is_not_a_number_shows() {
    let device = cpu(1);
    let (losses, gradient) = run(&device, &[1e30, -1e30, 0.0, 3e38, -3e38, 0.0], &[0, 1], Some(1.0));
    assert_eq!(losses[0], 0.0);
    assert_eq!(gradient[..3], [0.0; 3]);
    assert_eq!(gradient[3..], [1.0, -1.0, 0.0]);
    assert!(losses[1] > 3e38);
    for bad in [f32::NAN, f32::INFINITY] {
        let (losses, gradient) = run(&device, &[bad, 0.0, 0.0], &[1], Some(1.0));
        assert!(losses[0].is_nan() && gradient.iter().all(|g| g.is_nan()), "{bad}: {losses:?} {gradient:?}");
    }
}

#[test]
fn no_rows_have_no_losses() {
    let device = cpu(1);
    let mut logits = upload::<_, f32>(&device, Shape::matrix(0, 5), &[]);
    let (targets, mut losses) = (vector::<_, i32>(&device, &[]), vector::<_, f32>(&device, &[]));
    ops::cross_entropy(&device, logits.view_mut(), targets.view(), losses.view_mut(), Some(1.0)).unwrap();
}
