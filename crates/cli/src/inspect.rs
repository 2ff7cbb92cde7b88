//! `memwall model inspect`: what a model is made of, without loading it.

use crate::args::InspectArgs;
use crate::failure::Failure;
use crate::groups::{Groups, any_block, elements};
use crate::job::show_bytes;
use crate::report;
use crate::setup::read_config;
use memwall_checkpoint::{CheckpointError, ModelFile};
use memwall_model::{ModelSpec, ParamSpec, UnitKind, UnitSpec};
use serde_json::{Value, json};
use std::fmt::Write;

/// Prints what the config says and, for a folder, whether its weights are this model's.
pub(crate) fn inspect(args: &InspectArgs) -> Result<(), Failure> {
    let folder = args.path.is_dir();
    let config = if folder { args.path.join("config.json") } else { args.path.clone() };
    let spec = ModelSpec::new(read_config(&config)?);
    let longest = spec.config.max_positions;
    let sequence = args.sequence.map_or(longest, |n| n as usize);
    if sequence > longest {
        return Err(Failure::Refused(format!(
            "--sequence {sequence} is longer than the model's max_position_embeddings ({longest})"
        )));
    }
    let weights = (folder && ModelFile::is_in(&args.path)).then(|| ModelFile::open(&args.path, &spec));
    if args.json {
        say!("{:#}", to_json(&spec, sequence, weights.as_ref()));
    } else {
        tell!("{}", text(&spec, sequence));
        match &weights {
            Some(Ok(weights)) => tell!("{}", weights_text(&spec, weights)),
            None if folder => say!("weights    none in this folder"),
            _ => {}
        }
    }
    match weights {
        Some(Err(e)) => Err(Failure::Refused(e.to_string())),
        _ => Ok(()),
    }
}

/// Units that are alike, one after the other.
struct Run<'a> {
    /// The first one.
    unit: &'a UnitSpec,
    params: Vec<&'a ParamSpec>,
    /// Number of the first among the blocks, if it is one.
    block: Option<usize>,
    /// How many units they are.
    units: usize,
}

impl<'a> Run<'a> {
    /// The units of a model, with equal blocks together.
    fn of(spec: &'a ModelSpec) -> Vec<Run<'a>> {
        let mut runs: Vec<Run<'a>> = Vec::new();
        let mut blocks = 0;
        for unit in &spec.units {
            let params: Vec<&ParamSpec> = unit.params.iter().map(|p| spec.param(*p)).collect();
            let block = matches!(unit.kind, UnitKind::Block(_)).then_some(blocks);
            blocks += usize::from(block.is_some());
            match runs.last_mut() {
                Some(run) if block.is_some() && run.is_like(unit, &params) => run.units += 1,
                _ => runs.push(Run { unit, params, block, units: 1 }),
            }
        }
        runs
    }

    /// Whether another unit differs in the number of its block alone.
    fn is_like(&self, unit: &UnitSpec, params: &[&ParamSpec]) -> bool {
        let windows = match (self.unit.kind, unit.kind) {
            (UnitKind::Block(a), UnitKind::Block(b)) => a.window == b.window,
            _ => false,
        };
        let same = |(a, b): (&&ParamSpec, &&ParamSpec)| {
            any_block(&a.name) == any_block(&b.name) && a.shape == b.shape && a.decay == b.decay
        };
        windows && self.params.len() == params.len() && self.params.iter().zip(params).all(same)
    }

    /// "blocks 0-29", or what else it is.
    fn name(&self) -> String {
        match (self.unit.kind, self.block) {
            (UnitKind::Embedding { .. }, _) => "embedding".into(),
            (_, Some(first)) if self.units > 1 => format!("blocks {first}-{}", first + self.units - 1),
            (_, Some(first)) => format!("block {first}"),
            _ => "head".into(),
        }
    }

    /// What there is to say beside the parameters.
    fn remark(&self, tied: bool) -> String {
        match self.unit.kind {
            UnitKind::Head { .. } if tied => ", and the embedding's (tied)".into(),
            UnitKind::Block(block) => {
                block.window.map_or(String::new(), |tokens| format!(", sees {tokens} tokens back"))
            }
            _ => String::new(),
        }
    }
}

/// What training holds for each parameter.
struct States {
    name: &'static str,
    /// Bytes of weights, f32 masters, gradients and AdamW's two moments.
    bytes: [(&'static str, u64); 4],
}

impl States {
    const ALL: [Self; 3] = [
        Self { name: "f32", bytes: [("weights", 4), ("masters", 0), ("gradients", 4), ("moments", 8)] },
        Self {
            name: "bf16, f32 masters",
            bytes: [("weights", 2), ("masters", 4), ("gradients", 2), ("moments", 8)],
        },
        Self {
            name: "the same, gradients f32",
            bytes: [("weights", 2), ("masters", 4), ("gradients", 4), ("moments", 8)],
        },
    ];

    /// Bytes a parameter.
    fn each(&self) -> u64 {
        self.bytes.iter().map(|(_, bytes)| bytes).sum()
    }
}

fn text(spec: &ModelSpec, sequence: usize) -> String {
    let mut text = report::model(spec, sequence);
    let _ = writeln!(
        text,
        "           {}, at {sequence} tokens a sequence: {}FLOPs linear, {}FLOPs attention",
        spec.config.family.class(),
        report::count(spec.linear_flops_per_token() as f64),
        report::count(spec.attention_flops_per_token(sequence) as f64),
    );
    let mut title = "units";
    for run in Run::of(spec) {
        let _ = writeln!(
            text,
            "{title:<10} {:<24}{} tensors, {} parameters{}{}",
            run.name(),
            run.params.len(),
            report::count(elements(&run.params) as f64),
            if run.units > 1 { " each" } else { "" },
            run.remark(spec.config.tied),
        );
        title = "";
    }
    let groups = Groups::of(spec);
    text.push_str(&report::decay_groups(&groups, None));
    let mut spared: Vec<String> = groups.spared.iter().map(|p| any_block(&p.name)).collect();
    // Names of different blocks alternate.
    spared.sort();
    spared.dedup();
    let _ = writeln!(text, "           none: {}", spared.join(", "));
    title = "states";
    for states in &States::ALL {
        let parts: Vec<String> =
            states.bytes.iter().filter(|(_, b)| *b > 0).map(|(name, b)| format!("{name} {b}")).collect();
        let _ = writeln!(
            text,
            "{title:<10} {:<24}{} bytes a parameter ({}): {}",
            states.name,
            states.each(),
            parts.join(", "),
            show_bytes(states.each() * spec.parameter_count()),
        );
        title = "";
    }
    text
}

fn weights_text(spec: &ModelSpec, weights: &ModelFile) -> String {
    let mut text = String::new();
    let mut title = "weights";
    for file in weights.files() {
        let types: Vec<String> = file.types().into_iter().map(|(t, n)| format!("{n} of {t}")).collect();
        let _ = writeln!(text, "{title:<10} {}: tensors {}", file.path().display(), types.join(", "));
        title = "";
    }
    let _ =
        writeln!(text, "           all {} tensors of the model are there, in its shapes", spec.params.len());
    text
}

fn to_json(spec: &ModelSpec, sequence: usize, weights: Option<&Result<ModelFile, CheckpointError>>) -> Value {
    let units: Vec<Value> = Run::of(spec)
        .iter()
        .map(|run| {
            let params: Vec<Value> = run
                .params
                .iter()
                .map(|p| json!({"name": any_block(&p.name), "shape": p.shape, "decay": p.decay}))
                .collect();
            json!({
                "name": run.name(), "units": run.units, "tensors": run.params.len(),
                "parameters_each": elements(&run.params), "params": params,
            })
        })
        .collect();
    let states: Vec<Value> = States::ALL
        .iter()
        .map(|s| {
            let parts: serde_json::Map<String, Value> =
                s.bytes.iter().map(|(name, bytes)| ((*name).to_owned(), (*bytes).into())).collect();
            json!({
                "precision": s.name, "bytes_a_parameter": s.each(), "parts": parts,
                "bytes": s.each() * spec.parameter_count(),
            })
        })
        .collect();
    json!({
        "architecture": spec.config.family.class(),
        "parameters": spec.parameter_count(),
        "tied": spec.config.tied,
        "sequence": sequence,
        "flops_per_token": spec.flops_per_token(sequence),
        "linear_flops_per_token": spec.linear_flops_per_token(),
        "attention_flops_per_token": spec.attention_flops_per_token(sequence),
        "units": units,
        "decay_groups": Groups::of(spec).to_json(),
        "states": states,
        "weights": weights.map(|w| match w {
            Ok(w) => json!({
                "match": true,
                "files": w.files().iter().map(|f| json!({
                    "path": f.path().display().to_string(), "types": f.types(),
                })).collect::<Vec<_>>(),
            }),
            Err(e) => json!({"match": false, "problem": e.to_string()}),
        }),
    })
}
