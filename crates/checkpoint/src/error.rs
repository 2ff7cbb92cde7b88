//! Why something was not saved or loaded.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Characters of a name or of a parser's message that are shown at most: both may come from a hostile file.
const SHOWN: usize = 200;

/// Why something was not saved or loaded. The text names file and reason, and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{} {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Tensors are missing, left over or misshaped.
    #[error("{} does not hold this model: {reason}", path.display())]
    WrongModel {
        /// The file.
        path: PathBuf,
        /// Names and shapes.
        reason: String,
    },
    /// The ranks that share the state did not all come along.
    #[error("a checkpoint that all ranks save together was not completed: {reason}")]
    Ranks {
        /// What the collective says.
        reason: String,
    },
    /// A weight is not a number that can be trained with.
    #[error(
        "{}: element {index} of {tensor} is {value} as {dtype}; no model can be trained from or used with it: \
         take weights from before it broke",
        path.display()
    )]
    NotFinite {
        /// The file that is read or written.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Which element, counted from 0 in row-major order.
        index: usize,
        /// NaN or an infinity.
        value: f32,
        /// Type in the file, as config.json names it.
        dtype: &'static str,
    },
}

impl CheckpointError {
    pub(crate) fn malformed(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Malformed { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn wrong_model(path: impl Into<PathBuf>, problems: &[String]) -> Self {
        Self::WrongModel { path: path.into(), reason: problems.join("; ") }
    }
}

/// A text from a file as an error shows it: on one line, without terminal escapes, of bounded length.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::new();
    for (n, c) in text.chars().enumerate() {
        if n == SHOWN {
            out.push_str("...");
            break;
        }
        if c.is_control() { out.extend(c.escape_debug()) } else { out.push(c) }
    }
    out
}

/// Adds action and path to the operating system's error.
pub(crate) trait At<T> {
    fn at(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T, CheckpointError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T, CheckpointError> {
        self.map_err(|source| CheckpointError::Io { action, path: path.into(), source })
    }
}
