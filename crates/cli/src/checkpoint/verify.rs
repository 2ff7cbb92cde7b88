//! `memwall checkpoint verify`: whether every byte is what was written, and nothing is missing or too much.

use super::Place;
use crate::args::CheckpointVerifyArgs;
use crate::failure::Failure;
use crate::job::show_bytes;
use crate::machine;
use crate::report;
use crate::setup::read_config;
use memwall_checkpoint::{ModelFile, ModelWeights, Source};
use memwall_model::{ModelSpec, ParamId};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// Exit code when something is wrong with a checkpoint that could be looked at.
const DAMAGED: u8 = 1;

pub(super) fn verify(args: &CheckpointVerifyArgs) -> Result<(), Failure> {
    let begin = Instant::now();
    let (folder, problems, tensors, bytes) = match Place::of(&args.path)? {
        Place::Model(folder) => {
            let (problems, tensors, bytes) = model(&folder)?;
            (folder, problems, tensors, bytes)
        }
        Place::Checkpoint(folder) => {
            let found = memwall_checkpoint::verify(&folder, None, machine::cores());
            let problems = found.problems.iter().map(ToString::to_string).collect();
            (folder, problems, found.tensors, found.bytes)
        }
    };
    if args.json {
        let all = json!({
            "path": folder, "whole": problems.is_empty(), "problems": problems, "tensors": tensors, "bytes": bytes,
        });
        say!("{all:#}");
    } else if problems.is_empty() {
        let seconds = begin.elapsed().as_secs_f64();
        say!(
            "whole      {}: {tensors} tensors, {} read in {}",
            folder.display(),
            show_bytes(bytes),
            report::duration(seconds)
        );
    } else {
        problems.iter().for_each(|problem| say!("damaged    {problem}"));
    }
    if problems.is_empty() { Ok(()) } else { Err(Failure::Told(DAMAGED)) }
}

/// Reads every weight of a model folder. It has no hashes: whether files are whole, are the config's, and hold numbers.
fn model(folder: &Path) -> Result<(Vec<String>, usize, u64), Failure> {
    let spec = ModelSpec::new(read_config(&folder.join("config.json"))?);
    let file = match ModelFile::open(folder, &spec) {
        Ok(file) => file,
        Err(e) => return Ok((vec![e.to_string()], 0, 0)),
    };
    let mut weights = ModelWeights::new(&file, &spec);
    let (mut problems, mut values) = (Vec::new(), vec![0f32; 1 << 16]);
    for (i, p) in spec.params.iter().enumerate() {
        for first in (0..p.len()).step_by(values.len()) {
            let n = values.len().min(p.len() - first);
            if let Err(e) = Source::read(&mut weights, ParamId(i), first, &mut values[..n]) {
                problems.push(e.to_string());
                break;
            }
            if let Some(at) = values[..n].iter().position(|v| !v.is_finite()) {
                problems.push(format!("{}: element {} is {}", p.name, first + at, values[at]));
                break;
            }
        }
    }
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    let bytes = file.files().iter().map(|f| size(f.path())).sum();
    Ok((problems, spec.params.len(), bytes))
}
