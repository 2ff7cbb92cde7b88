//! A group of one.

use crate::{Call, Clock, CommError, Group, Pending, Traffic};
use memwall_layout::Axis;
use memwall_tensor::device::Memory;

/// A group of one: a sum over one rank is what the rank holds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Solo;

impl<D: Memory> Group<D> for Solo
where
    D::Buf: Send,
{
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn axes(&self) -> &[Axis] {
        &[]
    }

    fn start(&self, _: &D, call: Call<D>) -> Result<Pending<D>, CommError> {
        call.check(0, 1, &[])?;
        // It would have to be copied, which takes the device; a group of one has no use for it.
        if let Call::AllGather { part: Some(_), .. }
        | Call::ReduceScatter { part: Some(_), .. }
        | Call::AllToAll { .. } = &call
        {
            let reason = "a group of one works in place";
            return Err(CommError::new(call.collective(), 0, 1, reason));
        }
        Ok(Pending { call, number: 0, promise: None })
    }

    fn wait(&self, _: &D, pending: Pending<D>) -> Result<Call<D>, CommError> {
        Ok(pending.call)
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn clock(&self) -> Clock {
        Clock::default()
    }
}
