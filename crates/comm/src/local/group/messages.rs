//! Messages between two ranks of a group.

use super::{LocalGroup, Ticket};
use crate::local::said::Said;
use crate::local::watch::Waiting;
use crate::{Call, Collective, CommError};
use memwall_tensor::Cpu;
use std::sync::atomic::Ordering;

impl LocalGroup {
    /// The receiver reads, and tells the sender that it has.
    pub(super) fn exchange(
        &self,
        device: &Cpu,
        call: &mut Call<Cpu>,
        ticket: &Ticket,
    ) -> Result<(), CommError> {
        let what = Waiting { collective: ticket.collective, number: ticket.number };
        match call {
            Call::Send { to, .. } => {
                let entry = self.message(self.rank, *to, ticket.number);
                self.until(*to, what, &entry.finished)
            }
            Call::Receive { from, buffer } => {
                let entry = self.message(*from, self.rank, ticket.number);
                self.until(*from, what, &entry.published)?;
                let theirs = Said::read(entry);
                let (len, dtype) = (buffer.shape().len(), buffer.dtype());
                let kind = (Collective::Send as u64) << 48 | (dtype as u64) << 40;
                if (theirs.kind, theirs.len) != (kind, len as u64) {
                    let said = Said {
                        kind: (Collective::Receive as u64) << 48 | (dtype as u64) << 40,
                        ..ticket.said
                    };
                    return Err(self.mismatch(what, self.seat.rank, said, self.members[*from], theirs));
                }
                self.read(device, *from, theirs.whole, 0..len, buffer.view_mut().slice, Collective::Receive)?;
                entry.finished.store(ticket.number + 1, Ordering::SeqCst);
                self.seat.board.ring(self.seat.rank);
                Ok(())
            }
            _ => unreachable!("only messages are exchanged"),
        }
    }
}
