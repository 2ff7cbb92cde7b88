//! The learning rate of each step: a function of the step alone.

/// How the rate falls after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decay {
    /// It does not.
    Constant,
    /// On a straight line.
    Linear,
    /// On half a cosine (Loshchilov and Hutter, SGDR, eq. 5).
    Cosine,
}

/// A schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Rate at the end of the warm-up.
    pub peak: f64,
    /// Rate at the last step.
    pub last: f64,
    /// Steps over which the rate rises from zero.
    pub warmup: u64,
    /// Steps in all.
    pub steps: u64,
    /// How it falls.
    pub decay: Decay,
}

impl Schedule {
    /// The rate of a step, counted from 1.
    pub fn at(&self, step: u64) -> f64 {
        if step <= self.warmup {
            return self.peak * step as f64 / self.warmup as f64;
        }
        let fall = (self.steps - self.warmup).max(1) as f64;
        let progress = ((step - self.warmup) as f64 / fall).min(1.0);
        let share = match self.decay {
            Decay::Constant => return self.peak,
            Decay::Linear => 1.0 - progress,
            Decay::Cosine => 0.5 * (1.0 + memwall_tensor::math::sin_cos(std::f64::consts::PI * progress).1),
        };
        self.last + (self.peak - self.last) * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_over_the_warm_up_and_ends_where_it_should() {
        for decay in [Decay::Constant, Decay::Linear, Decay::Cosine] {
            let s = Schedule { peak: 1e-3, last: 1e-4, warmup: 4, steps: 20, decay };
            let rates: Vec<f64> = (1..=20).map(|k| s.at(k)).collect();
            assert!((rates[0] - 2.5e-4).abs() < 1e-15 && (rates[3] - 1e-3).abs() < 1e-15);
            assert!(rates[3..].windows(2).all(|w| w[1] <= w[0]));
            let end = if decay == Decay::Constant { 1e-3 } else { 1e-4 };
            assert!((rates[19] - end).abs() < 1e-15, "{decay:?} ends at {}", rates[19]);
        }
    }

    #[test]
    fn a_run_that_is_all_warm_up_reaches_its_peak() {
        let s = Schedule { peak: 1.0, last: 0.0, warmup: 5, steps: 5, decay: Decay::Cosine };
        assert_eq!(s.at(5), 1.0);
    }
}
