//! Text files become tokens, and tokens become fixed-length samples in an order that depends on the
//! seed and the step alone.
//!
//! [`Tokenizer`] turns text into ids, [`Corpus`] reads and tokenizes the files, [`Dataset`] holds a part
//! out for validation and cuts both parts into windows, and [`Order`] says which window is sample *i*.
//! Nothing here keeps a position: a run that resumes at step *k* asks for the samples of step *k*.
//!
//! ```
//! use memwall_data::{Corpus, Dataset, Tokenizer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # std::fs::write(folder.path().join("poem.txt"), "so much depends upon a red wheel barrow")?;
//! let tokenizer = Tokenizer::load("bytes")?;
//! let globs = ["*.txt".to_string()];
//! let corpus = Corpus::read(&globs, folder.path(), &tokenizer, &mut |_done, _total| {})?;
//! let dataset = Dataset::new(corpus, 0.2, 16, tokenizer.end_of_document())?;
//!
//! let (step, global_batch) = (3, 2);
//! let order = dataset.order(42);
//! let (mut tokens, mut targets) = (vec![0; 16], vec![0; 16]);
//! for sample in step * global_batch..(step + 1) * global_batch {
//!     dataset.fill_train(order.window(sample) as usize, &mut tokens, &mut targets);
//! }
//! # Ok(())
//! # }
//! ```

mod corpus;
mod dataset;
mod error;
mod files;
mod holdout;
mod order;
mod part;
mod tokenizer;

pub use corpus::{Corpus, Document};
pub use dataset::Dataset;
pub use error::DataError;
pub use order::Order;
pub use part::IGNORE;
pub use tokenizer::{DecodeStream, Tokenizer};
