//! What is alive at the peak.

use super::Prediction;
use memwall_tensor::{Arena, Block, Change, Moment};

/// A block that is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alive {
    /// The block.
    pub block: Block,
    /// When it was taken.
    pub since: Moment,
}

impl Prediction {
    /// What is alive at the first moment at which most is, largest first; of equal ones by category, the oldest first.
    pub fn alive_at_peak(&self) -> Vec<Alive> {
        let (peak, mut live, mut alive) = (self.run.at_peak.total(), 0, Vec::<Alive>::new());
        for event in self.events.iter() {
            let bytes = Arena::rounded(event.block.bytes);
            match event.change {
                Change::Take => {
                    live += bytes;
                    alive.push(Alive { block: event.block, since: event.moment });
                }
                Change::GiveBack => {
                    live -= bytes;
                    // What is given back was mostly taken lately.
                    if let Some(at) = alive.iter().rposition(|a| a.block == event.block) {
                        alive.remove(at);
                    }
                }
            }
            if live == peak {
                break;
            }
        }
        alive.sort_by_key(|a| (std::cmp::Reverse(a.block.bytes), a.block.category as u8));
        alive
    }
}
