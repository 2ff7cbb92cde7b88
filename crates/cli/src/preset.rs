//! The job of a well-known model: what `memwall plan --model` plans.

use crate::failure::Failure;
use crate::job::{self, ResolvedJob};
use crate::report;
use memwall_model::Preset;
use serde_json::Value;
use std::path::Path;
use toml::Table;

/// Tokens in a sequence where nobody says, or the model's longest where that is less.
const SEQUENCE: u64 = 4096;

/// The job of a model by its name, with `sets` put over it.
pub(crate) fn job(name: &str, sets: &[String]) -> Result<ResolvedJob, Failure> {
    let preset = Preset::find(name).ok_or_else(|| unknown(name))?;
    let mut config = preset.config.clone();
    let longest =
        ["max_position_embeddings", "n_positions"].iter().find_map(|key| config.get(*key)?.as_u64());
    // TOML has no null: a window that is none is one that sees everything.
    for (_, value) in config.iter_mut().filter(|(_, value)| value.is_null()) {
        *value = longest.into();
    }
    let broken = |e: &dyn std::fmt::Display| Failure::Failed(format!("the preset {}: {e}", preset.name));
    let config = toml::Value::try_from(Value::Object(config)).map_err(|e| broken(&e))?;
    // Data and rate cost no memory, so a plan does not ask for them.
    let rest = format!(
        "[data]\ntrain = ['-']\ntokenizer = '{}/tokenizer.json'\nsequence_length = {}\n[train]\nsteps = 1\n\
         [optimizer]\nlearning_rate = 1e-4\n[precision]\nmode = 'bf16'\n",
        preset.source,
        longest.map_or(SEQUENCE, |n| n.min(SEQUENCE))
    );
    let mut table: Table = rest.parse().map_err(|e| broken(&e))?;
    table.insert("model".into(), toml::Value::Table(Table::from_iter([("config".into(), config)])));
    let path = format!("{}.toml", preset.name);
    Ok(job::parse(Path::new(&path), &table.to_string(), sets)?)
}

fn unknown(name: &str) -> Failure {
    let mut names: Vec<String> = Preset::all().into_iter().map(|p| p.name).collect();
    let lower = name.to_lowercase();
    let nearest = names.iter().min_by_key(|n| strsim::damerau_levenshtein(&lower, n)).cloned();
    let nearest = nearest.map_or(String::new(), |n| format!("; did you mean {n}?"));
    names.sort();
    Failure::Refused(format!(
        "there is no model {name:?} here{nearest} The models are {}. For any other, give a job file, or \
         model.config in one",
        names.join(", ")
    ))
}

/// All of them, as a table.
pub(crate) fn list() -> String {
    let row = |p: Preset| {
        format!("{:<18} {:>9} parameters   {}\n", p.name, report::count(p.parameters as f64), p.source)
    };
    Preset::all().into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::Setup;

    #[test]
    fn every_preset_is_a_job_of_its_size() {
        for preset in Preset::all() {
            let setup = Setup::new(job(&preset.name, &[]).unwrap().pinned().unwrap()).unwrap();
            assert_eq!(setup.spec.parameter_count(), preset.parameters, "{}", preset.name);
            let config = preset.model_config().unwrap();
            // A window of null sees as much as the sequence is long.
            let n = setup.settings.sequence;
            let seen = |w: &[Option<usize>]| w.iter().map(|w| w.map_or(n, |w| w.min(n))).collect::<Vec<_>>();
            assert_eq!(seen(&setup.spec.config.windows), seen(&config.windows), "{}", preset.name);
            assert_eq!(n, config.max_positions.min(4096));
        }
    }

    #[test]
    fn a_name_that_is_none_is_refused_with_the_nearest_and_all() {
        let text = job("lama-3.1-8b", &[]).unwrap_err().to_string();
        assert!(text.contains("did you mean llama-3.1-8b?") && text.contains("gpt2-xl"), "{text}");
    }
}
