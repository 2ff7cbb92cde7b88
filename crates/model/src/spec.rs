//! The model as data: units, and the parameters of each with the part that they play.

use crate::{Family, ModelConfig};

/// Index of a parameter in [`ModelSpec::params`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub usize);

/// How a parameter that no file holds gets its first value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// All ones (weights of norms).
    Ones,
    /// All zeros (biases).
    Zeros,
}

/// One parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamSpec {
    /// Name in a Hugging Face checkpoint.
    pub name: String,
    /// Dims as in a checkpoint, outermost first.
    pub shape: Vec<usize>,
    /// First value.
    pub init: Init,
    /// Whether weight decay applies: to matrices, never to norms and biases.
    pub decay: bool,
    /// Whether it stays as it is.
    pub frozen: bool,
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

/// How a matrix lies in memory, and in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stored {
    /// `[out, in]`, as all but GPT-2 store it.
    OutIn,
    /// `[in, out]`, GPT-2's "Conv1D".
    InOut,
}

/// A linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenseSpec {
    /// Matrix.
    pub weight: ParamId,
    /// Bias, `[out]`.
    pub bias: Option<ParamId>,
    /// How the matrix lies.
    pub stored: Stored,
}

/// A norm: RMSNorm, or LayerNorm where there is a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NormSpec {
    /// Weight, `[dim]`.
    pub weight: ParamId,
    /// Bias of a LayerNorm, `[dim]`.
    pub bias: Option<ParamId>,
}

/// The projections of queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectionSpec {
    /// Three matrices.
    Split {
        /// Queries.
        q: DenseSpec,
        /// Keys.
        k: DenseSpec,
        /// Values.
        v: DenseSpec,
    },
    /// One matrix whose result is queries, keys and values side by side.
    Fused(DenseSpec),
}

/// An MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MlpSpec {
    /// `down(silu(gate x) * up x)`.
    Gated {
        /// What goes through the activation.
        gate: DenseSpec,
        /// What it multiplies.
        up: DenseSpec,
        /// Back to the residual stream.
        down: DenseSpec,
    },
    /// `down(gelu(up x))`.
    Plain {
        /// To the inner width.
        up: DenseSpec,
        /// Back to the residual stream.
        down: DenseSpec,
    },
}

/// A transformer block: attention and MLP, each behind a norm and beside the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSpec {
    /// Norm before attention.
    pub norm1: NormSpec,
    /// Queries, keys and values.
    pub projection: ProjectionSpec,
    /// Norms of each head's queries and keys, before the rotary embedding.
    pub qk_norms: Option<(NormSpec, NormSpec)>,
    /// Attention's result to the residual stream.
    pub out: DenseSpec,
    /// Norm before the MLP.
    pub norm2: NormSpec,
    /// MLP.
    pub mlp: MlpSpec,
    /// Tokens that a token sees, itself included; `None` sees all before it.
    pub window: Option<usize>,
}

/// What a unit computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "a model has few units, nearly all of them blocks")]
pub enum UnitKind {
    /// Token ids to the residual stream.
    Embedding {
        /// `[vocabulary, hidden]`.
        table: ParamId,
        /// Learned positions, `[max_positions, hidden]`.
        positions: Option<ParamId>,
    },
    /// A transformer block.
    Block(BlockSpec),
    /// Final norm, head and loss.
    Head {
        /// Final norm.
        norm: NormSpec,
        /// `[vocabulary, hidden]`; the embedding's table where they are tied.
        weight: ParamId,
    },
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
        let mut b = Builder { config: &config, units: Vec::new(), params: Vec::new(), owned: 0 };
        if config.family == Family::Gpt2 {
            b.gpt2()
        } else {
            b.llama_like()
        }
        let (units, params) = (b.units, b.params);
        Self { config, units, params }
    }

    /// The spec of a parameter.
    pub fn param(&self, id: ParamId) -> &ParamSpec {
        &self.params[id.0]
    }

    /// Number of parameters, a tied weight counted once.
    pub fn parameter_count(&self) -> u64 {
        self.params.iter().map(|p| p.len() as u64).sum()
    }
}

/// Lays out parameters one by one, each unit closed after its own.
struct Builder<'a> {
    config: &'a ModelConfig,
    units: Vec<UnitSpec>,
    params: Vec<ParamSpec>,
    /// Parameters that closed units own.
    owned: usize,
}

impl Builder<'_> {
    fn param(&mut self, name: String, shape: &[usize], init: Init) -> ParamId {
        self.params.push(ParamSpec {
            name,
            shape: shape.to_vec(),
            init,
            decay: shape.len() >= 2,
            frozen: false,
        });
        ParamId(self.params.len() - 1)
    }

    fn normal(&self) -> Init {
        Init::Normal(self.config.initializer_range)
    }

    fn unit(&mut self, kind: UnitKind) {
        let params = (self.owned..self.params.len()).map(ParamId).collect();
        self.owned = self.params.len();
        self.units.push(UnitSpec { kind, params });
    }

    /// A linear layer of `name`, from `i` to `o` dims.
    fn dense(&mut self, name: &str, (o, i): (usize, usize), bias: bool) -> DenseSpec {
        let weight = self.param(format!("{name}.weight"), &[o, i], self.normal());
        let bias = bias.then(|| self.param(format!("{name}.bias"), &[o], Init::Zeros));
        DenseSpec { weight, bias, stored: Stored::OutIn }
    }

    /// GPT-2's linear layer.
    fn conv1d(&mut self, name: &str, (o, i): (usize, usize), init: Init) -> DenseSpec {
        let weight = self.param(format!("{name}.weight"), &[i, o], init);
        let bias = Some(self.param(format!("{name}.bias"), &[o], Init::Zeros));
        DenseSpec { weight, bias, stored: Stored::InOut }
    }

    fn rms(&mut self, name: &str, dim: usize) -> NormSpec {
        NormSpec { weight: self.param(format!("{name}.weight"), &[dim], Init::Ones), bias: None }
    }

    fn layer_norm(&mut self, name: &str, dim: usize) -> NormSpec {
        let weight = self.param(format!("{name}.weight"), &[dim], Init::Ones);
        NormSpec { weight, bias: Some(self.param(format!("{name}.bias"), &[dim], Init::Zeros)) }
    }

    fn head(&mut self, norm: NormSpec, table: ParamId) {
        let c = self.config;
        let weight = if c.tied {
            table
        } else {
            self.param("lm_head.weight".into(), &[c.vocab_size, c.hidden_size], self.normal())
        };
        self.unit(UnitKind::Head { norm, weight });
    }

    fn llama_like(&mut self) {
        let c = self.config;
        let (d, q, kv, f) =
            (c.hidden_size, c.heads * c.head_dim, c.kv_heads * c.head_dim, c.intermediate_size);
        let table = self.param("model.embed_tokens.weight".into(), &[c.vocab_size, d], self.normal());
        self.unit(UnitKind::Embedding { table, positions: None });
        for (layer, &window) in c.windows.iter().enumerate() {
            let name = |suffix: &str| format!("model.layers.{layer}.{suffix}");
            let norm1 = self.rms(&name("input_layernorm"), d);
            let projection = ProjectionSpec::Split {
                q: self.dense(&name("self_attn.q_proj"), (q, d), c.qkv_bias),
                k: self.dense(&name("self_attn.k_proj"), (kv, d), c.qkv_bias),
                v: self.dense(&name("self_attn.v_proj"), (kv, d), c.qkv_bias),
            };
            let qk_norms = (c.family == Family::Qwen3).then(|| {
                let q = self.rms(&name("self_attn.q_norm"), c.head_dim);
                (q, self.rms(&name("self_attn.k_norm"), c.head_dim))
            });
            let out = self.dense(&name("self_attn.o_proj"), (d, q), c.out_bias);
            let norm2 = self.rms(&name("post_attention_layernorm"), d);
            let mlp = MlpSpec::Gated {
                gate: self.dense(&name("mlp.gate_proj"), (f, d), c.mlp_bias),
                up: self.dense(&name("mlp.up_proj"), (f, d), c.mlp_bias),
                down: self.dense(&name("mlp.down_proj"), (d, f), c.mlp_bias),
            };
            self.unit(UnitKind::Block(BlockSpec { norm1, projection, qk_norms, out, norm2, mlp, window }));
        }
        let norm = self.rms("model.norm", d);
        self.head(norm, table);
    }

    fn gpt2(&mut self) {
        let c = self.config;
        let (d, f, normal) = (c.hidden_size, c.intermediate_size, self.normal());
        // Two additions to the residual stream a block (Radford et al. 2019, section 2.3).
        let residual = Init::Normal(c.initializer_range / (2.0 * c.layers as f64).sqrt());
        let table = self.param("transformer.wte.weight".into(), &[c.vocab_size, d], normal);
        let positions = self.param("transformer.wpe.weight".into(), &[c.max_positions, d], normal);
        self.unit(UnitKind::Embedding { table, positions: Some(positions) });
        for (layer, &window) in c.windows.iter().enumerate() {
            let name = |suffix: &str| format!("transformer.h.{layer}.{suffix}");
            let block = BlockSpec {
                norm1: self.layer_norm(&name("ln_1"), d),
                projection: ProjectionSpec::Fused(self.conv1d(&name("attn.c_attn"), (3 * d, d), normal)),
                qk_norms: None,
                out: self.conv1d(&name("attn.c_proj"), (d, d), residual),
                norm2: self.layer_norm(&name("ln_2"), d),
                mlp: MlpSpec::Plain {
                    up: self.conv1d(&name("mlp.c_fc"), (f, d), normal),
                    down: self.conv1d(&name("mlp.c_proj"), (d, f), residual),
                },
                window,
            };
            self.unit(UnitKind::Block(block));
        }
        let norm = self.layer_norm("transformer.ln_f", d);
        self.head(norm, table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn llama(changes: &[(&str, Value)]) -> ModelSpec {
        let mut c = json!({"hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80});
        for (key, v) in changes {
            c[key] = v.clone();
        }
        ModelSpec::new(ModelConfig::from_value(&c).unwrap())
    }

    fn gpt2() -> ModelSpec {
        let c = json!({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 64,
            "n_positions": 32, "vocab_size": 80});
        ModelSpec::new(ModelConfig::from_value(&c).unwrap())
    }

    fn all() -> Vec<ModelSpec> {
        let kinds = ["llama", "mistral", "qwen2", "qwen3"];
        let tied = |kind: &str, tied: bool| {
            llama(&[("model_type", kind.into()), ("tie_word_embeddings", tied.into())])
        };
        let biases = llama(&[("attention_bias", true.into()), ("mlp_bias", true.into())]);
        let mut all = vec![gpt2(), biases];
        all.extend(kinds.iter().flat_map(|k| [tied(k, false), tied(k, true)]));
        all
    }

    // The counts that an independent implementation reports for the same configs.
    #[test]
    fn parameters_are_counted_once_tied_or_not() {
        assert_eq!(llama(&[]).parameter_count(), 22_176);
        assert_eq!(llama(&[("tie_word_embeddings", true.into())]).parameter_count(), 19_616);
        let qwen2 = llama(&[("model_type", "qwen2".into()), ("tie_word_embeddings", true.into())]);
        assert_eq!(qwen2.parameter_count(), 19_744);
        let qwen3 = llama(&[("model_type", "qwen3".into()), ("head_dim", 12.into())]);
        assert_eq!(qwen3.parameter_count(), 25_296);
        assert_eq!(gpt2().parameter_count(), 20_736);
    }

    #[test]
    fn every_parameter_is_owned_by_exactly_one_unit() {
        for s in all() {
            let mut owned: Vec<_> = s.units.iter().flat_map(|u| u.params.clone()).collect();
            owned.sort();
            assert_eq!(owned, (0..s.params.len()).map(ParamId).collect::<Vec<_>>());
        }
    }

    #[test]
    fn verl_5070_norms_and_biases_never_decay_and_matrices_do() {
        for p in all().into_iter().flat_map(|s| s.params) {
            let never = p.name.contains("norm") || p.name.contains("ln_") || p.name.ends_with("bias");
            assert_eq!(p.decay, !never, "{}", p.name);
        }
    }
}
