//! A job on several ranks, as threads of this process, and what they have together.

use super::{BUDGET, Batch, Job, PARTS, params};
use memwall_comm::Groups;
use memwall_comm::local::Fabric;
use memwall_engine::{EngineError, Place, Rank, Settings, Zero};
use memwall_layout::Mesh;
use memwall_tensor::Cpu;
use memwall_tensor::device::Memory;
use std::time::Duration;

/// How ranks share a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub dp_replicate: usize,
    pub dp_shard: usize,
    pub zero: Zero,
}

/// What steps and evaluations of a layout came to. All ranks have said the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Loss, gradient norm and held-out loss of each step.
    pub steps: Vec<[f64; 3]>,
    /// Gradients of the last step, by parameter.
    pub gradients: Vec<Vec<f32>>,
    /// Weights and moments, by part and parameter.
    pub state: [Vec<Vec<f32>>; 3],
}

impl Layout {
    /// One device.
    pub const SINGLE: Layout = Layout { dp_replicate: 1, dp_shard: 1, zero: Zero::None };

    /// Every way to have `ranks` ranks.
    pub fn of(ranks: usize) -> Vec<Layout> {
        let mut all = vec![Layout { dp_replicate: ranks, dp_shard: 1, zero: Zero::None }];
        for dp_shard in (2..=ranks).filter(|s| ranks.is_multiple_of(*s)) {
            for zero in [Zero::One, Zero::Two, Zero::Three] {
                all.push(Layout { dp_replicate: ranks / dp_shard, dp_shard, zero });
            }
        }
        all
    }

    pub fn mesh(self) -> Mesh {
        Mesh::data_parallel(self.dp_replicate, self.dp_shard)
    }

    pub fn ranks(self) -> usize {
        self.mesh().world()
    }

    pub fn places(self) -> impl Iterator<Item = Place> {
        (0..self.ranks()).map(move |rank| Place { mesh: self.mesh(), rank })
    }

    /// The settings of a rank of a job whose micro-batches they share.
    pub fn settings(self, job: &Job) -> Settings {
        let micro_batches = job.settings.micro_batches / self.ranks();
        assert_eq!(micro_batches * self.ranks(), job.settings.micro_batches, "{self:?} {job:?}");
        Settings { micro_batches, zero: self.zero, ..job.settings }
    }

    /// Has every rank do `work`, initialized, and returns what they returned. `wrap` may put something between a rank and its
    /// groups.
    pub fn on_ranks<T: Send>(
        self,
        job: &Job,
        wrap: impl Fn(Groups<Cpu>) -> Groups<Cpu> + Sync,
        work: impl Fn(&mut Rank<Cpu>) -> Result<T, EngineError> + Sync,
    ) -> Vec<Result<T, EngineError>> {
        let mesh = self.mesh();
        let fabric = Fabric::new(mesh, BUDGET, Duration::from_secs(60)).unwrap();
        let settings = self.settings(job);
        fabric.threads(BUDGET, |device, groups| {
            let index = groups.rank;
            let mut rank = Rank::new(device, wrap(groups), job.spec(), settings)?;
            rank.initialize();
            let outcome = work(&mut rank);
            if let Err(e) = &outcome {
                fabric.fail_rank(index, &e.to_string());
            }
            outcome
        })
    }

    /// Some steps on these batches, after each an evaluation on the next one.
    pub fn train(self, job: &Job, batches: &[Batch]) -> Outcome {
        let ranks = self.on_ranks(job, |groups| groups, |rank| train(rank, batches, true));
        Self::if_together(job, ranks.into_iter().map(Result::unwrap).collect()).unwrap()
    }

    /// What ranks have together, if they say the same and have what they hold alike in common.
    pub fn if_together(job: &Job, ranks: Vec<Share>) -> Result<Outcome, String> {
        for rank in &ranks {
            let bits = |s: &Share| s.steps.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
            if bits(rank) != bits(&ranks[0]) {
                return Err("ranks say different things".into());
            }
        }
        let mut apart = false;
        let lens: Vec<usize> = job.spec().params.iter().map(|p| p.shape.iter().product()).collect();
        let mut whole = |pieces: &dyn Fn(&Share, usize) -> Piece| -> Vec<Vec<f32>> {
            let mut parameter = |p: usize| {
                let mut whole: Vec<Option<f32>> = vec![None; lens[p]];
                for rank in &ranks {
                    let (start, values) = pieces(rank, p);
                    for (x, value) in whole[start..].iter_mut().zip(values) {
                        // Replicas have the same.
                        apart |= x.is_some_and(|x| x.to_bits() != value.to_bits());
                        *x = Some(value);
                    }
                }
                // What is frozen has weights alone.
                if job.spec().params[p].frozen && whole.iter().all(Option::is_none) {
                    return Vec::new();
                }
                whole.into_iter().map(|x| x.expect("some rank has every element")).collect()
            };
            (0..lens.len()).map(&mut parameter).collect()
        };
        let outcome = Outcome {
            steps: ranks[0].steps.clone(),
            gradients: whole(&|rank, p| rank.gradients[p].clone()),
            state: [0, 1, 2].map(|part| whole(&|rank, p| rank.state[part][p].clone())),
        };
        if apart { Err("ranks have drifted apart".into()) } else { Ok(outcome) }
    }
}

/// First element, and the elements.
type Piece = (usize, Vec<f32>);

/// What one rank has of an [`Outcome`].
pub struct Share {
    pub steps: Vec<[f64; 3]>,
    gradients: Vec<Piece>,
    state: [Vec<Piece>; 3],
}

/// A rank's part of [`Layout::train`], which compares what ranks have in common or leaves that to the reader.
pub fn train(rank: &mut Rank<Cpu>, batches: &[Batch], compares: bool) -> Result<Share, EngineError> {
    let mut steps = Vec::new();
    for (i, batch) in batches.iter().enumerate() {
        let report = batch.step_of(rank)?;
        if compares {
            rank.compare_state()?;
        }
        let held_out = batches[(i + 1) % batches.len()].evaluate_of(rank)?;
        steps.push([report.loss, report.gradient_norm, held_out]);
    }
    let state = PARTS.map(|part| {
        params(rank).map(|p| (rank.held(part, p).start, rank.device().read_f32(rank.part(part, p)))).collect()
    });
    let gradients = params(rank).map(|p| (rank.owned(p).start, rank.gradient(p))).collect();
    Ok(Share { steps, gradients, state })
}
