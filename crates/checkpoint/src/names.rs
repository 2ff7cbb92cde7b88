//! Which of the tensors of a file or folder is which parameter of a model.

use crate::error::shown;
use crate::float::FloatType;
use crate::header::TensorInfo;
use crate::tensor_file::not_read;
use crate::tensor_write::Entry;
use memwall_model::{ModelSpec, ParamSpec};
use std::collections::{HashMap, HashSet};

/// The head's name, where it is a copy of the embedding.
const HEAD: &str = "lm_head.weight";

/// Problems that are told one by one.
const TOLD: usize = 8;

/// Tensors by name, of one file or several.
pub(crate) type Tensors<'a> = HashMap<&'a str, &'a TensorInfo>;

/// Which tensor is which parameter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    /// Names in the files, by parameter.
    pub(crate) names: Vec<String>,
    /// A stored copy of a tied head, and the embedding that it must equal.
    pub(crate) tied_copy: Option<(String, String)>,
}

/// Finds every parameter of `spec` among `tensors`, with the base model's prefix or without it.
///
/// # Errors
/// Names of tensors that are missing, left over, misshaped or of a type that is not read.
pub(crate) fn assign(spec: &ModelSpec, tensors: &Tensors<'_>) -> Result<Assignment, Vec<String>> {
    let whole = Trial::new(spec, "", tensors);
    let base = Trial::new(spec, spec.config.family.prefix(), tensors);
    // Where neither fits, what is wrong is told of the one that fits better.
    let best = if base.problems.count < whole.problems.count { base } else { whole };
    if best.problems.count > 0 {
        return Err(best.problems.told());
    }
    let names = best.names;
    let tied_copy = (spec.config.tied && tensors.contains_key(HEAD)).then(|| {
        let embedding = spec.units[0].params[0].0;
        (HEAD.to_owned(), names[embedding].clone())
    });
    Ok(Assignment { names, tied_copy })
}

/// The parameter that turns token ids into vectors, which a tied head shares.
fn embedding(spec: &ModelSpec) -> &ParamSpec {
    spec.param(spec.units[0].params[0])
}

/// Refuses tensors that are not exactly the `wanted` ones.
///
/// # Errors
/// As of [`assign`].
pub(crate) fn require(wanted: &[Entry], tensors: &Tensors<'_>) -> Result<(), Vec<String>> {
    let mut problems = Problems::default();
    problems.compare(wanted.iter().map(|e| (&*e.name, &*e.shape)), tensors, |_, _| false);
    if problems.count == 0 { Ok(()) } else { Err(problems.told()) }
}

/// A way to name the parameters, and what is wrong with the tensors if it is the files'.
struct Trial {
    names: Vec<String>,
    problems: Problems,
}

impl Trial {
    /// The names without a prefix.
    fn new(spec: &ModelSpec, prefix: &str, tensors: &Tensors<'_>) -> Self {
        let short = |p: &ParamSpec| p.name.strip_prefix(prefix).unwrap_or(&p.name).to_owned();
        let names: Vec<String> = spec.params.iter().map(short).collect();
        let mut wanted: Vec<(&str, &[usize])> =
            names.iter().zip(&spec.params).map(|(n, p)| (&**n, &*p.shape)).collect();
        if spec.config.tied && tensors.contains_key(HEAD) {
            wanted.push((HEAD, &embedding(spec).shape));
        }
        let mut problems = Problems::default();
        problems.compare(wanted.into_iter(), tensors, computed);
        Self { names, problems }
    }
}

/// What is wrong, told in full for the first few.
#[derive(Default)]
struct Problems {
    told: Vec<String>,
    count: usize,
}

impl Problems {
    fn compare<'a>(
        &mut self,
        wanted: impl Iterator<Item = (&'a str, &'a [usize])> + Clone,
        tensors: &Tensors<'_>,
        ignorable: impl Fn(&str, &TensorInfo) -> bool,
    ) {
        for (name, shape) in wanted.clone() {
            match tensors.get(name) {
                None => self.add(|| format!("{name} is missing")),
                Some(i) if i.shape != shape => {
                    self.add(|| format!("{name} has shape {:?}, not {shape:?}", i.shape));
                }
                Some(i) if FloatType::of(i.dtype).is_none() => self.add(|| not_read(name, i)),
                Some(_) => {}
            }
        }
        let known: HashSet<&str> = wanted.map(|(name, _)| name).collect();
        let extra = tensors.iter().filter(|(n, i)| !known.contains(*n) && !ignorable(n, i));
        let mut extra: Vec<&str> = extra.map(|(n, _)| *n).collect();
        extra.sort_unstable();
        for name in extra {
            self.add(|| format!("{} is not a parameter of this model", shown(name)));
        }
    }

    fn add(&mut self, text: impl FnOnce() -> String) {
        if self.count < TOLD {
            self.told.push(text());
        }
        self.count += 1;
    }

    /// The first few, and how many more there are.
    fn told(mut self) -> Vec<String> {
        if self.count > TOLD {
            self.told.push(format!("and {} more", self.count - TOLD));
        }
        self.told
    }
}

/// Whether a tensor is not a parameter but computed anew by whoever needs it: rotary frequencies, or GPT-2's causal
/// mask and the value that it masks with.
fn computed(name: &str, info: &TensorInfo) -> bool {
    if name.ends_with(".attn.bias") {
        return matches!(info.shape[..], [1, 1, a, b] if a == b);
    }
    if name.ends_with(".attn.masked_bias") {
        return info.len() == 1;
    }
    name.ends_with("rotary_emb.inv_freq")
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwall_model::ModelConfig;
    use safetensors::Dtype;

    fn spec(tied: bool) -> ModelSpec {
        let config = format!(
            r#"{{"hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 3, "num_attention_heads": 2,
                 "vocab_size": 5, "tie_word_embeddings": {tied}}}"#
        );
        ModelSpec::new(ModelConfig::from_json(&config).unwrap())
    }

    fn info(shape: &[usize], dtype: Dtype) -> TensorInfo {
        TensorInfo { dtype, shape: shape.to_vec(), start: 0, end: 0 }
    }

    /// The tensors of a whole file, changed by `change`.
    fn tried(
        tied: bool,
        change: impl FnOnce(&mut HashMap<String, TensorInfo>),
    ) -> Result<Assignment, String> {
        let spec = spec(tied);
        let mut all: HashMap<String, TensorInfo> =
            spec.params.iter().map(|p| (p.name.clone(), info(&p.shape, Dtype::BF16))).collect();
        change(&mut all);
        assign(&spec, &all.iter().map(|(n, i)| (&**n, i)).collect()).map_err(|told| told.join("; "))
    }

    fn strip(all: &mut HashMap<String, TensorInfo>) {
        *all =
            all.drain().map(|(n, i)| (n.strip_prefix("model.").map(str::to_owned).unwrap_or(n), i)).collect();
    }

    #[test]
    fn names_of_the_base_model_are_accepted() {
        for tied in [true, false] {
            let whole = tried(tied, |_| {}).unwrap();
            assert_eq!(whole.names[0], "model.embed_tokens.weight");
            let base = tried(tied, strip).unwrap();
            assert_eq!(base.names[0], "embed_tokens.weight");
            assert_eq!(base.names.len(), whole.names.len());
            assert_eq!(base.names.contains(&HEAD.to_owned()), !tied);
        }
    }

    #[test]
    fn a_mixture_of_names_is_refused() {
        let e = tried(true, |all| {
            strip(all);
            let norm = all.remove("norm.weight").unwrap();
            all.insert("model.norm.weight".into(), norm);
        });
        assert_eq!(
            e.unwrap_err(),
            "norm.weight is missing; model.norm.weight is not a parameter of this model"
        );
    }

    #[test]
    fn what_is_computed_is_skipped_and_only_in_its_shape() {
        let with = |name: &str, shape: &[usize]| {
            tried(true, |all| {
                all.insert(name.into(), info(shape, Dtype::BOOL));
            })
        };
        for (name, shape) in [
            ("h.0.attn.bias", &[1, 1, 8, 8][..]),
            ("h.0.attn.masked_bias", &[]),
            ("model.layers.0.self_attn.rotary_emb.inv_freq", &[2]),
        ] {
            assert_eq!(with(name, shape).map(|a| a.tied_copy), Ok(None), "{name}");
        }
        for (name, shape) in [
            ("h.0.attn.bias", &[4][..]),
            ("h.0.attn.bias", &[1, 1, 8, 4]),
            ("h.0.attn.masked_bias", &[2]),
            ("h.0.xattn_bias", &[1, 1, 8, 8]),
        ] {
            assert_eq!(with(name, shape).unwrap_err(), format!("{name} is not a parameter of this model"));
        }
    }

    #[test]
    fn the_copy_of_a_tied_head_is_told_and_must_have_its_shape() {
        let with = |tied, shape: &[usize]| {
            tried(tied, |all| {
                all.insert(HEAD.into(), info(shape, Dtype::F16));
            })
        };
        let copy = (HEAD.to_owned(), "model.embed_tokens.weight".to_owned());
        assert_eq!(with(true, &[5, 4]).unwrap().tied_copy, Some(copy));
        assert_eq!(with(false, &[5, 4]).unwrap().tied_copy, None);
        assert_eq!(with(true, &[4, 5]).unwrap_err(), "lm_head.weight has shape [4, 5], not [5, 4]");
    }

    #[test]
    fn the_first_eight_problems_are_told_and_the_rest_counted() {
        let all_missing = tried(true, HashMap::clear).unwrap_err();
        let n = spec(true).params.len();
        assert_eq!(all_missing.matches("is missing").count(), TOLD);
        assert!(all_missing.ends_with(&format!("; and {} more", n - TOLD)), "{all_missing}");
        let e = tried(true, |all| {
            all.insert("model.norm.weight".into(), info(&[4], Dtype::F64));
            all.insert("a\nb".into(), info(&[4], Dtype::F32));
        });
        let expected = "model.norm.weight has type F64; F32, BF16 and F16 are read: convert it first; \
                        a\\nb is not a parameter of this model";
        assert_eq!(e.unwrap_err(), expected);
    }
}
