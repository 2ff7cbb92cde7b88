//! Files become tokens, and tokens become samples of one length in an order that depends on the seed and the
//! step alone.
//!
//! [`Tokenizer`] turns text into ids. [`Source`] names files (text, JSON Lines, Parquet; packed or not) and makes
//! [`Prepared`] data of them: a folder of tokens that later runs find again and map into memory. [`Dataset`] holds a
//! part out for validation, mixes sources by weight, cuts documents into samples and says which sample is number
//! *n* of a run. Nothing here keeps a position: a run that resumes at step *k* asks for the samples of step *k*.
//!
//! ```
//! use std::sync::Arc;
//! use memwall_data::{Cut, Dataset, Packing, Source, Tokenizer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # std::fs::write(folder.path().join("poem.txt"), "so much depends upon a red wheel barrow")?;
//! let tokenizer = Tokenizer::load("bytes")?;
//! let source = Source { globs: vec!["*.txt".into()], base: folder.path().into(), field: "text".into() };
//! let prepared = Arc::new(source.prepare(&tokenizer, &folder.path().join("cache"), &mut |_progress| {})?);
//! let cut = Cut { sequence_length: 16, packing: Packing::Packed, validation: 0.2, seed: 42 };
//! let dataset = Dataset::new(vec![(prepared, 1.0)], None, cut)?;
//!
//! let (step, global_batch) = (3, 2);
//! let (mut tokens, mut targets, mut positions) = (vec![0; 16], vec![0; 16], vec![0; 16]);
//! for sample in step * global_batch..(step + 1) * global_batch {
//!     dataset.fill_train(sample, &mut tokens, &mut targets, &mut positions)?;
//! }
//! # Ok(())
//! # }
//! ```

mod dataset;
mod error;
mod files;
mod holdout;
mod mixture;
mod order;
mod part;
mod prepared;
mod source;
mod tokenizer;

pub use dataset::{Cut, Dataset, Size};
pub use error::DataError;
pub use mixture::Pick;
pub use part::{IGNORE, Packing};
pub use prepared::{
    Prepared,
    cache::Source,
    manifest::{DataFile, Manifest, Recipe, SourceFile},
    pipeline::Progress,
};
pub use tokenizer::{DecodeStream, Tokenizer};
