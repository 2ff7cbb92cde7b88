//! What `memwall data prepare --out` writes beside the prepared data: which folder is for what.

use super::Gathered;
use crate::failure::Failure;
use memwall_data::Prepared;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// Name of the file, the last that is written.
pub(super) const SET: &str = "data.json";

/// The content of `data.json`: all data of a job, prepared.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PreparedSet {
    pub(super) train: Vec<Member>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) evaluation: Option<String>,
}

/// A folder of prepared data.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) folder: String,
    pub(super) weight: f64,
}

impl PreparedSet {
    /// Reads the file in `folder`.
    pub(super) fn read(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(SET);
        let refused = |why: String| {
            Failure::Refused(format!(
                "{}: {why}; name a folder that memwall data prepare --out has written",
                path.display()
            ))
        };
        let text = std::fs::read(&path).map_err(|e| refused(format!("cannot read it: {e}")))?;
        let set: Self = serde_json::from_slice(&text).map_err(|e| refused(format!("it is damaged: {e}")))?;
        let weights = set.train.iter().all(|member| member.weight.is_finite() && member.weight > 0.0);
        if set.train.is_empty() || !weights {
            return Err(refused("it names nothing to train on, or a weight that is none".into()));
        }
        Ok(set)
    }

    /// Opens all that it names.
    pub(super) fn open(&self, folder: &Path) -> Result<Gathered, Failure> {
        let open = |name: &str| Prepared::open(&folder.join(name)).map(Arc::new);
        let train = self.train.iter().map(|member| Ok((open(&member.folder)?, member.weight)));
        Ok(Gathered {
            train: train.collect::<Result<_, Failure>>()?,
            evaluation: self.evaluation.as_deref().map(open).transpose()?,
        })
    }
}
