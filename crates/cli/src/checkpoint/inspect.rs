//! `memwall checkpoint inspect`: what a checkpoint is of, and where it lies.

use super::Place;
use crate::args::CheckpointInspectArgs;
use crate::failure::{Failure, Outcome};
use crate::figures::counted;
use crate::job::show_bytes;
use crate::report;
use memwall_checkpoint::{Manifest, SavedState, is_moment};
use serde_json::json;

pub(super) fn inspect(args: &CheckpointInspectArgs) -> Result<(), Failure> {
    let folder = Place::checkpoint(&args.path)?;
    let saved = SavedState::open(&folder).refuse()?;
    let manifest = saved.manifest();
    if args.job {
        tell!("{}", manifest.state.job);
        return Ok(());
    }
    if args.json {
        let tensors: Vec<_> =
            saved.tensors().map(|(name, shape)| json!({"name": name, "shape": shape})).collect();
        let all = json!({
            "path": folder, "parts": manifest.parts(), "bytes": manifest.bytes(),
            "parameters": saved.spec().parameter_count(), "vocabulary": saved.spec().config.vocab_size,
            "manifest": manifest, "tensors": tensors,
        });
        say!("{all:#}");
        return Ok(());
    }
    say!("checkpoint {}", folder.display());
    tell!("{}", text(&saved));
    if args.tensors {
        let width = saved.tensors().map(|(name, _)| name.len()).max().unwrap_or(0);
        say!("tensors");
        for (name, shape) in saved.tensors() {
            say!("           {name:<width$}  {}", dims(shape));
        }
    }
    Ok(())
}

fn text(saved: &SavedState) -> String {
    let Manifest { state, seed, schedule, layout, frozen, files, .. } = saved.manifest();
    let (weights, moments): (Vec<_>, Vec<_>) = saved.tensors().partition(|(name, _)| !is_moment(name));
    let c = &saved.spec().config;
    let mut text = format!(
        "run        step {}: {} samples, {} tokens trained on; the next sample is number {}\n\
         \x20          written by memwall {}\n\
         model      {}: {} parameters, {} layers, {} wide, vocabulary {}{}\n",
        state.step,
        state.samples,
        report::count(state.tokens as f64),
        state.samples,
        state.code,
        c.family.model_type(),
        report::count(saved.spec().parameter_count() as f64),
        c.layers,
        c.hidden_size,
        c.vocab_size,
        if c.tied { ", tied" } else { "" },
    );
    text += &format!(
        "state      {} tensors of weights and {} of moments, f32: {} in {} files\n",
        weights.len(),
        moments.len(),
        show_bytes(saved.manifest().bytes()),
        files.len(),
    );
    if !frozen.is_empty() {
        text += &format!("           {} tensors are frozen, and have no moments\n", frozen.len());
    }
    text += &format!(
        "layout     saved in {} by ranks of dp_replicate {} x dp_shard {}, ZeRO stage {}; any ranks can load it\n",
        counted(saved.manifest().parts(), "part"),
        layout.dp_replicate,
        layout.dp_shard,
        layout.zero,
    );
    text += &format!(
        "schedule   {}, {:e} to {:e}, warm-up {} of {} steps; the next step's rate is {:.3e}\n",
        schedule.decay, schedule.peak, schedule.last, schedule.warmup, schedule.steps, schedule.next
    );
    let data = if state.data.is_empty() { "none yet" } else { &state.data };
    text +=
        &format!("random     seed {seed}; every number is a function of it, of the step and of its place\n");
    text += &format!("data       {data}\n");
    let width = files.iter().map(|f| f.name.len()).max().unwrap_or(0);
    for (i, file) in files.iter().enumerate() {
        let head = if i == 0 { "files" } else { "" };
        let (size, tensors) = (show_bytes(file.size), file.tensors.len());
        text += &format!("{head:<10} {:<width$}  {size:>10}  {tensors} tensors\n", file.name);
    }
    text
}

/// Dims as people write them.
pub(super) fn dims(shape: &[usize]) -> String {
    shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ")
}
