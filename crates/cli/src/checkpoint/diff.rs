//! `memwall checkpoint diff`: where two checkpoints, or a checkpoint and a model folder, differ.

use super::Place;
use super::inspect::dims;
use crate::args::CheckpointDiffArgs;
use crate::failure::{Failure, Outcome};
use crate::machine;
use crate::setup::read_config;
use memwall_checkpoint::{Deviation, Differences, ModelFile, ModelWeights, SavedState, Tensors};
use memwall_model::ModelSpec;
use serde_json::json;
use std::path::Path;

/// Exit code when the two differ by more than is allowed.
const DIFFERENT: u8 = 1;

/// Tensors that are shown, those that differ most.
const SHOWN: usize = 10;

/// A model folder that is open.
struct Model {
    spec: ModelSpec,
    file: ModelFile,
}

impl Model {
    fn open(folder: &Path) -> Result<Self, Failure> {
        let spec = ModelSpec::new(read_config(&folder.join("config.json"))?);
        let file = ModelFile::open(folder, &spec).refuse()?;
        Ok(Self { spec, file })
    }
}

pub(super) fn diff(args: &CheckpointDiffArgs) -> Result<(), Failure> {
    let places = [Place::of(&args.a)?, Place::of(&args.b)?];
    let open = |place: &Place| match place {
        Place::Model(folder) => Model::open(folder).map(Some),
        Place::Checkpoint(_) => Ok(None),
    };
    let models = [open(&places[0])?, open(&places[1])?];
    let tensors = |i: usize| -> Result<Tensors<'_>, Failure> {
        Ok(match (&places[i], &models[i]) {
            (_, Some(model)) => Tensors::Model(ModelWeights::new(&model.file, &model.spec)),
            (Place::Checkpoint(folder) | Place::Model(folder), None) => {
                Tensors::Checkpoint(Box::new(SavedState::open(folder).refuse()?))
            }
        })
    };
    let found = memwall_checkpoint::diff(&tensors(0)?, &tensors(1)?, machine::cores()).refuse()?;
    let beyond = beyond(&found, args.tolerance);
    if args.json {
        say!("{:#}", to_json(&found, beyond));
    } else {
        tell!("{}", text(&found, args));
    }
    if beyond { Err(Failure::Told(DIFFERENT)) } else { Ok(()) }
}

/// Whether anything is further apart than is allowed.
fn beyond(found: &Differences, tolerance: Option<f64>) -> bool {
    match tolerance {
        None => !found.none(),
        Some(most) => {
            !found.shapes.is_empty()
                || found.alone.iter().any(|names| !names.is_empty())
                || found.tensors.iter().any(|t| t.largest > most)
        }
    }
}

fn text(found: &Differences, args: &CheckpointDiffArgs) -> String {
    let mut text = String::new();
    let names = [args.a.display().to_string(), args.b.display().to_string()];
    let mut differ: Vec<&Deviation> = found.tensors.iter().filter(|t| t.differ > 0).collect();
    let same = found.tensors.len() - differ.len();
    text += &format!("same       {same} of {} tensors to the bit\n", found.tensors.len());
    differ.sort_by(|a, b| b.largest.total_cmp(&a.largest));
    let width = differ.iter().take(SHOWN).map(|t| t.name.len()).max().unwrap_or(0);
    for (i, t) in differ.iter().take(SHOWN).enumerate() {
        let head = if i == 0 { "different" } else { "" };
        let at = place(t.at, &t.shape);
        text += &format!(
            "{head:<10} {:<width$}  {:>9.2e} at most, at [{at}]: {} and {}; {:.1e} of its norm; {} of {} elements\n",
            t.name,
            t.largest,
            t.values[0],
            t.values[1],
            t.relative(),
            t.differ,
            t.shape.iter().product::<usize>(),
        );
    }
    if differ.len() > SHOWN {
        text += &format!("           and {} more; --json has all\n", differ.len() - SHOWN);
    }
    for (name, a, b) in &found.shapes {
        text += &format!("different  {name} is {} and {}\n", dims(a), dims(b));
    }
    for (alone, name) in found.alone.iter().zip(&names) {
        for tensor in alone.iter().take(SHOWN) {
            text += &format!("only in    {name}: {tensor}\n");
        }
        if alone.len() > SHOWN {
            text += &format!("           and {} more\n", alone.len() - SHOWN);
        }
    }
    text
}

/// Indexes of an element, outermost first.
fn place(mut at: usize, shape: &[usize]) -> String {
    let mut indexes = Vec::new();
    for dim in shape.iter().rev() {
        indexes.push((at % dim.max(&1)).to_string());
        at /= dim.max(&1);
    }
    indexes.reverse();
    indexes.join(", ")
}

fn to_json(found: &Differences, beyond: bool) -> serde_json::Value {
    let tensors: Vec<_> = found
        .tensors
        .iter()
        .map(|t| {
            json!({
                "name": t.name, "shape": t.shape, "different_elements": t.differ,
                // JSON has no infinity.
                "largest": if t.largest.is_finite() { t.largest.into() } else { json!("inf") },
                "at": t.at, "values": t.values, "relative": t.relative(),
            })
        })
        .collect();
    let shapes: Vec<_> = found.shapes.iter().map(|(n, a, b)| json!({"name": n, "a": a, "b": b})).collect();
    json!({
        "same": found.none(), "within_tolerance": !beyond, "tensors": tensors, "shapes": shapes,
        "only_in_a": found.alone[0], "only_in_b": found.alone[1],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_told_by_its_indexes() {
        assert_eq!(place(7, &[2, 5]), "1, 2");
        assert_eq!(place(3, &[9]), "3");
    }
}
