//! What ranks say to each other beside the step: hashes of what they must have in common, statistics, and whether to stop.

use crate::{EngineError, Rank, Zero};
use memwall_comm::{Call, Group, Groups};
use memwall_layout::{Axis, Cut, Placement, Placements, Reduction};
use memwall_tensor::device::{Device, Memory};
use memwall_tensor::{Category, DType, Error, Shape, Slice, Tensor};

/// Numbers that [`Rank::gather_statistics`] gathers of each rank.
pub const STATISTICS: usize = 8;

/// Bytes that are read at a time to be hashed.
const PIECE: usize = 1 << 18;

/// Buffers for such words, reserved when a rank is made.
#[derive(Debug)]
pub(crate) struct Common<D: Memory> {
    /// This rank's words; away while a collective has them.
    own: Option<Tensor<D>>,
    /// Every rank's.
    all: Option<Tensor<D>>,
}

const HERE: &str = "no collective has the words";

impl<D: Device> Common<D> {
    /// Room for a word a unit, and for statistics; none for a rank that is alone.
    pub(crate) fn new(device: &D, groups: &Groups<D>, units: usize) -> Result<Option<Self>, Error> {
        let (ranks, words) = (groups.data.size(), units.max(STATISTICS));
        if ranks == 1 {
            return Ok(None);
        }
        device.ledger().operation("words between ranks");
        let new = |n| {
            Tensor::new(device, Shape::vector(n), DType::I64, Placements::REPLICATED, Category::Communication)
        };
        Ok(Some(Self { own: Some(new(words)?), all: Some(new(words * ranks)?) }))
    }

    /// Every rank's words, one rank's behind the other's.
    fn gather(&mut self, device: &D, group: &dyn Group<D>, words: &[u64]) -> Result<Vec<u64>, EngineError> {
        let part = placed(group, Placement::Shard(0, Cut::Even));
        let mut own = self.own.take().expect(HERE).window(0, Shape::vector(words.len())).placed(part);
        let whole = self.all.take().expect(HERE).window(0, Shape::vector(words.len() * group.size()));
        device.write(own.view_mut().slice, bytemuck::cast_slice(words));
        let call = Call::AllGather { part: Some(own), whole };
        let (whole, own) = group.carry_out(device, call)?.into_whole_and_part();
        let mut all = vec![0u64; words.len() * group.size()];
        device.read(whole.view().slice, bytemuck::cast_slice_mut(&mut all));
        (self.own, self.all) = (Some(own), Some(whole));
        Ok(all)
    }

    fn sum(&mut self, device: &D, group: &dyn Group<D>, word: i64) -> Result<i64, EngineError> {
        let owed = placed(group, Placement::Partial(Reduction::Sum));
        let mut own = self.own.take().expect(HERE).window(0, Shape::vector(1)).placed(owed);
        device.write(own.view_mut().slice, bytemuck::bytes_of(&word));
        let own = group.carry_out(device, Call::AllReduce(own))?.into_buffer();
        let mut sum = 0i64;
        device.read(own.view().slice, bytemuck::bytes_of_mut(&mut sum));
        self.own = Some(own);
        Ok(sum)
    }
}

fn placed<D: Memory>(group: &dyn Group<D>, placement: Placement) -> Placements {
    group.axes().iter().fold(Placements::REPLICATED, |p, axis: &Axis| p.with(*axis, placement))
}

impl<D: Device> Rank<D> {
    /// Compares what ranks must have in common: whole weights with all, and what is updated with those that update the same.
    /// All ranks call it together.
    ///
    /// # Errors
    /// A difference, which names the unit and the rank; a failed collective.
    pub fn compare_state(&mut self) -> Result<(), EngineError> {
        self.round_if_stale()?;
        let Some(mut common) = self.common.take() else { return Ok(()) };
        let outcome = self.compare(&mut common);
        self.common = Some(common);
        outcome
    }

    fn compare(&self, common: &mut Common<D>) -> Result<(), EngineError> {
        let units = 0..self.first.len();
        if self.shares.zero() != Zero::Three {
            let whole = |unit| self.weights.all_of(unit).fold(0, |hash, t| self.hash(hash, t.view().slice));
            let weights: Vec<u64> = units.clone().map(whole).collect();
            self.same(common, self.groups.data.as_ref(), "weights", &weights)?;
        }
        if self.groups.replicate.size() > 1 {
            let state = |unit: usize| {
                let masters = self.masters.as_ref().map(|m| &m[unit]);
                let shards = (self.shares.zero() == Zero::Three).then(|| self.weights.all_of(unit));
                let parts = [Some(&self.first[unit]), Some(&self.second[unit]), masters];
                let all = parts.into_iter().flatten().chain(shards.into_iter().flatten());
                all.fold(0, |hash, t| self.hash(hash, t.view().slice))
            };
            let state: Vec<u64> = units.map(state).collect();
            self.same(common, self.groups.replicate.as_ref(), "optimizer state", &state)?;
        }
        Ok(())
    }

    fn same(
        &self,
        common: &mut Common<D>,
        group: &dyn Group<D>,
        what: &'static str,
        mine: &[u64],
    ) -> Result<(), EngineError> {
        let all = common.gather(&self.device, group, mine)?;
        for (other, theirs) in all.chunks_exact(mine.len()).enumerate() {
            // Every rank compares with the first, so that all say the same.
            if let Some(unit) = (0..mine.len()).find(|unit| theirs[*unit] != all[*unit]) {
                return Err(EngineError::Apart { what, unit, rank: other, step: self.step });
            }
        }
        Ok(())
    }

    /// A hash of a buffer's bits that depends on their order.
    fn hash(&self, seed: u64, slice: Slice<'_, D::Buf>) -> u64 {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let (size, len) = (slice.dtype().bytes(), slice.len());
        let mut bytes = vec![0u8; PIECE];
        // Lanes, so that one product need not wait for the other.
        let mut lanes = [1u64, 2, 3, 4].map(|lane| seed ^ FACTOR.wrapping_mul(lane));
        for start in (0..len).step_by(PIECE / size) {
            let n = (len - start).min(PIECE / size);
            let piece = &mut bytes[..n * size];
            self.device.read(slice.part(start, n), piece);
            for words in piece.chunks(32) {
                for (lane, word) in lanes.iter_mut().zip(words.chunks(8)) {
                    let mut whole = [0; 8];
                    whole[..word.len()].copy_from_slice(word);
                    *lane = (*lane ^ u64::from_le_bytes(whole)).wrapping_mul(FACTOR).rotate_left(29);
                }
            }
        }
        lanes.iter().fold(len as u64, |hash, lane| (hash ^ lane).wrapping_mul(FACTOR).rotate_left(31))
    }

    /// Every rank's numbers, in the order of the ranks. All ranks call it together.
    ///
    /// # Errors
    /// A failed collective.
    pub fn gather_statistics(
        &mut self,
        own: [u64; STATISTICS],
    ) -> Result<Vec<[u64; STATISTICS]>, EngineError> {
        let Some(common) = &mut self.common else { return Ok(vec![own]) };
        let all = common.gather(&self.device, self.groups.data.as_ref(), &own)?;
        Ok(all.chunks_exact(STATISTICS).map(|c| c.try_into().expect("as many as each gave")).collect())
    }

    /// Whether any rank says so. All ranks call it together.
    ///
    /// # Errors
    /// A failed collective.
    pub fn agree(&mut self, own: bool) -> Result<bool, EngineError> {
        let Some(common) = &mut self.common else { return Ok(own) };
        Ok(common.sum(&self.device, self.groups.data.as_ref(), i64::from(own))? != 0)
    }
}
