//! Two jobs run whole with several seeds: whether their held-out losses are further apart than seeds are.

use super::side::{Ran, Side, Step};
use crate::failure::Failure;
use crate::report;
use serde_json::{Value, json};

/// What some runs of a job came to, one a seed.
#[derive(Debug, Clone, PartialEq)]
struct Runs {
    /// Held-out loss at the end.
    last: Vec<f64>,
    /// Mean of the held-out losses of all evaluations.
    mean: Vec<f64>,
    /// The first evaluation at or below the loss that was asked for: its step, and seconds of training until then.
    reached: Vec<Option<(u64, f64)>>,
}

/// Two jobs' runs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Judged {
    loss: f64,
    runs: [Runs; 2],
}

/// Runs both jobs with the seed of the first and those after it.
pub(super) fn judge(sides: &[Side; 2], loss: f64, seeds: u32) -> Result<Judged, Failure> {
    for side in sides {
        let job = &side.setup.job;
        if !job.data.evaluates() || job.train.evaluate_every.is_none() {
            return Err(Failure::Refused(format!(
                "--until-loss judges held-out losses, and {} evaluates none on the way: set data.validation or \
                 data.evaluation, and train.evaluate_every",
                side.job.display()
            )));
        }
    }
    let mut runs = [Runs::new(), Runs::new()];
    let base = sides[0].setup.job.train.seed;
    for seed in (0..u64::from(seeds)).map(|n| base.wrapping_add(n)) {
        // One after the other, so that what else the machine does meets both.
        for (side, runs) in sides.iter().zip(&mut runs) {
            complain!("{:<10} seed {seed}: {}", side.name, side.job.display());
            let folder = side.folder.join(format!("seed-{seed}"));
            side.train_in(&folder, None, false, &[format!("train.seed={seed}")])?;
            runs.add(&Ran::read(&folder, 0)?.steps, loss);
        }
    }
    Ok(Judged { loss, runs })
}

impl Runs {
    fn new() -> Self {
        Self { last: Vec::new(), mean: Vec::new(), reached: Vec::new() }
    }

    fn add(&mut self, steps: &[Step], loss: f64) {
        let curve: Vec<f64> = steps.iter().filter_map(|s| s.evaluation).collect();
        self.last.push(curve.last().copied().unwrap_or(f64::NAN));
        self.mean.push(curve.iter().sum::<f64>() / curve.len() as f64);
        let mut seconds = 0.0;
        let reached = steps.iter().find_map(|s| {
            seconds += s.seconds;
            s.evaluation.filter(|x| *x <= loss).map(|_| (s.step, seconds))
        });
        self.reached.push(reached);
    }
}

/// Mean and standard deviation.
fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0).max(1.0)).sqrt())
}

/// Whether two samples have the same mean as far as they can tell: Welch's test at 5%.
fn same_mean(a: &[f64], b: &[f64]) -> bool {
    let ((mean_a, sd_a), (mean_b, sd_b)) = (moments(a), moments(b));
    let (va, vb) = (sd_a.powi(2) / a.len() as f64, sd_b.powi(2) / b.len() as f64);
    let distance = (mean_a - mean_b).abs();
    if va + vb == 0.0 {
        return distance == 0.0;
    }
    // Welch and Satterthwaite's degrees of freedom, rounded down: the test is then the more lenient one.
    let free =
        (va + vb).powi(2) / (va.powi(2) / (a.len() as f64 - 1.0) + vb.powi(2) / (b.len() as f64 - 1.0));
    distance <= quantile(free.floor() as usize) * (va + vb).sqrt()
}

/// The 97.5% quantile of Student's distribution.
fn quantile(free: usize) -> f64 {
    const FEW: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    match free {
        0 => FEW[0],
        1..=10 => FEW[free - 1],
        11..=19 => 2.228,
        20..=59 => 2.086,
        _ => 2.0,
    }
}

impl Judged {
    /// Whether the noise of seeds explains how far the losses are apart, at the end and over the whole curve.
    pub(super) fn alike(&self) -> bool {
        let [a, b] = &self.runs;
        same_mean(&a.last, &b.last) && same_mean(&a.mean, &b.mean)
    }

    fn verdict(&self) -> String {
        let [a, b] = &self.runs;
        if self.alike() {
            return "alike: seeds differ as much as the jobs do".into();
        }
        let (a, b) = (moments(&a.mean).0, moments(&b.mean).0);
        let better = if b < a { "b is better" } else { "b is WORSE" };
        format!("different beyond the noise of seeds: {better}")
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{:<26} {:>20} {:>20}\n", "", "a", "b");
        let spread = |values: &[f64]| {
            let (mean, sd) = moments(values);
            format!("{mean:.4} +- {sd:.4}")
        };
        let mut row = |what: &str, of: &dyn Fn(&Runs) -> String| {
            text += &format!("{what:<26} {:>20} {:>20}\n", of(&self.runs[0]), of(&self.runs[1]));
        };
        row("held-out loss at the end", &|r| spread(&r.last));
        row("mean of all evaluations", &|r| spread(&r.mean));
        let reached = |r: &Runs| r.reached.iter().flatten().copied().collect::<Vec<(u64, f64)>>();
        row(&format!("runs that reached {}", self.loss), &|r| {
            format!("{} of {}", reached(r).len(), r.reached.len())
        });
        row("  at step", &|r| {
            let steps: Vec<f64> = reached(r).iter().map(|(step, _)| *step as f64).collect();
            if steps.is_empty() {
                "-".into()
            } else {
                format!("{:.0} +- {:.0}", moments(&steps).0, moments(&steps).1)
            }
        });
        row("  after", &|r| {
            let seconds: Vec<f64> = reached(r).iter().map(|(_, s)| *s).collect();
            if seconds.is_empty() { "-".into() } else { report::duration(moments(&seconds).0) }
        });
        text + &format!("verdict    {}\n", self.verdict())
    }

    pub(super) fn to_json(&self) -> Value {
        let runs = |r: &Runs| {
            let reached: Vec<Value> = r
                .reached
                .iter()
                .map(|x| x.map_or(Value::Null, |(step, s)| json!({"step": step, "seconds": s})))
                .collect();
            json!({"final_losses": r.last, "mean_losses": r.mean, "reached": reached})
        };
        json!({
            "until_loss": self.loss, "a": runs(&self.runs[0]), "b": runs(&self.runs[1]),
            "alike": self.alike(), "verdict": self.verdict(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_decide_what_is_a_difference() {
        // By hand: means 2 and 2.5, standard deviations 0.1, 3 runs: t = 6.1, above 2.776.
        assert!(!same_mean(&[1.9, 2.0, 2.1], &[2.4, 2.5, 2.6]));
        // Standard deviations 0.5: t = 1.2.
        assert!(same_mean(&[1.5, 2.0, 2.5], &[2.0, 2.5, 3.0]));
        assert!(same_mean(&[2.0, 2.0], &[2.0, 2.0]) && !same_mean(&[2.0, 2.0], &[2.1, 2.1]));
        assert!(!same_mean(&[2.0, 2.0, f64::NAN], &[2.0, 2.1, 2.2]), "what is not a number is no evidence");
    }

    #[test]
    fn the_first_evaluation_below_the_loss_counts() {
        let step = |step, evaluation| Step {
            step,
            loss: 1.0,
            norm: 1.0,
            tokens_per_second: 1.0,
            seconds: 2.0,
            evaluation,
        };
        let mut runs = Runs::new();
        runs.add(&[step(1, Some(3.0)), step(2, None), step(3, Some(1.9)), step(4, Some(2.1))], 2.0);
        assert_eq!(runs.reached, [Some((3, 6.0))]);
        assert_eq!((runs.last[0], runs.mean[0]), (2.1, 7.0 / 3.0));
    }
}
