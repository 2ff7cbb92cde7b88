//! Sums of losses, of squares and of gradients: exact, whatever the order, and honest about what is
//! not finite.

mod common;

use common::*;
use memwall_tensor::device::{Loss, Optimizer};
use memwall_tensor::fixed::{self, Wide};
use memwall_tensor::{Cpu, Tensor, bf16, ops};
use proptest::prelude::*;

/// Elements that are summed in f64 before integers take over.
const BLOCK: usize = 1024;

/// What a wide sum rounds each block's sum to.
const WIDE_UNIT: f64 = 1.0 / (1u64 << 60) as f64;

/// An empty wide sum, or an empty sum of gradients.
fn zeros(device: &Cpu, n: usize) -> Tensor<Cpu> {
    vector(device, &vec![0i64; n])
}

fn wide_of(device: &Cpu, t: &Tensor<Cpu>) -> Wide {
    let e = download::<_, i64>(device, t);
    Wide::from_elements([e[0], e[1], e[2]])
}

/// Adds the sum of `values`, and the sum of their squares, to wide sums of nothing.
fn sums(device: &Cpu, parts: &[&[f32]]) -> [Wide; 2] {
    let (mut sum, mut squares) = (zeros(device, Wide::LEN), zeros(device, Wide::LEN));
    for part in parts {
        let x = vector(device, part);
        ops::sum_wide(device, x.view(), 1.0, sum.view_mut()).unwrap();
        device.sum_squares(x.view().slice, squares.view_mut().slice);
    }
    [wide_of(device, &sum), wide_of(device, &squares)]
}

/// A gradient leaf as an exact multiple of 2^-52, ties to even: from the bits, in integers alone.
fn leaf(x: f32) -> i128 {
    let (exponent, fraction) = ((x.to_bits() >> 23 & 0xff) as i32, i128::from(x.to_bits() & 0x7f_ffff));
    let mantissa = if exponent == 0 { fraction } else { fraction | 1 << 23 };
    // x = mantissa x 2^(exponent - 150).
    let shift = exponent.max(1) - 150 + 52;
    let size = if shift >= 0 {
        mantissa << shift
    } else {
        let down = (-shift).min(100) as u32;
        let (kept, lost, half) = (mantissa >> down, mantissa & ((1 << down) - 1), 1 << (down - 1));
        kept + i128::from(lost > half || lost == half && kept & 1 == 1)
    };
    if x < 0.0 { -size } else { size }
}

/// The sums of leaves on a device, in elements of type `T`. They begin in what is not a sum yet.
fn accumulated<T: Element>(device: &Cpu, leaves: &[Vec<f32>], before: T) -> Vec<T> {
    let mut sums = vector(device, &vec![before; leaves[0].len()]);
    for (i, leaf) in leaves.iter().enumerate() {
        device.accumulate(vector(device, leaf).view().slice, sums.view_mut().slice, i == 0);
    }
    download(device, &sums)
}

/// Gradients in fixed point.
fn fixed_sums(device: &Cpu, leaves: &[Vec<f32>]) -> Vec<i64> {
    accumulated(device, leaves, fixed::OVERFLOWED)
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn sums_of_short_numbers_are_exact_in_any_order(
        n in 1usize..5000, threads in 1usize..=3, seed: u64,
    ) {
        let device = cpu(threads);
        let mut s = Stream::new(seed);
        // Multiples of 2^-10 below 2: a block's sum, and that of the squares, fits f64's 53 bits.
        let mut x: Vec<f32> = s.ids(n, 4096).iter().map(|i| (*i - 2048) as f32 / 1024.0).collect();
        let integers = |x: &[f32]| x.iter().map(|x| (*x * 1024.0) as i64).collect::<Vec<_>>();
        let sum = integers(&x).iter().sum::<i64>() as f64 / 1024.0;
        let squares = integers(&x).iter().map(|x| x * x).sum::<i64>() as f64 / 1024f64.powi(2);
        let before = sums(&device, &[&x]);
        prop_assert_eq!(before.map(Wide::value), [sum, squares]);
        s.shuffle(&mut x);
        let (a, b) = x.split_at(s.below(n));
        prop_assert_eq!(sums(&device, &[b, a]).map(Wide::value), [sum, squares]);
    }

    #[test]
    fn sums_of_any_numbers_are_those_of_blocks_in_any_order(
        n in 1usize..5000, size in 1e-6f32..1e3, seed: u64,
    ) {
        let device = cpu(3);
        let mut s = Stream::new(seed);
        let x = s.floats(n, size);
        let whole = sums(&device, &[&x]);
        let mut blocks: Vec<&[f32]> = x.chunks(BLOCK).collect();
        s.shuffle(&mut blocks);
        prop_assert_eq!(sums(&device, &blocks), whole);
        // A block's f64 sum is off by up to BLOCK roundings of 2^-53; the exact sum here by some of its own.
        let exact = wide(&x).iter().sum::<f64>();
        let total: f64 = wide(&x).iter().map(|x| x.abs()).sum();
        let error = |size: f64| {
            2.0 * (n.max(BLOCK) as f64) * f64::EPSILON * size + n.div_ceil(BLOCK) as f64 * WIDE_UNIT
        };
        prop_assert!((whole[0].value() - exact).abs() <= error(total));
        let exact = wide(&x).iter().map(|x| x * x).sum::<f64>();
        prop_assert!((whole[1].value() - exact).abs() <= error(exact));
    }

    #[test]
    fn a_wide_sum_is_scaled_and_added_to(
        n in 1usize..100, scale in prop::sample::select(&[0.5f64, -2.0, 1024.0][..]), seed: u64,
    ) {
        let device = cpu(1);
        let x: Vec<f32> = Stream::new(seed).ids(n, 1000).iter().map(|i| *i as f32).collect();
        let mut into = vector(&device, &Wide::of(7.25).to_elements());
        device.sum_wide(vector(&device, &x).view().slice, scale, into.view_mut().slice);
        prop_assert_eq!(wide_of(&device, &into).value(), 7.25 + scale * wide(&x).iter().sum::<f64>());
    }

    #[test]
    fn what_is_not_finite_is_a_fault_wherever_it_is(
        n in 1usize..4000, seed: u64,
        bad in prop::sample::select(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY][..]),
    ) {
        let mut s = Stream::new(seed);
        let mut x = s.floats(n, 1.0);
        x[s.below(n)] = bad;
        for sum in sums(&cpu(2), &[&x, &[1.0], &[2.0]]) {
            prop_assert!(sum.value().is_nan());
        }
    }

    #[test]
    fn sums_of_gradients_are_the_exact_sums_of_rounded_leaves_in_any_order(
        n in 1usize..300, leaves in 1usize..40, exponent in -40i32..5, threads in 1usize..=3, seed: u64,
    ) {
        let device = cpu(threads);
        let mut s = Stream::new(seed);
        let mut leaves: Vec<_> = (0..leaves).map(|_| s.floats(n, 2f32.powi(exponent))).collect();
        let exact: Vec<i128> = (0..n).map(|i| leaves.iter().map(|l| leaf(l[i])).sum()).collect();
        let got = fixed_sums(&device, &leaves);
        prop_assert_eq!(got.iter().map(|x| i128::from(*x)).collect::<Vec<_>>(), exact.clone());
        // Rust rounds integers to f32 once, to even; a power of two changes no bit of the fraction.
        let rounded: Vec<f32> = exact.iter().map(|x| *x as f32 / (1u64 << 52) as f32).collect();
        prop_assert_eq!(bits(&got.iter().map(|x| fixed::to_f32(*x)).collect::<Vec<_>>()), bits(&rounded));
        s.shuffle(&mut leaves);
        prop_assert_eq!(fixed_sums(&device, &leaves), got);
    }

    #[test]
    fn sums_of_gradients_in_f32_and_bf16_are_rounded_leaf_by_leaf(
        n in 1usize..300, leaves in 1usize..40, threads in 1usize..=3, seed: u64,
    ) {
        let device = cpu(threads);
        let mut s = Stream::new(seed);
        let leaves: Vec<_> = (0..leaves).map(|_| s.floats(n, 1.0)).collect();
        let element = |i: usize| leaves.iter().map(move |l| l[i]);
        let want: Vec<f32> = (0..n).map(|i| element(i).fold(0.0, |sum, x| sum + x)).collect();
        prop_assert_eq!(bits(&accumulated(&device, &leaves, f32::NAN)), bits(&want));
        let rounded = |i: usize| element(i).fold(bf16::ZERO, |sum, x| bf16::from_f32(sum.to_f32() + x));
        let want: Vec<bf16> = (0..n).map(rounded).collect();
        prop_assert_eq!(accumulated(&device, &leaves, bf16::NAN), want);
    }

    #[test]
    fn squares_of_bf16_gradients_are_those_of_their_f32_values(
        n in 1usize..3000, threads in 1usize..=3, seed: u64,
    ) {
        let device = cpu(threads);
        let x = low(&Stream::new(seed).floats(n, 8.0));
        let values: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        let (mut a, mut b) = (zeros(&device, Wide::LEN), zeros(&device, Wide::LEN));
        device.sum_squares(vector(&device, &x).view().slice, a.view_mut().slice);
        device.sum_squares(vector(&device, &values).view().slice, b.view_mut().slice);
        prop_assert_eq!(wide_of(&device, &a), wide_of(&device, &b));
    }

    #[test]
    fn an_overflow_sticks_and_reaches_the_norm(
        n in 1usize..3000, seed: u64,
        bad in prop::sample::select(&[f32::NAN, f32::INFINITY, -1024.0, 1e30, 1023.0][..]),
    ) {
        let device = cpu(2);
        let mut s = Stream::new(seed);
        let at = s.below(n);
        let mut leaf = s.floats(n, 1.0);
        leaf[at] = bad;
        // Three of 1023 do not fit 2^11 either; and what comes after, of either sign, does not mend it.
        let after = [-1000.0, 1000.0].map(|x| {
            let mut leaf = vec![0.0; n];
            leaf[at] = x;
            leaf
        });
        let leaves = [&vec![leaf; 3][..], &after].concat();
        let sums = fixed_sums(&device, &leaves);
        for (i, x) in sums.iter().enumerate() {
            prop_assert_eq!(*x == fixed::OVERFLOWED, i == at);
        }
        let mut squares = zeros(&device, Wide::LEN);
        device.sum_squares(vector(&device, &sums).view().slice, squares.view_mut().slice);
        prop_assert!(wide_of(&device, &squares).value().is_nan());
    }

    #[test]
    fn squares_of_fixed_point_gradients_are_those_of_their_f32_values(
        n in 1usize..3000, seed: u64,
    ) {
        let device = cpu(3);
        let x = Stream::new(seed).floats(n, 8.0);
        let sums = fixed_sums(&device, &[x.clone(), x.clone(), x]);
        let values: Vec<f32> = sums.iter().map(|x| fixed::to_f32(*x)).collect();
        let (mut a, mut b) = (zeros(&device, Wide::LEN), zeros(&device, Wide::LEN));
        device.sum_squares(vector(&device, &sums).view().slice, a.view_mut().slice);
        device.sum_squares(vector(&device, &values).view().slice, b.view_mut().slice);
        prop_assert_eq!(wide_of(&device, &a), wide_of(&device, &b));
    }
}
