//! An attention's operands, its f64 formula over the full matrix of probabilities, and how far off f32 may be.

use super::{EXP_ERROR, Stream, UNIT, assert_near, floats, typed, upload, vector, wide};
use memwall_tensor::device::{AttentionDims, Dropout};
use memwall_tensor::math::{mix, survives};
use memwall_tensor::ops::Attended;
use memwall_tensor::{Cpu, DType, Shape, Tensor, ops};
use proptest::prelude::*;
use std::ops::Range;

/// Probabilities below e^-87.3 = 2e-38 may be zero. Thousands of them, times operands of up to a thousand,
/// stay below this.
const UNDERFLOW: f64 = 1e-30;

/// Zeros among the probabilities.
#[derive(Debug, Clone)]
pub struct Zeros {
    /// Of each sequence.
    pub keys: Vec<i64>,
    pub salt: u64,
    pub rate: f32,
}

/// Operands of one attention.
#[derive(Debug, Clone)]
pub struct Case {
    pub dims: AttentionDims,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub dout: Vec<f32>,
    pub positions: Vec<i32>,
    pub zeros: Option<Zeros>,
}

/// What a device computed of a [`Case`].
#[derive(Debug)]
pub struct Outcome {
    pub out: Vec<f32>,
    pub lse: Vec<f32>,
    pub dq: Vec<f32>,
    pub dk: Vec<f32>,
    pub dv: Vec<f32>,
}

/// A [`Case`] on a device.
pub struct Loaded {
    pub q: Tensor<Cpu>,
    pub k: Tensor<Cpu>,
    pub v: Tensor<Cpu>,
    pub dout: Tensor<Cpu>,
    positions: Tensor<Cpu>,
    zeros: Option<(Tensor<Cpu>, u64, f32)>,
}

impl Loaded {
    pub fn input(&self) -> Attended<'_, Cpu> {
        let zeros = self.zeros.as_ref();
        Attended {
            q: self.q.view(),
            k: self.k.view(),
            v: self.v.view(),
            positions: self.positions.view(),
            dropout: zeros.map(|(keys, salt, rate)| Dropout {
                keys: keys.view().slice,
                salt: *salt,
                rate: *rate,
            }),
            first_head: None,
        }
    }
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
pub struct Reference {
    out: Sums,
    pub lse: Vec<f64>,
    dq: Sums,
    dk: Sums,
    dv: Sums,
    /// Largest `sum |q||k| / sqrt(head_dim)` of any score: what scores' rounding errors are relative to.
    score_size: f64,
}

impl Case {
    /// Sequences that are one document each.
    pub fn random(dims: AttentionDims, size: f32, seed: u64) -> Self {
        let mut s = Stream::new(seed);
        let queries = dims.batch * dims.queries * dims.heads * dims.head_dim;
        let keys = dims.batch * dims.keys * dims.kv_heads * dims.head_dim;
        let (q, k) = (s.floats(queries, size), s.floats(keys, size));
        let places = (dims.keys - dims.queries..dims.keys).map(|place| place as i32);
        let positions = (0..dims.batch).flat_map(|_| places.clone()).collect();
        Self { dims, q, k, v: s.floats(keys, 1.0), dout: s.floats(queries, 1.0), positions, zeros: None }
    }

    /// The same operands, each sequence cut at random into documents of up to `longest` tokens. Those of each
    /// sequence are returned as well.
    pub fn packed(mut self, longest: usize, seed: u64) -> (Self, Vec<Vec<Range<usize>>>) {
        let (d, mut s) = (self.dims, Stream::new(seed));
        let mut all = Vec::new();
        for b in 0..d.batch {
            let (mut documents, mut start) = (Vec::new(), 0);
            while start < d.keys {
                let end = (start + 1 + s.below(longest)).min(d.keys);
                documents.push(start..end);
                start = end;
            }
            for document in &documents {
                for place in document.clone().filter(|place| *place >= d.keys - d.queries) {
                    self.positions[b * d.queries + place - (d.keys - d.queries)] =
                        (place - document.start) as i32;
                }
            }
            all.push(documents);
        }
        (self, all)
    }

    /// The same operands, a share of the probabilities of which is zero.
    pub fn dropped(mut self, rate: f32, seed: u64) -> Self {
        let mut s = Stream::new(seed);
        let mut random = || s.below(1 << 30) as i64 * s.below(1 << 30) as i64;
        let salt = random() as u64;
        self.zeros = Some(Zeros { keys: (0..self.dims.batch).map(|_| random()).collect(), salt, rate });
        self
    }

    /// Whether query `i` of sequence `b` sees key `l`: one of its document and its window, and not later.
    pub fn sees(&self, b: usize, i: usize, l: usize) -> bool {
        let place = self.dims.keys - self.dims.queries + i;
        let position = self.positions[b * self.dims.queries + i] as usize;
        l <= place && place - l <= position && self.dims.window.is_none_or(|w| place - l < w)
    }

    /// What the probability that query `i` of head `h` of sequence `b` gives key `l` is multiplied by, as
    /// [`Dropout`] documents.
    pub fn factor(&self, b: usize, h: usize, i: usize, l: usize) -> f64 {
        let Some(zeros) = &self.zeros else { return 1.0 };
        let key = mix(zeros.keys[b] as u64 ^ mix(zeros.salt.wrapping_add((h as u64) << 32)));
        let kept = survives(key, ((i as u64) << 32) + l as u64, zeros.rate);
        if kept { 1.0 / (1.0 - f64::from(zeros.rate)) } else { 0.0 }
    }

    /// Index of element 0 of query `i` (or its result) of head `h` of sequence `b`.
    pub fn query(&self, b: usize, i: usize, h: usize) -> usize {
        ((b * self.dims.queries + i) * self.dims.heads + h) * self.dims.head_dim
    }

    /// Index of element 0 of the key or value `l` that head `h` of sequence `b` sees.
    pub fn key(&self, b: usize, l: usize, h: usize) -> usize {
        let kv = h * self.dims.kv_heads / self.dims.heads;
        ((b * self.dims.keys + l) * self.dims.kv_heads + kv) * self.dims.head_dim
    }

    pub fn reference(&self) -> Reference {
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
        let seen = (0..self.dims.keys).filter(|l| self.sees(b, i, *l));
        let (seen, factors): (Vec<_>, Vec<_>) =
            seen.map(|l| (self.key(b, l, h), self.factor(b, h, i, l))).unzip();
        let dot = |x: &[f64], y: &[f64], at_y: usize| {
            (0..dim).map(|e| x[at + e] * y[at_y + e]).fold((0.0, 0.0), |(s, t), p| (s + p, t + p.abs()))
        };
        let scores: Vec<_> = seen.iter().map(|l| dot(q, k, *l)).collect();
        let largest = scores.iter().map(|s| s.1 * scale).fold(0.0, f64::max);
        r.score_size = r.score_size.max(largest);
        let denominator: f64 = scores.iter().map(|s| (s.0 * scale).exp()).sum();
        r.lse.push(denominator.ln());
        let p: Vec<f64> = scores.iter().map(|s| (s.0 * scale).exp() / denominator).collect();
        let dp = seen.iter().zip(&factors).map(|(l, f)| (dot(g, v, *l), f));
        let dp: Vec<_> = dp.map(|((sum, size), f)| (sum * f, size * f)).collect();
        let dp_size = dp.iter().map(|s| s.1).fold(0.0, f64::max);
        for (j, l) in seen.iter().enumerate() {
            // The softmax's Jacobian, dp_i/ds_j = p_i (delta_ij - p_j), times dp.
            let ds: f64 =
                (0..seen.len()).map(|i| dp[i].0 * p[i] * (f64::from(u8::from(i == j)) - p[j])).sum();
            let (ds_size, kept) = (2.0 * p[j] * dp_size, p[j] * factors[j]);
            for e in 0..dim {
                let (q, k, v, g) = (q[at + e], k[l + e], v[l + e], g[at + e]);
                r.out.add(at + e, kept * v, kept * v.abs());
                r.dv.add(l + e, kept * g, kept * g.abs());
                r.dq.add(at + e, ds * scale * k, ds_size * scale * k.abs());
                r.dk.add(l + e, ds * scale * q, ds_size * scale * q.abs());
            }
        }
    }

    /// Onto a device, rounded to bf16 first where that is `dtype`.
    pub fn load(&self, device: &Cpu, dtype: DType) -> Loaded {
        let d = self.dims;
        let put = |values: &[f32], tokens: usize| {
            let shape = Shape::matrix(tokens, values.len() / tokens);
            if dtype == DType::BF16 {
                typed(device, dtype, shape, values)
            } else {
                upload(device, shape, values)
            }
        };
        Loaded {
            q: put(&self.q, d.batch * d.queries),
            k: put(&self.k, d.batch * d.keys),
            v: put(&self.v, d.batch * d.keys),
            dout: put(&self.dout, d.batch * d.queries),
            positions: vector(device, &self.positions),
            zeros: self.zeros.as_ref().map(|z| (vector(device, &z.keys), z.salt, z.rate)),
        }
    }

    /// Attention and its backward on a device.
    pub fn run(&self, device: &Cpu) -> Outcome {
        let loaded = self.load(device, DType::F32);
        let f = ops::attention(device, self.dims, loaded.input()).unwrap();
        let b = ops::attention_backward(device, self.dims, loaded.input(), &f, loaded.dout.view()).unwrap();
        let [out, lse, dq, dk, dv] = [&f.out, &f.lse, &b.dq, &b.dk, &b.dv].map(|t| floats(device, t));
        Outcome { out, lse, dq, dk, dv }
    }

    /// What a device yields is what the formula does.
    pub fn check(&self, device: &Cpu) {
        self.compare(&self.run(device));
    }

    /// Compares with the reference. With `u` the unit roundoff, `S` the size of scores, `T` tiles of 64 keys that a
    /// run of `keys` meets wherever it starts, and errors to first order (doubled at the end, which covers all
    /// higher orders):
    ///
    /// - A score is a chain of `head_dim` roundings, times a scale of three: `(head_dim + 3) u S`.
    ///   Subtracting the maximum rounds once more (`2 u S`), `exp` is off by its own bound. For every tile,
    ///   what was summed so far is scaled by another such `exp` and rounded twice. Sum of these: `weight`.
    /// - A result is a quotient of a sum of at most `keys` weights by their sum: `2 weight + (2 keys + 8) u`.
    /// - `lse` has the errors of the maximum and of the sum, and one rounding of its own size.
    /// - The backward's probabilities are `exp(score - lse)`: both errors, and a rounding of their size.
    /// - What survives a dropout grows by `1 / (1 - rate)`: a difference, a quotient and a product, `3 u`.
    /// - `dp` and `delta` are sums over `head_dim` of terms at most `dp_size`; `delta` also has the result's
    ///   error. Each gradient is a sum of at most `terms` products of these.
    pub fn compare(&self, got: &Outcome) {
        let d = self.dims;
        let r = self.reference();
        let (size, tiles) = (r.score_size, (d.keys / 64 + 2) as f64);
        let score = (d.head_dim + 3) as f64 * UNIT * size;
        let exponential = 2.0 * UNIT * size + EXP_ERROR;
        let weight = score + exponential + tiles * (exponential + 2.0 * UNIT);
        let grown = if self.zeros.is_some() { 3.0 * UNIT } else { 0.0 };
        let result = 2.0 * weight + (2 * d.keys + 8) as f64 * UNIT + grown;
        let largest = r.lse.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        let lse_error = score + weight + (d.keys + 8) as f64 * UNIT + UNIT * largest;
        let probability = score + lse_error + UNIT * (size + largest) + EXP_ERROR + grown;
        let terms = (d.queries * d.heads / d.kv_heads).max(d.keys);
        let gradient = probability + result + (d.head_dim + 8 + terms) as f64 * UNIT;
        r.out.check("out", &got.out, 2.0 * result);
        assert_near("lse", &got.lse, &r.lse, |_| 2.0 * lse_error);
        r.dv.check("dv", &got.dv, 2.0 * (probability + terms as f64 * UNIT));
        r.dq.check("dq", &got.dq, 2.0 * gradient);
        r.dk.check("dk", &got.dk, 2.0 * gradient);
    }
}

/// Sizes of attentions of up to `longest` queries: some with more keys, grouped heads, odd heads.
pub fn dims(longest: usize) -> impl Strategy<Value = AttentionDims> {
    let head_dim = prop::sample::select(&[1usize, 2, 6, 7, 12, 64][..]);
    (1usize..=2, 1..=longest, 0..=longest / 2, 1usize..=2, 1usize..=3, head_dim).prop_map(
        |(batch, queries, ahead, kv_heads, group, head_dim)| AttentionDims {
            batch,
            queries,
            keys: queries + ahead,
            heads: kv_heads * group,
            kv_heads,
            head_dim,
            window: None,
        },
    )
}

/// The same with documents, windows and dropout, in all mixes.
pub fn cases_of(longest: usize) -> impl Strategy<Value = Case> {
    let window = prop::option::of(1..=longest + longest / 2);
    let document = prop::option::of(1..=2 * longest);
    let rate = prop::option::of(0.05f32..0.8);
    (dims(longest), window, document, rate, any::<u64>()).prop_map(|(d, window, document, rate, seed)| {
        let case = Case::random(AttentionDims { window, ..d }, 1.0, seed);
        let case = match document {
            Some(longest) => case.packed(longest, seed ^ 1).0,
            None => case,
        };
        match rate {
            Some(rate) => case.dropped(rate, seed ^ 2),
            None => case,
        }
    })
}

/// Cases of several tiles of queries and of keys each, with heads of all kinds of lengths.
pub fn across_tiles() -> Vec<Case> {
    let mut cases = Vec::new();
    // Queries, keys, heads, key/value heads, head_dim, window, longest document.
    for (seed, (queries, keys, heads, kv_heads, head_dim, window, longest)) in [
        (200, 200, 3, 1, 80, None, None),
        (129, 333, 4, 2, 72, None, Some(150)),
        (257, 257, 2, 2, 8, Some(130), None),
        (193, 193, 5, 1, 40, Some(37), Some(90)),
        (130, 130, 2, 1, 128, None, Some(20)),
        (131, 200, 1, 1, 136, None, None),
        (150, 150, 2, 1, 200, Some(70), Some(120)),
        (129, 129, 1, 1, 256, None, None),
        (70, 400, 7, 1, 5, Some(190), Some(300)),
        (300, 300, 1, 1, 33, None, None),
    ]
    .into_iter()
    .enumerate()
    {
        let d = AttentionDims { batch: 1, queries, keys, heads, kv_heads, head_dim, window };
        let case = Case::random(d, 1.0, seed as u64);
        let case = match longest {
            Some(longest) => case.packed(longest, seed as u64).0,
            None => case,
        };
        cases.push(if seed % 3 == 1 { case.dropped(0.3, seed as u64) } else { case });
    }
    cases
}
