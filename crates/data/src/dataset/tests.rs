//! Laws of the order of samples, and what a dataset refuses.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::{IGNORE, prepared::tests::made_of};

/// The end-of-document token of these tests.
const END: u32 = 0;

/// A source whose documents have these token counts, and whose tokens are numbered through from `first`.
fn source(lengths: &[u32], first: u32) -> Arc<Prepared> {
    let mut next = first;
    let documents: Vec<Vec<u32>> = lengths
        .iter()
        .map(|&length| {
            next += length;
            (next - length..next).collect()
        })
        .collect();
    made_of(&documents, Some(END), 1 << 20, 1000).1
}

fn cut(sequence_length: usize, validation: f64, seed: u64) -> Cut {
    Cut { sequence_length, packing: Packing::Packed, validation, seed }
}

fn one(lengths: &[u32], cut: Cut) -> Result<Dataset, DataError> {
    Dataset::new(vec![(source(lengths, 1), 1.0)], None, cut)
}

/// The inputs and targets of a training sample.
fn sample(data: &Dataset, number: u64) -> (Vec<i32>, Vec<i32>) {
    let length = data.sequence_length();
    let (mut tokens, mut targets, mut positions) = (vec![0; length], vec![0; length], vec![0; length]);
    data.fill_train(number, &mut tokens, &mut targets, &mut positions).unwrap();
    (tokens, targets)
}

fn evaluation_sample(data: &Dataset, number: u64) -> (Vec<i32>, Vec<i32>) {
    let length = data.sequence_length();
    let (mut tokens, mut targets, mut positions) = (vec![0; length], vec![0; length], vec![0; length]);
    data.fill_validation(number, &mut tokens, &mut targets, &mut positions).unwrap();
    (tokens, targets)
}

/// A row of the field's reports: a resume in the second epoch began at the first again.
#[test]
fn ac_4071_a_resume_at_any_step_takes_the_samples_of_the_uninterrupted_run() {
    let (steps, batch) = (40, 3);
    let run = |from: u64, to: u64| -> Vec<_> {
        // A new dataset, as a new process would have.
        let data = one(&[50, 7, 30], cut(8, 0.0, 5)).unwrap();
        (from * batch..to * batch).map(|number| sample(&data, number)).collect()
    };
    let data = one(&[50, 7, 30], cut(8, 0.0, 5)).unwrap();
    assert!(data.epoch_samples().unwrap() * 3 < steps * batch, "the run goes through several epochs");
    let whole = run(0, steps);
    for at in 0..=steps {
        assert_eq!([run(0, at), run(at, steps)].concat(), whole, "resumed after step {at}");
    }
}

/// A row of the field's reports: another number of ranks lost or repeated data.
#[test]
fn tt_811_any_split_into_ranks_and_micro_batches_takes_the_same_samples_once() {
    let data = one(&[50, 7, 30, 90], cut(4, 0.0, 1)).unwrap();
    let epoch = data.epoch_samples().unwrap();
    let batch = 12;
    let wanted: Vec<u64> = (0..4 * batch).map(|number| data.pick(number).sample).collect();
    for ranks in [1, 2, 3, 4, 6, 12] {
        for micro in (1..=batch / ranks).filter(|micro| (batch / ranks).is_multiple_of(*micro)) {
            let mut taken = HashMap::new();
            for (step, rank) in (0..4).flat_map(|step| (0..ranks).map(move |rank| (step, rank))) {
                for number in (0..batch / ranks / micro).flat_map(|m| (0..micro).map(move |i| m * micro + i))
                {
                    let global = step * batch + rank * (batch / ranks) + number;
                    assert!(
                        taken.insert(global, data.pick(global).sample).is_none(),
                        "{global} is taken twice"
                    );
                }
            }
            let union: Vec<u64> = (0..4 * batch).map(|number| taken[&number]).collect();
            assert_eq!(union, wanted, "{ranks} ranks, micro-batches of {micro}");
        }
    }
    let mut once: Vec<u64> = (0..epoch).map(|number| data.pick(number).sample).collect();
    once.sort_unstable();
    assert_eq!(once, (0..epoch).collect::<Vec<_>>());
}

#[test]
fn an_epoch_has_every_token_once_and_the_next_another_order() {
    let data = one(&[50, 7, 30], cut(8, 0.0, 5)).unwrap();
    let epoch = data.epoch_samples().unwrap();
    let targets = |number: u64| {
        let (_, targets) = sample(&data, number);
        targets.into_iter().filter(|&target| target != IGNORE).collect::<Vec<_>>()
    };
    let mut orders = Vec::new();
    for number in 0..3 {
        let samples: Vec<Vec<i32>> = (number * epoch..(number + 1) * epoch).map(targets).collect();
        let mut all = samples.concat();
        all.sort_unstable();
        // Every token but the first of each document, and three ends.
        let firsts = [1, 51, 58];
        let expected: Vec<i32> = [0; 3].into_iter().chain((1..=87).filter(|t| !firsts.contains(t))).collect();
        assert_eq!(all, expected);
        orders.push(samples);
    }
    assert!(orders[0] != orders[1] && orders[1] != orders[2] && orders[0] != orders[2]);
}

#[test]
fn mixed_sources_give_their_share_of_samples_each_in_its_own_epochs() {
    let sources = vec![(source(&[400], 1), 3.0), (source(&[100, 60], 1000), 1.0)];
    let data = Dataset::new(sources, None, cut(8, 0.0, 2)).unwrap();
    assert_eq!(data.epoch_samples(), None);
    let sizes = data.train_sizes();
    let mut counts = [0_u64; 2];
    let mut seen: HashMap<(usize, u64), u64> = HashMap::new();
    for number in 0..8192 {
        let pick = data.pick(number);
        counts[pick.source] += 1;
        *seen.entry((pick.source, pick.sample)).or_default() += 1;
        let (tokens, _) = sample(&data, number);
        assert!(tokens.iter().filter(|&&t| t != 0).all(|&t| (t >= 1000) == (pick.source == 1)), "{tokens:?}");
    }
    assert_eq!(counts, [6144, 2048]);
    for ((source, _), count) in seen {
        let even = counts[source] / sizes[source].samples;
        assert!((even..=even + 1).contains(&count), "{count} times instead of {even}");
    }
}

#[test]
fn what_is_held_out_is_whole_documents_of_every_source() {
    let sources = vec![(source(&[20; 50], 1), 1.0), (source(&[20; 50], 2000), 1.0)];
    let data = Dataset::new(sources, None, cut(10, 0.1, 3)).unwrap();
    let held = data.validation_size();
    assert_eq!((held.documents, held.tokens), (10, 210));
    let all: Vec<i32> = (0..data.validation_samples()).flat_map(|n| evaluation_sample(&data, n).0).collect();
    assert_eq!(all.iter().filter(|&&token| token >= 2000).count(), 100);
    let valid: u64 = (0..data.validation_samples()).map(|number| data.validation_valid(number)).sum();
    assert_eq!((valid, data.validation_valid(data.validation_samples())), (held.valid, 0));
    for size in data.train_sizes() {
        assert_eq!((size.documents, size.tokens), (45, 945));
    }
}

#[test]
fn files_to_evaluate_on_are_all_of_it() {
    let data =
        Dataset::new(vec![(source(&[30, 40], 1), 1.0)], Some(source(&[12, 9], 500)), cut(8, 0.0, 1)).unwrap();
    assert_eq!(data.train_sizes()[0].tokens, 72);
    assert_eq!(data.validation_size().tokens, 23);
    let mut all: Vec<i32> =
        (0..data.validation_samples()).flat_map(|n| evaluation_sample(&data, n).0).collect();
    all.retain(|&token| token != 0);
    all.sort_unstable();
    assert_eq!(all, (500..521).collect::<Vec<_>>());
}

#[test]
fn the_order_of_evaluation_is_the_same_for_all_seeds() {
    let order = |seed| {
        let data = one(&[20; 50], cut(10, 0.3, seed)).unwrap();
        (0..data.validation_samples()).map(|number| evaluation_sample(&data, number)).collect::<Vec<_>>()
    };
    assert_eq!(order(1), order(2));
}

#[test]
fn what_cannot_be_cut_is_refused() {
    for share in [-0.1, 1.0, f64::NAN, f64::INFINITY] {
        let refused = one(&[10], cut(4, share, 0));
        assert!(matches!(refused, Err(DataError::ValidationShare { .. })), "{share}");
    }
    let with_evaluation = Dataset::new(vec![(source(&[10], 1), 1.0)], Some(source(&[10], 1)), cut(4, 0.1, 0));
    assert!(matches!(with_evaluation, Err(DataError::ValidationShare { .. })));
    assert!(matches!(one(&[10], cut(0, 0.1, 0)), Err(DataError::SequenceLength)));
    assert!(matches!(Dataset::new(Vec::new(), None, cut(4, 0.0, 0)), Err(DataError::NoSource)));
    let (_folder, single) = made_of(&[vec![1]], None, 10, 10);
    let refused = Dataset::new(vec![(single, 1.0)], None, cut(4, 0.0, 0));
    assert!(matches!(refused, Err(DataError::TrainTooShort { tokens: 1 })));
    assert!(matches!(one(&[10], cut(4, 0.1, 0)), Err(DataError::ValidationTooShort { tokens: 1, .. })));
    let refused = Dataset::new(vec![(source(&[10], 1), 1.0), (source(&[10], 1), 1e-9)], None, cut(4, 0.0, 0));
    assert!(matches!(refused, Err(DataError::Weight { source_number: 1, .. })));
}

#[test]
fn padding_is_counted_by_packing() {
    let with = |packing| {
        let cut = Cut { sequence_length: 8, packing, validation: 0.0, seed: 0 };
        one(&[3, 9, 4], cut).unwrap().train_sizes()[0].padding(8)
    };
    // 19 tokens with their ends. Packed: 3 x 8. Apart: 4 of 8, then 10 = 8 + 2 of 8, then 5 of 8.
    assert!((with(Packing::Packed) - 5.0 / 24.0).abs() < 1e-12);
    assert!((with(Packing::Documents) - 13.0 / 32.0).abs() < 1e-12);
}

#[test]
fn the_fingerprint_changes_with_all_that_samples_depend_on_but_the_seed() {
    let print = |lengths: &[u32], change: &dyn Fn(&mut Cut)| {
        let mut cut = cut(4, 0.2, 0);
        change(&mut cut);
        one(lengths, cut).unwrap().fingerprint().to_owned()
    };
    let base = print(&[20, 20, 20], &|_| {});
    assert_eq!(base, print(&[20, 20, 20], &|cut| cut.seed = 9));
    assert_eq!(base.len(), 64);
    let mut all = vec![
        base,
        print(&[20, 20, 21], &|_| {}),
        print(&[20, 40], &|_| {}),
        print(&[20, 20, 20], &|cut| cut.validation = 0.3),
        print(&[20, 20, 20], &|cut| cut.sequence_length = 5),
        print(&[20, 20, 20], &|cut| cut.packing = Packing::Documents),
    ];
    let mixed = |weight| {
        let sources = vec![(source(&[20, 20, 20], 1), weight), (source(&[20], 1), 1.0)];
        Dataset::new(sources, None, cut(4, 0.2, 0)).unwrap().fingerprint().to_owned()
    };
    all.extend([mixed(1.0), mixed(2.0)]);
    let evaluated =
        Dataset::new(vec![(source(&[20, 20, 20], 1), 1.0)], Some(source(&[9], 1)), cut(4, 0.0, 0));
    all.push(evaluated.unwrap().fingerprint().to_owned());
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}

proptest! {
    #[test]
    fn valid_targets_are_those_that_a_sample_has(
        lengths in prop::collection::vec(3_u32..60, 2..20),
        length in 1_usize..30,
        packed: bool,
        seed: u64,
        number in 0_u64..1 << 40,
    ) {
        let packing = if packed { Packing::Packed } else { Packing::Documents };
        let data = one(&lengths, Cut { sequence_length: length, packing, validation: 0.3, seed }).unwrap();
        let count = |targets: &[i32]| targets.iter().filter(|&&target| target != IGNORE).count() as u64;
        for number in number..number + 20 {
            prop_assert_eq!(count(&sample(&data, number).1), data.train_valid(number));
        }
        for number in 0..data.validation_samples() {
            prop_assert_eq!(count(&evaluation_sample(&data, number).1), data.validation_valid(number));
        }
    }
}
