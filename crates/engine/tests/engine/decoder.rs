//! Decoders' forward in f64, in plain loops after the papers: what the engine's gradients are checked against.
//!
//! It reads parameters by their names in a checkpoint, and the tests' own description of the model. Only the stream of
//! random numbers of dropout is the engine's; which of them decides about what is written here once more.

use super::common::{Batch, Model};
use memwall_model::Family;
use memwall_tensor::math::{mix, random_u64, stream_key, survives};
use std::collections::BTreeMap;

/// Rows of a matrix.
type Rows = Vec<Vec<f64>>;

/// A model with its parameters.
pub struct Decoder<'a> {
    pub model: &'a Model,
    pub params: BTreeMap<String, Vec<f64>>,
    /// Of the run, for dropout.
    pub seed: u64,
}

/// Where a sequence's tokens stand: position in their document, and number of the document.
struct Places {
    positions: Vec<usize>,
    documents: Vec<usize>,
    /// Key of the sequence's dropout.
    key: u64,
}

impl Places {
    /// A document begins where positions begin again.
    fn new(positions: &[i32], key: u64) -> Self {
        let begins = |p: &i32| usize::from(*p == 0);
        let documents = positions.iter().scan(0, |n, p| {
            *n += begins(p);
            Some(*n)
        });
        Self {
            documents: documents.collect(),
            positions: positions.iter().map(|p| *p as usize).collect(),
            key,
        }
    }

    /// What element `index` of the dropout `salt` is multiplied by.
    fn factor(&self, salt: u64, index: u64, rate: f64) -> f64 {
        let kept = survives(mix(self.key ^ mix(salt)), index, rate as f32);
        if kept { 1.0 / (1.0 - f64::from(rate as f32)) } else { 0.0 }
    }

    fn drop_out(&self, x: &mut Rows, salt: u64, rate: f64) {
        if rate > 0.0 {
            let each = x.iter_mut().flatten().enumerate();
            each.for_each(|(i, x)| *x *= self.factor(salt, i as u64, rate));
        }
    }
}

impl Decoder<'_> {
    /// Mean loss of the targets that count.
    pub fn loss(&self, batch: &Batch) -> f64 {
        let n = batch.samples.len();
        let sum: f64 = (0..n).map(|i| self.sequence_loss(&batch.part(i, n))).sum();
        sum / batch.valid().max(1) as f64
    }

    /// Sum of the losses of one sequence.
    fn sequence_loss(&self, s: &Batch) -> f64 {
        let m = self.model;
        let places = Places::new(&s.positions, random_u64(stream_key(self.seed, "dropout"), s.samples[0]));
        let gpt2 = m.family == Family::Gpt2;
        let table = self.get(if gpt2 { "transformer.wte.weight" } else { "model.embed_tokens.weight" });
        let mut x: Rows = s.tokens.iter().map(|t| row(table, *t as usize, m.hidden)).collect();
        if gpt2 {
            let learned = self.get("transformer.wpe.weight");
            add(&mut x, &places.positions.iter().map(|p| row(learned, *p, m.hidden)).collect());
        }
        places.drop_out(&mut x, 0, m.dropout[0]);
        for layer in 0..m.layers {
            self.block(&places, layer, &mut x);
        }
        let n = self.normed(&x, if gpt2 { "transformer.ln_f" } else { "model.norm" });
        let logits = product(&n, if m.tied { table } else { self.get("lm_head.weight") });
        let counted = logits.iter().zip(&s.targets).filter(|(_, t)| **t >= 0);
        counted.map(|(row, t)| log_sum_exp(row) - row[*t as usize]).sum()
    }

    fn get(&self, name: &str) -> &[f64] {
        self.params.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    fn block(&self, places: &Places, layer: usize, x: &mut Rows) {
        let (m, salt) = (self.model, 4 * layer as u64);
        let gpt2 = m.family == Family::Gpt2;
        let name = |part: &str| {
            if gpt2 {
                format!("transformer.h.{layer}.{part}")
            } else {
                format!("model.layers.{layer}.{part}")
            }
        };
        let n = self.normed(x, &name(if gpt2 { "ln_1" } else { "input_layernorm" }));
        let [q, k, v] = if gpt2 {
            let all = self.conv1d(&n, &name("attn.c_attn"));
            [0, 1, 2].map(|i| all.iter().map(|r| row(r, i, m.hidden)).collect())
        } else {
            let bias = m.attention_bias || m.family == Family::Qwen2;
            let [mut q, mut k, v] =
                ["q", "k", "v"].map(|p| self.linear(&n, &name(&format!("self_attn.{p}_proj")), bias));
            if m.family == Family::Qwen3 {
                self.norm_heads(&mut q, &name("self_attn.q_norm"));
                self.norm_heads(&mut k, &name("self_attn.k_norm"));
            }
            self.turn(&mut q, &places.positions);
            self.turn(&mut k, &places.positions);
            [q, k, v]
        };
        let a = self.attention(places, layer, &q, &k, &v);
        let mut a = if gpt2 {
            self.conv1d(&a, &name("attn.c_proj"))
        } else {
            self.linear(&a, &name("self_attn.o_proj"), m.attention_bias)
        };
        places.drop_out(&mut a, salt + 2, m.dropout[2]);
        add(x, &a);
        let n = self.normed(x, &name(if gpt2 { "ln_2" } else { "post_attention_layernorm" }));
        let mut a = if gpt2 { self.plain_mlp(&n, name) } else { self.gated_mlp(&n, name) };
        places.drop_out(&mut a, salt + 3, m.dropout[2]);
        add(x, &a);
    }

    /// Shazeer 2020, "GLU variants improve transformer", eq. 6.
    fn gated_mlp(&self, n: &Rows, name: impl Fn(&str) -> String) -> Rows {
        let linear = |x: &Rows, part| self.linear(x, &name(part), self.model.mlp_bias);
        let (mut a, up) = (linear(n, "mlp.gate_proj"), linear(n, "mlp.up_proj"));
        for (g, u) in a.iter_mut().flatten().zip(up.iter().flatten()) {
            *g = *g / (1.0 + (-*g).exp()) * u;
        }
        linear(&a, "mlp.down_proj")
    }

    /// Hendrycks and Gimpel 2016, "Gaussian error linear units", the approximation by tanh.
    fn plain_mlp(&self, n: &Rows, name: impl Fn(&str) -> String) -> Rows {
        let mut a = self.conv1d(n, &name("mlp.c_fc"));
        let root = (2.0 / std::f64::consts::PI).sqrt();
        for x in a.iter_mut().flatten() {
            *x = 0.5 * *x * (1.0 + (root * (*x + 0.044715 * x.powi(3))).tanh());
        }
        self.conv1d(&a, &name("mlp.c_proj"))
    }

    /// `x w^T + b`.
    fn linear(&self, x: &Rows, name: &str, bias: bool) -> Rows {
        let mut y = product(x, self.get(&format!("{name}.weight")));
        if bias {
            add_row(&mut y, self.get(&format!("{name}.bias")));
        }
        y
    }

    /// `x w + b`.
    fn conv1d(&self, x: &Rows, name: &str) -> Rows {
        let (w, b) = (self.get(&format!("{name}.weight")), self.get(&format!("{name}.bias")));
        let column = |x: &Vec<f64>, o: usize| x.iter().enumerate().map(|(i, x)| x * w[i * b.len() + o]).sum();
        let mut y: Rows = x.iter().map(|x| (0..b.len()).map(|o| column(x, o)).collect()).collect();
        add_row(&mut y, b);
        y
    }

    /// LayerNorm in GPT-2, root mean square norm elsewhere.
    fn normed(&self, x: &Rows, name: &str) -> Rows {
        let w = self.get(&format!("{name}.weight"));
        if self.model.family != Family::Gpt2 {
            return x.iter().map(|r| self.root_mean_square_normed(r, w)).collect();
        }
        let b = self.get(&format!("{name}.bias"));
        let normed = |r: &Vec<f64>| {
            let n = r.len() as f64;
            let mean = r.iter().sum::<f64>() / n;
            let variance = r.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let root = (variance + self.model.eps).sqrt();
            r.iter().zip(w.iter().zip(b)).map(|(x, (w, b))| (x - mean) / root * w + b).collect()
        };
        x.iter().map(normed).collect()
    }

    fn root_mean_square_normed(&self, r: &[f64], w: &[f64]) -> Vec<f64> {
        let root = (r.iter().map(|x| x * x).sum::<f64>() / r.len() as f64 + self.model.eps).sqrt();
        r.iter().zip(w).map(|(x, w)| x / root * w).collect()
    }

    fn norm_heads(&self, x: &mut Rows, name: &str) {
        let w = self.get(&format!("{name}.weight"));
        for head in x.iter_mut().flat_map(|r| r.chunks_mut(w.len())) {
            head.copy_from_slice(&self.root_mean_square_normed(head, w));
        }
    }

    /// The rotary embedding: pairs are a half head apart.
    fn turn(&self, x: &mut Rows, positions: &[usize]) {
        let dim = self.model.head_dim;
        for (position, row) in positions.iter().zip(x) {
            for head in row.chunks_mut(dim) {
                for i in 0..dim / 2 {
                    let angle = *position as f64 * self.model.theta.powf(-2.0 * i as f64 / dim as f64);
                    let (a, b) = (head[i], head[i + dim / 2]);
                    head[i] = a * angle.cos() - b * angle.sin();
                    head[i + dim / 2] = b * angle.cos() + a * angle.sin();
                }
            }
        }
    }

    /// Causal attention within documents, with shared keys and values.
    fn attention(&self, places: &Places, layer: usize, q: &Rows, k: &Rows, v: &Rows) -> Rows {
        let m = self.model;
        let (dim, group, rate) = (m.head_dim, m.heads / m.kv_heads, m.dropout[1]);
        let documents = &places.documents;
        let sees = |i: usize, j: usize| {
            documents[i] == documents[j] && m.window(layer).is_none_or(|window| i - j < window)
        };
        let mut out: Rows = vec![vec![0.0; m.heads * dim]; q.len()];
        for (i, out) in out.iter_mut().enumerate() {
            for (h, out) in out.chunks_mut(dim).enumerate() {
                let kv = h / group * dim;
                let q = &q[i][h * dim..][..dim];
                let seen: Vec<usize> = (0..=i).filter(|&j| sees(i, j)).collect();
                let score = |j: &usize| dot(q, &k[*j][kv..][..dim]) / (dim as f64).sqrt();
                let scores: Vec<f64> = seen.iter().map(score).collect();
                let lse = log_sum_exp(&scores);
                for (s, &j) in scores.iter().zip(&seen) {
                    let mut p = (s - lse).exp();
                    if rate > 0.0 {
                        let salt = (4 * layer + 1) as u64 + ((h as u64) << 32);
                        p *= places.factor(salt, (i as u64) << 32 | j as u64, rate);
                    }
                    out.iter_mut().zip(&v[j][kv..]).for_each(|(o, v)| *o += p * v);
                }
            }
        }
        out
    }
}

fn row(table: &[f64], index: usize, width: usize) -> Vec<f64> {
    table[index * width..][..width].to_vec()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `x w^T`.
fn product(x: &Rows, w: &[f64]) -> Rows {
    x.iter().map(|x| w.chunks(x.len()).map(|w| dot(x, w)).collect()).collect()
}

fn add(x: &mut Rows, y: &Rows) {
    x.iter_mut().flatten().zip(y.iter().flatten()).for_each(|(x, y)| *x += y);
}

fn add_row(x: &mut Rows, b: &[f64]) {
    x.iter_mut().for_each(|x| x.iter_mut().zip(b).for_each(|(x, b)| *x += b));
}

fn log_sum_exp(x: &[f64]) -> f64 {
    let max = x.iter().fold(f64::MIN, |m, x| m.max(*x));
    max + x.iter().map(|x| (x - max).exp()).sum::<f64>().ln()
}
