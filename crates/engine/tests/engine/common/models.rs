//! Models of every family and switch, fixed and random, and what they are called in a config.json.

use memwall_model::{Family, ModelConfig, ModelSpec};
use proptest::prelude::*;
use serde_json::{Value, json};

/// What a model is, whatever its family calls it. Switches that a family lacks are off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    pub family: Family,
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocabulary: usize,
    pub tied: bool,
    /// Biases on queries, keys, values and attention's result (Llama, Qwen 3).
    pub attention_bias: bool,
    /// Biases in the MLP (Llama).
    pub mlp_bias: bool,
    /// Tokens that a token sees in blocks from `full_layers` on (Mistral, Qwen).
    pub window: Option<usize>,
    /// Blocks without the window (Qwen).
    pub full_layers: usize,
    pub eps: f64,
    /// Base of the rotary embedding.
    pub theta: f64,
    /// Rows of GPT-2's table of positions.
    pub positions: usize,
    /// Rates at the embedding, in attention, and before the residual stream (all but attention's: GPT-2).
    pub dropout: [f64; 3],
}

/// One small model of each family, and Llama with biases, for tests of fixed models: two heads on each key/value
/// head where a family can, windows where it has them.
pub fn families() -> Vec<Model> {
    let biases = Model { attention_bias: true, mlp_bias: true, ..Model::SMALL };
    Family::ALL.into_iter().map(Model::of).chain([biases]).collect()
}

impl Model {
    /// A small Llama.
    pub const SMALL: Model = Model {
        family: Family::Llama,
        hidden: 24,
        intermediate: 33,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
        vocabulary: 61,
        tied: false,
        attention_bias: false,
        mlp_bias: false,
        window: None,
        full_layers: 0,
        eps: 1e-6,
        theta: 1e4,
        positions: 200,
        dropout: [0.0; 3],
    };

    /// A small model of a family.
    pub fn of(family: Family) -> Self {
        Model { family, window: Some(5), full_layers: 1, tied: true, ..Model::SMALL }.checked()
    }

    /// Without what its family lacks.
    pub fn checked(mut self) -> Self {
        let gpt2 = self.family == Family::Gpt2;
        if gpt2 {
            // Of fewer numbers all may drop out, or be alike: then each norm's gradient grows by the root of eps.
            self.head_dim = self.head_dim.max(8usize.div_ceil(self.heads));
            (self.kv_heads, self.hidden) = (self.heads, self.heads * self.head_dim);
        } else {
            // Turned in pairs.
            self.head_dim = self.head_dim.next_multiple_of(2);
            self.dropout = [0.0, self.dropout[1], 0.0];
        }
        self.attention_bias &= matches!(self.family, Family::Llama | Family::Qwen3);
        self.mlp_bias &= self.family == Family::Llama;
        if matches!(self.family, Family::Llama | Family::Gpt2) {
            self.window = None;
        }
        if self.family == Family::Mistral || self.window.is_none() {
            self.full_layers = 0;
        }
        self
    }

    /// Keeps gradients from being all rounding error: of one or two numbers, a norm leaves almost nothing that a
    /// small step changes.
    pub fn well_conditioned(self) -> Self {
        Model { hidden: self.hidden + 2, head_dim: self.head_dim + 2, ..self }.checked()
    }

    /// The same, tied or not.
    pub fn tied(self, tied: bool) -> Self {
        Model { tied, ..self }
    }

    /// The same with these rates of dropout, as far as its family drops out.
    pub fn dropping(self, dropout: [f64; 3]) -> Self {
        Model { dropout, ..self }.checked()
    }

    /// The window of a block.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.window.filter(|_| layer >= self.full_layers)
    }

    /// The model, with initial matrices large enough that every term of a gradient counts.
    pub fn spec(&self) -> ModelSpec {
        ModelSpec::new(ModelConfig::from_value(&self.config()).unwrap())
    }

    fn config(&self) -> Value {
        let [embedding, attention, residual] = self.dropout;
        if self.family == Family::Gpt2 {
            return json!({
                "model_type": "gpt2", "n_embd": self.hidden, "n_inner": self.intermediate, "n_layer": self.layers,
                "n_head": self.heads, "n_positions": self.positions, "vocab_size": self.vocabulary,
                "tie_word_embeddings": self.tied, "layer_norm_epsilon": self.eps, "initializer_range": 0.2,
                "embd_pdrop": embedding, "attn_pdrop": attention, "resid_pdrop": residual,
            });
        }
        json!({
            "model_type": self.family.model_type(), "hidden_size": self.hidden,
            "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "vocab_size": self.vocabulary, "tie_word_embeddings": self.tied, "rms_norm_eps": self.eps,
            "rope_theta": self.theta, "initializer_range": 0.2, "attention_dropout": attention,
            "attention_bias": self.attention_bias, "mlp_bias": self.mlp_bias, "sliding_window": self.window,
            "use_sliding_window": self.window.is_some(), "max_window_layers": self.full_layers,
        })
    }
}

/// A rate of dropout, zero more often than not.
fn rate(highest: f64) -> impl Strategy<Value = f64> {
    prop::sample::select(vec![0.0, 0.0, 0.1, highest])
}

prop_compose! {
    /// Models that fit no vector width, tile or block in particular.
    pub fn models()(
        (family, tied, attention_bias, mlp_bias) in
            (prop::sample::select(&Family::ALL[..]), any::<bool>(), any::<bool>(), any::<bool>()),
        hidden in 1usize..72,
        intermediate in 1usize..90,
        layers in 1usize..=3,
        kv_heads in 1usize..=3,
        group in 1usize..=3,
        head_dim in 1usize..=18,
        vocabulary in prop::sample::select(&[2usize, 17, 64, 257][..]),
        window in prop_oneof![1 => Just(None), 3 => (1usize..12).prop_map(Some), 1 => (60usize..80).prop_map(Some)],
        full_layers in 0usize..3,
        eps in prop::sample::select(&[1e-6, 1e-3][..]),
        theta in prop::sample::select(&[100.0, 1e4][..]),
        dropout in [rate(0.1), rate(0.5), rate(0.5)],
    ) -> Model {
        let heads = kv_heads * group;
        Model {
            family, hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary, tied, attention_bias,
            mlp_bias, window, full_layers, eps, theta, positions: 70, dropout,
        }
        .checked()
    }
}
