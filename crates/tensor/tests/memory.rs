//! Buffers: what is written is read, what is filled is filled, and live buffers do not touch each other.

mod common;

use common::*;
use memwall_layout::Placements;
use memwall_tensor::device::Memory;
use memwall_tensor::{Category, DType, Shape, Tensor, bf16};
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn what_is_written_is_read(n in 0usize..500, seed: u64) {
        let device = cpu(1);
        let mut s = Stream::new(seed);
        let (f, i) = (s.floats(n, 1e9), s.ids(n, 1 << 30));
        let l: Vec<i64> = i.iter().map(|i| (i64::from(*i) << 33) - 1).collect();
        prop_assert_eq!(download::<_, bf16>(&device, &vector(&device, &low(&f))), low(&f));
        prop_assert_eq!(download::<_, f32>(&device, &vector(&device, &f)), f);
        prop_assert_eq!(download::<_, i32>(&device, &vector(&device, &i)), i);
        prop_assert_eq!(download::<_, i64>(&device, &vector(&device, &l)), l);
    }

    #[test]
    fn copies_fills_and_zeros_change_their_part_alone(
        n in 1usize..20_000, threads in 1usize..=3, seed: u64,
    ) {
        let device = cpu(threads);
        let mut s = Stream::new(seed);
        let (values, source) = (s.floats(n, 1.0), s.floats(n, 1.0));
        let start = s.below(n);
        let len = s.below(n - start + 1);
        let part = start..start + len;
        let mut t = vector(&device, &values);
        let mut want = values;

        device.copy(
            vector(&device, &source).view().slice.part(start, len),
            t.view_mut().slice.part(start, len),
        );
        want[part.clone()].copy_from_slice(&source[part.clone()]);
        prop_assert_eq!(floats(&device, &t), &want[..]);
        device.fill(t.view_mut().slice.part(start, len), 0.75);
        want[part.clone()].fill(0.75);
        prop_assert_eq!(floats(&device, &t), &want[..]);
        device.zero(t.view_mut().slice.part(start, len));
        want[part].fill(0.0);
        prop_assert_eq!(floats(&device, &t), want);
    }

    #[test]
    fn normal_numbers_depend_on_key_and_place_alone(
        n in 1usize..2000, key: u64, first in 0u64..1 << 50, threads in 1usize..=5, seed: u64,
    ) {
        let mut s = Stream::new(seed);
        let (one, many) = (cpu(1), cpu(threads));
        let (mut whole, mut pieces) = (vector(&one, &vec![0f32; n]), vector(&many, &vec![0f32; n]));
        one.fill_normal(whole.view_mut().slice, key, first, 0.02);
        let mut at = 0;
        while at < n {
            let len = 1 + s.below(n - at);
            many.fill_normal(pieces.view_mut().slice.part(at, len), key, first + at as u64, 0.02);
            at += len;
        }
        let whole = floats(&one, &whole);
        prop_assert_eq!(bits(&whole), bits(&floats(&many, &pieces)));
        // 9 standard deviations: the largest that 53 bits of uniform numbers can make is 8.7.
        prop_assert!(whole.iter().all(|x| x.abs() < 9.0 * 0.02));

        let mut other = vector(&one, &vec![0f32; n]);
        one.fill_normal(other.view_mut().slice, key ^ 1, first, 0.02);
        let equal = floats(&one, &other).iter().zip(&whole).filter(|(a, b)| a == b).count();
        prop_assert!(equal <= 1 + n / 100, "{equal} of {n} are equal under another key");
    }

    #[test]
    fn live_buffers_keep_their_contents(

        steps in prop::collection::vec((any::<bool>(), 1usize..3000, any::<prop::sample::Index>()), 1..60),
    ) {
        let device = cpu(2);
        let mut live: Vec<(Tensor<_>, i64)> = Vec::new();
        for (i, (take, len, which)) in steps.into_iter().enumerate() {
            if take || live.is_empty() {
                live.push((vector(&device, &vec![i as i64; len]), i as i64));
            } else {
                live.swap_remove(which.index(live.len()));
            }
            for (t, value) in &live {
                prop_assert!(download::<_, i64>(&device, t).iter().all(|x| x == value));
            }
        }
    }
}

#[test]
fn a_buffer_outlives_its_device() {
    let device = cpu(2);
    let t = vector(&device, &[1.0f32, 2.0]);
    drop(device);
    let other = cpu(1);
    assert_eq!(floats(&other, &t), [1.0, 2.0]);
}

#[test]
fn what_does_not_fit_the_budget_is_refused_and_changes_nothing() {
    let device = cpu(1);
    let before = device.ledger().state();
    let shape = Shape::vector(BUDGET as usize / 4);
    let refused = Tensor::new(&device, shape, DType::F32, Placements::REPLICATED, Category::Weights);
    assert!(matches!(refused, Err(memwall_tensor::Error::OutOfMemory(e)) if e.category == Category::Weights));
    assert_eq!(device.ledger().state(), before);
}
