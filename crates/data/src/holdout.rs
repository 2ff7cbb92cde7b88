//! Which documents are held out for validation.

/// A document that would bring the held-out tokens above this multiple of the share is skipped: a few
/// large documents must not turn a small share into a large one.
const OVERSHOOT: f64 = 1.5;

/// Bands that the documents are visited in: only those of one band are in memory at once, beside a bit for each
/// document.
const BANDS: u64 = 16;

/// What is held out of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Holdout {
    /// Nothing.
    Nothing,
    /// Whole documents.
    Documents(Bits),
    /// The end of one document, since every document alone is too large.
    Tail {
        /// Index of the document, the longest.
        document: u64,
        /// Tokens at its end that are held out.
        tokens: u64,
    },
}

/// A set of documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    fn new(documents: u64) -> Bits {
        Bits(vec![0; documents.div_ceil(64) as usize])
    }

    fn insert(&mut self, document: u64) {
        self.0[(document / 64) as usize] |= 1 << (document % 64);
    }

    /// Whether the document is in the set.
    pub(crate) fn contains(&self, document: u64) -> bool {
        self.0[(document / 64) as usize] >> (document % 64) & 1 == 1
    }
}

/// Chooses about `share` (0 or more, below 1) of the tokens of `documents` documents, whose token counts `length`
/// gives and which have `total` tokens in all.
///
/// They are visited in the order of a hash of index and token count, and taken until the share is reached, except
/// those that would bring it above 1.5 times the share. The choice depends on the counts and their order alone: not on
/// paths, threads or the seed of a run, so that runs on the same data are compared on the same held-out text.
pub(crate) fn choose(documents: u64, length: &dyn Fn(u64) -> u64, total: u64, share: f64) -> Holdout {
    let wanted = share * total as f64;
    if wanted <= 0.0 {
        return Holdout::Nothing;
    }
    let mut held = Bits::new(documents);
    let mut held_tokens = 0;
    let width = u64::MAX / BANDS + 1;
    'bands: for band in 0..BANDS {
        let hash = |index| mix(mix(index) ^ length(index));
        let mut visits: Vec<(u64, u64)> = (0..documents)
            .map(|index| (hash(index), index))
            .filter(|(hash, _)| hash / width == band)
            .collect();
        visits.sort_unstable();
        for (_, index) in visits {
            let with_it = held_tokens + length(index);
            // A share of 2/3 and more would allow everything: something must be left to train on.
            if (with_it as f64) <= OVERSHOOT * wanted && with_it < total {
                held.insert(index);
                held_tokens = with_it;
            }
            if held_tokens as f64 >= wanted {
                break 'bands;
            }
        }
    }
    if held_tokens > 0 { Holdout::Documents(held) } else { longest_tail(documents, length, wanted) }
}

/// The last `wanted` tokens of the longest document, the first of them if there are several.
fn longest_tail(documents: u64, length: &dyn Fn(u64) -> u64, wanted: f64) -> Holdout {
    match (0..documents).max_by_key(|&index| (length(index), u64::MAX - index)) {
        Some(document) => Holdout::Tail { document, tokens: (wanted.round() as u64).min(length(document)) },
        None => Holdout::Nothing,
    }
}

/// The output function of SplitMix64: a bijection in which each input bit affects each output bit.
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chosen(lengths: &[u64], share: f64) -> Holdout {
        choose(lengths.len() as u64, &|index| lengths[index as usize], lengths.iter().sum(), share)
    }

    fn held_tokens(lengths: &[u64], holdout: &Holdout) -> u64 {
        match holdout {
            Holdout::Nothing => 0,
            Holdout::Documents(held) => lengths
                .iter()
                .zip(0..)
                .filter(|(_, index)| held.contains(*index))
                .map(|(length, _)| length)
                .sum(),
            Holdout::Tail { tokens, .. } => *tokens,
        }
    }

    #[test]
    fn mix_is_splitmix64() {
        // First outputs of the reference implementation seeded with 0.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn no_share_and_no_documents_hold_out_nothing() {
        assert_eq!(chosen(&[5, 5], 0.0), Holdout::Nothing);
        assert_eq!(chosen(&[], 0.5), Holdout::Nothing);
    }

    #[test]
    fn many_documents_come_close_to_the_share() {
        let lengths = vec![100; 1000];
        assert_eq!(held_tokens(&lengths, &chosen(&lengths, 0.1)), 10_000);
    }

    #[test]
    fn the_documents_chosen_are_scattered() {
        let Holdout::Documents(held) = chosen(&[100; 1000], 0.1) else { panic!("documents expected") };
        let in_first_half = (0..500).filter(|&index| held.contains(index)).count();
        assert!((30..=70).contains(&in_first_half), "{in_first_half} of 100");
    }

    #[test]
    fn documents_that_are_too_large_leave_a_tail_of_the_longest() {
        assert_eq!(chosen(&[1000], 0.1), Holdout::Tail { document: 0, tokens: 100 });
        assert_eq!(chosen(&[500, 900, 900], 0.1), Holdout::Tail { document: 1, tokens: 230 });
    }

    #[test]
    fn a_large_share_leaves_something_to_train_on() {
        let lengths = [10, 10];
        assert_eq!(held_tokens(&lengths, &chosen(&lengths, 0.99)), 10);
    }

    /// The same law over the whole list at once.
    fn at_once(lengths: &[u64], share: f64) -> Vec<bool> {
        let total: u64 = lengths.iter().sum();
        let wanted = share * total as f64;
        let mut visits: Vec<usize> = (0..lengths.len()).collect();
        visits.sort_by_key(|&index| (mix(mix(index as u64) ^ lengths[index]), index));
        let (mut held, mut sum) = (vec![false; lengths.len()], 0);
        for index in visits {
            if (sum as f64) < wanted
                && (sum + lengths[index]) as f64 <= OVERSHOOT * wanted
                && sum + lengths[index] < total
            {
                held[index] = true;
                sum += lengths[index];
            }
        }
        held
    }

    proptest! {
        #[test]
        fn the_share_is_respected(
            lengths in prop::collection::vec(1_u64..500, 1..60),
            share in 0.001_f64..0.999,
        ) {
            let total: u64 = lengths.iter().sum();
            let holdout = chosen(&lengths, share);
            let held = held_tokens(&lengths, &holdout);
            // Half a token: a tail is rounded to whole tokens.
            prop_assert!(held as f64 <= OVERSHOOT * share * total as f64 + 0.5);
            if let Holdout::Tail { document, tokens } = holdout {
                prop_assert_eq!(lengths[document as usize], *lengths.iter().max().unwrap());
                prop_assert!(tokens <= lengths[document as usize]);
            } else {
                prop_assert!(held > 0 && held < total);
            }
        }

        #[test]
        fn bands_choose_what_one_list_would(
            lengths in prop::collection::vec(1_u64..500, 1..300),
            share in 0.001_f64..0.999,
        ) {
            let expected = at_once(&lengths, share);
            match chosen(&lengths, share) {
                Holdout::Documents(held) => {
                    let held: Vec<bool> = (0..lengths.len() as u64).map(|index| held.contains(index)).collect();
                    prop_assert_eq!(held, expected);
                }
                _ => prop_assert!(!expected.contains(&true)),
            }
        }
    }
}
