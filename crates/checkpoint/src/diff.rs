//! Where two checkpoints, or a checkpoint and a model folder, differ.

use crate::error::CheckpointError;
use crate::model_folder::ModelWeights;
use crate::saved::SavedState;
use crate::tensor_file::CHUNK;
use crate::write::on_threads;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Something that has tensors with names.
#[derive(Debug)]
pub enum Tensors<'a> {
    /// Weights and moments.
    Checkpoint(Box<SavedState>),
    /// Weights alone.
    Model(ModelWeights<'a>),
}

impl Tensors<'_> {
    /// Names and dims.
    pub fn all(&self) -> Vec<(String, Vec<usize>)> {
        match self {
            Tensors::Checkpoint(saved) => saved.tensors().map(|(n, s)| (n.to_owned(), s.to_vec())).collect(),
            Tensors::Model(model) => {
                model.spec().params.iter().map(|p| (p.name.clone(), p.shape.clone())).collect()
            }
        }
    }

    /// Reads a tensor's elements from number `first` on.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    pub fn read(&self, name: &str, first: usize, piece: &mut [f32]) -> Result<(), CheckpointError> {
        match self {
            Tensors::Checkpoint(saved) => saved.read(name, first, piece),
            Tensors::Model(model) => model.read_named(name, first, piece),
        }
    }
}

/// How two tensors of the same name and dims differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Deviation {
    /// Name.
    pub name: String,
    /// Dims.
    pub shape: Vec<usize>,
    /// Elements whose bits differ.
    pub differ: usize,
    /// Largest distance of two elements; infinite where one of them is not a number and the other is another.
    pub largest: f64,
    /// Which elements those are, counted in row-major order.
    pub at: usize,
    /// The first one's element there, and the second one's.
    pub values: [f32; 2],
    /// Sum of squares of all distances.
    pub squares: f64,
    /// Sum of squares of the first one's elements.
    pub norm: f64,
}

impl Deviation {
    /// Euclidean norm of the distances over that of the first tensor; 0 where nothing differs.
    pub fn relative(&self) -> f64 {
        if self.squares == 0.0 { 0.0 } else { (self.squares / self.norm).sqrt() }
    }
}

/// Where two things differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Differences {
    /// Tensors of the same name and dims, in the first one's order, equal or not.
    pub tensors: Vec<Deviation>,
    /// Tensors of the same name and other dims: the first one's, the second one's.
    pub shapes: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Tensors that only one of both has.
    pub alone: [Vec<String>; 2],
}

impl Differences {
    /// Whether both have the same tensors with the same bits.
    pub fn none(&self) -> bool {
        self.shapes.is_empty()
            && self.alone.iter().all(Vec::is_empty)
            && self.tensors.iter().all(|t| t.differ == 0)
    }
}

/// Compares two things tensor by tensor. Moments are compared where both have them.
///
/// # Errors
/// A file cannot be read.
pub fn diff(a: &Tensors<'_>, b: &Tensors<'_>, threads: usize) -> Result<Differences, CheckpointError> {
    let theirs: HashMap<String, Vec<usize>> = b.all().into_iter().collect();
    let weights_alone = matches!(a, Tensors::Model(_)) || matches!(b, Tensors::Model(_));
    let counts = |name: &str| !(weights_alone && is_moment(name));
    let (mut common, mut shapes, mut alone) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
    let mut own = std::collections::HashSet::new();
    for (name, shape) in a.all().into_iter().filter(|(name, _)| counts(name)) {
        own.insert(name.clone());
        match theirs.get(&name) {
            None => alone[0].push(name),
            Some(other) if *other != shape => shapes.push((name, shape, other.clone())),
            Some(_) => common.push((name, shape)),
        }
    }
    alone[1] = b.all().into_iter().map(|(n, _)| n).filter(|n| counts(n) && !own.contains(n)).collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(vec![None; common.len()]));
    on_threads(threads, &|| {
        let mut pieces = [vec![0f32; CHUNK], vec![0f32; CHUNK]];
        while let Some((number, (name, shape))) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|n| Some((n, common.get(n)?)))
        {
            let deviation = compare(a, b, name, shape, &mut pieces)?;
            found.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(deviation);
        }
        Ok(())
    })?;
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Differences { tensors: found.into_iter().flatten().collect(), shapes, alone })
}

/// Whether a tensor of a checkpoint is a moment of the optimizer.
pub fn is_moment(name: &str) -> bool {
    name.starts_with("exp_avg.") || name.starts_with("exp_avg_sq.")
}

fn compare(
    a: &Tensors<'_>,
    b: &Tensors<'_>,
    name: &str,
    shape: &[usize],
    [x, y]: &mut [Vec<f32>; 2],
) -> Result<Deviation, CheckpointError> {
    let len: usize = shape.iter().product();
    let mut d = Deviation {
        name: name.to_owned(),
        shape: shape.to_vec(),
        differ: 0,
        largest: 0.0,
        at: 0,
        values: [0.0; 2],
        squares: 0.0,
        norm: 0.0,
    };
    for start in (0..len).step_by(CHUNK) {
        let n = CHUNK.min(len - start);
        a.read(name, start, &mut x[..n])?;
        b.read(name, start, &mut y[..n])?;
        for (i, (x, y)) in x[..n].iter().zip(&y[..n]).enumerate() {
            d.norm += f64::from(*x).powi(2);
            if x.to_bits() == y.to_bits() {
                continue;
            }
            d.differ += 1;
            let distance = (f64::from(*x) - f64::from(*y)).abs();
            let distance = if distance.is_nan() { f64::INFINITY } else { distance };
            d.squares += distance * distance;
            if distance > d.largest || d.differ == 1 {
                (d.largest, d.at, d.values) = (distance, start + i, [*x, *y]);
            }
        }
    }
    Ok(d)
}
