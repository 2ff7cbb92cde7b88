//! The learning rate of each step: a function of the step alone.
//!
//! Steps count from 1. Neither end of a run is wasted on a rate of zero: the warm-up's first step has a rate
//! above zero, and the fall would reach its end one step after the run's last (the "virtual last step" of
//! torchtitan). Without a warm-up the first step has the peak. So the rates are those that transformers'
//! `get_*_schedule_with_warmup(warmup, steps + 1)` gives from its second call on.

/// How the rate falls after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decay {
    /// It does not.
    Constant,
    /// On a straight line.
    Linear,
    /// On half a cosine (Loshchilov and Hutter, SGDR, eq. 5).
    Cosine,
    /// It stays at the peak until this many steps are left, then falls on a straight line (warm-up, stable,
    /// decay: Hu et al., MiniCPM, section 4). Until then the rates do not depend on the number of steps, so
    /// that a run can be made longer.
    Stable {
        /// Steps over which it falls, the last ones.
        decay: u64,
    },
}

/// A schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Rate at the end of the warm-up.
    pub peak: f64,
    /// Rate that the fall would reach one step after the last.
    pub last: f64,
    /// Steps over which the rate rises from zero.
    pub warmup: u64,
    /// Steps in all.
    pub steps: u64,
    /// How it falls.
    pub decay: Decay,
}

impl Schedule {
    /// The rate of a step, counted from 1. Beyond the last step it is `last`, but with a constant rate.
    pub fn at(&self, step: u64) -> f64 {
        if step <= self.warmup {
            return self.peak * step as f64 / self.warmup as f64;
        }
        // The last step that has the peak.
        let top = match self.decay {
            Decay::Constant => return self.peak,
            Decay::Linear | Decay::Cosine => self.warmup.max(1),
            Decay::Stable { decay } => self.steps.saturating_sub(decay).max(self.warmup.max(1)),
        };
        if step <= top {
            return self.peak;
        }
        let fall = (self.steps.saturating_sub(top) + 1) as f64;
        let progress = ((step - top) as f64 / fall).min(1.0);
        let share = match self.decay {
            Decay::Cosine => 0.5 * (1.0 + memwall_tensor::math::sin_cos(std::f64::consts::PI * progress).1),
            _ => 1.0 - progress,
        };
        self.last + (self.peak - self.last) * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What f64 arithmetic in another order may differ by, relative to the peak.
    const CLOSE: f64 = 1e-14;

    const ALL: [Decay; 4] = [Decay::Constant, Decay::Linear, Decay::Cosine, Decay::Stable { decay: 5 }];

    fn rates(s: &Schedule) -> Vec<f64> {
        (1..=s.steps).map(|k| s.at(k)).collect()
    }

    // transformers, optimization.py: _get_linear_schedule_with_warmup_lr_lambda and
    // _get_cosine_schedule_with_warmup_lr_lambda, at the optimizer's step `call` counted from 0.
    fn transformers(cosine: bool, warmup: u64, steps: u64, call: u64) -> f64 {
        if call < warmup {
            return call as f64 / warmup.max(1) as f64;
        }
        if !cosine {
            return ((steps - call) as f64 / (steps - warmup).max(1) as f64).max(0.0);
        }
        let progress = (call - warmup) as f64 / (steps - warmup).max(1) as f64;
        (0.5 * (1.0 + (std::f64::consts::PI * progress).cos())).max(0.0)
    }

    #[test]
    fn rates_are_those_of_transformers_without_the_steps_of_rate_zero() {
        for (decay, cosine) in [(Decay::Linear, false), (Decay::Cosine, true)] {
            for (warmup, steps) in [(0, 1), (0, 7), (1, 7), (4, 20), (20, 20)] {
                let s = Schedule { peak: 2e-3, last: 0.0, warmup, steps, decay };
                for k in 1..=steps {
                    let want = match warmup {
                        0 => transformers(cosine, 0, steps, k - 1),
                        _ => transformers(cosine, warmup, steps + 1, k),
                    };
                    let got = s.at(k) / s.peak;
                    assert!((got - want).abs() < CLOSE, "{decay:?} {warmup}/{steps} step {k}: {got}, {want}");
                }
            }
        }
    }

    #[test]
    fn no_step_is_wasted_on_a_rate_of_zero() {
        for decay in ALL {
            for warmup in [0, 1, 6] {
                let s = Schedule { peak: 1.0, last: 0.0, warmup, steps: 20, decay };
                assert!(rates(&s).iter().all(|r| *r > 0.0), "{s:?}: {:?}", rates(&s));
            }
        }
    }

    #[test]
    fn the_rate_rises_over_the_warm_up_then_never_rises_again() {
        for decay in ALL {
            let s = Schedule { peak: 1e-3, last: 1e-4, warmup: 4, steps: 20, decay };
            let rates = rates(&s);
            for (got, want) in rates.iter().zip([2.5e-4, 5e-4, 7.5e-4, 1e-3]) {
                assert!((got - want).abs() < CLOSE * s.peak, "{got} for {want}");
            }
            assert!(rates[3..].windows(2).all(|w| w[1] <= w[0] && w[1] > s.last), "{decay:?}: {rates:?}");
            let end = if decay == Decay::Constant { s.peak } else { s.last };
            assert!((s.at(21) - end).abs() < CLOSE * s.peak, "{decay:?}");
        }
    }

    #[test]
    fn warm_up_stable_decay_holds_the_peak_until_its_last_steps() {
        let s = Schedule { peak: 8.0, last: 2.0, warmup: 2, steps: 10, decay: Decay::Stable { decay: 3 } };
        // From 8 to 2 in four equal parts, of which the run takes three.
        assert_eq!(rates(&s), [4.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 6.5, 5.0, 3.5]);
        let longer = Schedule { steps: 100, ..s };
        assert!((1..=7).all(|k| s.at(k) == longer.at(k)));
        let all_fall = Schedule { decay: Decay::Stable { decay: 8 }, ..s };
        let linear = Schedule { decay: Decay::Linear, ..s };
        assert_eq!(rates(&all_fall), rates(&linear));
    }

    #[test]
    fn a_run_that_is_all_warm_up_reaches_its_peak() {
        for decay in ALL {
            let s = Schedule { peak: 1.0, last: 0.0, warmup: 5, steps: 5, decay };
            assert_eq!(s.at(5), 1.0);
        }
    }
}
