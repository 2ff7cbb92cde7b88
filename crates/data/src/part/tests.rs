//! Samples against a naive reference that lays all documents out and cuts them.

use proptest::prelude::*;

use super::*;
use crate::{
    holdout::{self, Holdout},
    prepared::tests::made_of,
};

/// The end-of-document token of these tests. It is the padding token as well.
const END: u32 = 0;

/// A sample: inputs, targets, positions.
type Sample = (Vec<i32>, Vec<i32>, Vec<i32>);

fn sample(part: &Part, number: u64) -> Sample {
    let length = part.length as usize;
    let (mut tokens, mut targets, mut positions) = (vec![77; length], vec![77; length], vec![77; length]);
    part.fill(number, &mut tokens, &mut targets, &mut positions).unwrap();
    (tokens, targets, positions)
}

fn samples(part: &Part) -> Vec<Sample> {
    (0..part.samples()).map(|number| sample(part, number)).collect()
}

/// The inputs, targets and positions of a document alone.
fn alone(document: &[u32]) -> Vec<(i32, i32, i32)> {
    let target = |at: usize| document.get(at + 1).map_or(IGNORE, |&token| token as i32);
    document.iter().enumerate().map(|(at, &token)| (token as i32, target(at), at as i32)).collect()
}

/// What the documents' samples must be, worked out position by position.
fn reference(documents: &[Vec<u32>], packing: Packing, length: usize) -> Vec<Sample> {
    let rows: Vec<Vec<(i32, i32, i32)>> = documents.iter().map(|document| alone(document)).collect();
    let mut windows: Vec<Vec<(i32, i32, i32)>> = Vec::new();
    let streams = match packing {
        Packing::Packed => vec![rows.concat()],
        Packing::Documents => rows,
    };
    for stream in streams {
        windows.extend(stream.chunks(length).map(<[_]>::to_vec));
        // A window with nothing but the stream's last token has nothing to predict.
        windows.pop_if(|window| window.len() == 1 && window[0].1 == IGNORE);
    }
    if packing == Packing::Packed && windows.iter().all(|window| window.iter().all(|row| row.1 == IGNORE)) {
        windows.clear();
    }
    windows.into_iter().map(|window| padded(window, length)).collect()
}

/// Pads a window, and lets the positions of the document that it begins within begin at 0.
fn padded(window: Vec<(i32, i32, i32)>, length: usize) -> Sample {
    let (mut tokens, mut targets, mut positions) = (Vec::new(), Vec::new(), Vec::new());
    let mut within = true;
    for (at, &(token, target, position)) in window.iter().enumerate() {
        within &= at == 0 || position != 0;
        tokens.push(token);
        targets.push(target);
        positions.push(if within { at as i32 } else { position });
    }
    let padding = length - window.len();
    tokens.extend(vec![0; padding]);
    targets.extend(vec![IGNORE; padding]);
    positions.extend(0..padding as i32);
    (tokens, targets, positions)
}

fn part_of(documents: &[Vec<u32>], end: Option<u32>, packing: Packing, length: u64) -> (Part, Vec<Vec<u32>>) {
    let ended = documents.iter().map(|document| document.iter().copied().chain(end).collect()).collect();
    (Part::new(made_of(documents, end, 1000, 300).1, Selection::All, packing, length), ended)
}

/// A row of the field's reports: a mask by token id had hidden the real ends of documents, since padding had the
/// same id.
#[test]
fn mb_4660_an_end_of_text_that_is_the_padding_id_is_a_target() {
    for packing in [Packing::Packed, Packing::Documents] {
        let (part, _) = part_of(&[vec![5, 6], vec![7, 0, 8]], Some(END), packing, 4);
        let samples = samples(&part);
        let ends = |sample: &Sample| sample.1.iter().filter(|&&target| target == END as i32).count();
        // The end of both documents, and the 0 within the second.
        assert_eq!(samples.iter().map(ends).sum::<usize>(), 3, "{samples:?}");
        for (tokens, targets, _) in &samples {
            for (token, target) in tokens.iter().zip(targets) {
                assert!(*token != 6 || *target == 0, "the end after the 6 is predicted");
            }
        }
    }
}

/// A row of the field's reports: a document's loss depended on its neighbours. What attention needs to keep them
/// apart, positions, and what the loss needs, targets, are those of each document alone.
#[test]
fn functionary_265_packed_documents_are_the_separate_ones_side_by_side() {
    let documents = [vec![5, 6, 7], vec![8], vec![9, 10]];
    let (packed, ended) = part_of(&documents, Some(END), Packing::Packed, 9);
    let (tokens, targets, positions) = sample(&packed, 0);
    let together: Vec<_> =
        tokens.into_iter().zip(targets).zip(positions).map(|((a, b), c)| (a, b, c)).collect();
    let separate: Vec<_> = ended.iter().flat_map(|document| alone(document)).collect();
    assert_eq!(together, separate);
}

#[test]
fn a_sample_by_hand() {
    let documents = [vec![1, 2, 3], vec![4, 5]];
    let (part, _) = part_of(&documents, Some(9), Packing::Packed, 5);
    assert_eq!(
        samples(&part),
        [
            (vec![1, 2, 3, 9, 4], vec![2, 3, 9, IGNORE, 5], vec![0, 1, 2, 3, 0]),
            (vec![5, 9, 0, 0, 0], vec![9, IGNORE, IGNORE, IGNORE, IGNORE], vec![0, 1, 0, 1, 2]),
        ]
    );
    let (part, _) = part_of(&documents, Some(9), Packing::Documents, 2);
    assert_eq!(
        samples(&part),
        [
            (vec![1, 2], vec![2, 3], vec![0, 1]),
            (vec![3, 9], vec![9, IGNORE], vec![0, 1]),
            (vec![4, 5], vec![5, 9], vec![0, 1]),
        ]
    );
}

#[test]
fn documents_of_one_token_give_nothing_to_train_on() {
    for packing in [Packing::Packed, Packing::Documents] {
        let (part, _) = part_of(&[vec![1], vec![2], vec![3]], None, packing, 2);
        assert_eq!((part.samples(), part.valid(), part.documents()), (0, 0, 3));
        assert_eq!(part.valid_targets(0), 0);
    }
}

#[test]
#[should_panic(expected = "sample 2 of 2")]
fn a_sample_past_the_last_is_refused() {
    let (part, _) = part_of(&[vec![1, 2, 3, 4, 5, 6]], None, Packing::Packed, 4);
    sample(&part, 2);
}

fn documents() -> impl Strategy<Value = Vec<Vec<u32>>> {
    let document = prop::collection::vec(1_u32..1000, 1..30);
    // More than one stretch of the index, now and then.
    prop_oneof![4 => prop::collection::vec(document.clone(), 1..20), 1 => prop::collection::vec(document, 120..400)]
}

fn packing() -> impl Strategy<Value = Packing> {
    prop::sample::select(vec![Packing::Packed, Packing::Documents])
}

proptest! {
    #[test]
    fn samples_are_those_of_the_reference(
        documents in documents(), end: bool, packing in packing(), length in 1_usize..40,
    ) {
        let (part, ended) = part_of(&documents, end.then_some(END), packing, length as u64);
        prop_assert_eq!(samples(&part), reference(&ended, packing, length));
    }

    #[test]
    fn every_token_is_predicted_once(
        documents in documents(), end: bool, packing in packing(), length in 1_usize..40,
    ) {
        let (part, ended) = part_of(&documents, end.then_some(END), packing, length as u64);
        let mut pairs = Vec::new();
        let (mut valid, mut inputs) = (0, 0);
        for (number, (tokens, targets, positions)) in (0..).zip(samples(&part)) {
            let counted = targets.iter().filter(|&&target| target != IGNORE).count() as u64;
            prop_assert_eq!(counted, part.valid_targets(number));
            valid += counted;
            prop_assert!(positions.iter().all(|&position| (0..length as i32).contains(&position)));
            let padding = tokens.iter().zip(&targets).rev()
                .take_while(|&(&token, &target)| token == 0 && target == IGNORE).count();
            inputs += (length - padding) as u64;
            let both = tokens.into_iter().zip(targets);
            pairs.extend(both.filter(|&(_, target)| target != IGNORE));
        }
        let expected: Vec<(i32, i32)> = ended.iter()
            .flat_map(|document| document.windows(2).map(|two| (two[0] as i32, two[1] as i32))).collect();
        prop_assert_eq!(pairs, expected);
        prop_assert_eq!(valid, part.valid());
        // An end of document looks like padding here, so only without one can the inputs be counted.
        if !end {
            prop_assert_eq!(if valid == 0 { 0 } else { inputs }, if valid == 0 { 0 } else { part.inputs() });
        }
    }

    #[test]
    fn held_out_documents_are_in_one_part_alone(
        documents in documents(), share in 0.05_f64..0.6, packing in packing(), length in 1_u64..20,
    ) {
        let (_, data) = made_of(&documents, Some(END), 1000, 300);
        let lengths: Vec<u64> = documents.iter().map(|document| document.len() as u64 + 1).collect();
        let total = lengths.iter().sum();
        let chosen = holdout::choose(lengths.len() as u64, &|index| lengths[index as usize], total, share);
        let (train, held) = match &chosen {
            Holdout::Documents(set) => {
                let set = Arc::new(set.clone());
                (Selection::Without(Arc::clone(&set)), Selection::Within(set))
            }
            Holdout::Tail { document, tokens } => {
                let at = lengths[*document as usize] - tokens;
                (Selection::Head(*document, at), Selection::Tail(*document, at))
            }
            Holdout::Nothing => return Ok(()),
        };
        let parts = [train, held].map(|selection| Part::new(Arc::clone(&data), selection, packing, length));
        prop_assert_eq!(parts[0].tokens() + parts[1].tokens(), total);
        for (part, is_held) in parts.iter().zip([false, true]) {
            let mut own = Vec::new();
            for (index, document) in (0..).zip(&documents) {
                let ended: Vec<u32> = document.iter().copied().chain([END]).collect();
                own.push(match &chosen {
                    Holdout::Documents(set) if set.contains(index) == is_held => ended,
                    Holdout::Tail { document: cut, tokens } if *cut == index => {
                        let (head, tail) = ended.split_at(ended.len() - *tokens as usize);
                        if is_held { tail.to_vec() } else { head.to_vec() }
                    }
                    Holdout::Tail { .. } if !is_held => ended,
                    _ => Vec::new(),
                });
            }
            own.retain(|document| !document.is_empty());
            prop_assert_eq!(part.documents(), own.len() as u64);
            prop_assert_eq!(samples(part), reference(&own, packing, length as usize));
        }
    }
}
