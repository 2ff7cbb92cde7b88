//! The dry twin of a group: counts what the real one would move.

use crate::{Collective, CommError, Group, Pending};
use memwall_tensor::Tensor;
use memwall_tensor::device::Memory;
use std::sync::{Arc, Mutex, PoisonError};

/// What one rank has sent and how often, for each collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Collectives started.
    pub calls: [u64; 3],
    /// Payload bytes that cross from this rank's memory to others'.
    pub bytes: [u64; 3],
}

impl Traffic {
    /// Payload bytes over all collectives.
    pub fn total_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }
}

/// A group of `size` ranks that moves nothing.
#[derive(Debug, Clone)]
pub struct DryGroup {
    rank: usize,
    size: usize,
    traffic: Arc<Mutex<Traffic>>,
}

impl DryGroup {
    /// Rank `rank` of a group of `size`.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn new(rank: usize, size: usize) -> Self {
        assert!(rank < size, "no rank {rank} in a group of {size}");
        Self { rank, size, traffic: Arc::default() }
    }

    /// What this rank has sent so far. A clone of the group counts in the same account.
    pub fn traffic(&self) -> Traffic {
        *self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Memory> Group<D> for DryGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn start(&self, collective: Collective, buffer: Tensor<D>) -> Result<Pending<D>, CommError> {
        let bytes = (buffer.shape().len() * buffer.dtype().bytes()) as u64;
        let others = self.size as u64 - 1;
        // Bandwidth-optimal algorithms (Patarasuk and Yuan, 2009): each of the two halves of an all-reduce
        // moves (n - 1) / n of the buffer out of every rank.
        let half = bytes * others / self.size as u64;
        let sent = if collective == Collective::AllReduce { 2 * half } else { half };
        let mut t = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        t.calls[collective as usize] += 1;
        t.bytes[collective as usize] += sent;
        Ok(Pending { collective, buffer })
    }

    fn wait(&self, pending: Pending<D>) -> Result<Tensor<D>, CommError> {
        Ok(pending.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Solo;
    use memwall_layout::Placements;
    use memwall_tensor::queued::Queued;
    use memwall_tensor::{Category, Cpu, DType, Description, Dry, Shape};

    fn scalars<D: Memory>(d: &D, n: usize) -> Tensor<D> {
        Tensor::new(d, Shape::vector(n), DType::I64, Placements::REPLICATED, Category::Communication).unwrap()
    }

    #[test]
    fn a_group_of_one_sends_nothing_and_a_dry_group_counts_the_ring() {
        let d = Dry::new(Description { threads: 1 }, 1 << 24).unwrap();
        for (size, all_reduce, gather) in [(1, 0, 0), (2, 64, 32), (4, 96, 48)] {
            let g = DryGroup::new(0, size);
            let p = Group::<Dry>::start(&g, Collective::AllReduce, scalars(&d, 8)).unwrap();
            let t = g.wait(p).unwrap();
            let p = Group::<Dry>::start(&g, Collective::AllGather, t).unwrap();
            drop(g.wait(p).unwrap());
            assert_eq!(g.traffic(), Traffic { calls: [1, 1, 0], bytes: [all_reduce, gather, 0] });
        }
    }

    #[test]
    fn solo_gives_back_what_it_got() {
        fn check<D: Memory>(d: &D) {
            let mut t = scalars(d, 3);
            d.write(t.view_mut().slice, bytemuck::cast_slice(&[1i64, 2, 3]));
            let p = Group::<D>::start(&Solo, Collective::AllReduce, t).unwrap();
            let t = Group::<D>::wait(&Solo, p).unwrap();
            let mut back = [0i64; 3];
            d.read(t.view().slice, bytemuck::cast_slice_mut(&mut back));
            assert_eq!(back, [1, 2, 3]);
        }
        let description = Description { threads: 1 };
        check(&Cpu::new(description, 1 << 24).unwrap());
        check(&Queued::new(description, 1 << 24, 1).unwrap());
    }
}
