//! The dry twin of a group: counts what the real one would move.

use crate::traffic::bytes_moved;
use crate::{Call, Clock, CommError, Group, Groups, Pending, Traffic};
use memwall_layout::{Axis, Mesh};
use memwall_tensor::device::Memory;
use std::sync::{Arc, Mutex, PoisonError};

/// A group of `size` ranks that moves nothing.
#[derive(Debug, Clone)]
pub struct DryGroup {
    rank: usize,
    size: usize,
    axes: Vec<Axis>,
    traffic: Arc<Mutex<Traffic>>,
}

impl DryGroup {
    /// Rank `rank` of a group of `size` along `axes`.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn new(rank: usize, size: usize, axes: &[Axis]) -> Self {
        assert!(rank < size, "no rank {rank} in a group of {size}");
        Self { rank, size, axes: axes.to_vec(), traffic: Arc::default() }
    }
}

impl<D: Memory> Groups<D>
where
    D::Buf: Send,
{
    /// Dry twins of the groups of rank `rank` in a mesh.
    pub fn dry(mesh: Mesh, rank: usize) -> Self {
        let members = Self::members(mesh, rank);
        let group = |i: usize| {
            let index = members[i].iter().position(|m| *m == rank).expect("a rank is in its groups");
            Self::of_size(members[i].len(), || DryGroup::new(index, members[i].len(), &Self::axes(mesh, i)))
        };
        Self { mesh, rank, data: group(0), shard: group(1), replicate: group(2) }
    }
}

impl<D: Memory> Group<D> for DryGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn axes(&self) -> &[Axis] {
        &self.axes
    }

    fn start(&self, _: &D, call: Call<D>) -> Result<Pending<D>, CommError> {
        call.check(self.rank, self.size, &self.axes)?;
        let bytes = bytes_moved(&call, self.rank, self.size);
        let mut traffic = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        traffic.count(call.collective(), bytes);
        Ok(Pending { call, number: 0, promise: None })
    }

    fn wait(&self, _: &D, pending: Pending<D>) -> Result<Call<D>, CommError> {
        Ok(pending.call.done(self.rank, self.size, &self.axes))
    }

    fn traffic(&self) -> Traffic {
        *self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clock(&self) -> Clock {
        Clock::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Solo;
    use memwall_layout::{Placement, Placements, Reduction};
    use memwall_tensor::queued::Queued;
    use memwall_tensor::{Category, Cpu, DType, Description, Dry, Shape, Tensor};

    fn scalars<D: Memory>(d: &D, n: usize, placement: Placement) -> Tensor<D> {
        let placements = Placements::REPLICATED.with(Axis::DpShard, placement);
        Tensor::new(d, Shape::vector(n), DType::I64, placements, Category::Communication).unwrap()
    }

    #[test]
    fn a_dry_group_counts_what_each_rank_reads_of_the_others() {
        let d = Dry::new(Description { threads: 1 }, 1 << 24).unwrap();
        for (size, all_reduce, gather) in [(1, 0, 0), (2, 512, 256), (4, 768, 384)] {
            let g = DryGroup::new(0, size, &[Axis::DpShard]);
            let sum = scalars(&d, 64, Placement::Partial(Reduction::Sum));
            let whole = g.carry_out(&d, Call::AllReduce(sum)).unwrap().into_buffer();
            assert_eq!(whole.placements(), Placements::REPLICATED);
            drop(g.carry_out(&d, Call::AllGather { part: None, whole }).unwrap());
            let traffic = Group::<Dry>::traffic(&g);
            assert_eq!(traffic.calls[..3], [1, 1, 0]);
            assert_eq!(traffic.bytes[..3], [all_reduce, gather, 0]);
        }
    }

    #[test]
    fn a_sum_that_is_not_owed_is_refused() {
        let d = Dry::new(Description { threads: 1 }, 1 << 24).unwrap();
        let g = DryGroup::new(1, 2, &[Axis::DpShard]);
        let error = g.start(&d, Call::AllReduce(scalars(&d, 3, Placement::Replicated))).unwrap_err();
        let text = "all_reduce on rank 1 of 2: all_reduce: on axis dp_shard, the buffer is replicated";
        assert!(error.to_string().starts_with(text), "{error}");
    }

    #[test]
    fn solo_gives_back_what_it_got() {
        fn check<D: Memory>(d: &D)
        where
            D::Buf: Send,
        {
            let mut t = scalars(d, 3, Placement::Replicated);
            d.write(t.view_mut().slice, bytemuck::cast_slice(&[1i64, 2, 3]));
            let t = Group::<D>::carry_out(&Solo, d, Call::AllReduce(t)).unwrap().into_buffer();
            let mut back = [0i64; 3];
            d.read(t.view().slice, bytemuck::cast_slice_mut(&mut back));
            assert_eq!(back, [1, 2, 3]);
        }
        let description = Description { threads: 1 };
        check(&Cpu::new(description, 1 << 24).unwrap());
        check(&Queued::new(description, 1 << 24, 1).unwrap());
    }
}
