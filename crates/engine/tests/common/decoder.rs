//! A decoder's forward in f64, in plain loops after the papers: what the engine's gradients are checked against.

use memwall_model::ModelConfig;

/// Rows of a matrix.
type Rows = Vec<Vec<f64>>;

/// A model's parameters by position: embedding, nine of each block, final norm, head where it is not tied.
pub struct Decoder<'a> {
    pub config: &'a ModelConfig,
    pub params: Vec<Vec<f64>>,
}

impl Decoder<'_> {
    /// Mean loss of sequences of `length` over the targets that count.
    pub fn loss(&self, tokens: &[i32], targets: &[i32], length: usize) -> f64 {
        let valid = targets.iter().filter(|t| **t >= 0).count().max(1);
        let sequences = tokens.chunks(length).zip(targets.chunks(length));
        sequences.map(|(tokens, targets)| self.sequence_loss(tokens, targets)).sum::<f64>() / valid as f64
    }

    /// Sum of the losses of one sequence.
    fn sequence_loss(&self, tokens: &[i32], targets: &[i32]) -> f64 {
        let c = self.config;
        let d = c.hidden_size;
        let mut x: Rows = tokens.iter().map(|t| self.params[0][*t as usize * d..][..d].to_vec()).collect();
        for layer in 0..c.layers {
            self.block(&self.params[1 + 9 * layer..][..9], &mut x);
        }
        let last = 1 + 9 * c.layers;
        let head = if c.tied { &self.params[0] } else { &self.params[last + 1] };
        let logits = linear(&self.normed(&x, &self.params[last]), head);
        let counted = logits.iter().zip(targets).filter(|(_, t)| **t >= 0);
        counted.map(|(row, t)| log_sum_exp(row) - row[*t as usize]).sum()
    }

    fn block(&self, params: &[Vec<f64>], x: &mut Rows) {
        let [norm1, q, k, v, o, norm2, gate, up, down] = params else { panic!("nine parameters") };
        let n = self.normed(x, norm1);
        let (mut q, mut k, v) = (linear(&n, q), linear(&n, k), linear(&n, v));
        self.turn(&mut q);
        self.turn(&mut k);
        add(x, &linear(&self.attention(&q, &k, &v), o));
        let n = self.normed(x, norm2);
        let (mut a, up) = (linear(&n, gate), linear(&n, up));
        for (g, u) in a.iter_mut().flatten().zip(up.iter().flatten()) {
            *g = *g / (1.0 + (-*g).exp()) * u;
        }
        add(x, &linear(&a, down));
    }

    /// Root mean square norm.
    fn normed(&self, x: &Rows, w: &[f64]) -> Rows {
        let root =
            |r: &[f64]| (r.iter().map(|x| x * x).sum::<f64>() / r.len() as f64 + self.config.norm_eps).sqrt();
        x.iter().map(|r| r.iter().zip(w).map(|(x, w)| x / root(r) * w).collect()).collect()
    }

    /// The rotary embedding, base 10000: pairs are a half head apart.
    fn turn(&self, x: &mut Rows) {
        let dim = self.config.head_dim;
        for (position, row) in x.iter_mut().enumerate() {
            for head in row.chunks_mut(dim) {
                for i in 0..dim / 2 {
                    let angle = position as f64 * 10_000f64.powf(-2.0 * i as f64 / dim as f64);
                    let (a, b) = (head[i], head[i + dim / 2]);
                    head[i] = a * angle.cos() - b * angle.sin();
                    head[i + dim / 2] = b * angle.cos() + a * angle.sin();
                }
            }
        }
    }

    /// Causal attention with shared keys and values.
    fn attention(&self, q: &Rows, k: &Rows, v: &Rows) -> Rows {
        let (dim, group) = (self.config.head_dim, self.config.heads / self.config.kv_heads);
        let mut out: Rows = vec![vec![0.0; self.config.heads * dim]; q.len()];
        for (i, out) in out.iter_mut().enumerate() {
            for (h, out) in out.chunks_mut(dim).enumerate() {
                let kv = h / group * dim;
                let q = &q[i][h * dim..][..dim];
                let score = |k: &Vec<f64>| dot(q, &k[kv..][..dim]) / (dim as f64).sqrt();
                let scores: Vec<f64> = k[..=i].iter().map(score).collect();
                let lse = log_sum_exp(&scores);
                for (s, v) in scores.iter().zip(v) {
                    let p = (s - lse).exp();
                    out.iter_mut().zip(&v[kv..]).for_each(|(o, v)| *o += p * v);
                }
            }
        }
        out
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `x w^T`.
fn linear(x: &Rows, w: &[f64]) -> Rows {
    x.iter().map(|x| w.chunks(x.len()).map(|w| dot(x, w)).collect()).collect()
}

fn add(x: &mut Rows, y: &Rows) {
    x.iter_mut().flatten().zip(y.iter().flatten()).for_each(|(x, y)| *x += y);
}

fn log_sum_exp(x: &[f64]) -> f64 {
    let max = x.iter().fold(f64::MIN, |m, x| m.max(*x));
    max + x.iter().map(|x| (x - max).exp()).sum::<f64>().ln()
}
