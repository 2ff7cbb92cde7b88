//! The end of a run: its summary, what came out, and a sample of what the model writes.

use crate::balance::{self, Account};
use crate::early_stop::Stopped;
use crate::failure::Failure;
use crate::generate::write_text;
use crate::job::show_bytes;
use crate::layout;
use crate::machine;
use crate::plan::peaks_json;
use crate::report;
use crate::resident::Resident;
use crate::run::{End, Run};
use crate::run_folder::{Metrics, RunFolder, bytes_json};
use crate::setup::Setup;
use memwall_data::{Dataset, Tokenizer};
use memwall_engine::Sampling;
use memwall_tensor::device::Memory;
use serde_json::json;

/// What the rank has to tell the others.
pub(crate) fn account(run: &Run<'_>, end: &End) -> Account {
    let (measured, predicted) = (run.rank.device().ledger().state(), &run.prediction.run);
    // A run that did nothing, since it was complete, has no peaks to compare.
    let peaks = measured.peak_of_each == predicted.peak_of_each
        && measured.at_peak == predicted.at_peak
        && measured.reserved == predicted.reserved;
    let resident = run.resident.bytes();
    Account {
        spent: run.spent,
        resident,
        resident_agrees: resident
            .is_some_and(|bytes| Resident::of(run.setup, run.prediction).agrees_with(bytes)),
        memory_equal: run.exact.holds() && (peaks || end.steps == 0),
        wire_equal: run.wire.holds(),
    }
}

/// Writes the summary and says where things are. `ranks` is what all ranks have told, the first one's among it.
pub(crate) fn report(
    run: &Run<'_>,
    mut ranks: Vec<Account>,
    metrics: &Metrics,
    end: &End,
) -> Result<(), Failure> {
    let totals = metrics.totals()?;
    let prediction = run.prediction;
    let (measured, predicted) = (run.rank.device().ledger().state(), &prediction.run);
    let resident = Resident::of(run.setup, prediction);
    // The export, which only the first rank writes, counts as well.
    let own = account(run, end);
    ranks[0] = own;
    let (measured_resident, agrees) = (own.resident, own.resident.map(|_| own.resident_agrees));
    let summary = json!({
        "layout": layout::json(run.setup),
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
        "threads": run.setup.threads().threads,
        "memory": {
            "predicted": peaks_json(predicted),
            "measured": peaks_json(&measured),
            "equal": ranks.iter().all(|r| r.memory_equal),
            "first_difference": run.exact.to_json(),
            "lasting": bytes_json(&prediction.initial.live),
            "budget_bytes": run.setup.budget,
            "peak_resident_bytes": machine::peak_resident(),
            "resident": {
                "predicted": resident.to_json(), "measured_bytes": measured_resident, "agrees": agrees,
            },
        },
        "checkpoints": run.saves.to_json(run.rank.stood_still()),
        "wire": run.wire.to_json(run.setup.mesh),
        "wire_equal": ranks.iter().all(|r| r.wire_equal),
        "ranks": balance::to_json(&ranks),
        "imbalance": balance::imbalance(&ranks),
    });
    run.folder.write_summary(&summary)?;
    say!("done       {} steps in {}", end.steps, report::duration(end.seconds));
    if end.more {
        say!("           stopped after step {}, which is saved; go on with --resume", run.rank.steps_done());
    }
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
        tell!("{}{}", report::compared(predicted, &measured), run.wire.text(run.setup.mesh));
        for (what, differ, own) in [
            ("memory", different(&ranks, |r| r.memory_equal), run.exact.text()),
            ("bytes on the wire", different(&ranks, |r| r.wire_equal), run.wire.difference()),
        ] {
            if !differ.is_empty() {
                complain!(
                    "memwall: predicted and measured {what} differ{differ}: this is a defect of memwall, please report it{}",
                    own.map_or(String::new(), |text| format!(" ({text})"))
                );
            }
        }
        tell!("{}", balance::text(&ranks));
        tell!("{}", run.saves.text(run.rank.stood_still()));
    }
    if let Some(bytes) = measured_resident {
        let verdict = if agrees == Some(true) { "as predicted" } else { "NOT AS PREDICTED" };
        let predicted = show_bytes(resident.total());
        say!("process    {} resident at most, {predicted} predicted: {verdict}", show_bytes(bytes));
    }
    for (what, name) in [
        ("metrics", RunFolder::METRICS),
        ("summary", "summary.json"),
        ("saved", "checkpoints"),
        ("model", "export"),
    ] {
        if name == "export" && end.more {
            continue;
        }
        say!("{what:<10} {}", run.folder.path(name).display());
    }
    Ok(())
}

/// The ranks that have found a difference, in words; nothing where none has.
fn different(ranks: &[Account], equal: impl Fn(&Account) -> bool) -> String {
    let found: Vec<String> =
        ranks.iter().enumerate().filter(|(_, r)| !equal(r)).map(|(rank, _)| rank.to_string()).collect();
    if found.is_empty() { String::new() } else { format!(" on rank {}", found.join(", ")) }
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
