//! State that a checkpoint is written of while training goes on.
//!
//! Masters and moments do not change between two optimizer steps, so a writer on another thread reads them in place. What it
//! has not read when the next optimizer step begins is copied into room that was reserved when the rank was made; while more
//! is left than fits there, the step waits. After that the writer goes on from the copy.
//!
//! How much is copied depends on the writer's speed. Nothing else in a step does, and no allocation: the room is there from the
//! beginning, and what is copied changes no result.

use crate::flat::FlatLayout;
use crate::shares::Shares;
use crate::{EngineError, Part, Rank, Settings};
use memwall_layout::Placements;
use memwall_model::ParamId;
use memwall_tensor::device::{Device, Memory};
use memwall_tensor::{Category, DType, Lent, Shape, Tensor};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// State of a rank as it was when it was lent, to be read once by another thread, whatever the rank does meanwhile.
///
/// Dropping it gives back what was not read.
#[derive(Debug)]
pub struct Snapshot<D: Memory> {
    shared: Arc<Shared<D>>,
}

/// The rank's side of a snapshot, and the room for what it copies.
#[derive(Debug)]
pub(crate) struct Lending<D: Memory> {
    /// None without room: then steps wait until all is read.
    room: Option<Tensor<D>>,
    lent: Option<Arc<Shared<D>>>,
    /// How long steps have waited and copied.
    stood: Duration,
}

#[derive(Debug)]
struct Shared<D: Memory> {
    state: Mutex<State<D>>,
    moved: Condvar,
}

#[derive(Debug)]
struct State<D: Memory> {
    pieces: Vec<Piece<D>>,
    /// Elements that the optimizer will change and that are neither read nor copied.
    left: usize,
}

#[derive(Debug)]
struct Piece<D: Memory> {
    /// Where the elements from number `first` on are; nowhere once all are read.
    at: Option<Lent<D::Buf>>,
    first: usize,
    /// Elements read.
    read: usize,
    len: usize,
    /// Whether the next optimizer step would change it where it is.
    changes: bool,
}

impl<D: Memory> Shared<D> {
    fn lock(&self) -> MutexGuard<'_, State<D>> {
        // Reading and copying leave the state whole wherever they may panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Memory> Snapshot<D> {
    /// Copies the elements of piece number `piece` from number `first` on to the host, as f32. Each piece is read from its
    /// beginning to its end; pieces may be read in any order, and at the same time.
    ///
    /// # Panics
    /// When elements are left out or read twice: a fault of the calling program.
    pub fn read(&self, piece: usize, first: usize, out: &mut [f32]) {
        let mut state = self.shared.lock();
        let state = &mut *state;
        let piece = &mut state.pieces[piece];
        assert_eq!(first, piece.read, "the next element of a piece to read");
        let at = piece.at.as_ref().expect("a piece is read once");
        at.slice().part(first - piece.first, out.len()).read_floats(out);
        piece.read += out.len();
        if piece.changes {
            state.left -= out.len();
            self.shared.moved.notify_all();
        }
        if piece.read == piece.len {
            piece.at = None;
        }
    }
}

impl<D: Memory> Drop for Snapshot<D> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.pieces.clear();
        state.left = 0;
        self.shared.moved.notify_all();
    }
}

impl<D: Device> Lending<D> {
    /// Room for what the settings say, but for no more than the rank saves: nothing where another replica saves it.
    pub(crate) fn new(
        device: &D,
        layout: &FlatLayout,
        shares: Shares,
        settings: &Settings,
        saves: bool,
    ) -> Result<Self, EngineError> {
        // The weight, or its master, and two moments.
        let saved: usize = layout.units.iter().map(|unit| 3 * shares.own(unit.len).len()).sum();
        let elements = if saves { saved.min((settings.snapshot / 4) as usize) } else { 0 };
        let room = (elements > 0).then(|| {
            device.ledger().operation("room for a checkpoint");
            let shape = Shape::vector(elements);
            let mut room =
                Tensor::lendable(device, shape, DType::F32, Placements::REPLICATED, Category::Workspace)?;
            // Pages are there when they are needed, and not slowly then.
            device.zero(room.view_mut().slice);
            Ok::<_, EngineError>(room)
        });
        Ok(Self { room: room.transpose()?, lent: None, stood: Duration::ZERO })
    }

    /// The optimizer is about to change what is lent: copies what is not read yet, once it fits.
    fn settle(&mut self, device: &D) {
        let Some(lent) = self.lent.take() else { return };
        let begin = Instant::now();
        let fits = self.room.as_ref().map_or(0, |room| room.shape().len());
        let mut state = lent.lock();
        while state.left > fits {
            state = lent.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut end = 0;
        let mut copied = Vec::new();
        for (number, piece) in state.pieces.iter().enumerate().filter(|(_, p)| p.changes && p.read < p.len) {
            let (Some(at), Some(room)) = (&piece.at, &mut self.room) else { continue };
            let n = piece.len - piece.read;
            let rest = at.slice().part(piece.read - piece.first, n);
            device.copy(rest, room.view_mut().slice.part(end, n));
            copied.push((number, end..end + n));
            end += n;
        }
        for (number, range) in copied {
            let piece = &mut state.pieces[number];
            piece.at = self.room.as_ref().map(|room| room.lend(range));
            (piece.first, piece.changes) = (piece.read, false);
        }
        state.left = 0;
        self.stood += begin.elapsed();
    }
}

impl<D: Device> Rank<D> {
    /// Lends elements of parameters' state, which this rank holds (a range counts from the first that it holds), to be read
    /// by another thread while this one goes on. A snapshot before must have been dropped.
    ///
    /// # Panics
    /// When the rank does not hold the elements: a fault of the calling program.
    pub fn lend(&mut self, pieces: &[(Part, ParamId, Range<usize>)]) -> Snapshot<D> {
        let pieces: Vec<Piece<D>> = pieces
            .iter()
            .map(|(part, param, range)| {
                let (tensor, start) = self.tensor_of(*part, *param);
                let at = tensor.lend(start + range.start..start + range.end);
                let changes = !self.spec.param(*param).frozen;
                Piece { at: Some(at), first: 0, read: 0, len: range.len(), changes }
            })
            .collect();
        let left = pieces.iter().filter(|p| p.changes).map(|p| p.len).sum();
        let shared = Arc::new(Shared { state: Mutex::new(State { pieces, left }), moved: Condvar::new() });
        self.lending.lent = Some(shared.clone());
        Snapshot { shared }
    }

    /// Makes what is lent this rank's own again, before the optimizer changes it.
    pub(crate) fn take_back(&mut self) {
        self.lending.settle(&self.device);
    }

    /// How long steps have stood still so far, for checkpoints to be read.
    pub fn stood_still(&self) -> Duration {
        self.lending.stood
    }
}
