//! How the program ends when it does not succeed.

use crate::job::JobError;
use memwall_checkpoint::CheckpointError;
use memwall_data::DataError;
use memwall_engine::EngineError;
use memwall_model::ModelError;
use thiserror::Error;

/// Why the program ends.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// The input was refused before anything started.
    #[error("{0}")]
    Refused(String),
    /// A run that had started failed.
    #[error("{0}")]
    Failed(String),
    /// The user asked for it.
    #[error("{0}")]
    Interrupted(String),
    /// For a reason that the user has been told; with this exit code.
    #[error("ended with exit code {0}")]
    Told(u8),
}

impl Failure {
    /// Exit code of the process.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Refused(_) => 2,
            Failure::Failed(_) => 1,
            // The shell's convention for SIGINT.
            Failure::Interrupted(_) => 130,
            Failure::Told(code) => *code,
        }
    }
}

macro_rules! refused_by {
    ($($error:ty),*) => {
        $(impl From<$error> for Failure {
            fn from(e: $error) -> Self {
                Failure::Refused(e.to_string())
            }
        })*
    };
}
refused_by!(JobError, DataError, ModelError);

impl From<EngineError> for Failure {
    fn from(e: EngineError) -> Self {
        Failure::Failed(e.to_string())
    }
}

/// Tells before from after the start of a run: checkpoints are read before, written after.
pub(crate) trait Outcome<T> {
    /// What went wrong is in the input.
    fn refuse(self) -> Result<T, Failure>;
    /// What went wrong is in the run.
    fn fail(self) -> Result<T, Failure>;
}

impl<T> Outcome<T> for Result<T, CheckpointError> {
    fn refuse(self) -> Result<T, Failure> {
        self.map_err(|e| Failure::Refused(e.to_string()))
    }
    fn fail(self) -> Result<T, Failure> {
        self.map_err(|e| Failure::Failed(e.to_string()))
    }
}
