//! Clipping and AdamW against f64, the rounded copy, and what a norm that is not finite does.

mod common;

use common::*;
use memwall_tensor::device::{AdamW, Optimizer};
use memwall_tensor::fixed::{self, Wide};
use memwall_tensor::{Cpu, Tensor, bf16};
use proptest::prelude::*;

/// Factor and norm from a wide sum of squares.
fn clip(device: &Cpu, squares: Wide, limit: Option<f32>) -> Tensor<Cpu> {
    let squares = vector(device, &squares.to_elements());
    let mut out = vector(device, &[f32::NAN; 2]);
    device.clip_factor(squares.view().slice, limit, out.view_mut().slice);
    out
}

/// A parameter with its moments, on a device, and the copy that forward and backward read.
struct State(Tensor<Cpu>, Tensor<Cpu>, Tensor<Cpu>, Option<Tensor<Cpu>>);

/// In which form a gradient is.
#[derive(Debug, Clone, Copy)]
enum Form {
    F32,
    Bf16,
    Fixed,
}

impl State {
    fn new(device: &Cpu, parameter: &[f32]) -> Self {
        let zeros = vec![0f32; parameter.len()];
        Self(vector(device, parameter), vector(device, &zeros), vector(device, &zeros), None)
    }

    /// With a copy in bf16, of what is not the parameter yet.
    fn with_copy(mut self, device: &Cpu) -> Self {
        self.3 = Some(vector(device, &vec![bf16::from_f32(77.0); self.0.shape().len()]));
        self
    }

    fn step(&mut self, device: &Cpu, settings: AdamW, clip: &Tensor<Cpu>, gradient: &Tensor<Cpu>) {
        let (p, m, v) = (self.0.view_mut().slice, self.1.view_mut().slice, self.2.view_mut().slice);
        let rounded = self.3.as_mut().map(|copy| copy.view_mut().slice);
        device.adamw(settings, clip.view().slice, gradient.view().slice, p, m, v, rounded);
    }

    fn floats(&self, device: &Cpu) -> [Vec<f32>; 3] {
        [&self.0, &self.1, &self.2].map(|t| floats(device, t))
    }

    fn copy(&self, device: &Cpu) -> Option<Vec<bf16>> {
        self.3.as_ref().map(|copy| download(device, copy))
    }
}

/// AdamW of one element in f64 as Loshchilov and Hutter write it, with what f32 may be off by.
#[derive(Clone, Copy, Default)]
struct Element {
    parameter: f64,
    first: f64,
    second: f64,
    /// The first moment of `|g|`: what errors of `first`, whose terms may cancel, are relative to.
    size: f64,
    /// What the parameter may be off by.
    error: f64,
}

impl Element {
    /// Errors, to first order: `1 - beta` from a rounded beta is off by `u / (1 - beta)` relatively. A step
    /// of a moment rounds at most 6 times. A step of the parameter adds the moments' errors (half of the
    /// second's, under the root) and 10 roundings of the update, and rounds the parameter twice.
    fn step(&mut self, s: &AdamW, g: f64) {
        let t = s.step as i32;
        self.first = s.beta1 * self.first + (1.0 - s.beta1) * g;
        self.size = s.beta1 * self.size + (1.0 - s.beta1) * g.abs();
        self.second = s.beta2 * self.second + (1.0 - s.beta2) * g * g;
        let (m, v) = (self.first / (1.0 - s.beta1.powi(t)), self.second / (1.0 - s.beta2.powi(t)));
        let root = v.sqrt() + s.eps;
        self.parameter -= s.learning_rate * (m / root + s.weight_decay * self.parameter);
        let largest = s.learning_rate * self.size / (1.0 - s.beta1.powi(t)) / root;
        let relative = moment_error(s, s.beta1) + moment_error(s, s.beta2) / 2.0 + 10.0 * UNIT;
        self.error += largest * relative + 2.0 * UNIT * (self.parameter.abs() + largest);
    }
}

/// Relative error of a moment after `step` steps.
fn moment_error(s: &AdamW, beta: f64) -> f64 {
    UNIT / (1.0 - beta) + 6.0 * s.step as f64 * UNIT
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn the_clip_factor_is_the_limit_over_the_norm_and_one_at_most(
        norm in -3f64..4.0, limit in prop::option::of(-3f32..4.0),
    ) {
        let (norm, limit) = (10f64.powf(norm), limit.map(|l| 10f32.powf(l)));
        let device = cpu(1);
        let out = floats(&device, &clip(&device, Wide::of(norm * norm), limit));
        let factor = limit.map_or(1.0, |l| (f64::from(l) / (norm + 1e-6)).min(1.0));
        // One rounding to f32; the squares carry 2^-60 of at least 1e-6, the rest is f64.
        assert_near("clip", &out, &[factor, norm], |i| 1.001 * UNIT * [factor, norm][i]);
    }

    #[test]
    fn adamw_follows_f64_over_several_steps(
        n in 1usize..2500, steps in 1u64..8, copied: bool, threads in 1usize..=3,
        form in prop::sample::select(&[Form::F32, Form::Bf16, Form::Fixed][..]),
        limit in prop::option::of(0.1f32..2.0), rate in 1e-5f64..1e-1, weight_decay in 0.0f64..0.5,
        beta1 in 0.0f64..0.95, beta2 in 0.9f64..0.9999, seed: u64,
    ) {
        let device = cpu(threads);
        let mut s = Stream::new(seed);
        let start = s.floats(n, 1.0);
        let mut state = State::new(&device, &start);
        if copied {
            state = state.with_copy(&device);
        }
        let mut want: Vec<Element> =
            wide(&start).iter().map(|p| Element { parameter: *p, ..Element::default() }).collect();
        for step in 1..=steps {
            let settings =
                AdamW { learning_rate: rate / step as f64, beta1, beta2, eps: 1e-8, weight_decay, step };
            let g = s.floats(n, 0.5);
            let sums: Vec<i64> = g.iter().map(|g| fixed::from_f32(*g)).collect();
            let (gradient, values) = match form {
                Form::F32 => (vector(&device, &g), wide(&g)),
                Form::Bf16 => (vector(&device, &low(&g)), low(&g).iter().map(|g| g.to_f64()).collect()),
                // Their f32 values: gradients of more than 24 bits are rounded before anything else.
                Form::Fixed => {
                    let values = sums.iter().map(|x| f64::from(*x as f32) / fixed::GRADIENT_SCALE);
                    (vector(&device, &sums), values.collect())
                }
            };
            let mut squares = vector(&device, &[0i64; Wide::LEN]);
            device.sum_squares(gradient.view().slice, squares.view_mut().slice);
            let mut factor = vector(&device, &[0f32; 2]);
            device.clip_factor(squares.view().slice, limit, factor.view_mut().slice);
            let clipped = f64::from(floats(&device, &factor)[0]);
            state.step(&device, settings, &factor, &gradient);
            for (i, w) in want.iter_mut().enumerate() {
                w.step(&settings, clipped * values[i]);
            }
            let [p, m, v] = state.floats(&device);
            let column = |f: fn(&Element) -> f64| want.iter().map(f).collect::<Vec<_>>();
            let first = moment_error(&settings, beta1);
            assert_near("first moment", &m, &column(|w| w.first), |i| first * want[i].size);
            let second = moment_error(&settings, beta2);
            assert_near("second moment", &v, &column(|w| w.second), |i| second * want[i].second);
            assert_near("parameter", &p, &column(|w| w.parameter), |i| want[i].error);
            prop_assert_eq!(state.copy(&device), copied.then(|| low(&p)));
        }
    }

    #[test]
    fn a_norm_that_is_not_finite_leaves_parameter_and_moments_as_they_are(
        n in 1usize..2000, limit in prop::option::of(0.1f32..2.0), seed: u64,
    ) {
        let device = cpu(2);
        let mut s = Stream::new(seed);
        let mut state = State::new(&device, &s.floats(n, 1.0)).with_copy(&device);
        let settings =
            AdamW { learning_rate: 0.1, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 1 };
        let healthy = clip(&device, Wide::of(1.0), limit);
        state.step(&device, settings, &healthy, &vector(&device, &s.floats(n, 1.0)));
        let (before, copy) = (state.floats(&device), state.copy(&device));

        let mut sums = vec![1i64 << 50; n];
        sums[s.below(n)] = fixed::OVERFLOWED;
        let gradient = vector(&device, &sums);
        let mut squares = vector(&device, &[0i64; Wide::LEN]);
        device.sum_squares(gradient.view().slice, squares.view_mut().slice);
        let mut factor = vector(&device, &[7f32; 2]);
        device.clip_factor(squares.view().slice, limit, factor.view_mut().slice);
        prop_assert_eq!(floats(&device, &factor), [0.0, f32::INFINITY]);
        state.step(&device, AdamW { step: 2, ..settings }, &factor, &gradient);
        prop_assert_eq!(state.floats(&device).map(|x| bits(&x)), before.map(|x| bits(&x)));
        prop_assert_eq!(state.copy(&device), copy);
    }
}

#[test]
fn no_gradient_at_all_moves_a_parameter_by_its_decay_alone() {
    let device = cpu(1);
    let mut state = State::new(&device, &[1.0, -2.0]);
    let settings =
        AdamW { learning_rate: 0.25, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.5, step: 1 };
    let factor = clip(&device, Wide::default(), Some(1.0));
    assert_eq!(floats(&device, &factor), [1.0, 0.0]);
    state.step(&device, settings, &factor, &vector(&device, &[0f32; 2]));
    assert_eq!(state.floats(&device)[0], [0.875, -1.75]);
}
