//! Tensors on the host: cut into what each rank of a mesh holds, and put together again.

use memwall_layout::{Axis, Cut, Placement, Placements, Reduction};
use memwall_tensor::device::Memory;
use memwall_tensor::fixed::Wide;
use memwall_tensor::{Category, Cpu, DType, Shape, Tensor};

/// A tensor whose elements f64 holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    pub shape: Shape,
    pub dtype: DType,
    pub values: Vec<f64>,
    /// Index, in the whole, of the first element of each dim.
    pub start: [usize; 2],
}

/// Axes with their ranks, the outermost first.
pub type Mesh<'a> = &'a [(Axis, usize)];

/// A number below `n` that hangs on three others.
fn draw(a: usize, b: usize, c: usize, n: usize) -> usize {
    let mixed = memwall_tensor::math::mix((a as u64) << 40 ^ (b as u64) << 20 ^ c as u64);
    (mixed >> 33) as usize % n
}

impl Host {
    pub fn new(shape: Shape, dtype: DType, values: Vec<f64>) -> Self {
        assert_eq!(shape.len(), values.len());
        Self { shape, dtype, values, start: [0; 2] }
    }

    /// As many rows and columns as the parts say, and zeros behind them.
    fn picked(&self, dim: usize, parts: impl Iterator<Item = usize>, len: usize) -> Self {
        let indices: Vec<Option<usize>> = parts.map(Some).chain(std::iter::repeat(None)).take(len).collect();
        let (rows, cols) = (self.shape.rows(), self.shape.cols());
        let at = |r: Option<usize>, c: Option<usize>| Some(self.values[r? * cols + c?]);
        let all = |n: usize| (0..n).map(Some).collect::<Vec<_>>();
        let (by_rows, by_cols) = if dim == 0 { (indices, all(cols)) } else { (all(rows), indices) };
        let values = by_rows
            .iter()
            .flat_map(|r| by_cols.iter().map(move |c| at(*r, *c).unwrap_or_default()))
            .collect();
        let mut start = self.start;
        if let Some(first) = (if dim == 0 { &by_rows } else { &by_cols }).first().copied().flatten() {
            start[dim] += first;
        }
        let shape = if self.shape.dims().len() == 1 {
            Shape::vector(by_rows.len())
        } else {
            Shape::matrix(by_rows.len(), by_cols.len())
        };
        Self { shape, dtype: self.dtype, values, start }
    }

    /// What rank `rank` of `ranks` holds. `None` when the tensor cannot be cut so.
    pub fn cut(&self, placement: Placement, axis: Axis, ranks: usize, rank: usize) -> Option<Self> {
        match placement {
            Placement::Replicated => Some(self.clone()),
            Placement::Shard(dim, cut) => {
                let dim = usize::from(dim);
                let len = *self.shape.dims().get(dim)?;
                let parts = cut.parts(len, ranks, rank)?;
                Some(self.picked(dim, parts.into_iter().flatten(), cut.local_len(len, ranks)?))
            }
            Placement::Partial(reduction) => {
                let mut part = self.clone();
                if self.dtype == DType::I64 {
                    // The elements of a wide sum are no numbers of their own.
                    part.values.iter_mut().for_each(|x| *x *= f64::from(u8::from(rank == 0)));
                    return Some(part);
                }
                for (i, x) in part.values.iter_mut().enumerate() {
                    let seed = axis as usize + 8 * i;
                    // Whole numbers from -3 to 3, of which the last rank holds what is missing.
                    let summand = |rank| draw(seed, rank, ranks, 7) as f64 - 3.0;
                    *x = match reduction {
                        Reduction::Sum if rank + 1 == ranks => *x - (0..rank).map(summand).sum::<f64>(),
                        Reduction::Sum => summand(rank),
                        // One rank has the largest, the others less.
                        Reduction::Max if draw(seed, 0, ranks, ranks) == rank => *x,
                        Reduction::Max => *x - 1.0 - draw(seed, rank, ranks, 3) as f64,
                    };
                }
                Some(part)
            }
        }
    }

    /// What all ranks along an axis hold together.
    fn joined(placement: Placement, parts: &[Host]) -> Host {
        let (first, ranks) = (&parts[0], parts.len());
        assert!(parts.iter().all(|p| (p.shape, p.dtype) == (first.shape, first.dtype)));
        match placement {
            Placement::Replicated => {
                assert!(parts.iter().all(|p| p.values == first.values), "replicas differ");
                first.clone()
            }
            Placement::Partial(reduction) => {
                let mut whole = first.clone();
                for p in &parts[1..] {
                    for (x, y) in whole.values.iter_mut().zip(&p.values) {
                        *x = if reduction == Reduction::Sum { *x + y } else { x.max(*y) };
                    }
                }
                whole
            }
            Placement::Shard(dim, cut) => {
                let dim = usize::from(dim);
                let local = first.shape.dims()[dim];
                let len = if let Cut::Padded(len) = cut { len } else { local * ranks };
                let matrix = |n: usize| match (dim, first.shape.dims().len()) {
                    (_, 1) => Shape::vector(n),
                    (0, _) => Shape::matrix(n, first.shape.cols()),
                    _ => Shape::matrix(first.shape.rows(), n),
                };
                let mut whole = Host::new(matrix(len), first.dtype, vec![f64::NAN; matrix(len).len()]);
                for (rank, part) in parts.iter().enumerate() {
                    let held: Vec<usize> =
                        cut.parts(len, ranks, rank).expect("it was cut so").into_iter().flatten().collect();
                    let (cols, of) = (part.shape.cols(), whole.shape.cols());
                    for (i, x) in part.values.iter().enumerate() {
                        let (r, c) = (i / cols, i % cols);
                        match held.get(if dim == 0 { r } else { c }) {
                            Some(at) if dim == 0 => whole.values[at * of + c] = *x,
                            Some(at) => whole.values[r * of + at] = *x,
                            None => assert_eq!(*x, 0.0, "padding is zero"),
                        }
                    }
                }
                whole
            }
        }
    }

    /// What all ranks of a mesh hold together; `parts` in the order of the ranks, the last axis fastest.
    pub fn together(mesh: Mesh<'_>, placements: Placements, parts: &[Host]) -> Host {
        let Some(((axis, ranks), rest)) = mesh.split_first() else { return parts[0].clone() };
        let each = parts.len() / ranks;
        let along: Vec<Host> = parts.chunks(each).map(|p| Host::together(rest, placements, p)).collect();
        Host::joined(placements.on(*axis), &along)
    }

    /// The same, a wide sum in its one form: sums of sums carry.
    pub fn normal(mut self) -> Self {
        if self.dtype == DType::I64 {
            let elements = self.values.iter().map(|x| *x as i64).collect::<Vec<_>>();
            let wide = Wide::from_elements(elements.try_into().expect("a wide sum"));
            let normal = wide.plus(Wide::default()).to_elements();
            self.values = normal.iter().map(|x| *x as f64).collect();
        }
        self.start = [0; 2];
        self
    }

    pub fn upload(&self, device: &Cpu, placements: Placements) -> Tensor<Cpu> {
        let mut t = Tensor::new(device, self.shape, self.dtype, placements, Category::Activations).unwrap();
        let (values, dst) = (self.values.iter(), t.view_mut().slice);
        match self.dtype {
            DType::I32 => {
                device.write(dst, bytemuck::cast_slice(&values.map(|x| *x as i32).collect::<Vec<_>>()))
            }
            DType::I64 => {
                device.write(dst, bytemuck::cast_slice(&values.map(|x| *x as i64).collect::<Vec<_>>()))
            }
            _ => device.write(dst, bytemuck::cast_slice(&values.map(|x| *x as f32).collect::<Vec<_>>())),
        }
        t
    }

    pub fn download(device: &Cpu, t: &Tensor<Cpu>) -> Self {
        let values = match t.dtype() {
            DType::I32 => crate::common::download::<_, i32>(device, t).into_iter().map(f64::from).collect(),
            DType::I64 => {
                crate::common::download::<_, i64>(device, t).into_iter().map(|x| x as f64).collect()
            }
            _ => crate::common::download::<_, f32>(device, t).into_iter().map(f64::from).collect(),
        };
        Self::new(t.shape(), t.dtype(), values)
    }
}
