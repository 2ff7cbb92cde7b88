//! A comparison, as people and programs read it.

use super::side::Side;
use super::trial::Trial;
use crate::figures::counted;
use crate::job::show_bytes;
use crate::report;
use serde_json::{Value, json};

/// Steps that a table shows at most.
const SHOWN: usize = 20;

/// The table.
pub(crate) fn text(sides: &[Side; 2], trial: &Trial) -> String {
    let [a, b] = [0, 1].map(|i| sides[i].name);
    let mut text = String::new();
    for side in sides {
        let setup = &side.setup;
        text += &format!(
            "{:<10} {}: {} of {}, {}\n",
            side.name,
            side.job.display(),
            counted(setup.ranks(), "rank"),
            counted(setup.description.threads, "thread"),
            report::precision(setup.job.precision.mode),
        );
    }
    for (i, (key, a, b)) in trial.keys.iter().enumerate() {
        let head = if i == 0 { "differ in" } else { "" };
        text += &format!("{head:<10} {key}: {a} and {b}\n");
    }
    text += &format!(
        "{:<10} {:>14} {:>14} {:>9}   {:>14} {:>14}\n",
        "",
        format!("loss {a}"),
        format!("loss {b}"),
        "apart",
        format!("norm {a}"),
        format!("norm {b}")
    );
    let steps = trial.steps();
    for i in (0..steps).filter(|i| i % steps.div_ceil(SHOWN) == 0 || i + 1 == steps) {
        let [a, b] = [0, 1].map(|side| &trial.ran[side].steps[i]);
        text += &format!(
            "step {:<5} {:>14.8} {:>14.8} {:>9}   {:>14.8} {:>14.8}\n",
            a.step,
            a.loss,
            b.loss,
            share(trial.loss_apart(i)),
            a.norm,
            b.norm
        );
    }
    let most = trial.gradients.1.as_ref().map_or(String::new(), |name| format!(", most in {name}"));
    text += &format!(
        "gradients  of step {}: {} of their norm apart{most}\n",
        trial.first + 1,
        share(trial.gradients.0)
    );
    let worst = trial.weights.iter().filter(|d| d.differ > 0).max_by(|a, b| a.largest.total_cmp(&b.largest));
    let worst = worst.map_or(String::new(), |d| format!(", {:.1e} at most, in {}", d.largest, d.name));
    text += &format!(
        "weights    after step {}: {} of their norm apart{worst}\n",
        trial.first + steps as u64,
        share(trial.weights_apart())
    );
    text += &format!("{:<10} {a:>14} {b:>14}\n", "");
    let [a, b] = &trial.ran;
    for (what, a, b, ratio) in [
        (
            "memory",
            show_bytes(a.peak_bytes),
            show_bytes(b.peak_bytes),
            b.peak_bytes as f64 / a.peak_bytes as f64,
        ),
        ("speed", rate(a.rate()), rate(b.rate()), b.rate() / a.rate()),
        (
            "wire",
            show_bytes(a.wire_bytes),
            show_bytes(b.wire_bytes),
            b.wire_bytes as f64 / a.wire_bytes as f64,
        ),
    ] {
        let ratio = if ratio.is_finite() { format!("{ratio:.2} x") } else { String::new() };
        let unit = match what {
            "memory" => "peak of a rank",
            "speed" => "tokens/s, median",
            _ => "a step, got by a rank",
        };
        text += &format!("{what:<10} {a:>14} {b:>14} {ratio:>9}   {unit}\n");
    }
    text + &format!("verdict    {}\n", trial.verdict.text())
}

fn rate(x: f64) -> String {
    report::count(x)
}

/// A share of something, or that there is none.
fn share(x: f64) -> String {
    if x == 0.0 { "0".into() } else { format!("{x:.1e}") }
}

/// For programs.
pub(crate) fn to_json(sides: &[Side; 2], trial: &Trial) -> Value {
    let side = |i: usize| {
        let ran = &trial.ran[i];
        let steps: Vec<Value> = ran
            .steps
            .iter()
            .map(|s| json!({"step": s.step, "loss": s.loss, "gradient_norm": s.norm, "tokens_per_second": s.tokens_per_second}))
            .collect();
        json!({
            "job": sides[i].job, "ranks": sides[i].setup.ranks(), "steps": steps, "peak_bytes": ran.peak_bytes,
            "wire_bytes_per_step": ran.wire_bytes, "median_tokens_per_second": ran.rate(),
        })
    };
    let keys: Vec<Value> = trial.keys.iter().map(|(k, a, b)| json!({"key": k, "a": a, "b": b})).collect();
    let weights: Vec<Value> = trial
        .weights
        .iter()
        .map(|d| json!({"name": d.name, "different_elements": d.differ, "largest": d.largest, "relative": d.relative()}))
        .collect();
    json!({
        "first_step": trial.first + 1, "a": side(0), "b": side(1), "keys": keys,
        "gradients_apart": trial.gradients.0, "gradients_most_in": trial.gradients.1,
        "weights_apart": trial.weights_apart(), "weights": weights,
        "allowed": {"loss": trial.allowed.loss, "gradients": trial.allowed.gradients, "later_losses": trial.allowed.later},
        "safe": trial.verdict.is_safe(), "verdict": trial.verdict.text(),
    })
}
