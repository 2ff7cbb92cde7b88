//! `memwall model inspect`: what a model is made of, without loading it.

use crate::args::InspectArgs;
use crate::decay::{Groups, any_block, elements};
use crate::failure::{Failure, Outcome};
use crate::job::show_bytes;
use crate::report;
use crate::setup::read_config;
use crate::weight_files::WeightFiles;
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
    let weights = if folder { WeightFiles::find(&args.path).refuse()? } else { None };
    let problems = weights.as_ref().map(|w| w.problems(&spec)).unwrap_or_default();
    if args.json {
        say!("{:#}", to_json(&spec, sequence, weights.as_ref(), &problems));
    } else {
        tell!("{}", text(&spec, sequence));
        if folder {
            tell!("{}", weights_text(&spec, weights.as_ref(), &problems));
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "the weights in {} are not those of its config.json: {}",
        args.path.display(),
        problems.join("; ")
    )))
}

/// Units that are alike, one after the other.
struct Run<'a> {
    kind: UnitKind,
    /// Number of the first unit; block 0 is unit 1.
    first: usize,
    /// How many units it is.
    units: usize,
    /// Those of the first.
    params: Vec<&'a ParamSpec>,
}

impl<'a> Run<'a> {
    /// The units of a model, with equal blocks together.
    fn of(spec: &'a ModelSpec) -> Vec<Run<'a>> {
        let params = |unit: &UnitSpec| unit.params.iter().map(|p| spec.param(*p)).collect::<Vec<_>>();
        let alike = |a: &[&ParamSpec], b: &[&ParamSpec]| {
            let same = |(a, b): (&&ParamSpec, &&ParamSpec)| {
                any_block(&a.name) == any_block(&b.name) && a.shape == b.shape && a.decay == b.decay
            };
            a.len() == b.len() && a.iter().zip(b).all(same)
        };
        let mut runs: Vec<Run<'a>> = Vec::new();
        for (index, unit) in spec.units.iter().enumerate() {
            let params = params(unit);
            let block = |kind| matches!(kind, UnitKind::Block(_));
            match runs.last_mut() {
                Some(run) if block(unit.kind) && block(run.kind) && alike(&run.params, &params) => {
                    run.units += 1
                }
                _ => runs.push(Run { kind: unit.kind, first: index, units: 1, params }),
            }
        }
        runs
    }

    /// "blocks 0-29", or what else it is.
    fn name(&self) -> String {
        match self.kind {
            UnitKind::Embedding { .. } => "embedding".into(),
            UnitKind::Head { .. } => "head".into(),
            UnitKind::Block(_) if self.units > 1 => {
                format!("blocks {}-{}", self.first - 1, self.first + self.units - 2)
            }
            UnitKind::Block(_) => format!("block {}", self.first - 1),
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
            if matches!(run.kind, UnitKind::Head { .. }) && spec.config.tied {
                ", and the embedding's (tied)"
            } else {
                ""
            },
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

fn weights_text(spec: &ModelSpec, weights: Option<&WeightFiles>, problems: &[String]) -> String {
    let Some(weights) = weights else {
        return "weights    none in this folder\n".into();
    };
    let mut text = String::new();
    let mut title = "weights";
    for file in &weights.files {
        let types: Vec<String> = file.types().into_iter().map(|(t, n)| format!("{n} of {t}")).collect();
        let _ = writeln!(text, "{title:<10} {}: tensors {}", file.name, types.join(", "));
        title = "";
    }
    if problems.is_empty() {
        let _ = writeln!(
            text,
            "           all {} tensors of the model are there, in its shapes",
            spec.params.len()
        );
    }
    text
}

fn to_json(spec: &ModelSpec, sequence: usize, weights: Option<&WeightFiles>, problems: &[String]) -> Value {
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
        "weights": weights.map(|w| json!({
            "files": w.files.iter().map(|f| json!({
                "name": f.name, "tensors": f.tensors.len(), "types": f.types(),
            })).collect::<Vec<_>>(),
            "match": problems.is_empty(),
            "problems": problems,
        })),
    })
}
