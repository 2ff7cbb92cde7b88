//! Why something was not saved or loaded.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

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
}

impl CheckpointError {
    pub(crate) fn malformed(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Malformed { path: path.into(), reason: reason.into() }
    }
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
