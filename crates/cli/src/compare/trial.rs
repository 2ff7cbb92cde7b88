//! Two jobs run from the same state: how far apart they are after each step, and whether rounding explains it.

use super::side::{Ran, Side};
use crate::failure::{Failure, Outcome};
use crate::job::Precision;
use crate::machine;
use crate::resume::CHANGEABLE;
use memwall_checkpoint::{Deviation, SavedState, Tensors, diff, is_moment};

/// Keys that change what a job costs or how it rounds, but not what it learns.
const ROUNDS: [&str; 6] = [
    "train.micro_batch",
    "train.deterministic",
    "precision.mode",
    "precision.gradients",
    "export.dtype",
    "export.max_shard_size",
];

/// What rounding explains. From equal states the first step's loss and gradients differ only by the order and the type of
/// sums; after it AdamW divides each gradient by the root of its own square, so that small gradients' rounding moves
/// parameters as far as large ones' (by up to twice the learning rate), and later losses may be further apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Allowed {
    /// Of the first step's loss, over the loss. It is a sum in more than f64; what differs is the forward pass.
    pub(crate) loss: f64,
    /// Of the first step's gradients: norm of the difference over the norm. n terms in f32 are off by n 2^-24 of their absolute
    /// sum at most, and by about the root of that; products here have up to 10^5 terms. In bf16 each factor is rounded to
    /// 2^-9, and a block's input is some hundred roundings away from the tokens.
    pub(crate) gradients: f64,
    /// Of later losses, over the loss.
    pub(crate) later: f64,
}

impl Allowed {
    /// Where both are in f32.
    const F32: Allowed = Allowed { loss: 1e-6, gradients: 1e-4, later: 1e-3 };
    /// Where one of them is in bf16.
    const BF16: Allowed = Allowed { loss: 1e-2, gradients: 1e-1, later: 5e-2 };

    fn of(sides: &[Side; 2]) -> Self {
        let rounded = |side: &Side| {
            let p = &side.setup.job.precision;
            p.mode == Precision::Bf16 || p.gradients == Precision::Bf16
        };
        if sides.iter().any(rounded) { Self::BF16 } else { Self::F32 }
    }
}

/// Whether one job may take the place of the other.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// Losses, norms, gradients and weights are the same to the bit.
    Same,
    /// They differ by no more than rounding.
    Rounding,
    /// They do not learn the same, as their keys say.
    LearnsOtherwise(Vec<String>),
    /// They should be the same, and are not: why.
    Deviates(Vec<String>),
}

impl Verdict {
    pub(crate) fn is_safe(&self) -> bool {
        matches!(self, Verdict::Same | Verdict::Rounding)
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Verdict::Same => "safe: the same to the bit".into(),
            Verdict::Rounding => "safe: they differ by rounding alone".into(),
            Verdict::LearnsOtherwise(keys) => format!(
                "not the same job: {} change{} what is learned; --until-loss judges such jobs by their held-out losses",
                keys.join(", "),
                if keys.len() == 1 { "s" } else { "" },
            ),
            Verdict::Deviates(why) => format!("NOT SAFE: {}", why.join("; ")),
        }
    }
}

/// What two jobs came to.
pub(crate) struct Trial {
    /// Steps done before.
    pub(crate) first: u64,
    /// Keys that differ: key, a's value, b's.
    pub(crate) keys: Vec<(String, String, String)>,
    pub(crate) ran: [Ran; 2],
    /// Of the first step's gradients: norm of the difference over a's norm, and the tensor with the largest part in it.
    pub(crate) gradients: (f64, Option<String>),
    /// Of the weights at the end.
    pub(crate) weights: Vec<Deviation>,
    pub(crate) allowed: Allowed,
    pub(crate) verdict: Verdict,
}

impl Trial {
    /// Runs both for some steps, from a checkpoint or from first values.
    pub(crate) fn run(sides: &[Side; 2], from: Option<&SavedState>, steps: u64) -> Result<Self, Failure> {
        let first = from.map_or(0, |saved| saved.manifest().state.step);
        for side in sides {
            complain!("{:<10} {} steps of {}", side.name, steps, side.job.display());
            if let Some(saved) = from {
                side.begin_with(saved)?;
            }
            // The first moment after one step tells the gradients.
            side.train(Some(1), from.is_some())?;
            if steps > 1 {
                side.train(Some(steps - 1), true)?;
            }
        }
        let ran = [sides[0].ran(first)?, sides[1].ran(first)?];
        let done = ran.iter().map(|r| r.steps.len()).min().unwrap_or(0);
        if done == 0 {
            return Err(Failure::Refused(format!(
                "there is no step to compare: the jobs end at step {first}, with which they are to begin"
            )));
        }
        let last = first + done as u64;
        let gradients = gradients(sides, first, &ran[0])?;
        let weights: Vec<Deviation> =
            differences(sides, last)?.into_iter().filter(|d| !is_moment(&d.name)).collect();
        let mut keys = sides[0].setup.resolved.differences(&sides[1].setup.resolved);
        keys.retain(|(key, ..)| key != "run.dir");
        let allowed = Allowed::of(sides);
        let mut trial = Self { first, keys, ran, gradients, weights, allowed, verdict: Verdict::Same };
        trial.verdict = trial.judge();
        Ok(trial)
    }

    /// Steps that both did.
    pub(crate) fn steps(&self) -> usize {
        self.ran.iter().map(|r| r.steps.len()).min().unwrap_or(0)
    }

    /// How far the losses of a step are apart, over the first one's.
    pub(crate) fn loss_apart(&self, step: usize) -> f64 {
        let [a, b] = [0, 1].map(|side| self.ran[side].steps[step].loss);
        apart(a, b)
    }

    /// Norm of the difference of the weights at the end over a's norm.
    pub(crate) fn weights_apart(&self) -> f64 {
        let (squares, norm) = self.weights.iter().fold((0.0, 0.0), |(s, n), d| (s + d.squares, n + d.norm));
        if squares == 0.0 { 0.0 } else { (squares / norm).sqrt() }
    }

    fn judge(&self) -> Verdict {
        let same_steps = (0..self.steps()).all(|i| {
            let [a, b] = [0, 1].map(|side| &self.ran[side].steps[i]);
            a.loss.to_bits() == b.loss.to_bits() && a.norm.to_bits() == b.norm.to_bits()
        });
        let learned = learned(&self.keys);
        if same_steps && self.gradients.0 == 0.0 && self.weights.iter().all(|d| d.differ == 0) {
            return if learned.is_empty() { Verdict::Same } else { Verdict::LearnsOtherwise(learned) };
        }
        if !learned.is_empty() {
            return Verdict::LearnsOtherwise(learned);
        }
        let mut why = Vec::new();
        // What is not a number is above every limit.
        let above = |x: f64, limit: f64| x > limit || x.is_nan();
        if above(self.loss_apart(0), self.allowed.loss) {
            why.push(format!(
                "the first step's losses are {:.1e} apart, and rounding explains {:.0e}",
                self.loss_apart(0),
                self.allowed.loss
            ));
        }
        if above(self.gradients.0, self.allowed.gradients) {
            let most = self.gradients.1.as_ref().map_or(String::new(), |name| format!(", most in {name}"));
            why.push(format!(
                "the first step's gradients are {:.1e} of their norm apart{most}, and rounding explains {:.0e}",
                self.gradients.0, self.allowed.gradients
            ));
        }
        let later = (1..self.steps()).map(|i| (i, self.loss_apart(i)));
        if let Some((i, x)) = later.into_iter().find(|(_, x)| above(*x, self.allowed.later)) {
            why.push(format!(
                "losses are {x:.1e} apart at step {}, and rounding explains {:.0e}",
                self.ran[0].steps[i].step, self.allowed.later
            ));
        }
        if why.is_empty() { Verdict::Rounding } else { Verdict::Deviates(why) }
    }
}

/// The keys that change what a job learns.
pub(crate) fn learned(keys: &[(String, String, String)]) -> Vec<String> {
    let key = |(key, ..): &(String, String, String)| key.clone();
    let harmless = |key: &String| CHANGEABLE.contains(&&**key) || ROUNDS.contains(&&**key);
    keys.iter().map(key).filter(|k| !harmless(k)).collect()
}

fn apart(a: f64, b: f64) -> f64 {
    if a.to_bits() == b.to_bits() { 0.0 } else { (a - b).abs() / a.abs() }
}

fn differences(sides: &[Side; 2], step: u64) -> Result<Vec<Deviation>, Failure> {
    let open = |side: &Side| Ok::<_, Failure>(Tensors::Checkpoint(Box::new(side.state(step)?)));
    Ok(diff(&open(&sides[0])?, &open(&sides[1])?, machine::cores()).fail()?.tensors)
}

/// How far the gradients of the step after `first` are apart. The first moment of that step is beta1 times what it was, which
/// both have in common, and 1 - beta1 times the gradient.
fn gradients(sides: &[Side; 2], first: u64, a: &Ran) -> Result<(f64, Option<String>), Failure> {
    let moments = differences(sides, first + 1)?;
    let moments = moments.into_iter().filter(|d| d.name.starts_with("exp_avg."));
    let (mut squares, mut most) = (0.0, None::<(f64, String)>);
    for d in moments {
        squares += d.squares;
        if d.squares > most.as_ref().map_or(0.0, |(s, _)| *s) {
            most = Some((d.squares, d.name.trim_start_matches("exp_avg.").to_owned()));
        }
    }
    if squares == 0.0 {
        return Ok((0.0, None));
    }
    let settings = &sides[0].setup.settings;
    let norm = a.steps[0].norm.min(settings.clip.unwrap_or(f64::INFINITY));
    let gradient = squares.sqrt() / (1.0 - settings.optimizer.beta1).max(f64::MIN_POSITIVE);
    Ok((gradient / norm, most.map(|(_, name)| name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::side::Step;

    fn trial(losses: [[f64; 2]; 2], gradients: f64, keys: &[&str]) -> Verdict {
        let ran = losses.map(|losses| Ran {
            steps: losses
                .into_iter()
                .zip(1..)
                .map(|(loss, step)| Step {
                    step,
                    loss,
                    norm: 1.0,
                    tokens_per_second: 1.0,
                    seconds: 1.0,
                    evaluation: None,
                })
                .collect(),
            peak_bytes: 0,
            wire_bytes: 0,
        });
        let keys = keys.iter().map(|k| ((*k).to_owned(), String::new(), String::new())).collect();
        let gradients = (gradients, None);
        Trial {
            first: 0,
            keys,
            ran,
            gradients,
            weights: Vec::new(),
            allowed: Allowed::F32,
            verdict: Verdict::Same,
        }
        .judge()
    }

    #[test]
    fn what_rounding_does_not_explain_is_not_safe() {
        let a = [4.0, 3.9];
        assert_eq!(trial([a, a], 0.0, &["parallel.zero"]), Verdict::Same);
        assert_eq!(trial([a, [4.0, 3.9001]], 1e-6, &["memory.recompute"]), Verdict::Rounding);
        for (b, gradients, word) in [
            ([4.001, 3.9], 0.0, "first step's losses"),
            ([4.0, 3.9], 0.01, "gradients"),
            ([4.0, 3.8], 0.0, "at step 2"),
            ([f64::NAN, 3.9], 0.0, "first step's losses"),
        ] {
            let verdict = trial([a, b], gradients, &[]);
            assert!(matches!(&verdict, Verdict::Deviates(why) if why[0].contains(word)), "{verdict:?}");
            assert!(!verdict.is_safe());
        }
    }

    #[test]
    fn other_rates_are_another_job_whatever_comes_of_them() {
        let a = [4.0, 3.9];
        let verdict = trial([a, a], 0.0, &["optimizer.learning_rate", "parallel.ranks"]);
        assert_eq!(verdict, Verdict::LearnsOtherwise(vec!["optimizer.learning_rate".into()]));
        assert!(!verdict.is_safe());
    }
}
