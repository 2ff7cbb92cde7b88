//! What a token costs.

use crate::{ModelSpec, ParamSpec, UnitKind};

impl ModelSpec {
    /// FLOPs that training one token costs, attention apart: 6 for each weight that multiplies it (2 forward, 4 backward;
    /// Kaplan et al. 2020, section 2.1), 4 for one that is frozen and has no gradient. The embedding is a lookup and costs
    /// none, unless the head uses it too.
    pub fn linear_flops_per_token(&self) -> u64 {
        let owned = self.units.iter().filter(|u| !matches!(u.kind, UnitKind::Embedding { .. }));
        let tied = self.units.iter().filter_map(|u| match u.kind {
            UnitKind::Head { weight, .. } if self.config.tied => Some(weight),
            _ => None,
        });
        let matrices = owned.flat_map(|u| u.params.iter().copied()).chain(tied).map(|p| self.param(p));
        let cost = |p: &ParamSpec| p.len() as u64 * if p.frozen { 4 } else { 6 };
        matrices.filter(|p| p.shape.len() == 2).map(cost).sum()
    }

    /// FLOPs that attention costs a token at this sequence length, causal, averaged over the sequence: each key
    /// that a token sees costs `2 x 2 x heads x head_dim` FLOPs forward (scores and values) and twice that
    /// backward. A sequence of one document is meant; packed documents see less.
    pub fn attention_flops_per_token(&self, sequence: usize) -> u64 {
        let c = &self.config;
        // Squares of a sequence's length times a width are beyond 64 bits before those of a model are.
        let (n, width) = (sequence as u128, (c.heads * c.head_dim) as u128);
        let pairs = |window: Option<usize>| {
            let w = window.map_or(n, |w| (w as u128).min(n));
            w * (w + 1) / 2 + (n - w) * w
        };
        let flops: u128 = c.windows.iter().map(|&w| 12 * width * pairs(w) / n.max(1)).sum();
        u64::try_from(flops).unwrap_or(u64::MAX)
    }

    /// FLOPs that training one token costs in all: the figure behind MFU. Recomputation is not counted.
    pub fn flops_per_token(&self, sequence: usize) -> u64 {
        self.linear_flops_per_token().saturating_add(self.attention_flops_per_token(sequence))
    }
}

#[cfg(test)]
mod tests {
    use crate::{ModelConfig, ModelSpec};
    use serde_json::json;

    fn spec(tied: bool, window: Option<usize>) -> ModelSpec {
        let c = json!({"model_type": "mistral", "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80, "tie_word_embeddings": tied,
            "sliding_window": window});
        ModelSpec::new(ModelConfig::from_value(&c).unwrap())
    }

    #[test]
    fn a_frozen_weight_costs_no_gradient_of_its_own() {
        for tied in [false, true] {
            let (trained, mut frozen) = (spec(tied, None), spec(tied, None));
            frozen.params.iter_mut().for_each(|p| p.frozen = true);
            assert_eq!(3 * frozen.linear_flops_per_token(), 2 * trained.linear_flops_per_token());
        }
    }

    #[test]
    fn a_tied_head_costs_the_same_flops_as_an_untied_one() {
        assert_eq!(spec(true, None).flops_per_token(16), spec(false, None).flops_per_token(16));
    }

    #[test]
    fn attention_is_counted_by_the_keys_that_a_token_sees() {
        // Two blocks, 4 heads of 8 dims, 12 FLOPs for each dim of each pair.
        let pairs = |visible: &[u64]| 2 * 12 * 32 * visible.iter().sum::<u64>() / visible.len() as u64;
        assert_eq!(spec(true, None).attention_flops_per_token(4), pairs(&[1, 2, 3, 4]));
        assert_eq!(spec(true, Some(2)).attention_flops_per_token(4), pairs(&[1, 2, 2, 2]));
        assert_eq!(spec(true, Some(9)).attention_flops_per_token(4), pairs(&[1, 2, 3, 4]));
    }
}
