//! The model as data: units, the parameters of each, and what a token costs.

use crate::ModelConfig;

/// Index of a parameter in [`ModelSpec::params`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub usize);

/// How a parameter that no file holds gets its first value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// All ones (norms).
    Ones,
}

/// One parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamSpec {
    /// Name in a Hugging Face checkpoint.
    pub name: String,
    /// Dims, outermost first; a matrix is `[out, in]`.
    pub shape: Vec<usize>,
    /// First value.
    pub init: Init,
    /// Whether weight decay applies: to matrices, never to norms.
    pub decay: bool,
}

impl ParamSpec {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements; never true of a checked spec.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a unit computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitKind {
    /// Token ids to the residual stream.
    Embedding,
    /// Transformer block number `.0`.
    Block(usize),
    /// Final norm, head and loss.
    Head,
}

/// One unit and the parameters that live in it.
#[derive(Debug, Clone, PartialEq)]
pub struct UnitSpec {
    /// What it computes.
    pub kind: UnitKind,
    /// Parameters owned by this unit, in the order in which they lie in its flat buffer.
    pub params: Vec<ParamId>,
}

/// A model: its config, units and parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Checked numbers.
    pub config: ModelConfig,
    /// Units in forward order.
    pub units: Vec<UnitSpec>,
    /// All parameters, each once; a tied head is a second use of the embedding's.
    pub params: Vec<ParamSpec>,
}

impl ModelSpec {
    /// Lays out the units and parameters of `config`.
    pub fn new(config: ModelConfig) -> Self {
        let mut spec = Self { config: config.clone(), units: Vec::new(), params: Vec::new() };
        let c = &config;
        let (d, q, kv, f) =
            (c.hidden_size, c.heads * c.head_dim, c.kv_heads * c.head_dim, c.intermediate_size);
        let normal = Init::Normal(c.initializer_range);
        spec.unit(UnitKind::Embedding, &[("model.embed_tokens.weight", &[c.vocab_size, d], normal)]);
        for layer in 0..c.layers {
            let p = |suffix: &str| format!("model.layers.{layer}.{suffix}.weight");
            spec.unit(
                UnitKind::Block(layer),
                &[
                    (&p("input_layernorm"), &[d], Init::Ones),
                    (&p("self_attn.q_proj"), &[q, d], normal),
                    (&p("self_attn.k_proj"), &[kv, d], normal),
                    (&p("self_attn.v_proj"), &[kv, d], normal),
                    (&p("self_attn.o_proj"), &[d, q], normal),
                    (&p("post_attention_layernorm"), &[d], Init::Ones),
                    (&p("mlp.gate_proj"), &[f, d], normal),
                    (&p("mlp.up_proj"), &[f, d], normal),
                    (&p("mlp.down_proj"), &[d, f], normal),
                ],
            );
        }
        let norm: (&str, &[usize], Init) = ("model.norm.weight", &[d], Init::Ones);
        if c.tied {
            spec.unit(UnitKind::Head, &[norm]);
        } else {
            spec.unit(UnitKind::Head, &[norm, ("lm_head.weight", &[c.vocab_size, d], normal)]);
        }
        spec
    }

    fn unit(&mut self, kind: UnitKind, params: &[(&str, &[usize], Init)]) {
        let first = self.params.len();
        self.params.extend(params.iter().map(|&(name, shape, init)| ParamSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            init,
            decay: shape.len() >= 2,
        }));
        self.units.push(UnitSpec { kind, params: (first..self.params.len()).map(ParamId).collect() });
    }

    /// The spec of a parameter.
    pub fn param(&self, id: ParamId) -> &ParamSpec {
        &self.params[id.0]
    }

    /// Number of parameters, a tied weight counted once.
    pub fn parameter_count(&self) -> u64 {
        self.params.iter().map(|p| p.len() as u64).sum()
    }

    /// FLOPs that training one token costs, attention apart: 6 for each weight that multiplies it
    /// (2 forward, 4 backward; Kaplan et al. 2020, section 2.1). The embedding is a lookup and costs none,
    /// unless the head uses it too.
    pub fn linear_flops_per_token(&self) -> u64 {
        let matrices: u64 = self
            .units
            .iter()
            .filter(|u| u.kind != UnitKind::Embedding)
            .flat_map(|u| &u.params)
            .map(|&p| self.param(p))
            .filter(|p| p.shape.len() == 2)
            .map(|p| p.len() as u64)
            .sum();
        let tied =
            if self.config.tied { (self.config.vocab_size * self.config.hidden_size) as u64 } else { 0 };
        6 * (matrices + tied)
    }

    /// FLOPs that attention costs a token at this sequence length, causal: a token sees
    /// `(sequence + 1) / 2` keys on average, and each costs `2 x 2 x heads x head_dim` FLOPs forward
    /// (scores and values) and twice that backward.
    pub fn attention_flops_per_token(&self, sequence: usize) -> u64 {
        let c = &self.config;
        (c.layers * c.heads * c.head_dim) as u64 * 6 * (sequence as u64 + 1)
    }

    /// FLOPs that training one token costs in all: the figure behind MFU. Recomputation is not counted.
    pub fn flops_per_token(&self, sequence: usize) -> u64 {
        self.linear_flops_per_token() + self.attention_flops_per_token(sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(tied: bool) -> ModelSpec {
        let c = json!({"hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80, "tie_word_embeddings": tied});
        ModelSpec::new(ModelConfig::from_value(&c).unwrap())
    }

    // The counts that an independent implementation reports for the same configs.
    #[test]
    fn parameters_are_counted_once_tied_or_not() {
        assert_eq!(spec(false).parameter_count(), 22_176);
        assert_eq!(spec(true).parameter_count(), 19_616);
    }

    #[test]
    fn every_parameter_is_owned_by_exactly_one_unit() {
        for tied in [false, true] {
            let s = spec(tied);
            let mut owned: Vec<_> = s.units.iter().flat_map(|u| u.params.clone()).collect();
            owned.sort();
            assert_eq!(owned, (0..s.params.len()).map(ParamId).collect::<Vec<_>>());
        }
    }

    #[test]
    fn norms_never_decay_and_matrices_do() {
        for p in spec(false).params {
            assert_eq!(p.decay, !p.name.contains("norm"), "{}", p.name);
        }
    }

    #[test]
    fn a_tied_head_costs_the_same_flops_as_an_untied_one() {
        assert_eq!(spec(true).flops_per_token(16), spec(false).flops_per_token(16));
    }
}
