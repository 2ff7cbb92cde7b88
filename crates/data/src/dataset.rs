//! Sources become samples: a part of each is held out, the rest is mixed, and every sample has a number.

use std::sync::Arc;

use crate::{
    DataError, Packing, Pick, Prepared,
    holdout::{self, Holdout},
    mixture::Mixture,
    order::Order,
    part::{Part, Selection},
};

/// How prepared data becomes samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cut {
    /// Input tokens of a sample, *T*.
    pub sequence_length: usize,
    /// How documents become samples.
    pub packing: Packing,
    /// Share of each source's tokens that is held out: 0 or more, below 1.
    pub validation: f64,
    /// Seed of the order of the training samples.
    pub seed: u64,
}

/// Samples to train on and to evaluate on.
///
/// Training samples are numbered through the whole run: step *k* takes as many as a step has, from where step *k* - 1
/// ended, however many ranks and micro-batches share them. Which tokens sample *n* has depends on the data, the cut and
/// *n* alone: nothing here keeps a position. Of one source, samples `e * epoch .. (e + 1) * epoch` are a permutation of
/// all its samples, another one for each *e*. Of several, each block of 4096 samples is shared out by weight, and
/// each source goes through its own epochs.
#[derive(Debug)]
pub struct Dataset {
    train: Vec<Part>,
    mixture: Mixture,
    validation: Vec<Part>,
    /// Samples of the parts before each part of `validation`, then of all.
    validation_firsts: Vec<u64>,
    cut: Cut,
    max_token: u32,
    fingerprint: String,
}

impl Dataset {
    /// Cuts sources, each with its weight in the mixture, and holds a part of each out, or takes `evaluation` to
    /// evaluate on.
    ///
    /// About a share `cut.validation` of the tokens is held out, as whole documents: they are visited in the order of a
    /// hash of index and token count and taken until the share is reached, except those that would bring it above
    /// 1.5 times the share. If all are too large for that, the end of the longest document is held out instead, and
    /// both of its pieces count as documents.
    ///
    /// # Errors
    ///
    /// [`DataError::ValidationShare`] unless the share is 0 or more and below 1, and 0 with `evaluation`;
    /// [`DataError::SequenceLength`] if the length is 0; [`DataError::TrainTooShort`] and
    /// [`DataError::ValidationTooShort`] if a part that is wanted has no sample; [`DataError::Weight`] for a weight
    /// that is no share; [`DataError::NoSource`] if there is no source.
    pub fn new(
        sources: Vec<(Arc<Prepared>, f64)>,
        evaluation: Option<Arc<Prepared>>,
        cut: Cut,
    ) -> Result<Dataset, DataError> {
        let share = cut.validation;
        if !(0.0..1.0).contains(&share) || (evaluation.is_some() && share > 0.0) {
            return Err(DataError::ValidationShare { share });
        }
        if cut.sequence_length == 0 {
            return Err(DataError::SequenceLength);
        }
        if sources.is_empty() {
            return Err(DataError::NoSource);
        }
        let weights: Vec<f64> = sources.iter().map(|(_, weight)| *weight).collect();
        let all = sources.iter().map(|(data, _)| data).chain(&evaluation);
        let max_token = all.map(|data| data.manifest().largest_token).max().unwrap_or(0);
        let fingerprint = fingerprint(&sources, evaluation.as_deref(), &cut);
        let part = |data: &Arc<Prepared>, selection| {
            Part::new(Arc::clone(data), selection, cut.packing, cut.sequence_length as u64)
        };
        let (mut train, mut validation) = (Vec::new(), Vec::new());
        for (data, _) in &sources {
            let (rest, held) = split(data, share);
            train.push(part(data, rest));
            validation.extend(held.map(|held| part(data, held)));
        }
        validation.extend(evaluation.iter().map(|data| part(data, Selection::All)));
        if let Some(short) = train.iter().find(|part| part.samples() == 0) {
            return Err(DataError::TrainTooShort { tokens: short.tokens() });
        }
        let mut validation_firsts = vec![0];
        for part in &validation {
            validation_firsts.push(validation_firsts[validation_firsts.len() - 1] + part.samples());
        }
        if (share > 0.0 || evaluation.is_some()) && validation_firsts.last() == Some(&0) {
            let tokens = validation.iter().map(Part::tokens).sum();
            return Err(DataError::ValidationTooShort { share, tokens });
        }
        let samples: Vec<u64> = train.iter().map(Part::samples).collect();
        let mixture = Mixture::new(cut.seed, &samples, &weights)?;
        Ok(Dataset { train, mixture, validation, validation_firsts, cut, max_token, fingerprint })
    }

    /// Input tokens of a sample.
    pub fn sequence_length(&self) -> usize {
        self.cut.sequence_length
    }

    /// The largest token id, end-of-document included; a model needs a larger vocabulary than this.
    pub fn max_token(&self) -> u32 {
        self.max_token
    }

    /// Samples in which each token that is trained on is predicted once: what `epochs` can be counted in. `None` for a
    /// mixture of several sources, whose weights let each go through its own epochs.
    pub fn epoch_samples(&self) -> Option<u64> {
        match self.train.as_slice() {
            [only] => Some(only.samples()),
            _ => None,
        }
    }

    /// What each source gives to train on, in order.
    pub fn train_sizes(&self) -> Vec<Size> {
        self.train.iter().map(Size::of).collect()
    }

    /// What is held out, or was given to evaluate on.
    pub fn validation_size(&self) -> Size {
        self.validation.iter().map(Size::of).fold(Size::default(), |sum, size| Size {
            documents: sum.documents + size.documents,
            tokens: sum.tokens + size.tokens,
            valid: sum.valid + size.valid,
            inputs: sum.inputs + size.inputs,
            samples: sum.samples + size.samples,
        })
    }

    /// Where the training sample with this number comes from.
    pub fn pick(&self, number: u64) -> Pick {
        self.mixture.pick(number)
    }

    /// Targets of a training sample that are not [`IGNORE`](crate::IGNORE), without a look at its tokens.
    pub fn train_valid(&self, number: u64) -> u64 {
        let pick = self.pick(number);
        self.train[pick.source].valid_targets(pick.sample)
    }

    /// Writes the training sample with this number: inputs, the token after each or [`IGNORE`](crate::IGNORE), and
    /// positions. A position counts from the start of the document, or from the start of the sample where the document
    /// began before it; so what is to see each other are the tokens since the last position 0. Padding counts
    /// like a document.
    ///
    /// # Errors
    ///
    /// [`DataError::Prepared`] if a file was damaged.
    ///
    /// # Panics
    ///
    /// If a slice does not have [`sequence_length`](Dataset::sequence_length) elements.
    pub fn fill_train(
        &self,
        number: u64,
        tokens: &mut [i32],
        targets: &mut [i32],
        positions: &mut [i32],
    ) -> Result<(), DataError> {
        let pick = self.pick(number);
        self.train[pick.source].fill(pick.sample, tokens, targets, positions)
    }

    /// Samples to evaluate on; 0 if nothing is held out.
    pub fn validation_samples(&self) -> u64 {
        self.validation_firsts.last().copied().unwrap_or(0)
    }

    /// Targets of an evaluation sample that are not [`IGNORE`](crate::IGNORE); 0 past the last.
    pub fn validation_valid(&self, number: u64) -> u64 {
        let Some((part, sample)) = self.validation_place(number) else { return 0 };
        part.valid_targets(sample)
    }

    /// Writes an evaluation sample, as [`fill_train`](Dataset::fill_train) does. Their order is the same for all
    /// seeds, and mixes documents and sources, so that the first few speak for all.
    ///
    /// # Errors
    ///
    /// [`DataError::Prepared`] if a file was damaged.
    ///
    /// # Panics
    ///
    /// If `number` is not below [`validation_samples`](Dataset::validation_samples), or a slice does not have
    /// [`sequence_length`](Dataset::sequence_length) elements.
    pub fn fill_validation(
        &self,
        number: u64,
        tokens: &mut [i32],
        targets: &mut [i32],
        positions: &mut [i32],
    ) -> Result<(), DataError> {
        let place = self.validation_place(number);
        assert!(place.is_some(), "evaluation sample {number} of {}", self.validation_samples());
        place.map_or(Ok(()), |(part, sample)| part.fill(sample, tokens, targets, positions))
    }

    fn validation_place(&self, number: u64) -> Option<(&Part, u64)> {
        let all = self.validation_samples();
        if number >= all {
            return None;
        }
        let sample = Order::new(0, all).window(number);
        let part = self.validation_firsts.partition_point(|&first| first <= sample) - 1;
        Some((&self.validation[part], sample - self.validation_firsts[part]))
    }

    /// A hash, in hexadecimal, of all that the samples depend on but the seed: equal if and only if tokens,
    /// documents, weights and cut are. A resumed run compares it to learn whether its data changed. It comes from the
    /// manifests, so it costs nothing.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// How much a part of the data is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Documents, or pieces of one that was split.
    pub documents: u64,
    /// Tokens, end-of-document tokens included.
    pub tokens: u64,
    /// Tokens that are predicted: all but the first of each document.
    pub valid: u64,
    /// Tokens that are inputs: all but those at the end of a document for which there was no room, which are targets
    /// only.
    pub inputs: u64,
    /// Samples.
    pub samples: u64,
}

impl Size {
    fn of(part: &Part) -> Size {
        let (documents, tokens) = (part.documents(), part.tokens());
        Size { documents, tokens, valid: part.valid(), inputs: part.inputs(), samples: part.samples() }
    }

    /// Share of the samples' positions that are padding, with samples of this length.
    pub fn padding(&self, sequence_length: usize) -> f64 {
        let room = self.samples as f64 * sequence_length as f64;
        if room == 0.0 { 0.0 } else { 1.0 - self.inputs as f64 / room }
    }
}

/// What is left to train on, and what is held out.
fn split(data: &Prepared, share: f64) -> (Selection, Option<Selection>) {
    let length = |document| {
        let extent = data.extent(document);
        extent.end - extent.start
    };
    match holdout::choose(data.documents(), &length, data.manifest().tokens, share) {
        Holdout::Nothing => (Selection::All, None),
        Holdout::Documents(held) => {
            let held = Arc::new(held);
            (Selection::Without(Arc::clone(&held)), Some(Selection::Within(held)))
        }
        Holdout::Tail { document, tokens } => {
            let at = length(document) - tokens;
            (Selection::Head(document, at), Some(Selection::Tail(document, at)))
        }
    }
}

fn fingerprint(sources: &[(Arc<Prepared>, f64)], evaluation: Option<&Prepared>, cut: &Cut) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(cut.sequence_length as u64).to_le_bytes());
    hasher.update(&[u8::from(cut.packing == Packing::Packed)]);
    hasher.update(&cut.validation.to_le_bytes());
    hasher.update(&(sources.len() as u64).to_le_bytes());
    for (data, weight) in sources {
        // The weight of a single source changes nothing.
        let weight = if sources.len() == 1 { 1.0 } else { *weight };
        hasher.update(&weight.to_le_bytes());
        hasher.update(data.manifest().content().as_bytes());
    }
    if let Some(data) = evaluation {
        hasher.update(data.manifest().content().as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests;
