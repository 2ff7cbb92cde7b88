//! What checkpoints have taken.

use crate::job::show_bytes;
use crate::report;
use memwall_checkpoint::Saved;
use serde_json::{Value, json};
use std::time::Duration;

/// What this rank's part of a run's checkpoints has taken.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Saves {
    count: u64,
    bytes: u64,
    took: Duration,
    /// At their beginnings and ends.
    stood: Duration,
}

impl Saves {
    /// One more.
    pub(crate) fn add(&mut self, saved: &Saved) {
        self.count += 1;
        self.bytes += saved.bytes;
        self.took += saved.took;
        self.stood += saved.stood;
    }

    /// A line for people; steps stood still for `copied` beside.
    pub(crate) fn text(self, copied: Duration) -> String {
        if self.count == 0 {
            return String::new();
        }
        let each = |d: Duration| report::duration(d.as_secs_f64() / self.count as f64);
        let saves = if self.count == 1 { "1 save".to_owned() } else { format!("{} saves", self.count) };
        format!(
            "saves      {saves}, each {} by this rank in {}; training stood still for {} of it\n",
            show_bytes(self.bytes / self.count),
            each(self.took),
            each(self.stood + copied),
        )
    }

    /// For the summary.
    pub(crate) fn to_json(self, copied: Duration) -> Value {
        json!({
            "saves": self.count,
            "bytes": self.bytes,
            "seconds": self.took.as_secs_f64(),
            "stood_still_seconds": (self.stood + copied).as_secs_f64(),
        })
    }
}
