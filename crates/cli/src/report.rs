//! Tables and lines that people read.

use crate::figures::counted;
use crate::groups::{Groups, elements};
use crate::job::{Length, Precision, Recompute, Span, show_bytes};
use crate::picture::{moment_name, phase_name};
use crate::setup::Setup;
use crate::wire;
use memwall_engine::{Alive, Decay, Prediction};
use memwall_model::{ModelSpec, ParamSpec};
use memwall_tensor::{ByCategory, LedgerState, Phase};
use std::fmt::Write;

/// 12345678 as "12.35 M".
pub(crate) fn count(n: f64) -> String {
    for (unit, size) in [("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)] {
        if n >= size {
            return format!("{:.2} {unit}", n / size);
        }
    }
    format!("{n:.0}")
}

/// The model's lines, at this many tokens a sequence.
pub(crate) fn model(spec: &ModelSpec, sequence: usize) -> String {
    let c = &spec.config;
    format!(
        "model      {}: {} parameters, {} layers, {} wide, {} heads ({} key/value), vocabulary {}{}\n\
         \x20          {}FLOPs a token ({}FLOPs of them attention)\n",
        c.family.model_type(),
        count(spec.parameter_count() as f64),
        c.layers,
        c.hidden_size,
        c.heads,
        c.kv_heads,
        c.vocab_size,
        if c.tied { ", tied" } else { "" },
        count(spec.flops_per_token(sequence) as f64),
        count(spec.attention_flops_per_token(sequence) as f64),
    )
}

/// A held-out loss, in nats a token, and its perplexity.
pub(crate) fn held_out(loss: f64) -> String {
    format!("held-out loss {loss:.4} (perplexity {:.2})", loss.exp())
}

/// The schedule's lines, and the groups of weight decay.
pub(crate) fn schedule(setup: &Setup) -> String {
    let (t, s) = (&setup.job.train, &setup.settings.schedule);
    let (length, known) = match t.length {
        Length::Steps(steps) => {
            let from = setup.resolved.steps_from().map_or(String::new(), |from| format!(" ({from})"));
            (format!("{steps} steps{from}"), true)
        }
        Length::Epochs(epochs) => {
            (format!("{epochs} epochs (how many steps that is needs the data), steps"), false)
        }
    };
    let part = |span: Span| match span {
        Span::Share(share) if !known => format!("{share} of the steps"),
        span => format!("{} steps", span.of(s.steps)),
    };
    let decay = match s.decay {
        Decay::Constant => "constant".to_owned(),
        Decay::Linear => format!("linear to {:e}", s.last),
        Decay::Cosine => format!("cosine to {:e}", s.last),
        Decay::Stable { decay } => {
            let last = setup.job.optimizer.decay.filter(|_| !known).unwrap_or(Span::Steps(decay));
            format!("constant, over the last {} linear to {:e}", part(last), s.last)
        }
    };
    let stop = t.stop.map_or(String::new(), |stop| {
        format!("           stops early after {} evaluations without improvement\n", stop.patience)
    });
    format!(
        "schedule   {length} of {} x {} tokens ({} of {}){}\n\
         \x20          AdamW, learning rate {:e}, warm-up {}, then {decay}\n{stop}{}",
        counted(t.global_batch, "sequence"),
        setup.settings.sequence,
        counted(t.micro_batches, "micro-batch"),
        t.micro_batch,
        if t.deterministic { ", deterministic" } else { "" },
        s.peak,
        part(setup.job.optimizer.warmup),
        decay_groups(&Groups::of(&setup.spec), Some(setup.job.optimizer.weight_decay)),
    )
}

/// What decays and what does not; by how much, where a job says it.
pub(crate) fn decay_groups(groups: &Groups<'_>, weight_decay: Option<f64>) -> String {
    let group = |params: &[&ParamSpec]| {
        format!("{} tensors, {} parameters", params.len(), count(elements(params) as f64))
    };
    let by = weight_decay.map_or(String::new(), |decay| format!("by {decay} "));
    let frozen = match groups.frozen.len() {
        0 => String::new(),
        _ => format!("frozen     {}\n", group(&groups.frozen)),
    };
    format!("decay      {by}in {}; none in {}\n{frozen}", group(&groups.decayed), group(&groups.spared))
}

/// The batches of a step, in which numbers they are computed, and what is kept of them.
pub(crate) fn batch(setup: &Setup) -> String {
    let (t, s) = (&setup.job.train, &setup.settings);
    format!(
        "step       {} x {} tokens ({} of {}), {}, recompute {}\n",
        counted(t.global_batch, "sequence"),
        s.sequence,
        counted(t.micro_batches, "micro-batch"),
        t.micro_batch,
        precision(setup.job.precision.mode),
        recompute(setup.job.memory.recompute)
    )
}

/// A type of numbers, as the job file calls it.
pub(crate) fn precision(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 => "f32",
        Precision::Bf16 => "bf16",
    }
}

/// What is recomputed, as the job file calls it.
pub(crate) fn recompute(recompute: Recompute) -> &'static str {
    match recompute {
        Recompute::None => "none",
        Recompute::Full => "full",
    }
}

/// The highest of each phase, on the first of so many ranks.
pub(crate) fn phases(spec: &ModelSpec, p: &Prediction, ranks: usize) -> String {
    let of = |phase| Some(format!("{} {}", phase_name(phase), show_bytes(p.run.at_peak_in(phase)?.total())));
    let phases: Vec<String> = Phase::ALL.into_iter().filter_map(of).collect();
    let whose =
        if ranks == 1 { "rank 0, the only one".into() } else { format!("rank 0, the first of {ranks}") };
    format!(
        "phases     {}\npeak       in {}; on {whose}\n",
        phases.join(" | "),
        moment_name(spec, p.run.peak)
    )
}

/// The largest blocks of those that are alive, of equal ones how many.
pub(crate) fn largest(spec: &ModelSpec, alive: &[Alive], n: usize) -> String {
    let mut text = String::new();
    let alike = |a: &Alive, b: &Alive| {
        let what = |a: &Alive| (a.block.bytes, a.block.category, a.since.operation, a.since.phase);
        what(a) == what(b)
    };
    let mut lead = "largest";
    for same in alive[..n.min(alive.len())].chunk_by(alike) {
        let a = &same[0];
        let times = if same.len() > 1 { format!("{} x ", same.len()) } else { String::new() };
        let since = moment_name(spec, a.since);
        let others = if same.len() > 1 { ", and the like" } else { "" };
        let _ = writeln!(
            text,
            "{lead:<10} {:<18}{:>14}   {since}{others}",
            a.block.category.name(),
            times + &show_bytes(a.block.bytes)
        );
        lead = "";
    }
    text
}

/// What a step computes and gets from other ranks.
pub(crate) fn step(p: &Prediction) -> String {
    format!(
        "compute    a step: {}FLOPs in matrix products, {}FLOPs in attention; {} bytes on the wire\n",
        count(p.step_flops.matmul as f64),
        count(p.step_flops.attention as f64),
        wire::total(&p.step_traffic)
    )
}

/// The memory table of a prediction.
pub(crate) fn predicted(p: &Prediction, budget: Option<u64>) -> String {
    let mut text = format!("memory     {:<18}{:>14}{:>14}\n", "predicted", "lasting", "at the peak");
    for (category, at_peak) in p.run.at_peak.iter() {
        let lasting = p.initial.live[category];
        if at_peak > 0 || lasting > 0 {
            let _ = writeln!(
                text,
                "           {:<18}{:>14}{:>14}",
                category.name(),
                show_bytes(lasting),
                show_bytes(at_peak)
            );
        }
    }
    let _ = writeln!(
        text,
        "           {:<18}{:>14}{:>14}",
        "total",
        show_bytes(p.initial.live.total()),
        show_bytes(p.run.at_peak.total())
    );
    let _ = writeln!(
        text,
        "           reserved, holes included: {}{}",
        show_bytes(p.run.reserved),
        budget.map_or(String::new(), |b| format!(" of {}", show_bytes(b)))
    );
    text
}

/// Measured peaks beside predicted ones.
pub(crate) fn compared(predicted: &LedgerState, measured: &LedgerState) -> String {
    let mut text =
        format!("memory     {:<18}{:>16}{:>16}   bytes\n", "highest of each", "predicted", "measured");
    let mut row = |name: &str, p: u64, m: u64| {
        let verdict = if p == m { "equal" } else { "DIFFERENT" };
        let _ = writeln!(text, "           {name:<18}{p:>16}{m:>16}   {verdict}");
    };
    for ((category, p), (_, m)) in predicted.peak_of_each.iter().zip(measured.peak_of_each.iter()) {
        if p > 0 || m > 0 {
            row(category.name(), p, m);
        }
    }
    row("total", predicted.at_peak.total(), measured.at_peak.total());
    row("reserved", predicted.reserved, measured.reserved);
    text
}

/// Bytes in use by category.
pub(crate) fn live_table(live: &ByCategory) -> String {
    let mut text = String::from("In use at that moment:\n");
    for (category, bytes) in live.iter().filter(|(_, b)| *b > 0) {
        let _ = writeln!(text, "  {:<18}{:>14}", category.name(), show_bytes(bytes));
    }
    let _ = writeln!(text, "  {:<18}{:>14}", "total", show_bytes(live.total()));
    text
}

/// Seconds as "1 m 05 s".
pub(crate) fn duration(seconds: f64) -> String {
    let s = seconds.round() as u64;
    match (s / 3600, s / 60 % 60, s % 60) {
        (0, 0, 0) if seconds < 0.1 => format!("{:.0} ms", 1e3 * seconds),
        (0, 0, _) => format!("{seconds:.1} s"),
        (0, m, s) => format!("{m} m {s:02} s"),
        (h, m, _) => format!("{h} h {m:02} m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_durations_read_as_people_write_them() {
        assert_eq!(count(999.0), "999");
        assert_eq!(count(12_345_678.0), "12.35 M");
        assert_eq!(duration(0.0123), "12 ms");
        assert_eq!(duration(3.25), "3.2 s");
        assert_eq!(duration(65.0), "1 m 05 s");
        assert_eq!(duration(7260.0), "2 h 01 m");
    }
}
