//! One part of a source, to train on or to evaluate on: its documents cut into samples of one length.

use std::sync::Arc;

use crate::{DataError, Prepared, holdout::Bits};

/// The target of a position that has no next token; a loss must leave such positions out.
pub const IGNORE: i32 = -1;

/// The input token of a position past the end of the data. Its target says that it is none; the same id may well be
/// a real token elsewhere.
const PADDING: i32 = 0;

/// Documents between two marks: an index of a few bytes for each hundred documents stays in memory for any corpus,
/// and to walk over as many costs less than to read a sample.
const STRIDE: u64 = 128;

/// How documents become samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Documents lie one behind the other without gaps; a sample is the next *T* tokens. Nothing is predicted across
    /// documents, and positions begin anew at each.
    Packed,
    /// A sample holds tokens of one document and padding; a document longer than *T* becomes several samples.
    Documents,
}

/// Which documents belong to a part.
#[derive(Debug, Clone)]
pub(crate) enum Selection {
    /// All.
    All,
    /// Those in the set.
    Within(Arc<Bits>),
    /// Those not in the set.
    Without(Arc<Bits>),
    /// All, but of this one only the tokens before this many.
    Head(u64, u64),
    /// Of this one the tokens from this many on, and nothing else.
    Tail(u64, u64),
}

/// Documents of a source, cut into samples of *T* input tokens.
#[derive(Debug)]
pub(crate) struct Part {
    data: Arc<Prepared>,
    selection: Selection,
    packing: Packing,
    length: u64,
    /// For every [`STRIDE`]th document, what there is before it.
    marks: Vec<Mark>,
    all: Mark,
    tokens: u64,
    inputs: u64,
}

/// What lies before a document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Mark {
    /// Documents of the part.
    documents: u64,
    /// Packed: tokens of the part; otherwise samples.
    units: u64,
}

/// A document of the part, found by a unit in it.
struct Found {
    index: u64,
    before: Mark,
}

impl Part {
    /// Cuts the selected documents into samples of `length` input tokens, at least 1.
    pub(crate) fn new(data: Arc<Prepared>, selection: Selection, packing: Packing, length: u64) -> Part {
        let mut part = Part {
            data,
            selection,
            packing,
            length,
            marks: Vec::new(),
            all: Mark::default(),
            tokens: 0,
            inputs: 0,
        };
        for document in 0..part.data.documents() {
            if document % STRIDE == 0 {
                part.marks.push(part.all);
            }
            let before = part.all;
            part.all = part.after(document, before);
            let tokens = part.extent(document).1;
            part.tokens += tokens;
            part.inputs += tokens.min((part.all.units - before.units) * length);
        }
        if packing == Packing::Packed {
            part.inputs = part.tokens.min(part.samples() * length);
        }
        part
    }

    /// Where the tokens of a document begin in the source, and how many belong to the part, maybe none.
    fn extent(&self, document: u64) -> (u64, u64) {
        let whole = self.data.extent(document);
        let length = whole.end - whole.start;
        let (start, end) = match &self.selection {
            Selection::All => (0, length),
            Selection::Within(set) => (0, if set.contains(document) { length } else { 0 }),
            Selection::Without(set) => (0, if set.contains(document) { 0 } else { length }),
            Selection::Head(cut, at) => (0, if document == *cut { *at } else { length }),
            Selection::Tail(cut, at) if document == *cut => (*at, length),
            Selection::Tail(..) => (0, 0),
        };
        (whole.start + start, end - start)
    }

    /// What lies before the document after this one.
    fn after(&self, document: u64, before: Mark) -> Mark {
        let (_, length) = self.extent(document);
        let units = match self.packing {
            Packing::Packed => length,
            // The last token of a document is a target only, unless there is room for it.
            Packing::Documents => length.saturating_sub(1).div_ceil(self.length),
        };
        Mark { documents: before.documents + u64::from(length > 0), units: before.units + units }
    }

    /// The document that has a unit, which must exist.
    fn find(&self, unit: u64) -> Found {
        let mark = self.marks.partition_point(|mark| mark.units <= unit) - 1;
        let (mut index, mut before) = (mark as u64 * STRIDE, self.marks[mark]);
        loop {
            let after = self.after(index, before);
            if after.units > unit {
                return Found { index, before };
            }
            (index, before) = (index + 1, after);
        }
    }

    /// Documents of the part, or pieces of one.
    pub(crate) fn documents(&self) -> u64 {
        self.all.documents
    }

    /// Tokens of the part.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Input tokens of all samples, padding left out.
    pub(crate) fn inputs(&self) -> u64 {
        self.inputs
    }

    /// Targets of all samples.
    pub(crate) fn valid(&self) -> u64 {
        self.tokens - self.all.documents
    }

    /// Samples. There are none without a token to predict.
    pub(crate) fn samples(&self) -> u64 {
        match self.packing {
            _ if self.valid() == 0 => 0,
            // A last token alone in a sample would be an input for nothing.
            Packing::Packed => (self.all.units - 1).div_ceil(self.length),
            Packing::Documents => self.all.units,
        }
    }

    /// Targets of a sample that are not [`IGNORE`], from the index alone; 0 past the last sample.
    pub(crate) fn valid_targets(&self, sample: u64) -> u64 {
        if sample >= self.samples() {
            return 0;
        }
        match self.packing {
            Packing::Packed => {
                let start = sample * self.length;
                let end = (start + self.length).min(self.all.units);
                // Each token has a target but the last of a document.
                end - start - (self.documents_before(end) - self.documents_before(start))
            }
            Packing::Documents => {
                let Found { index, before } = self.find(sample);
                let (_, length) = self.extent(index);
                (length - 1 - (sample - before.units) * self.length).min(self.length)
            }
        }
    }

    /// Documents that end within the first `tokens` tokens of the packed stream.
    fn documents_before(&self, tokens: u64) -> u64 {
        if tokens >= self.all.units { self.all.documents } else { self.find(tokens).before.documents }
    }

    /// Writes inputs, targets and positions of a sample, *T* of each.
    ///
    /// # Errors
    ///
    /// [`DataError::Prepared`] if the source is damaged.
    ///
    /// # Panics
    ///
    /// If there is no such sample, or a slice does not have *T* elements.
    pub(crate) fn fill(
        &self,
        sample: u64,
        tokens: &mut [i32],
        targets: &mut [i32],
        positions: &mut [i32],
    ) -> Result<(), DataError> {
        let lengths = [tokens.len() as u64, targets.len() as u64, positions.len() as u64];
        assert_eq!(
            lengths, [self.length; 3],
            "a sample has a certain number of tokens, targets and positions"
        );
        assert!(sample < self.samples(), "sample {sample} of {}", self.samples());
        let (Found { mut index, .. }, mut skipped) = match self.packing {
            Packing::Packed => {
                let found = self.find(sample * self.length);
                let skipped = sample * self.length - found.before.units;
                (found, skipped)
            }
            Packing::Documents => {
                let found = self.find(sample);
                let skipped = (sample - found.before.units) * self.length;
                (found, skipped)
            }
        };
        let mut filled = 0;
        while filled < tokens.len() && index < self.data.documents() {
            let (start, length) = self.extent(index);
            let count = (length - skipped).min((tokens.len() - filled) as u64) as usize;
            if count > 0 {
                let end = filled + count;
                self.piece(
                    start + skipped,
                    skipped + (count as u64) < length,
                    &mut tokens[filled..end],
                    &mut targets[filled..end],
                )?;
                count_up(&mut positions[filled..end]);
                filled = end;
                if self.packing == Packing::Documents {
                    break;
                }
            }
            (index, skipped) = (index + 1, 0);
        }
        tokens[filled..].fill(PADDING);
        targets[filled..].fill(IGNORE);
        // As if the padding were a document of its own.
        count_up(&mut positions[filled..]);
        Ok(())
    }

    /// Copies tokens that lie from `start` on in the source and their targets. Whether the document goes `on`
    /// after them decides what the last target is: where a token stands says that, never which it is.
    fn piece(&self, start: u64, on: bool, tokens: &mut [i32], targets: &mut [i32]) -> Result<(), DataError> {
        self.data.copy(start, tokens)?;
        let last = targets.len() - 1;
        targets[..last].copy_from_slice(&tokens[1..]);
        if on {
            self.data.copy(start + tokens.len() as u64, &mut targets[last..])
        } else {
            targets[last] = IGNORE;
            Ok(())
        }
    }
}

/// 0, 1, 2 and so on.
fn count_up(positions: &mut [i32]) {
    for (position, number) in positions.iter_mut().zip(0..) {
        *position = number;
    }
}

#[cfg(test)]
mod tests;
