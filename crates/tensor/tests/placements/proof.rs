//! Tries every mix of placements of an operation's operands: refused as it should be, or legal and right.

use super::cut::{Host, Mesh};
use crate::common::{Stream, cpu};
use memwall_layout::{Axis, Cut, Placement, PlacementError, Placements, Reduction};
use memwall_tensor::{Cpu, DType, Error, Shape, Tensor};

/// Ranks on the axis where all mixes are tried, then on the other axes.
const RANKS: [usize; 2] = [2, 3];

/// A mesh of two axes.
const PAIR: [(Axis, usize); 2] = [(Axis::DpShard, 3), (Axis::Tp, 2)];

/// A placement of an operand whose sizes are not yet known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    Replicated,
    Even(u8),
    Padded(u8),
    Zigzag(u8),
    Owed(Reduction),
}

/// An operand.
#[derive(Debug, Clone)]
pub struct Operand {
    /// As errors name it.
    pub name: &'static str,
    pub whole: Host,
    /// Whether it is a matrix that lies transposed: errors speak of it as if it did not.
    pub lies: bool,
    /// It takes the placement of this other operand, so that there are not too many mixes.
    pub like: Option<usize>,
    /// A few scalars, not to be sharded.
    pub scalar: bool,
}

impl Operand {
    pub fn new(name: &'static str, whole: Host) -> Self {
        Self { name, whole, lies: false, like: None, scalar: false }
    }

    /// Small whole numbers: their sums are exact.
    pub fn whole_numbers(name: &'static str, shape: Shape, s: &mut Stream) -> Self {
        let values = (0..shape.len()).map(|_| s.below(7) as f64 - 3.0).collect();
        Self::new(name, Host::new(shape, DType::F32, values))
    }

    pub fn reals(name: &'static str, shape: Shape, s: &mut Stream) -> Self {
        let values = s.floats(shape.len(), 1.0).into_iter().map(f64::from).collect();
        Self::new(name, Host::new(shape, DType::F32, values))
    }

    pub fn ids(name: &'static str, n: usize, below: usize, s: &mut Stream) -> Self {
        let values = s.ids(n, below).into_iter().map(f64::from).collect();
        Self::new(name, Host::new(Shape::vector(n), DType::I32, values))
    }

    /// A wide sum of nothing.
    pub fn wide(name: &'static str) -> Self {
        let whole = Host::new(Shape::vector(3), DType::I64, vec![0.0; 3]);
        Self { scalar: true, ..Self::new(name, whole) }
    }

    pub fn lying(self) -> Self {
        Self { lies: true, ..self }
    }

    pub fn like(self, other: usize) -> Self {
        Self { like: Some(other), ..self }
    }

    pub fn scalar(self) -> Self {
        Self { scalar: true, ..self }
    }

    fn choices(&self) -> Vec<Choice> {
        let owed = [Reduction::Sum, Reduction::Max].map(Choice::Owed);
        let dims = if self.scalar { 0 } else { self.whole.shape.dims().len() as u8 };
        let sharded = (0..dims).flat_map(|d| [Choice::Even(d), Choice::Padded(d), Choice::Zigzag(d)]);
        std::iter::once(Choice::Replicated).chain(sharded).chain(owed).collect()
    }
}

/// Tokens, inputs and outputs: sizes that can be cut evenly, in zigzag, or not at all without padding.
pub type Sizes = [usize; 3];

/// Sizes whose dims are padded on these axes, and may be cut evenly on the others.
fn sizes(padded: &[bool]) -> Sizes {
    match padded {
        [false] | [false, false] => [12, 24, 36],
        [true] => [11, 23, 35],
        // Among 3 and then among 2 ranks.
        [true, false] => [10, 16, 22],
        [false, true] => [9, 15, 21],
        _ => [13, 25, 31],
    }
}

/// Carries out an operation on a rank's operands, of which it also gets where they begin in the whole.
pub type Run<'a> = &'a dyn Fn(&Cpu, &[[usize; 2]], Vec<Tensor<Cpu>>) -> Result<Vec<Tensor<Cpu>>, Error>;

/// An operation to try.
pub struct Operation<'a> {
    /// As errors name it; if it is several in one, as they name each.
    pub name: &'static str,
    pub operands: &'a dyn Fn(Sizes) -> Vec<Operand>,
    /// Its results, changed operands among them.
    pub run: Run<'a>,
}

/// How many mixes on an axis are legal, and how many are refused.
#[derive(Debug, PartialEq, Eq)]
pub struct Count {
    pub axis: Axis,
    pub legal: usize,
    pub refused: usize,
}

/// The choices of all operands on one axis.
type Mix = Vec<Choice>;

impl Operation<'_> {
    /// Tries all mixes on an axis of each kind, and all pairs of legal ones on two. `counts` are those of legal and
    /// refused mixes, on an axis of data and on one within sequences.
    pub fn prove(&self, counts: [(usize, usize); 2]) {
        self.prove_but(0, counts);
    }

    /// The same, of an operation that refuses so many pairs of mixes that are legal on one axis.
    pub fn prove_but(&self, refused_pairs: usize, [data, within]: [(usize, usize); 2]) {
        let device = cpu(1);
        let counts = [(Axis::DpShard, data), (Axis::Tp, within), (Axis::Cp, within)];
        let mut legal = Vec::new();
        let counts = &counts[..if data == within { 2 } else { 3 }];
        for &(axis, (expected, refused)) in counts {
            let mixes = self.mixes();
            let tried = mixes.len();
            let kept: Vec<Mix> =
                mixes.into_iter().filter(|mix| self.check(&device, &[(axis, RANKS[0])], &[mix])).collect();
            let found = Count { axis, legal: kept.len(), refused: tried - kept.len() };
            assert_eq!(found, Count { axis, legal: expected, refused }, "{}: {kept:?}", self.name);
            for mix in &kept {
                assert!(self.check(&device, &[(axis, RANKS[1])], &[mix]), "{}: {mix:?}", self.name);
            }
            legal.push(kept);
        }
        let has = |mix: &Mix, f: fn(&Choice) -> bool| mix.iter().any(f);
        let zigzag = |mix: &Mix| has(mix, |c| matches!(c, Choice::Zigzag(_)));
        let padded = |mix: &Mix| has(mix, |c| matches!(c, Choice::Padded(_)));
        let mut refused = Vec::new();
        for outer in &legal[0] {
            for inner in &legal[1] {
                // No size can be cut in both ways among both axes' ranks.
                if (zigzag(outer) && padded(inner)) || (padded(outer) && zigzag(inner)) {
                    continue;
                }
                if !self.check(&device, &PAIR, &[outer, inner]) {
                    refused.push((outer, inner));
                }
            }
        }
        assert_eq!(refused.len(), refused_pairs, "{}: {refused:?}", self.name);
    }

    fn mixes(&self) -> Vec<Mix> {
        let mut mixes: Vec<Mix> = vec![Vec::new()];
        for operand in (self.operands)(sizes(&[false])) {
            mixes = match operand.like {
                Some(other) => mixes.into_iter().map(|m| [&m[..], &[m[other]]].concat()).collect(),
                None => {
                    let choices = operand.choices();
                    mixes.iter().flat_map(|m| choices.iter().map(move |c| [&m[..], &[*c]].concat())).collect()
                }
            };
        }
        mixes
    }

    /// Whether a mix is legal. Fails when it is refused by another error than it should, or legal and wrong.
    fn check(&self, device: &Cpu, mesh: Mesh<'_>, mixes: &[&Mix]) -> bool {
        let padded: Vec<bool> =
            mixes.iter().map(|m| m.iter().any(|c| matches!(c, Choice::Padded(_)))).collect();
        let operands = (self.operands)(sizes(&padded));
        let placed: Vec<(Placements, bool)> =
            operands.iter().enumerate().map(|(i, o)| place(o, i, mesh, mixes)).collect();
        let ranks: usize = mesh.iter().map(|(_, n)| n).product();
        let mut results: Vec<Vec<(Placements, Host)>> = Vec::new();
        for rank in 0..ranks {
            let local = |(o, (placements, _)): (&Operand, &(Placements, bool))| {
                let mut rest = rank;
                let mut within = ranks;
                mesh.iter().fold(o.whole.clone(), |part, (axis, n)| {
                    within /= n;
                    let at = rest / within;
                    rest %= within;
                    // What cannot be cut so is refused before its sizes are looked at.
                    part.cut(placements.on(*axis), *axis, *n, at).unwrap_or(part)
                })
            };
            let parts: Vec<Host> = operands.iter().zip(&placed).map(local).collect();
            let starts: Vec<_> = parts.iter().map(|p| p.start).collect();
            let tensors = parts.iter().zip(&placed).map(|(p, (at, _))| p.upload(device, *at)).collect();
            match (self.run)(device, &starts, tensors) {
                Ok(made) => {
                    let made = made.iter().map(|t| (t.placements(), Host::download(device, t)));
                    results.push(made.collect());
                }
                Err(Error::Placement(e)) if rank == 0 => {
                    self.check_refusal(&e, mesh, &operands, &placed);
                    return false;
                }
                Err(e) => panic!("{}: {mixes:?}: rank {rank}: {e}", self.name),
            }
        }
        assert!(placed.iter().all(|(_, can)| *can), "{}: {mixes:?} is accepted, and cannot be", self.name);
        let whole = operands.iter().map(|o| o.whole.upload(device, Placements::REPLICATED)).collect();
        let whole = (self.run)(device, &vec![[0; 2]; operands.len()], whole).unwrap();
        for (i, want) in whole.iter().enumerate() {
            let parts: Vec<Host> = results.iter().map(|r| r[i].1.clone()).collect();
            let placements = results[0][i].0;
            assert!(results.iter().all(|r| r[i].0 == placements));
            let got = Host::together(mesh, placements, &parts).normal();
            let want = Host::download(device, want).normal();
            assert!(got == want, "{}: {mixes:?}: result {i}: {got:?}\nis not {want:?}", self.name);
        }
        true
    }

    /// A refusal names the operation, the axis, and operands as they are placed.
    fn check_refusal(
        &self,
        e: &PlacementError,
        mesh: Mesh<'_>,
        operands: &[Operand],
        placed: &[(Placements, bool)],
    ) {
        let said = e.to_string();
        assert!(self.name.split(", ").any(|n| n == e.operation) && said.contains(e.operation), "{said}");
        assert!(mesh.iter().any(|(axis, _)| *axis == e.axis) && said.contains(e.axis.name()), "{said}");
        let mut named = 0;
        for (name, found) in &e.found {
            assert!(said.contains(&format!("{name} is {found}")), "{said}");
            let Some(i) = operands.iter().position(|o| o.name == *name) else {
                // What was made of the operands.
                assert!(["the value", "the product", "rstd"].contains(name), "{said}");
                named += usize::from(*name == "the product");
                continue;
            };
            let placements = placed[i].0;
            let placements = if operands[i].lies { placements.transposed() } else { placements };
            let placed = placements.on(e.axis);
            // An operation on heads speaks of them.
            let as_heads = |p| {
                matches!((p, *found), (Placement::Shard(1, Cut::Even), Placement::Shard(0, Cut::Strided(_))))
            };
            let padded = |p| {
                matches!(
                    (p, *found),
                    (Placement::Shard(0, Cut::Padded(_)), Placement::Shard(0, Cut::Padded(_)))
                )
            };
            assert!(*found == placed || as_heads(placed) || padded(placed), "{said}");
            named += 1;
        }
        assert!(named > 0, "{said}");
    }
}

/// Placements of operand `i` on all axes, and whether its sizes can be cut so.
fn place(o: &Operand, i: usize, mesh: Mesh<'_>, mixes: &[&Mix]) -> (Placements, bool) {
    let (mut placements, mut possible) = (Placements::REPLICATED, true);
    // Every rank's part is as large as that of the first.
    let mut part = o.whole.clone();
    for ((axis, ranks), mix) in mesh.iter().zip(mixes) {
        let len = |dim: u8| part.shape.dims().get(usize::from(dim)).copied().unwrap_or(0);
        let placement = match mix[i] {
            Choice::Replicated => Placement::Replicated,
            Choice::Owed(reduction) => Placement::Partial(reduction),
            Choice::Even(dim) => Placement::Shard(dim, Cut::Even),
            Choice::Zigzag(dim) => Placement::Shard(dim, Cut::Zigzag),
            Choice::Padded(dim) => Placement::Shard(dim, Cut::Padded(len(dim))),
        };
        placements = placements.with(*axis, placement);
        match part.cut(placement, *axis, *ranks, 0) {
            Some(cut) => part = cut,
            None => possible = false,
        }
    }
    (placements, possible)
}
