//! `memwall plan`: what a job will cost, without running it.

use crate::advice;
use crate::args::PlanArgs;
use crate::failure::Failure;
use crate::groups::Groups;
use crate::layout;
use crate::picture::{self, Timeline};
use crate::preset;
use crate::report;
use crate::resident::Resident;
use crate::run_folder::bytes_json;
use crate::setup::Setup;
use crate::wire;
use memwall_engine::{Alive, Prediction};
use memwall_tensor::{LedgerState, Moment, Phase};
use serde_json::{Map, Value, json};

/// Allocations that are named.
const LARGEST: usize = 10;

/// Dry-runs the job and prints what it counted.
pub(crate) fn plan(args: &PlanArgs) -> Result<(), Failure> {
    if args.list_models {
        tell!("{}", preset::list());
        return Ok(());
    }
    let sets = args.sets();
    let setup = match (&args.model, &args.job) {
        (Some(name), _) => Setup::of_model(name, &sets)?,
        (None, Some(path)) => Setup::read(path, &sets)?,
        (None, None) => return Err(Failure::Refused("give a job file, or --model NAME".into())),
    };
    let p = setup.predict(setup.budget).map_err(|e| Failure::Refused(advice::does_not_fit(&setup, &e)))?;
    if let Some(path) = &args.picture {
        std::fs::write(path, picture::svg(&setup, &Timeline::of(&p)))
            .map_err(|e| Failure::Refused(format!("cannot write the picture {}: {e}", path.display())))?;
    }
    if args.json {
        say!("{:#}", to_json(&setup, &p));
        return Ok(());
    }
    tell!("{}", report::model(&setup.spec, setup.settings.sequence));
    tell!("{}", if args.model.is_some() { report::batch(&setup) } else { report::schedule(&setup) });
    tell!("{}", layout::text(&setup));
    tell!("{}{}", report::predicted(&p, setup.limit()), report::phases(&setup.spec, &p, setup.ranks()));
    tell!("{}", report::largest(&setup.spec, &p.alive_at_peak(), LARGEST));
    tell!("{}", picture::text(&setup.spec, &Timeline::of(&p)));
    tell!("{}{}", report::step(&p), wire::planned(setup.mesh, &p.step_traffic));
    tell!("{}", Resident::of(&setup, &p).text());
    if let Some(path) = &args.picture {
        say!("picture    {}", path.display());
    }
    Ok(())
}

/// A ledger's peaks as JSON.
pub(crate) fn peaks_json(s: &LedgerState) -> Value {
    let phases: Map<String, Value> = Phase::ALL
        .into_iter()
        .map(|p| (p.name().to_owned(), s.at_peak_in(p).map_or(Value::Null, |bytes| bytes_json(&bytes))))
        .collect();
    json!({
        "peak_bytes": s.at_peak.total(), "at_peak": bytes_json(&s.at_peak), "peak_moment": moment_json(s.peak),
        "at_peak_of_phase": phases, "peak_of_each": bytes_json(&s.peak_of_each), "reserved_bytes": s.reserved,
    })
}

fn moment_json(m: Moment) -> Value {
    json!({"phase": m.phase.name(), "unit": m.unit, "operation": m.operation})
}

fn alive_json(a: &Alive) -> Value {
    json!({
        "bytes": a.block.bytes, "offset": a.block.offset, "category": a.block.category.name(),
        "since": moment_json(a.since),
    })
}

fn to_json(setup: &Setup, p: &Prediction) -> Value {
    let (spec, sequence) = (&setup.spec, setup.settings.sequence);
    let largest: Vec<Value> = p.alive_at_peak().iter().take(LARGEST).map(alive_json).collect();
    json!({
        "layout": layout::json(setup),
        "parameters": spec.parameter_count(),
        "steps": setup.job.train.length.steps(),
        "decay_groups": Groups::of(spec).to_json(),
        "flops_per_token": spec.flops_per_token(sequence),
        "attention_flops_per_token": spec.attention_flops_per_token(sequence),
        "step_flops": p.step_flops.total(),
        "step_attention_flops": p.step_flops.attention,
        "step_wire_bytes": wire::total(&p.step_traffic),
        "wire": wire::to_json(setup.mesh, &p.step_traffic),
        "threads": setup.threads().threads,
        "budget_bytes": setup.limit(),
        "lasting": bytes_json(&p.initial.live),
        "heaviest_rank": 0,
        "predicted": peaks_json(&p.run),
        "largest_at_peak": largest,
        "resident": Resident::of(setup, p).to_json(),
    })
}
