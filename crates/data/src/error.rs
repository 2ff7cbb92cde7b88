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
    /// The tokenizer refused a document.
    #[error(
        "the tokenizer cannot encode {}{place}: {reason}; use a tokenizer that covers it, or \"bytes\"",
        path.display()
    )]
    EncodeFile {
        /// File of the data.
        path: PathBuf,
        /// Where in it the document begins, as `, line 3`; empty if it is the file.
        place: String,
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
    /// A file or folder of the data cannot be read.
    #[error("cannot read {}: {reason}; make it readable or narrow the data globs", path.display())]
    Unreadable {
        /// File or folder that was opened.
        path: PathBuf,
        /// What the operating system said.
        reason: io::Error,
    },
    /// A file of the data is not text.
    #[error(
        "{} is not UTF-8 text: {reason} at byte offset {offset}; convert it or narrow the data globs",
        path.display()
    )]
    NotText {
        /// File of the data.
        path: PathBuf,
        /// Bytes before the first fault, in the text as unpacked.
        offset: u64,
        /// What stands there.
        reason: &'static str,
    },
    /// A line or row has no text where it should.
    #[error(
        "{}{place}: {reason}; name the field that holds the text (data.field), or correct the file",
        path.display()
    )]
    Record {
        /// File of the data.
        path: PathBuf,
        /// Where in it, as `, line 3`.
        place: String,
        /// What is wrong there.
        reason: String,
    },
    /// A packed file cannot be unpacked.
    #[error("cannot unpack {} as {packing}: {reason}; restore the file, or name it by what it is", path.display())]
    Unpack {
        /// File of the data.
        path: PathBuf,
        /// What its name says that it is packed with.
        packing: &'static str,
        /// What the unpacker said.
        reason: io::Error,
    },
    /// A Parquet file cannot be read.
    #[error(
        "cannot read the Parquet file {}: {reason}; name a column of strings (data.field), in a file packed with \
         snappy, gzip, zstd or not at all",
        path.display()
    )]
    Parquet {
        /// File of the data.
        path: PathBuf,
        /// What the reader said.
        reason: String,
    },
    /// A file was written to while it was read.
    #[error("{} changed while it was being read; try again when nothing writes to it", path.display())]
    Changed {
        /// File of the data.
        path: PathBuf,
    },
    /// The files of the data hold no token.
    #[error("there is no text: of {files} matched file(s) none holds a token; add text to the data globs")]
    NoTokens {
        /// Files that the globs matched.
        files: usize,
    },
    /// A file or folder of prepared data is not what it should be.
    #[error(
        "{} is not usable prepared data: {reason}; delete its folder and prepare the data again \
         (memwall data prepare)",
        path.display()
    )]
    Prepared {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Prepared data was made with another tokenizer.
    #[error(
        "{} was prepared with the tokenizer {theirs}, the job has {ours}; give the job that tokenizer, or prepare \
         the data with the job's",
        folder.display()
    )]
    OtherTokenizer {
        /// Folder of the prepared data.
        folder: PathBuf,
        /// Hash of its tokenizer, and its end of document.
        theirs: String,
        /// Hash of the job's.
        ours: String,
    },
    /// There is something where prepared data is to be written.
    #[error("{} exists already; choose another folder, or delete it", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A source of a mixture has no share of the samples.
    #[error(
        "source {source_number} of the mixture has the weight {weight} of {sum} in all: that is less than one sample \
         in {block}; give it more weight or leave it out"
    )]
    Weight {
        /// Number of the source, from 0.
        source_number: usize,
        /// Its weight.
        weight: f64,
        /// Sum of all weights.
        sum: f64,
        /// Samples that are shared out at a time.
        block: u64,
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
        "the training part has {tokens} token(s), a sample needs at least 2 of one document; \
         add text or lower the validation share"
    )]
    TrainTooShort {
        /// Tokens of the training part, end-of-document tokens included.
        tokens: u64,
    },
    /// The validation part is too short for one sample.
    #[error(
        "a validation share of {share} holds out {tokens} token(s), a sample needs at least 2 of one document; \
         add text, raise the share, or set it to 0 to train without validation"
    )]
    ValidationTooShort {
        /// The share that was asked for.
        share: f64,
        /// Tokens held out, end-of-document tokens included.
        tokens: u64,
    },
    /// There is nothing to cut.
    #[error("a dataset of no source was asked for; give at least one")]
    NoSource,
}
