//! Cross-entropy and exact sums of losses.

use super::family::kernel;
use super::{Cpu, M, S, Shared};
use crate::device::Loss;
use crate::fixed::Wide;
use crate::math::{exp, ln, max16, sum16};

/// Elements of a canonical block: what is summed in f64 before integers take over.
pub(super) const BLOCK: usize = 1024;

impl Loss for Cpu {
    fn cross_entropy(&self, logits: M<'_>, targets: S<'_>, losses: M<'_>, scale: Option<f32>) {
        let (logits, targets, losses) = (logits.get::<f32>(), targets.get::<i32>(), losses.get::<f32>());
        if targets.is_empty() {
            return;
        }
        let vocabulary = logits.len() / targets.len();
        assert!(
            logits.len() == vocabulary * targets.len() && losses.len() == targets.len(),
            "rows of logits, targets and losses"
        );
        let (tasks, rows) = self.parts(targets.len(), 1);
        let (logits, losses) = (Shared::of(logits), Shared::of(losses));
        self.parallel(tasks, |t| {
            let (first, n) = (t * rows, rows.min(targets.len() - t * rows));
            // SAFETY: task `t` takes its own rows.
            let (logits, losses) =
                unsafe { (logits.part(first * vocabulary, n * vocabulary), losses.part(first, n)) };
            cross_entropy(self.family, logits, &targets[first..first + n], losses, scale);
        });
    }

    fn sum_wide(&self, values: S<'_>, scale: f64, into: M<'_>) {
        let sum = values
            .get::<f32>()
            .chunks(BLOCK)
            .map(|block| Wide::of(block.iter().map(|x| f64::from(*x)).sum::<f64>() * scale))
            .fold(Wide::default(), Wide::plus);
        add_wide(into.get::<i64>(), sum);
    }
}

/// Adds to a wide sum in a buffer.
pub(super) fn add_wide(into: &mut [i64], sum: Wide) {
    let into: &mut [i64; Wide::LEN] = into.try_into().expect("a wide sum has its length");
    *into = Wide::from_elements(*into).plus(sum).to_elements();
}

kernel! {
    fn cross_entropy(logits: &mut [f32], targets: &[i32], losses: &mut [f32], scale: Option<f32>) {
        let vocabulary = logits.len() / targets.len();
        let rows = logits.chunks_exact_mut(vocabulary);
        for ((row, target), loss) in rows.zip(targets).zip(losses) {
            if *target < 0 {
                *loss = 0.0;
                if scale.is_some() {
                    row.fill(0.0);
                }
                continue;
            }
            let target = *target as usize;
            let (max, logit) = (max16(row), f64::from(row[target]));
            let sum = if scale.is_some() {
                for x in row.iter_mut() {
                    *x = exp(*x - max);
                }
                sum16(vocabulary, |i| row[i])
            } else {
                sum16(vocabulary, |i| exp(row[i] - max))
            };
            *loss = (f64::from(max) + ln(f64::from(sum)) - logit) as f32;
            if let Some(scale) = scale {
                let factor = scale / sum;
                for x in row.iter_mut() {
                    *x *= factor;
                }
                row[target] -= scale;
            }
        }
    }
}
