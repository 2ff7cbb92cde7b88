//! `memwall plan`: what a job will cost, without running it.

use crate::advice;
use crate::args::PlanArgs;
use crate::decay::Groups;
use crate::failure::Failure;
use crate::report;
use crate::run_folder::bytes_json;
use crate::setup::{MESH, Setup};
use memwall_engine::Prediction;
use memwall_tensor::LedgerState;
use serde_json::{Value, json};

/// Dry-runs the job and prints what it counted.
pub(crate) fn plan(args: &PlanArgs) -> Result<(), Failure> {
    let setup = Setup::read(&args.job)?;
    let p = setup.predict(setup.budget).map_err(|e| Failure::Refused(advice::does_not_fit(&setup, &e)))?;
    if args.json {
        say!("{:#}", to_json(&setup, &p));
    } else {
        tell!(
            "{}{}{}",
            report::model(&setup.spec, setup.settings.sequence),
            report::schedule(&setup),
            report::predicted(&p, setup.budget)
        );
        say!(
            "step       {}FLOPs of matrix products and attention on the device; {} bytes on the wire",
            report::count(p.step_flops as f64),
            p.step_traffic.total_bytes()
        );
    }
    Ok(())
}

/// A ledger's peaks as JSON.
pub(crate) fn peaks_json(s: &LedgerState) -> Value {
    json!({
        "peak_bytes": s.at_peak.total(), "at_peak": bytes_json(&s.at_peak),
        "peak_of_each": bytes_json(&s.peak_of_each), "reserved_bytes": s.reserved,
    })
}

/// The layout as JSON.
pub(crate) fn layout_json() -> Value {
    json!({"world": MESH.world(), "data_ranks": MESH.data_ranks(), "device": "cpu"})
}

fn to_json(setup: &Setup, p: &Prediction) -> Value {
    let (spec, sequence) = (&setup.spec, setup.settings.sequence);
    json!({
        "layout": layout_json(),
        "parameters": spec.parameter_count(),
        "steps": setup.job.train.length.steps(),
        "decay_groups": Groups::of(spec).to_json(),
        "flops_per_token": spec.flops_per_token(sequence),
        "attention_flops_per_token": spec.attention_flops_per_token(sequence),
        "step_flops": p.step_flops,
        "step_wire_bytes": p.step_traffic.total_bytes(),
        "threads": setup.description.threads,
        "budget_bytes": setup.budget,
        "lasting": bytes_json(&p.initial.live),
        "predicted": peaks_json(&p.run),
    })
}
