//! Random collectives, of which every rank knows what must come back.

use super::common::{PART, SUM, WHOLE, tensor, values};
use memwall_comm::{Call, Group};
use memwall_tensor::{Cpu, DType, Tensor, math};
use std::time::Duration;

/// Element `i` of what rank `rank` gives in round `round`: small whole numbers, whose sums every type holds.
pub fn given(seed: u64, round: u64, rank: usize, i: usize) -> i64 {
    (math::random_u64(seed ^ round << 20, (rank * 100_003 + i) as u64) % 15) as i64 - 7
}

/// A round of a group: who takes part, and what they give.
struct Round<'a> {
    device: &'a Cpu,
    group: &'a dyn Group<Cpu>,
    seed: u64,
    number: u64,
    dtype: DType,
}

impl Round<'_> {
    fn of(&self, rank: usize, i: usize) -> i64 {
        given(self.seed, self.number, rank, i)
    }

    fn sum(&self, i: usize) -> i64 {
        (0..self.group.size()).map(|r| self.of(r, i)).sum()
    }

    /// What this rank gives.
    fn mine(&self, n: usize) -> Vec<i64> {
        (0..n).map(|i| self.of(self.group.rank(), i)).collect()
    }

    /// The parts of all ranks.
    fn all(&self, part: usize) -> Vec<i64> {
        (0..self.group.size()).flat_map(|r| (0..part).map(move |i| self.of(r, i))).collect()
    }

    fn tensor(&self, values: &[i64], placement: memwall_layout::Placement) -> Tensor<Cpu> {
        tensor(self.device, self.group, self.dtype, values, placement)
    }

    fn carry_out(&self, call: Call<Cpu>) -> Call<Cpu> {
        self.group.carry_out(self.device, call).unwrap()
    }

    fn check(&self, got: &Tensor<Cpu>, want: &[i64]) {
        assert_eq!(values(self.device, got), want);
    }

    fn all_reduce(&self, n: usize) {
        let got = self.carry_out(Call::AllReduce(self.tensor(&self.mine(n), SUM))).into_buffer();
        self.check(&got, &(0..n).map(|i| self.sum(i)).collect::<Vec<_>>());
        assert!(self.group.axes().iter().all(|a| got.placements().on(*a) == WHOLE));
    }

    fn all_gather(&self, part: usize, in_place: bool) {
        let (rank, whole) = (self.group.rank(), part * self.group.size());
        let mut room = vec![99; whole];
        let got = if in_place {
            room[rank * part..(rank + 1) * part].copy_from_slice(&self.mine(part));
            self.carry_out(Call::AllGather { part: None, whole: self.tensor(&room, WHOLE) }).into_buffer()
        } else {
            let own = Some(self.tensor(&self.mine(part), PART));
            let call = Call::AllGather { part: own, whole: self.tensor(&room, WHOLE) };
            self.carry_out(call).into_whole_and_part().0
        };
        self.check(&got, &self.all(part));
    }

    fn reduce_scatter(&self, part: usize, in_place: bool, accumulate: bool) {
        let whole = self.tensor(&self.mine(part * self.group.size()), SUM);
        let (base, got) = if in_place {
            (0, self.carry_out(Call::ReduceScatter { whole, part: None, accumulate: false }).into_buffer())
        } else {
            let own = Some(self.tensor(&vec![5; part], PART));
            let call = Call::ReduceScatter { whole, part: own, accumulate };
            (if accumulate { 5 } else { 0 }, self.carry_out(call).into_whole_and_part().1)
        };
        let first = self.group.rank() * part;
        self.check(&got, &(0..part).map(|i| base + self.sum(first + i)).collect::<Vec<_>>());
        assert!(self.group.axes().iter().all(|a| got.placements().on(*a) == PART));
    }

    fn all_to_all(&self, part: usize) {
        let (rank, whole) = (self.group.rank(), part * self.group.size());
        let t = |values: &[i64]| self.tensor(values, PART);
        let call = Call::AllToAll { from: t(&self.mine(whole)), to: t(&vec![99; whole]) };
        let Call::AllToAll { to, .. } = self.carry_out(call) else { panic!("another collective came back") };
        let want = (0..self.group.size()).flat_map(|r| (0..part).map(move |i| self.of(r, rank * part + i)));
        self.check(&to, &want.collect::<Vec<_>>());
    }

    fn broadcast(&self, root: usize, n: usize) {
        let call = Call::Broadcast { root, buffer: self.tensor(&self.mine(n), WHOLE) };
        let got = self.carry_out(call).into_buffer();
        self.check(&got, &(0..n).map(|i| self.of(root, i)).collect::<Vec<_>>());
    }

    /// A message round the ring: all send first, and wait afterwards.
    fn messages(&self, n: usize) {
        let (rank, size) = (self.group.rank(), self.group.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let send = Call::Send { to: next, buffer: self.tensor(&self.mine(n), WHOLE) };
        let sent = self.group.start(self.device, send).unwrap();
        let receive = Call::Receive { from: before, buffer: self.tensor(&vec![99; n], WHOLE) };
        let got = self.carry_out(receive).into_buffer();
        self.check(&got, &(0..n).map(|i| self.of(before, i)).collect::<Vec<_>>());
        drop(self.group.wait(self.device, sent).unwrap());
    }
}

/// A random collective of a group: carries it out and checks what comes back. What it is, is a function of seed and number
/// alone, so that all ranks do the same; how long a rank thinks before is its own.
pub fn round(device: &Cpu, group: &dyn Group<Cpu>, seed: u64, number: u64) {
    let draw = |what: u64, below: u64| math::random_u64(seed.wrapping_mul(31) + what, number) % below;
    if draw(2, 4) == 0 {
        let delay = math::random_u64(seed ^ group.rank() as u64, number) % 300;
        std::thread::sleep(Duration::from_micros(delay));
    }
    let dtype = [DType::F32, DType::BF16, DType::I64][draw(0, 3) as usize];
    // Empty, odd, and of several blocks.
    let part = [0, 1, 3, 17, 64, 1025, 3000][draw(1, 7) as usize];
    // What is carried and not summed may be bytes and integers too.
    let carried = [dtype, DType::I32, DType::U8][draw(8, 3) as usize];
    let kind = draw(3, 8);
    let sums = matches!(kind, 0 | 3 | 4);
    let round = Round { device, group, seed, number, dtype: if sums { dtype } else { carried } };
    match kind {
        0 => round.all_reduce(part + draw(4, 5) as usize),
        kind @ 1..=2 => round.all_gather(part, kind == 1),
        3 => round.reduce_scatter(part, false, draw(5, 2) == 0),
        4 => round.reduce_scatter(part, true, false),
        5 => round.all_to_all(part),
        6 => round.broadcast(draw(6, group.size() as u64) as usize, part),
        _ => {
            drop(group.carry_out(device, Call::Barrier).unwrap());
            round.messages(part);
        }
    }
}
