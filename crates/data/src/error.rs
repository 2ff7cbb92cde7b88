//! Why text could not become samples.

use std::{io, path::PathBuf};

use thiserror::Error;

/// A refusal of this crate. The text says what failed, where, why and what to do; it is whole, so there
/// is no source chain to print after it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file of a tokenizer cannot be read.
    #[error(
        "cannot read the tokenizer file {}: {reason}; name a Hugging Face tokenizer.json, or \"bytes\"",
        path.display()
    )]
    TokenizerUnreadable {
        /// File that was opened.
        path: PathBuf,
        /// What the operating system said.
        reason: io::Error,
    },
    /// A file of a tokenizer does not hold what its name promises.
    #[error(
        "{} is not a usable {kind}: {reason}; restore it from the model it came with",
        path.display()
    )]
    TokenizerMalformed {
        /// File that was parsed.
        path: PathBuf,
        /// What it was parsed as.
        kind: &'static str,
        /// What the parser said.
        reason: String,
    },
    /// A file of the tokenizer cannot be written.
    #[error("cannot write {}: {reason}; free space there or choose another folder", path.display())]
    Write {
        /// File or folder that was to be written.
        path: PathBuf,
        /// What the operating system said.
        reason: io::Error,
    },
    /// The tokenizer refused a text.
    #[error("the tokenizer cannot encode the text: {reason}; use a tokenizer that covers it, or \"bytes\"")]
    Encode {
        /// What the tokenizer said.
        reason: String,
    },
    /// The tokenizer refused a file of the corpus.
    #[error(
        "the tokenizer cannot encode {}: {reason}; use a tokenizer that covers it, or \"bytes\"",
        path.display()
    )]
    EncodeFile {
        /// File of the corpus.
        path: PathBuf,
        /// What the tokenizer said.
        reason: String,
    },
    /// A glob is malformed.
    #[error("the data glob {glob:?} is malformed at character {position}: {reason}; correct the glob")]
    BadGlob {
        /// The glob, joined to its base folder.
        glob: String,
        /// Characters before the fault.
        position: usize,
        /// What is wrong there.
        reason: &'static str,
    },
    /// Globs are matched as text, and the folder they start from is not UTF-8.
    #[error("the path of the data folder {} is not UTF-8; rename or move the folder", base.display())]
    BaseNotUnicode {
        /// Folder that relative globs start from.
        base: PathBuf,
    },
    /// A glob matches no file.
    #[error(
        "the data glob {glob:?} matches no file under {}; correct the glob or remove it \
         (names that begin with a dot are left out unless the glob has one)",
        base.display()
    )]
    NoMatch {
        /// The glob as given.
        glob: String,
        /// Folder that relative globs start from.
        base: PathBuf,
    },
    /// A file or folder of the corpus cannot be read.
    #[error("cannot read {}: {reason}; make it readable or narrow the data globs", path.display())]
    Unreadable {
        /// File or folder that was opened.
        path: PathBuf,
        /// What the operating system said.
        reason: io::Error,
    },
    /// A file of the corpus is not text.
    #[error(
        "{} is not UTF-8 text: {reason} at byte offset {offset}; convert it or narrow the data globs",
        path.display()
    )]
    NotText {
        /// File of the corpus.
        path: PathBuf,
        /// Bytes before the first fault.
        offset: usize,
        /// What stands there.
        reason: &'static str,
    },
    /// The files of the corpus hold no token.
    #[error("there is no text: of {files} matched file(s) none holds a token; add text to the data globs")]
    NoTokens {
        /// Files that the globs matched.
        files: usize,
    },
    /// The validation share is not a share.
    #[error("the validation share is {share}, expected 0 (no validation) or a number above 0 and below 1")]
    ValidationShare {
        /// What was given.
        share: f64,
    },
    /// The sequence length is zero.
    #[error("the sequence length is 0 tokens, expected at least 1")]
    SequenceLength,
    /// A token id does not fit the 32-bit signed integers that samples are made of.
    #[error("the token id {token} is above 2147483647; use a tokenizer with smaller ids")]
    TokenTooLarge {
        /// The id.
        token: u32,
    },
    /// The training part is too short for one sample.
    #[error(
        "the training part has {tokens} token(s), a sample needs at least 2; \
         add text or lower the validation share"
    )]
    TrainTooShort {
        /// Tokens of the training part, end-of-document tokens included.
        tokens: usize,
    },
    /// The validation part is too short for one sample.
    #[error(
        "a validation share of {share} holds out {tokens} token(s), a sample needs at least 2; \
         add text, raise the share, or set it to 0 to train without validation"
    )]
    ValidationTooShort {
        /// The share that was asked for.
        share: f64,
        /// Tokens held out, end-of-document tokens included.
        tokens: usize,
    },
    /// There is nothing to order.
    #[error("an order over 0 windows was asked for; a dataset has at least 1")]
    NoWindows,
}
