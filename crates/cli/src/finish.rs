//! The end of a run: its summary, what came out, and a sample of what the model writes.

use crate::early_stop::Stopped;
use crate::failure::Failure;
use crate::generate::write_text;
use crate::job::show_bytes;
use crate::machine;
use crate::plan::{layout_json, peaks_json};
use crate::report;
use crate::resident::Resident;
use crate::run_folder::{Metrics, RunFolder, bytes_json};
use crate::setup::Setup;
use crate::train::{End, Run};
use memwall_data::{Dataset, Tokenizer};
use memwall_engine::Sampling;
use memwall_tensor::LedgerState;
use memwall_tensor::device::Memory;
use serde_json::json;

/// Writes the summary and says where things are.
pub(crate) fn report(run: &Run<'_>, metrics: &Metrics, end: &End) -> Result<(), Failure> {
    let totals = metrics.totals()?;
    let prediction = run.prediction;
    let measured: LedgerState = run.rank.device().ledger().state();
    let predicted = &prediction.run;
    // A run that did nothing, since it was complete, has no peaks to compare.
    let peaks = measured.peak_of_each == predicted.peak_of_each
        && measured.at_peak == predicted.at_peak
        && measured.reserved == predicted.reserved;
    let equal = run.exact.holds() && (peaks || end.steps == 0);
    let (resident, measured_resident) = (Resident::of(run.setup, prediction), run.resident.anonymous());
    let agrees = measured_resident.map(|bytes| resident.agrees_with(bytes));
    let summary = json!({
        "layout": layout_json(),
        "parameters": run.setup.spec.parameter_count(),
        "steps": run.rank.steps_done(),
        "tokens": run.consumed.1,
        "final_loss": totals.final_loss,
        "evaluation_loss": totals.evaluation_loss,
        "evaluation_perplexity": totals.evaluation_loss.map(f64::exp),
        "stopped_early": end.stopped.map(Stopped::to_json),
        "median_tokens_per_second": totals.tokens_per_second,
        "median_mfu": totals.mfu,
        "gemm_peak_flops": run.peak.flops,
        "gemm_peak_source": run.peak.source.to_string(),
        "threads": run.setup.description.threads,
        "memory": {
            "predicted": peaks_json(predicted),
            "measured": peaks_json(&measured),
            "equal": equal,
            "first_difference": run.exact.to_json(),
            "lasting": bytes_json(&prediction.initial.live),
            "budget_bytes": run.setup.budget,
            "peak_resident_bytes": machine::peak_resident(),
            "resident": {
                "predicted": resident.to_json(), "measured_bytes": measured_resident, "agrees": agrees,
            },
        },
    });
    run.folder.write_summary(&summary)?;
    say!("done       {} steps in {}", end.steps, report::duration(end.seconds));
    if let Some(stopped) = &end.stopped {
        say!("           stopped early, after step {}: {}", run.rank.steps_done(), stopped.reason());
    }
    if let (Some(loss), Some(rate), Some(mfu)) = (totals.final_loss, totals.tokens_per_second, totals.mfu) {
        let held_out = totals.evaluation_loss.map_or(String::new(), |l| format!(", {}", report::held_out(l)));
        say!(
            "           loss {loss:.4}{held_out}; median {} tokens/s, MFU {:.0}%",
            report::count(rate),
            100.0 * mfu
        );
    }
    if end.steps > 0 {
        tell!("{}", report::compared(predicted, &measured));
        if !equal {
            complain!(
                "memwall: predicted and measured memory differ: this is a defect of memwall, please report it{}",
                run.exact.text().map_or(String::new(), |text| format!(" ({text})"))
            );
        }
    }
    if let Some(bytes) = measured_resident {
        let verdict = if agrees == Some(true) { "as predicted" } else { "NOT AS PREDICTED" };
        let predicted = show_bytes(resident.total());
        say!("process    {} resident at most, {predicted} predicted: {verdict}", show_bytes(bytes));
    }
    for (what, name) in [
        ("metrics", "metrics.jsonl"),
        ("summary", "summary.json"),
        ("saved", "checkpoints"),
        ("model", "export"),
    ] {
        say!("{what:<10} {}", run.folder.path(name).display());
    }
    Ok(())
}

/// Shows what the trained model writes after the first held-out tokens.
pub(crate) fn sample(
    setup: &Setup,
    folder: &RunFolder,
    data: &Dataset,
    tokenizer: &Tokenizer,
) -> Result<(), Failure> {
    const PROMPT: usize = 24;
    const WRITTEN: usize = 160;
    let t = data.sequence_length();
    let (mut tokens, mut targets, mut positions) = (vec![0; t], vec![0; t], vec![0; t]);
    if data.validation_samples() > 0 {
        data.fill_validation(0, &mut tokens, &mut targets, &mut positions)?;
    } else {
        data.fill_train(0, &mut tokens, &mut targets, &mut positions)?;
    }
    // Of the first document in the sample, and no more.
    let document = 1 + positions.iter().skip(1).take_while(|position| **position > 0).count();
    let prompt: Vec<u32> = tokens.iter().take(document.min(PROMPT.min(t / 2))).map(|id| *id as u32).collect();
    let prompt = tokenizer.decode(&prompt);
    let sampling = Sampling { temperature: 0.7, top_k: 40, top_p: 0.95, seed: setup.job.train.seed };
    let mut text = String::new();
    let threads = setup.description.threads;
    write_text(&folder.path("export"), &prompt, WRITTEN, sampling, threads, &mut |piece| {
        text.push_str(piece);
        true
    })?;
    say!("sample     after {prompt:?} it writes:");
    for line in text.lines() {
        say!("         | {line}");
    }
    let export = folder.path("export");
    say!("more       memwall generate {} --prompt \"...\"", export.display());
    Ok(())
}
