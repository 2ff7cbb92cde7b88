//! A collective with its buffers, and what it does to their placements.

use crate::CommError;
use memwall_layout::{Axis, Cut, Placement, PlacementError, Placements, Reduction};
use memwall_tensor::device::Memory;
use memwall_tensor::{DType, Shape, Tensor};

/// A collective operation, without its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Every rank ends with the sum of all.
    AllReduce,
    /// Every rank ends with the concatenation of all parts.
    AllGather,
    /// Every rank ends with its part of the sum.
    ReduceScatter,
    /// Every rank ends with its part of what each of the others had.
    AllToAll,
    /// Every rank ends with what one of them had.
    Broadcast,
    /// One rank gives another a buffer.
    Send,
    /// One rank takes a buffer from another.
    Receive,
    /// No rank goes on before all have come so far.
    Barrier,
}

impl Collective {
    /// All of them, in the order of tables.
    pub const ALL: [Collective; 8] = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Broadcast,
        Collective::Send,
        Collective::Receive,
        Collective::Barrier,
    ];

    /// Name in messages and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllToAll => "all_to_all",
            Collective::Broadcast => "broadcast",
            Collective::Send => "send",
            Collective::Receive => "receive",
            Collective::Barrier => "barrier",
        }
    }
}

/// A collective with the buffers that it takes and gives back. A part is one of as many equal ones as the group has ranks:
/// that of rank `r` is the `r`-th.
#[derive(Debug)]
pub enum Call<D: Memory> {
    /// The sum over the ranks, in place.
    AllReduce(Tensor<D>),
    /// `whole` becomes all ranks' parts, in their order. Without a `part` each rank's lies at its place in `whole` already.
    AllGather {
        /// What this rank gives.
        part: Option<Tensor<D>>,
        /// What every rank gets.
        whole: Tensor<D>,
    },
    /// `part` becomes this rank's part of the sum of all `whole`, or that is added to it. Without a `part` the sum takes its
    /// place in `whole`, and what comes back is a window of `whole` that shows it alone.
    ReduceScatter {
        /// What this rank gives.
        whole: Tensor<D>,
        /// What it gets.
        part: Option<Tensor<D>>,
        /// Whether the sum is added to what `part` holds.
        accumulate: bool,
    },
    /// Part `r` of `to` becomes this rank's part of rank `r`'s `from`.
    AllToAll {
        /// What this rank gives, a part for each rank.
        from: Tensor<D>,
        /// What it gets, a part from each rank.
        to: Tensor<D>,
    },
    /// The buffer becomes that of rank `root`.
    Broadcast {
        /// The rank that gives.
        root: usize,
        /// What it gives, and the others get.
        buffer: Tensor<D>,
    },
    /// Gives the buffer's elements to rank `to`, which receives them.
    Send {
        /// The rank that gets.
        to: usize,
        /// What it gets.
        buffer: Tensor<D>,
    },
    /// The buffer becomes what rank `from` sends.
    Receive {
        /// The rank that gives.
        from: usize,
        /// What this rank gets.
        buffer: Tensor<D>,
    },
    /// No rank's `wait` returns before every rank has started it.
    Barrier,
}

impl<D: Memory> Call<D> {
    /// Which operation.
    pub fn collective(&self) -> Collective {
        match self {
            Call::AllReduce(_) => Collective::AllReduce,
            Call::AllGather { .. } => Collective::AllGather,
            Call::ReduceScatter { .. } => Collective::ReduceScatter,
            Call::AllToAll { .. } => Collective::AllToAll,
            Call::Broadcast { .. } => Collective::Broadcast,
            Call::Send { .. } => Collective::Send,
            Call::Receive { .. } => Collective::Receive,
            Call::Barrier => Collective::Barrier,
        }
    }

    /// The buffer that is as large as the operation: `whole`, `from`, or the only one.
    fn whole(&self) -> Option<&Tensor<D>> {
        match self {
            Call::AllReduce(buffer)
            | Call::AllGather { whole: buffer, .. }
            | Call::ReduceScatter { whole: buffer, .. }
            | Call::AllToAll { from: buffer, .. }
            | Call::Broadcast { buffer, .. }
            | Call::Send { buffer, .. }
            | Call::Receive { buffer, .. } => Some(buffer),
            Call::Barrier => None,
        }
    }

    /// Elements and their type.
    pub fn size(&self) -> (usize, DType) {
        self.whole().map_or((0, DType::I64), |t| (t.shape().len(), t.dtype()))
    }

    /// The rank that gives or gets, where there is one.
    pub fn peer(&self) -> Option<usize> {
        match self {
            Call::Broadcast { root: peer, .. }
            | Call::Send { to: peer, .. }
            | Call::Receive { from: peer, .. } => Some(*peer),
            _ => None,
        }
    }

    /// The buffer of a collective that has one.
    ///
    /// # Panics
    /// When it has none, or two: a fault of the calling program.
    pub fn into_buffer(self) -> Tensor<D> {
        match self {
            Call::AllReduce(buffer)
            | Call::AllGather { part: None, whole: buffer }
            | Call::ReduceScatter { whole: buffer, part: None, .. }
            | Call::Broadcast { buffer, .. }
            | Call::Send { buffer, .. }
            | Call::Receive { buffer, .. } => buffer,
            _ => panic!("a collective of two buffers, or of none"),
        }
    }

    /// The whole and the part of a gather or scatter between two buffers.
    ///
    /// # Panics
    /// When it is none: a fault of the calling program.
    pub fn into_whole_and_part(self) -> (Tensor<D>, Tensor<D>) {
        match self {
            Call::AllGather { whole, part: Some(part) }
            | Call::ReduceScatter { whole, part: Some(part), .. } => (whole, part),
            _ => panic!("a collective without a whole and a part"),
        }
    }

    /// Refuses what no group of `size` ranks along `axes` can do: sizes, types and placements that do not fit, peers that do
    /// not exist. Every transport asks this first.
    ///
    /// # Errors
    /// [`CommError`] with the reason.
    pub fn check(&self, rank: usize, size: usize, axes: &[Axis]) -> Result<(), CommError> {
        let fail = |reason: String| Err(CommError::new(self.collective(), rank, size, reason));
        let (len, dtype) = self.size();
        let same = |what: &str, t: &Tensor<D>, wanted: usize| {
            if t.shape().len() == wanted && t.dtype() == dtype {
                return Ok(());
            }
            let (found, other) = (t.shape().len(), t.dtype());
            fail(format!("{what} is {found} elements of {other:?}, where {wanted} of {dtype:?} are needed"))
        };
        let parts = matches!(
            self.collective(),
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll
        );
        if parts && !len.is_multiple_of(size) {
            return fail(format!("{len} elements are no equal parts for {size} ranks"));
        }
        let sums = matches!(self.collective(), Collective::AllReduce | Collective::ReduceScatter);
        if sums && matches!(dtype, DType::I32 | DType::U8) {
            return fail(format!("there are no sums of {dtype:?}"));
        }
        match self {
            Call::AllGather { part: Some(part), .. } | Call::ReduceScatter { part: Some(part), .. } => {
                same("the part", part, len / size)?;
            }
            Call::ReduceScatter { part: None, accumulate: true, .. } => {
                return fail("a sum in place has nothing that it could be added to".into());
            }
            Call::AllToAll { to, .. } => same("what is got", to, len)?,
            _ => {}
        }
        if let Some(peer) = self.peer().filter(|peer| *peer >= size) {
            return fail(format!("there is no rank {peer}"));
        }
        if let Call::Send { to: peer, .. } | Call::Receive { from: peer, .. } = self
            && *peer == rank
        {
            return fail("a rank does not talk to itself".into());
        }
        self.placed(axes)
            .map(|_| ())
            .map_err(|e| CommError::new(self.collective(), rank, size, e.to_string()))
    }

    /// Placements of the buffers afterwards, whole and part.
    fn placed(&self, axes: &[Axis]) -> Result<[Placements; 2], PlacementError> {
        const WHOLE: Placement = Placement::Replicated;
        const SUM: Placement = Placement::Partial(Reduction::Sum);
        const PART: Placement = Placement::Shard(0, Cut::Even);
        let operation = self.collective().name();
        let require = |name: &'static str, t: &Tensor<D>, wanted: Placement| {
            let wrong = axes.iter().find(|axis| t.placements().on(**axis) != wanted);
            wrong.map_or(Ok(()), |axis| {
                let found = vec![(name, t.placements().on(*axis))];
                Err(PlacementError { operation, axis: *axis, found })
            })
        };
        let on =
            |t: &Tensor<D>, placement| axes.iter().fold(t.placements(), |p, axis| p.with(*axis, placement));
        Ok(match self {
            Call::AllReduce(buffer) => {
                require("the buffer", buffer, SUM)?;
                [on(buffer, WHOLE); 2]
            }
            Call::AllGather { part, whole } => {
                if let Some(part) = part {
                    require("the part", part, PART)?;
                }
                [on(part.as_ref().unwrap_or(whole), WHOLE), part.as_ref().unwrap_or(whole).placements()]
            }
            Call::ReduceScatter { whole, part, accumulate } => {
                require("the whole", whole, SUM)?;
                if let Some(part) = part.as_ref().filter(|_| *accumulate) {
                    require("the part", part, PART)?;
                }
                [whole.placements(), on(whole, PART)]
            }
            Call::AllToAll { from: buffer, .. }
            | Call::Broadcast { buffer, .. }
            | Call::Send { buffer, .. }
            | Call::Receive { buffer, .. } => [buffer.placements(); 2],
            Call::Barrier => [Placements::REPLICATED; 2],
        })
    }

    /// The same once it has been carried out along `axes`: its buffers are placed as they then are. Every transport ends
    /// with this.
    #[must_use]
    pub fn done(self, rank: usize, size: usize, axes: &[Axis]) -> Self {
        let Ok([whole_now, part_now]) = self.placed(axes) else { return self };
        match self {
            Call::AllReduce(buffer) => Call::AllReduce(buffer.placed(whole_now)),
            Call::AllGather { part, whole } => Call::AllGather { part, whole: whole.placed(whole_now) },
            Call::ReduceScatter { whole, part: None, accumulate } => {
                let n = whole.shape().len() / size;
                let whole = whole.window(rank * n, Shape::vector(n)).placed(part_now);
                Call::ReduceScatter { whole, part: None, accumulate }
            }
            Call::ReduceScatter { whole, part: Some(part), accumulate } => {
                Call::ReduceScatter { whole, part: Some(part.placed(part_now)), accumulate }
            }
            other => other,
        }
    }
}
