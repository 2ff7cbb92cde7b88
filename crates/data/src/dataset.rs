//! A corpus split into training and validation, both cut into windows of one length.

use crate::{
    Corpus, DataError, Order,
    holdout::{self, Holdout},
    part::Part,
};

/// Training and validation samples of a corpus.
///
/// Each part is one stream: its documents in the order of the corpus, each followed by the end-of-document
/// token if there is one. Window *w* has the tokens `w * T .. (w + 1) * T` of the stream as inputs, where
/// *T* is the sequence length, and the token after each input as its target. The last window is padded:
/// inputs with 0, targets with [`IGNORE`](crate::IGNORE). No token is dropped.
#[derive(Debug)]
pub struct Dataset {
    train: Part,
    validation: Part,
    sequence_length: usize,
    max_token: u32,
}

impl Dataset {
    /// Splits a corpus and cuts it into windows of `sequence_length` input tokens.
    ///
    /// About `validation_share` of the tokens is held out, as whole documents: they are visited in the
    /// order of a hash of position and token count and taken until the share is reached, except those
    /// that would bring it above 1.5 times the share. If all are too large for that, the end of the
    /// longest document is held out instead, and both of its pieces count as documents. A share of 0
    /// holds nothing out.
    ///
    /// # Errors
    ///
    /// [`DataError::ValidationShare`] unless `0 <= validation_share < 1`; [`DataError::SequenceLength`] if
    /// the length is 0; [`DataError::TokenTooLarge`] for an id above `i32::MAX`;
    /// [`DataError::TrainTooShort`] and [`DataError::ValidationTooShort`] if a part that is wanted has
    /// no window.
    pub fn new(
        corpus: Corpus,
        validation_share: f64,
        sequence_length: usize,
        end_of_document: Option<u32>,
    ) -> Result<Dataset, DataError> {
        if !(0.0..1.0).contains(&validation_share) {
            return Err(DataError::ValidationShare { share: validation_share });
        }
        if sequence_length == 0 {
            return Err(DataError::SequenceLength);
        }
        let tokens = corpus.documents.iter().flat_map(|document| &document.tokens);
        let max_token = tokens.chain(&end_of_document).copied().max().unwrap_or(0);
        if i32::try_from(max_token).is_err() {
            return Err(DataError::TokenTooLarge { token: max_token });
        }
        let (train, validation) = split(corpus, validation_share, end_of_document);
        if train.windows(sequence_length) == 0 {
            return Err(DataError::TrainTooShort { tokens: train.tokens().len() });
        }
        if validation_share > 0.0 && validation.windows(sequence_length) == 0 {
            let tokens = validation.tokens().len();
            return Err(DataError::ValidationTooShort { share: validation_share, tokens });
        }
        Ok(Dataset { train, validation, sequence_length, max_token })
    }

    /// Input tokens of a window.
    pub fn sequence_length(&self) -> usize {
        self.sequence_length
    }

    /// The largest token id, end-of-document included; a model needs a larger vocabulary than this.
    pub fn max_token(&self) -> u32 {
        self.max_token
    }

    /// Windows of the training part, at least 1.
    pub fn train_windows(&self) -> usize {
        self.train.windows(self.sequence_length)
    }

    /// Windows of the validation part; 0 only if the validation share is 0.
    pub fn validation_windows(&self) -> usize {
        self.validation.windows(self.sequence_length)
    }

    /// Tokens of the training part, end-of-document tokens included.
    pub fn train_tokens(&self) -> usize {
        self.train.tokens().len()
    }

    /// Tokens of the validation part, end-of-document tokens included.
    pub fn validation_tokens(&self) -> usize {
        self.validation.tokens().len()
    }

    /// Documents of the training part.
    pub fn train_documents(&self) -> usize {
        self.train.documents()
    }

    /// Documents of the validation part.
    pub fn validation_documents(&self) -> usize {
        self.validation.documents()
    }

    /// The order in which a run with this seed takes the training windows.
    pub fn order(&self, seed: u64) -> Order {
        Order::over_some(seed, self.train_windows())
    }

    /// Writes inputs and targets of a training window.
    ///
    /// # Panics
    ///
    /// If `window` is not below [`train_windows`](Dataset::train_windows), or a slice does not have
    /// [`sequence_length`](Dataset::sequence_length) elements.
    pub fn fill_train(&self, window: usize, tokens: &mut [i32], targets: &mut [i32]) {
        assert_eq!(tokens.len(), self.sequence_length, "a window has sequence_length tokens");
        self.train.fill(window, tokens, targets);
    }

    /// Writes inputs and targets of a validation window.
    ///
    /// # Panics
    ///
    /// If `window` is not below [`validation_windows`](Dataset::validation_windows), or a slice does not
    /// have [`sequence_length`](Dataset::sequence_length) elements.
    pub fn fill_validation(&self, window: usize, tokens: &mut [i32], targets: &mut [i32]) {
        assert_eq!(tokens.len(), self.sequence_length, "a window has sequence_length tokens");
        self.validation.fill(window, tokens, targets);
    }

    /// Targets of a training window that are not [`IGNORE`](crate::IGNORE), without a scan; 0 past the
    /// last window.
    pub fn train_valid_targets(&self, window: usize) -> usize {
        self.train.valid_targets(window, self.sequence_length)
    }

    /// Targets of a validation window that are not [`IGNORE`](crate::IGNORE), without a scan; 0 past the
    /// last window.
    pub fn validation_valid_targets(&self, window: usize) -> usize {
        self.validation.valid_targets(window, self.sequence_length)
    }

    /// A hash, in hexadecimal, of both streams and the sequence length: equal if and only if all samples
    /// are. A resumed run compares it to learn whether its data changed. Reads all tokens.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(self.sequence_length as u64).to_le_bytes());
        for part in [&self.train, &self.validation] {
            // The length first, so that no token can move from one stream to the other unnoticed.
            hasher.update(&(part.tokens().len() as u64).to_le_bytes());
            for chunk in part.tokens().chunks(16 * 1024) {
                let bytes: Vec<u8> = chunk.iter().flat_map(|token| token.to_le_bytes()).collect();
                hasher.update(&bytes);
            }
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// The training and the validation part of a corpus.
fn split(corpus: Corpus, share: f64, end_of_document: Option<u32>) -> (Part, Part) {
    let lengths: Vec<usize> = corpus.documents.iter().map(|document| document.tokens.len()).collect();
    let holdout = holdout::choose(&lengths, share);
    let mut train = Part::with_capacity(lengths.iter().sum::<usize>() + lengths.len());
    let mut validation = Part::with_capacity(0);
    // By value, so that each document is freed as soon as it is copied.
    for (index, document) in corpus.documents.into_iter().enumerate() {
        match &holdout {
            Holdout::Documents(held) if held[index] => validation.append(&document.tokens, end_of_document),
            Holdout::Tail { document: longest, tokens } if *longest == index => {
                let (head, tail) = document.tokens.split_at(document.tokens.len() - tokens);
                train.append(head, end_of_document);
                validation.append(tail, end_of_document);
            }
            _ => train.append(&document.tokens, end_of_document),
        }
    }
    (train, validation)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;
    use crate::{Document, IGNORE};

    const END: u32 = 900;

    /// A corpus whose documents have these token counts, and whose tokens are numbered through.
    fn corpus(lengths: &[usize]) -> Corpus {
        let mut next = 1;
        let documents = lengths.iter().enumerate().map(|(index, &length)| {
            let tokens = (next..next + length as u32).collect();
            next += length as u32;
            Document { path: PathBuf::from(format!("{index}.txt")), tokens }
        });
        Corpus { documents: documents.collect(), skipped_empty: 0 }
    }

    #[test]
    fn without_a_share_all_is_trained_on() {
        let dataset = Dataset::new(corpus(&[3, 2]), 0.0, 4, Some(END)).unwrap();
        assert_eq!((dataset.train_tokens(), dataset.train_documents(), dataset.train_windows()), (7, 2, 2));
        assert_eq!((dataset.validation_tokens(), dataset.validation_windows()), (0, 0));
        assert_eq!(dataset.max_token(), END);
        let (mut tokens, mut targets) = ([0; 4], [0; 4]);
        dataset.fill_train(1, &mut tokens, &mut targets);
        assert_eq!((tokens, targets), ([4, 5, 900, 0], [5, 900, IGNORE, IGNORE]));
        assert_eq!((dataset.train_valid_targets(0), dataset.train_valid_targets(1)), (4, 2));
    }

    #[test]
    fn one_document_is_split_at_its_end() {
        let dataset = Dataset::new(corpus(&[10]), 0.2, 4, None).unwrap();
        let (mut tokens, mut targets) = ([0; 4], [0; 4]);
        dataset.fill_validation(0, &mut tokens, &mut targets);
        assert_eq!((tokens, targets), ([9, 10, 0, 0], [10, -1, -1, -1]));
        assert_eq!(dataset.validation_valid_targets(0), 1);
        assert_eq!((dataset.train_tokens(), dataset.validation_tokens()), (8, 2));
        assert_eq!((dataset.train_documents(), dataset.validation_documents()), (1, 1));
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        for share in [-0.1, 1.0, f64::NAN, f64::INFINITY] {
            let refused = Dataset::new(corpus(&[10]), share, 4, None);
            assert!(matches!(refused, Err(DataError::ValidationShare { .. })), "{share}");
        }
        let refused = |lengths: &[usize], share, length, end| {
            Dataset::new(corpus(lengths), share, length, end).unwrap_err()
        };
        assert!(matches!(refused(&[10], 0.1, 0, None), DataError::SequenceLength));
        assert!(matches!(refused(&[1], 0.0, 4, None), DataError::TrainTooShort { tokens: 1 }));
        assert!(matches!(refused(&[], 0.1, 4, None), DataError::TrainTooShort { tokens: 0 }));
        assert!(matches!(refused(&[10], 0.01, 4, None), DataError::ValidationTooShort { tokens: 0, .. }));
        assert!(matches!(refused(&[10], 0.1, 4, None), DataError::ValidationTooShort { tokens: 1, .. }));
        assert!(
            matches!(refused(&[4], 0.0, 4, Some(1 << 31)), DataError::TokenTooLarge { token } if token == 1 << 31)
        );
        let refused = Dataset::new(corpus(&[10]), 0.01, 4, Some(END));
        // An end of document alone is no sample.
        assert!(matches!(refused, Err(DataError::ValidationTooShort { tokens: 1, .. })));
    }

    #[test]
    fn the_fingerprint_changes_with_tokens_split_and_length() {
        let make = |lengths: &[usize], share, length, end| {
            Dataset::new(corpus(lengths), share, length, end).unwrap().fingerprint()
        };
        let base = make(&[20, 20], 0.2, 4, Some(END));
        assert_eq!(base, make(&[20, 20], 0.2, 4, Some(END)));
        assert_eq!(base.len(), 64);
        for other in [
            make(&[20, 21], 0.2, 4, Some(END)),
            make(&[20, 20], 0.3, 4, Some(END)),
            make(&[20, 20], 0.2, 5, Some(END)),
            make(&[20, 20], 0.2, 4, None),
        ] {
            assert_ne!(base, other);
        }
    }

    proptest! {
        #[test]
        fn each_token_is_in_one_part(
            lengths in prop::collection::vec(3_usize..60, 2..20),
            share in 0.1_f64..0.5,
        ) {
            let total: usize = lengths.iter().sum();
            let dataset = Dataset::new(corpus(&lengths), share, 7, Some(9999)).unwrap();
            let parts = [&dataset.train, &dataset.validation];
            let mut seen: Vec<i32> = parts.iter().flat_map(|part| part.tokens()).copied().collect();
            seen.retain(|&token| token != 9999);
            seen.sort_unstable();
            prop_assert_eq!(seen, (1..=total as i32).collect::<Vec<_>>());
            for part in parts {
                let mut own = part.tokens().to_vec();
                own.retain(|&token| token != 9999);
                prop_assert!(own.is_sorted());
                prop_assert_eq!(part.tokens().len() - own.len(), part.documents());
            }
        }
    }
}
