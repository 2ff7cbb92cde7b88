//! `memwall checkpoint convert`: between checkpoints and model folders, and between checkpoints of other parts.

use super::Place;
use crate::args::{CheckpointConvertArgs, ConvertTo, FloatArg};
use crate::compare::set;
use crate::failure::{Failure, Outcome};
use crate::figures::counted;
use crate::job::{self, show_bytes};
use crate::machine;
use crate::run_folder::RunFolder;
use crate::setup::Setup;
use memwall_checkpoint::{
    Beginning, Disk, Export, FloatType, Manifest, ModelFile, ModelWeights, SavedState, Store, begin_with,
    verify, write_model,
};
use memwall_data::Tokenizer;
use std::path::Path;

pub(super) fn convert(args: &CheckpointConvertArgs) -> Result<(), Failure> {
    let misused = [
        (args.parts.is_some() && args.to == ConvertTo::Model, "--parts", "a checkpoint or a run"),
        (args.dtype.is_some() && args.to != ConvertTo::Model, "--dtype", "a model"),
        (args.job.is_some() && args.to != ConvertTo::Run, "--job", "a run"),
        (!args.set.is_empty() && args.to != ConvertTo::Run, "--set", "a run"),
    ];
    if let Some((_, flag, to)) = misused.into_iter().find(|(misused, ..)| *misused) {
        return Err(Failure::Refused(format!("{flag} is for a conversion to {to}: leave it out")));
    }
    match (args.to, Place::of(&args.from)?) {
        (ConvertTo::Checkpoint, Place::Checkpoint(from)) => to_checkpoint(&from, args),
        (ConvertTo::Model, Place::Checkpoint(from)) => to_model(&from, args),
        (ConvertTo::Run, Place::Model(from)) => to_run(&from, args),
        (ConvertTo::Run, Place::Checkpoint(_)) => Err(Failure::Refused(
            "a run begins with a model folder; to train on from a checkpoint, give --resume to train, or convert it to a \
             model first"
                .into(),
        )),
        (_, Place::Model(from)) => Err(Failure::Refused(format!(
            "{} is a model folder, which has no optimizer state: give --to run and --job JOB.toml for a run that begins \
             with it",
            from.display()
        ))),
    }
}

fn parts(args: &CheckpointConvertArgs) -> usize {
    args.parts.unwrap_or(1) as usize
}

/// Opens a checkpoint, once every byte of it is known to be what was written.
fn whole(folder: &Path) -> Result<SavedState, Failure> {
    match verify(folder, None, machine::cores()).problems.into_iter().next() {
        Some(problem) => Err(Failure::Refused(problem.to_string())),
        None => SavedState::open(folder).refuse(),
    }
}

fn to_checkpoint(from: &Path, args: &CheckpointConvertArgs) -> Result<(), Failure> {
    let saved = whole(from)?;
    let disk = Disk::default();
    let manifest =
        memwall_checkpoint::convert(&disk, &saved, &args.path, parts(args), machine::cores()).refuse()?;
    say!("written    {}: {}", args.path.display(), size(&manifest));
    Ok(())
}

fn size(manifest: &Manifest) -> String {
    format!("{} in {}", show_bytes(manifest.bytes()), counted(manifest.parts(), "part"))
}

fn to_model(from: &Path, args: &CheckpointConvertArgs) -> Result<(), Failure> {
    let saved = whole(from)?;
    let disk = Disk::default();
    // The job tells what the model was trained with; what of it is gone by now is left out, and said.
    let resolved = job::parse(&from.join(Manifest::NAME), &saved.manifest().state.job, &[]);
    let tokenizer = resolved
        .and_then(|resolved| resolved.validate())
        .map_err(|e| e.to_string())
        .and_then(|job| Tokenizer::load(&job.data.tokenizer).map_err(|e| e.to_string()));
    let dtype = match args.dtype {
        None | Some(FloatArg::Float32) => FloatType::F32,
        Some(FloatArg::Bfloat16) => FloatType::BF16,
        Some(FloatArg::Float16) => FloatType::F16,
    };
    let export = Export {
        dtype,
        max_shard_bytes: Export::USUAL_SHARD,
        end_of_document: tokenizer.as_ref().ok().and_then(Tokenizer::end_of_document),
        generation_config: None,
    };
    write_model(&disk, &args.path, &mut &saved, &export).refuse()?;
    match tokenizer.and_then(|t| t.write_hf_files(&args.path).map_err(|e| e.to_string())) {
        Ok(_) => {}
        Err(e) => complain!(
            "memwall: the model is written without its tokenizer, which the job's data.tokenizer names: {e}"
        ),
    }
    say!("written    {}: the weights of step {}", args.path.display(), saved.manifest().state.step);
    say!("more       memwall generate {} --prompt \"...\"", args.path.display());
    Ok(())
}

/// Writes a run folder whose first checkpoint, of step 0, has a model's weights.
fn to_run(from: &Path, args: &CheckpointConvertArgs) -> Result<(), Failure> {
    let Some(path) = &args.job else {
        return Err(Failure::Refused(
            "--to run needs --job JOB.toml: a checkpoint belongs to the job that goes on with it".into(),
        ));
    };
    let mut sets = args.set.clone();
    sets.push(set("run.dir", &args.path.to_string_lossy()));
    let setup = Setup::read(path, &sets)?;
    let file = ModelFile::open(from, &setup.spec).refuse()?;
    let folder = RunFolder::enter(&args.path)?;
    let store = folder.store(&setup.job);
    if folder.job()?.is_some() || store.latest().refuse()?.is_some() {
        return Err(Failure::Refused(format!(
            "{} already holds a run; give a new folder",
            args.path.display()
        )));
    }
    let run = Beginning {
        job: setup.resolved.to_toml(),
        code: crate::VERSION.into(),
        seed: setup.settings.seed,
        schedule: setup.settings.schedule,
    };
    let weights = ModelWeights::new(&file, &setup.spec);
    let to = Store::new(folder.path("checkpoints"), 1, Disk::default()).folder(0);
    let manifest = begin_with(folder.disk(), &weights, &to, run, parts(args), machine::cores()).refuse()?;
    folder.write_job(&setup.resolved)?;
    say!("written    {}: step 0, {}", to.display(), size(&manifest));
    say!("more       memwall train {} --set run.dir={} --resume", path.display(), args.path.display());
    Ok(())
}
