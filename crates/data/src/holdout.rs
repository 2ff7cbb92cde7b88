//! Which documents are held out for validation.

/// A document that would bring the held-out tokens above this multiple of the share is skipped: a few
/// large documents must not turn a small share into a large one.
const OVERSHOOT: f64 = 1.5;

/// What is held out of a corpus.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Holdout {
    /// Nothing.
    Nothing,
    /// Whole documents: for each document, whether it is held out.
    Documents(Vec<bool>),
    /// The end of one document, since every document alone is too large.
    Tail {
        /// Index of the document, the longest.
        document: usize,
        /// Tokens at its end that are held out.
        tokens: usize,
    },
}

/// Chooses about `share` (0 or more, below 1) of the tokens of documents with these token counts.
///
/// The choice depends on the counts and their order alone: not on paths, threads or the seed of a run, so
/// that runs on the same data are compared on the same held-out text.
pub(crate) fn choose(lengths: &[usize], share: f64) -> Holdout {
    let total: usize = lengths.iter().sum();
    let wanted = share * total as f64;
    if wanted <= 0.0 {
        return Holdout::Nothing;
    }
    let mut visits: Vec<usize> = (0..lengths.len()).collect();
    visits.sort_by_key(|&index| (mix(mix(index as u64) ^ lengths[index] as u64), index));

    let mut held = vec![false; lengths.len()];
    let mut held_tokens = 0;
    for index in visits {
        let with_it = held_tokens + lengths[index];
        // A share of 2/3 and more would allow everything: something must be left to train on.
        if (with_it as f64) <= OVERSHOOT * wanted && with_it < total {
            held[index] = true;
            held_tokens = with_it;
        }
        if held_tokens as f64 >= wanted {
            break;
        }
    }
    if held_tokens > 0 { Holdout::Documents(held) } else { longest_tail(lengths, wanted) }
}

/// The last `wanted` tokens of the longest document, the first of them if there are several.
fn longest_tail(lengths: &[usize], wanted: f64) -> Holdout {
    let longest = lengths.iter().enumerate().max_by_key(|&(index, &length)| (length, usize::MAX - index));
    match longest {
        Some((document, &length)) => {
            Holdout::Tail { document, tokens: (wanted.round() as usize).min(length) }
        }
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

    fn held_tokens(lengths: &[usize], holdout: &Holdout) -> usize {
        match holdout {
            Holdout::Nothing => 0,
            Holdout::Documents(held) => lengths.iter().zip(held).filter(|(_, h)| **h).map(|(l, _)| l).sum(),
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
        assert_eq!(choose(&[5, 5], 0.0), Holdout::Nothing);
        assert_eq!(choose(&[], 0.5), Holdout::Nothing);
    }

    #[test]
    fn many_documents_come_close_to_the_share() {
        let lengths = vec![100; 1000];
        assert_eq!(held_tokens(&lengths, &choose(&lengths, 0.1)), 10_000);
    }

    #[test]
    fn the_documents_chosen_are_scattered() {
        let Holdout::Documents(held) = choose(&[100; 1000], 0.1) else { panic!("documents expected") };
        let in_first_half = held[..500].iter().filter(|held| **held).count();
        assert!((30..=70).contains(&in_first_half), "{in_first_half} of 100");
    }

    #[test]
    fn documents_that_are_too_large_leave_a_tail_of_the_longest() {
        assert_eq!(choose(&[1000], 0.1), Holdout::Tail { document: 0, tokens: 100 });
        assert_eq!(choose(&[500, 900, 900], 0.1), Holdout::Tail { document: 1, tokens: 230 });
    }

    #[test]
    fn a_large_share_leaves_something_to_train_on() {
        let lengths = [10, 10];
        assert_eq!(held_tokens(&lengths, &choose(&lengths, 0.99)), 10);
    }

    proptest! {
        #[test]
        fn the_share_is_respected(
            lengths in prop::collection::vec(1_usize..500, 1..60),
            share in 0.001_f64..0.999,
        ) {
            let total: usize = lengths.iter().sum();
            let holdout = choose(&lengths, share);
            let held = held_tokens(&lengths, &holdout);
            // Half a token: a tail is rounded to whole tokens.
            prop_assert!(held as f64 <= OVERSHOOT * share * total as f64 + 0.5);
            if let Holdout::Tail { document, tokens } = holdout {
                prop_assert_eq!(lengths[document], *lengths.iter().max().unwrap());
                prop_assert!(tokens <= lengths[document]);
            } else {
                prop_assert!(held > 0 && held < total);
            }
        }
    }
}
