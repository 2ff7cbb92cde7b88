//! Attention and its gradients against f64 formulas over the full matrix of probabilities.

mod common;

use common::*;
use memwall_tensor::device::AttentionDims;
use memwall_tensor::{Cpu, ops};
use proptest::prelude::*;

/// Probabilities below e^-87.3 = 2e-38 may be zero. Thousands of them, times operands of up to a thousand,
/// stay below this.
const UNDERFLOW: f64 = 1e-30;

/// Operands of one attention.
struct Case {
    dims: AttentionDims,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    dout: Vec<f32>,
}

/// A tensor in f64, with the sum of the sizes of the terms that each element is made of.
struct Sums {
    value: Vec<f64>,
    size: Vec<f64>,
}

impl Sums {
    fn zeros(len: usize) -> Self {
        Self { value: vec![0.0; len], size: vec![0.0; len] }
    }

    fn add(&mut self, at: usize, value: f64, size: f64) {
        self.value[at] += value;
        self.size[at] += size;
    }

    /// Every term is off by at most `error` of its size.
    fn check(&self, what: &str, got: &[f32], error: f64) {
        assert_near(what, got, &self.value, |i| error * self.size[i] + UNDERFLOW);
    }
}

/// What attention should yield, and how far off f32 may be.
struct Reference {
    out: Sums,
    lse: Vec<f64>,
    dq: Sums,
    dk: Sums,
    dv: Sums,
    /// Largest `sum |q||k| / sqrt(head_dim)` of any score: what scores' rounding errors are relative to.
    score_size: f64,
}

impl Case {
    fn random(dims: AttentionDims, size: f32, seed: u64) -> Self {
        let mut s = Stream::new(seed);
        let queries = dims.batch * dims.queries * dims.heads * dims.head_dim;
        let keys = dims.batch * dims.keys * dims.kv_heads * dims.head_dim;
        let (q, k) = (s.floats(queries, size), s.floats(keys, size));
        Self { dims, q, k, v: s.floats(keys, 1.0), dout: s.floats(queries, 1.0) }
    }

    /// Index of element 0 of query `i` (or its result) of head `h` of sequence `b`.
    fn query(&self, b: usize, i: usize, h: usize) -> usize {
        ((b * self.dims.queries + i) * self.dims.heads + h) * self.dims.head_dim
    }

    /// Index of element 0 of the key or value `l` that head `h` of sequence `b` sees.
    fn key(&self, b: usize, l: usize, h: usize) -> usize {
        let kv = h * self.dims.kv_heads / self.dims.heads;
        ((b * self.dims.keys + l) * self.dims.kv_heads + kv) * self.dims.head_dim
    }

    fn reference(&self) -> Reference {
        let d = self.dims;
        let mut r = Reference {
            out: Sums::zeros(self.q.len()),
            lse: Vec::new(),
            dq: Sums::zeros(self.q.len()),
            dk: Sums::zeros(self.k.len()),
            dv: Sums::zeros(self.v.len()),
            score_size: 0.0,
        };
        let operands = [&self.q, &self.k, &self.v, &self.dout].map(|x| wide(x));
        for b in 0..d.batch {
            for i in 0..d.queries {
                for h in 0..d.heads {
                    self.row(&operands, [b, i, h], &mut r);
                }
            }
        }
        r
    }

    /// One query of one head: its row of the matrix of probabilities, and all that follows from it.
    fn row(&self, [q, k, v, g]: &[Vec<f64>; 4], [b, i, h]: [usize; 3], r: &mut Reference) {
        let (dim, scale) = (self.dims.head_dim, 1.0 / (self.dims.head_dim as f64).sqrt());
        let at = self.query(b, i, h);
        let seen: Vec<usize> =
            (0..=self.dims.keys - self.dims.queries + i).map(|l| self.key(b, l, h)).collect();
        let dot = |x: &[f64], y: &[f64], at_y: usize| {
            (0..dim).map(|e| x[at + e] * y[at_y + e]).fold((0.0, 0.0), |(s, t), p| (s + p, t + p.abs()))
        };
        let scores: Vec<_> = seen.iter().map(|l| dot(q, k, *l)).collect();
        let largest = scores.iter().map(|s| s.1 * scale).fold(0.0, f64::max);
        r.score_size = r.score_size.max(largest);
        let denominator: f64 = scores.iter().map(|s| (s.0 * scale).exp()).sum();
        r.lse.push(denominator.ln());
        let p: Vec<f64> = scores.iter().map(|s| (s.0 * scale).exp() / denominator).collect();
        let dp: Vec<_> = seen.iter().map(|l| dot(g, v, *l)).collect();
        let dp_size = dp.iter().map(|s| s.1).fold(0.0, f64::max);
        for (j, l) in seen.iter().enumerate() {
            // The softmax's Jacobian, dp_i/ds_j = p_i (delta_ij - p_j), times dp.
            let ds: f64 =
                (0..seen.len()).map(|i| dp[i].0 * p[i] * (f64::from(u8::from(i == j)) - p[j])).sum();
            let ds_size = 2.0 * p[j] * dp_size;
            for e in 0..dim {
                let (q, k, v, g) = (q[at + e], k[l + e], v[l + e], g[at + e]);
                r.out.add(at + e, p[j] * v, p[j] * v.abs());
                r.dv.add(l + e, p[j] * g, p[j] * g.abs());
                r.dq.add(at + e, ds * scale * k, ds_size * scale * k.abs());
                r.dk.add(l + e, ds * scale * q, ds_size * scale * q.abs());
            }
        }
    }

    /// Attention and its backward on a device: out, lse, dq, dk, dv.
    fn run(&self, device: &Cpu) -> [Vec<f32>; 5] {
        let d = self.dims;
        let (q, g) =
            (matrix(device, d.batch * d.queries, &self.q), matrix(device, d.batch * d.queries, &self.dout));
        let (k, v) = (matrix(device, d.batch * d.keys, &self.k), matrix(device, d.batch * d.keys, &self.v));
        let f = ops::attention(device, d, q.view(), k.view(), v.view()).unwrap();
        let b = ops::attention_backward(device, d, q.view(), k.view(), v.view(), &f, g.view()).unwrap();
        [&f.out, &f.lse, &b.dq, &b.dk, &b.dv].map(|t| floats(device, t))
    }

    /// Compares with the reference. With `u` the unit roundoff, `S` the size of scores, `T` tiles of 64 keys,
    /// and errors to first order (doubled at the end, which covers all higher orders):
    ///
    /// - A score is a chain of `head_dim` roundings, times a scale of three: `(head_dim + 3) u S`.
    ///   Subtracting the maximum rounds once more (`2 u S`), `exp` is off by its own bound. For every tile,
    ///   what was summed so far is scaled by another such `exp` and rounded twice. Sum of these: `weight`.
    /// - A result is a quotient of a sum of at most `keys` weights by their sum: `2 weight + (2 keys + 8) u`.
    /// - `lse` has the errors of the maximum and of the sum, and one rounding of its own size.
    /// - The backward's probabilities are `exp(score - lse)`: both errors, and a rounding of their size.
    /// - `dp` and `delta` are sums over `head_dim` of terms at most `dp_size`; `delta` also has the result's
    ///   error. Each gradient is a sum of at most `terms` products of these.
    fn check(&self, device: &Cpu) {
        let d = self.dims;
        let r = self.reference();
        let [out, lse, dq, dk, dv] = self.run(device);
        let (size, tiles) = (r.score_size, d.keys.div_ceil(64) as f64);
        let score = (d.head_dim + 3) as f64 * UNIT * size;
        let exponential = 2.0 * UNIT * size + EXP_ERROR;
        let weight = score + exponential + tiles * (exponential + 2.0 * UNIT);
        let result = 2.0 * weight + (2 * d.keys + 8) as f64 * UNIT;
        let largest = r.lse.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        let lse_error = score + weight + (d.keys + 8) as f64 * UNIT + UNIT * largest;
        let probability = score + lse_error + UNIT * (size + largest) + EXP_ERROR;
        let terms = (d.queries * d.heads / d.kv_heads).max(d.keys);
        let gradient = probability + result + (d.head_dim + 8 + terms) as f64 * UNIT;
        r.out.check("out", &out, 2.0 * result);
        assert_near("lse", &lse, &r.lse, |_| 2.0 * lse_error);
        r.dv.check("dv", &dv, 2.0 * (probability + terms as f64 * UNIT));
        r.dq.check("dq", &dq, 2.0 * gradient);
        r.dk.check("dk", &dk, 2.0 * gradient);
    }
}

fn dims(longest: usize) -> impl Strategy<Value = AttentionDims> {
    let head_dim = prop::sample::select(&[1usize, 2, 6, 7, 12, 64][..]);
    (1usize..=2, 1..=longest, 0..=longest / 2, 1usize..=2, 1usize..=3, head_dim).prop_map(
        |(batch, queries, ahead, kv_heads, group, head_dim)| AttentionDims {
            batch,
            queries,
            keys: queries + ahead,
            heads: kv_heads * group,
            kv_heads,
            head_dim,
        },
    )
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn attention_and_its_gradients_are_those_of_the_full_matrix(
        d in dims(150), threads in 1usize..=3, seed: u64,
    ) {
        Case::random(d, 1.0, seed).check(&cpu(threads));
    }

    #[test]
    fn a_query_does_not_depend_on_later_keys(d in dims(80), seed: u64) {
        let device = cpu(2);
        let case = Case::random(d, 1.0, seed);
        let before = case.run(&device);
        let mut changed =
            Case { k: case.k.clone(), v: case.v.clone(), q: case.q.clone(), dout: case.dout.clone(), ..case };
        // Of each sequence, everything after the first query's last key.
        let width = d.kv_heads * d.head_dim;
        for b in 0..d.batch {
            for x in &mut changed.k[(b * d.keys + d.keys - d.queries + 1) * width..(b + 1) * d.keys * width] {
                *x += 1.0;
            }
            for x in &mut changed.v[(b * d.keys + d.keys - d.queries + 1) * width..(b + 1) * d.keys * width] {
                *x -= 2.0;
            }
        }
        let after = changed.run(&device);
        for b in 0..d.batch {
            let row = changed.query(b, 0, 0)..changed.query(b, 0, 0) + d.heads * d.head_dim;
            prop_assert_eq!(bits(&before[0][row.clone()]), bits(&after[0][row.clone()]));
            prop_assert_eq!(bits(&before[2][row.clone()]), bits(&after[2][row]));
        }
    }
}

#[test]
fn the_largest_head_and_the_edges_of_tiles_are_no_exception() {
    let device = cpu(2);
    for (queries, keys, head_dim) in
        [(64, 64, 256), (65, 129, 256), (1, 128, 8), (63, 192, 10), (128, 128, 4)]
    {
        let d = AttentionDims { batch: 1, queries, keys, heads: 2, kv_heads: 1, head_dim };
        Case::random(d, 1.0, 5).check(&device);
    }
}

#[test]
fn scores_of_hundreds_do_not_overflow() {
    let d = AttentionDims { batch: 1, queries: 70, keys: 70, heads: 1, kv_heads: 1, head_dim: 64 };
    let case = Case::random(d, 20.0, 11);
    assert!(case.reference().lse.iter().any(|x| x.abs() > 100.0));
    case.check(&cpu(1));
}
