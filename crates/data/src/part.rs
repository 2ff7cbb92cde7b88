//! One part of a dataset: a stream of tokens cut into windows.

/// The target of a position that has no next token; a loss must leave such positions out.
pub const IGNORE: i32 = -1;

/// The input token of a position past the end of the stream.
const PADDING: i32 = 0;

/// A stream of tokens that is read in windows of a given length. Window *w* of length *T* has the inputs
/// `w * T .. (w + 1) * T` of the stream, and as targets the token after each.
#[derive(Debug)]
pub(crate) struct Part {
    /// Documents joined, each followed by the end-of-document token if there is one. Samples are signed,
    /// hence the stream is, so that filling is a copy.
    tokens: Vec<i32>,
    /// Documents that were joined.
    documents: usize,
}

impl Part {
    /// An empty part with room for `capacity` tokens.
    pub(crate) fn with_capacity(capacity: usize) -> Part {
        Part { tokens: Vec::with_capacity(capacity), documents: 0 }
    }

    /// Appends a document and what stands after it. The ids must be at most `i32::MAX`.
    pub(crate) fn append(&mut self, document: &[u32], end_of_document: Option<u32>) {
        self.tokens.extend(document.iter().chain(&end_of_document).map(|&token| token as i32));
        self.documents += 1;
    }

    /// The stream.
    pub(crate) fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// Documents in the stream.
    pub(crate) fn documents(&self) -> usize {
        self.documents
    }

    /// Positions of the stream that have a next token.
    fn positions(&self) -> usize {
        self.tokens.len().saturating_sub(1)
    }

    /// Windows of `length` inputs; every token is in at least one.
    pub(crate) fn windows(&self, length: usize) -> usize {
        self.positions().div_ceil(length)
    }

    /// Targets of the window that are not [`IGNORE`]; 0 past the last window.
    pub(crate) fn valid_targets(&self, window: usize, length: usize) -> usize {
        self.positions().saturating_sub(window.saturating_mul(length)).min(length)
    }

    /// Writes inputs and targets of a window.
    ///
    /// # Panics
    ///
    /// If there is no such window, or the slices differ in length.
    pub(crate) fn fill(&self, window: usize, tokens: &mut [i32], targets: &mut [i32]) {
        let length = tokens.len();
        assert_eq!(targets.len(), length, "as many targets as tokens are needed");
        assert!(window < self.windows(length), "window {window} of {}", self.windows(length));
        let stream = &self.tokens[window * length..];
        let inputs = stream.len().min(length);
        tokens[..inputs].copy_from_slice(&stream[..inputs]);
        tokens[inputs..].fill(PADDING);
        let valid = (stream.len() - 1).min(length);
        targets[..valid].copy_from_slice(&stream[1..=valid]);
        targets[valid..].fill(IGNORE);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(tokens: usize) -> Part {
        let mut part = Part::with_capacity(tokens);
        part.append(&(1..=tokens as u32).collect::<Vec<_>>(), None);
        part
    }

    fn window(part: &Part, window: usize, length: usize) -> (Vec<i32>, Vec<i32>) {
        let (mut tokens, mut targets) = (vec![77; length], vec![77; length]);
        part.fill(window, &mut tokens, &mut targets);
        (tokens, targets)
    }

    #[test]
    fn the_last_window_is_padded() {
        let part = part(6);
        assert_eq!(part.windows(4), 2);
        assert_eq!(window(&part, 0, 4), (vec![1, 2, 3, 4], vec![2, 3, 4, 5]));
        assert_eq!(window(&part, 1, 4), (vec![5, 6, 0, 0], vec![6, -1, -1, -1]));
    }

    #[test]
    fn a_last_token_that_is_only_a_target_needs_no_window() {
        let part = part(5);
        assert_eq!(part.windows(4), 1);
        assert_eq!(window(&part, 0, 4), (vec![1, 2, 3, 4], vec![2, 3, 4, 5]));
    }

    #[test]
    fn the_end_of_document_follows_each_document() {
        let mut part = Part::with_capacity(0);
        part.append(&[1, 2], Some(9));
        part.append(&[3], Some(9));
        assert_eq!((part.tokens(), part.documents()), (&[1, 2, 9, 3, 9][..], 2));
    }

    #[test]
    fn fewer_than_two_tokens_make_no_window() {
        assert_eq!(part(1).windows(4), 0);
        assert_eq!(Part::with_capacity(0).windows(4), 0);
        assert_eq!(part(1).valid_targets(0, 4), 0);
        assert_eq!(part(9).valid_targets(usize::MAX, 4), 0);
    }

    #[test]
    #[should_panic(expected = "window 2 of 2")]
    fn a_window_past_the_last_is_refused() {
        window(&part(6), 2, 4);
    }

    proptest! {
        #[test]
        fn windows_hold_every_token_once_as_a_target(tokens in 2_usize..200, length in 1_usize..40) {
            let part = part(tokens);
            let mut inputs = Vec::new();
            let mut targets = Vec::new();
            for index in 0..part.windows(length) {
                let (window_inputs, window_targets) = window(&part, index, length);
                let valid = window_targets.iter().filter(|&&target| target != IGNORE).count();
                prop_assert_eq!(valid, part.valid_targets(index, length));
                prop_assert!(valid > 0);
                inputs.extend(window_inputs);
                targets.extend(window_targets.into_iter().filter(|&target| target != IGNORE));
            }
            prop_assert_eq!(&targets, &part.tokens()[1..]);
            prop_assert_eq!(&inputs[..tokens - 1], &part.tokens()[..tokens - 1]);
        }
    }
}
