//! When something happens: phase of the run, unit of the model, operation.

use std::fmt;

/// A part of a run, as memory tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The making of a rank: all that lives as long as the run.
    Init,
    /// Embedding and blocks, forward.
    Forward,
    /// The head, which computes loss and gradient in one pass, then blocks and embedding backward. Recomputation is
    /// part of it.
    Backward,
    /// Sum over the ranks, clipping, and the optimizer's update.
    Optimizer,
    /// Held-out loss.
    Evaluation,
    /// A checkpoint being written.
    Checkpoint,
}

impl Phase {
    /// All of them, in the order of a run.
    pub const ALL: [Phase; 6] = [
        Phase::Init,
        Phase::Forward,
        Phase::Backward,
        Phase::Optimizer,
        Phase::Evaluation,
        Phase::Checkpoint,
    ];

    /// Name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Init => "init",
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Optimizer => "optimizer_step",
            Phase::Evaluation => "evaluation",
            Phase::Checkpoint => "checkpoint",
        }
    }
}

/// A moment of a run. Names are static, so that to say where a program is costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Moment {
    /// Part of the run.
    pub phase: Phase,
    /// Unit of the model, in forward order, where one is at work.
    pub unit: Option<u32>,
    /// What allocates; empty before the first operation of a unit or phase.
    pub operation: &'static str,
}

impl Default for Moment {
    /// The making of a device.
    fn default() -> Self {
        Self { phase: Phase::Init, unit: None, operation: "working space" }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.phase.name())?;
        if let Some(unit) = self.unit {
            write!(f, ", unit {unit}")?;
        }
        if !self.operation.is_empty() {
            write!(f, ", {}", self.operation)?;
        }
        Ok(())
    }
}
