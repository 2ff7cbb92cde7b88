//! Which parameters are trained, and which of them decay: never norms and biases, nor what the job excludes by name.

use crate::failure::Failure;
use glob::Pattern;
use memwall_model::{ModelSpec, ParamSpec};
use serde_json::{Value, json};

/// Takes the parameters whose names match one of `patterns` (globs) out of weight decay.
///
/// # Errors
/// A pattern that is no glob, or that matches no parameter: the nearest names are given.
pub(crate) fn exclude(spec: &mut ModelSpec, patterns: &[String]) -> Result<(), Failure> {
    each(spec, "optimizer.no_decay", patterns, |p| p.decay = false)
}

/// Freezes the parameters whose names match one of `patterns` (globs).
///
/// # Errors
/// As of [`exclude`]; nothing is left to train.
pub(crate) fn freeze(spec: &mut ModelSpec, patterns: &[String]) -> Result<(), Failure> {
    each(spec, "train.freeze", patterns, |p| p.frozen = true)?;
    if spec.params.iter().all(|p| p.frozen) {
        return Err(Failure::Refused(format!(
            "train.freeze = {patterns:?} leaves nothing to train: every parameter matches; leave some out"
        )));
    }
    Ok(())
}

/// Does `change` to each parameter whose name matches one of the patterns under `key`.
fn each(
    spec: &mut ModelSpec,
    key: &str,
    patterns: &[String],
    change: impl Fn(&mut ParamSpec),
) -> Result<(), Failure> {
    for text in patterns {
        let pattern = Pattern::new(text)
            .map_err(|e| Failure::Refused(format!("{key} = {text:?} is not a glob pattern: {e}")))?;
        let mut matches = 0;
        for p in spec.params.iter_mut().filter(|p| pattern.matches(&p.name)) {
            change(p);
            matches += 1;
        }
        if matches == 0 {
            return Err(Failure::Refused(format!(
                "{key} = {text:?} matches no parameter of the model; the nearest names are {}",
                nearest(spec, text).join(", ")
            )));
        }
    }
    Ok(())
}

/// The three names that are nearest to a pattern, equal blocks shown as one.
fn nearest(spec: &ModelSpec, pattern: &str) -> Vec<String> {
    // The distance takes time by the product of the lengths; names are far shorter than this.
    let pattern: String = pattern.chars().take(200).collect();
    let mut names: Vec<(usize, String)> = Vec::new();
    for name in spec.params.iter().map(|p| any_block(&p.name)) {
        if names.iter().all(|(_, known)| *known != name) {
            names.push((strsim::damerau_levenshtein(&pattern, &name), name));
        }
    }
    names.sort_by_key(|(distance, _)| *distance);
    names.into_iter().take(3).map(|(_, name)| name).collect()
}

/// A parameter's name with `*` for the number of its block.
pub(crate) fn any_block(name: &str) -> String {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    name.split('.').map(|part| if number(part) { "*" } else { part }).collect::<Vec<_>>().join(".")
}

/// The parameters of a model in groups.
pub(crate) struct Groups<'a> {
    /// Those that decay.
    pub(crate) decayed: Vec<&'a ParamSpec>,
    /// Those that are trained and do not.
    pub(crate) spared: Vec<&'a ParamSpec>,
    /// Those that are not trained.
    pub(crate) frozen: Vec<&'a ParamSpec>,
}

impl<'a> Groups<'a> {
    /// The groups of `spec`, each in the order of its parameters.
    pub(crate) fn of(spec: &'a ModelSpec) -> Self {
        let (frozen, trained): (Vec<_>, Vec<_>) = spec.params.iter().partition(|p| p.frozen);
        let (decayed, spared) = trained.into_iter().partition(|p| p.decay);
        Self { decayed, spared, frozen }
    }

    /// The number of tensors, the number of parameters, and the names, for each group.
    pub(crate) fn to_json(&self) -> Value {
        let group = |params: &[&ParamSpec]| {
            let names: Vec<&str> = params.iter().map(|p| p.name.as_str()).collect();
            json!({"tensors": params.len(), "parameters": elements(params), "names": names})
        };
        json!({
            "decay": group(&self.decayed), "no_decay": group(&self.spared), "frozen": group(&self.frozen),
        })
    }
}

/// The number of parameters in some tensors.
pub(crate) fn elements(params: &[&ParamSpec]) -> u64 {
    params.iter().map(|p| p.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwall_model::ModelConfig;

    fn spec(tied: bool) -> ModelSpec {
        let c = json!({"hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80, "tie_word_embeddings": tied});
        ModelSpec::new(ModelConfig::from_value(&c).unwrap())
    }

    fn spared(patterns: &[&str]) -> Vec<String> {
        let mut spec = spec(false);
        let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
        exclude(&mut spec, &patterns).unwrap();
        Groups::of(&spec).spared.iter().map(|p| p.name.clone()).collect()
    }

    const NORMS: [&str; 5] = [
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.1.input_layernorm.weight",
        "model.layers.1.post_attention_layernorm.weight",
        "model.norm.weight",
    ];

    // verl #5070, Fast-LLM #542: weight decay reached norms and biases.
    #[test]
    fn verl_5070_fast_llm_542_decay_groups_are_listed_by_name() {
        assert_eq!(spared(&[]), NORMS);
        let more = spared(&["model.embed_tokens.*", "*.k_proj.weight"]);
        let mut want: Vec<&str> = NORMS.to_vec();
        want.extend([
            "model.embed_tokens.weight",
            "model.layers.0.self_attn.k_proj.weight",
            "model.layers.1.self_attn.k_proj.weight",
        ]);
        assert_eq!(more.iter().collect::<std::collections::BTreeSet<_>>().len(), more.len());
        assert!(
            more.iter().all(|name| want.contains(&name.as_str())) && more.len() == want.len(),
            "{more:?}"
        );

        let spec = spec(true);
        let groups = Groups::of(&spec);
        assert_eq!(elements(&groups.decayed) + elements(&groups.spared), spec.parameter_count());
        // Five norms of 32.
        assert_eq!(groups.to_json()["no_decay"]["parameters"], 160);
        assert_eq!(groups.to_json()["no_decay"]["names"], json!(NORMS));
        assert_eq!(groups.to_json()["decay"]["tensors"], spec.params.len() - 5);
    }

    #[test]
    fn what_is_frozen_is_in_no_group_of_decay_and_something_is_left_to_train() {
        let mut spec = spec(false);
        freeze(&mut spec, &["model.embed_tokens.*".into(), "*norm.weight".into()]).unwrap();
        let groups = Groups::of(&spec);
        assert_eq!((groups.frozen.len(), groups.spared.len()), (6, 0));
        assert_eq!(groups.decayed.len() + 6, spec.params.len());
        let text = freeze(&mut spec, &["*".into()]).unwrap_err().to_string();
        assert!(text.contains("leaves nothing to train"), "{text}");
        let text = freeze(&mut spec, &["model.norms.weight".into()]).unwrap_err().to_string();
        assert!(text.starts_with("train.freeze = ") && text.contains("model.norm.weight"), "{text}");
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_refused_with_near_names() {
        let refused =
            |pattern: &str| exclude(&mut spec(false), &[pattern.to_owned()]).unwrap_err().to_string();
        let text = refused("model.embed_token.*");
        assert!(
            text.contains("matches no parameter") && text.contains("model.embed_tokens.weight"),
            "{text}"
        );
        let text = refused("model.layers.*.self_attn.qproj.weight");
        assert!(text.contains("names are model.layers.*.self_attn.q_proj.weight, "), "{text}");
        assert!(refused("a[").contains("not a glob pattern"));
        assert!(refused(&"x".repeat(100_000)).contains("matches no parameter"));
    }
}
