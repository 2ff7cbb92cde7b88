//! Exact gradient sums, norms, clipping and AdamW.

use super::family::kernel;
use super::loss::{BLOCK, add_wide};
use super::{Cpu, M, S, Shared};
use crate::device::{AdamW, Optimizer};
use crate::fixed::{self, Wide};
use crate::math::squares16;
use crate::{DType, Float, bf16};
use std::sync::Mutex;

/// A gradient in any form, read as f32 a block at a time.
#[derive(Clone, Copy)]
enum Gradient<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    Fixed(&'a [i64]),
}

impl<'a> Gradient<'a> {
    fn of(s: S<'a>) -> Self {
        match s.dtype() {
            DType::I64 => Gradient::Fixed(s.get()),
            DType::BF16 => Gradient::Bf16(s.get()),
            _ => Gradient::F32(s.get()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Gradient::F32(g) => g.len(),
            Gradient::Bf16(g) => g.len(),
            Gradient::Fixed(g) => g.len(),
        }
    }

    /// Elements `start .. start + out.len()`.
    fn read(&self, start: usize, out: &mut [f32]) {
        match self {
            Gradient::F32(g) => out.copy_from_slice(&g[start..start + out.len()]),
            Gradient::Bf16(g) => {
                for (o, x) in out.iter_mut().zip(&g[start..]) {
                    *o = x.wide();
                }
            }
            Gradient::Fixed(g) => {
                for (o, x) in out.iter_mut().zip(&g[start..]) {
                    *o = fixed::to_f32(*x);
                }
            }
        }
    }
}

impl Cpu {
    /// `sums[i] = sum(sums[i], values[i])`, or of zero when `fresh`.
    fn accumulate_in<T: Copy + Send + Sync>(
        &self,
        values: &[f32],
        sums: &mut [T],
        fresh: bool,
        zero: T,
        sum: impl Fn(T, f32) -> T + Sync + Send,
    ) {
        assert_eq!(values.len(), sums.len(), "gradients and their sums");
        let (tasks, size) = self.parts(values.len(), 64);
        let sums = Shared::of(sums);
        self.parallel(tasks, |t| {
            let part = t * size..((t + 1) * size).min(values.len());
            // SAFETY: task `t` takes its own part.
            let sums = unsafe { sums.part(part.start, part.len()) };
            for (s, v) in sums.iter_mut().zip(&values[part]) {
                *s = sum(if fresh { zero } else { *s }, *v);
            }
        });
    }
}

kernel! {
    fn sum_of_squares(x: &[f32], sum: &mut f64) {
        *sum = squares16(x);
    }
}

impl Optimizer for Cpu {
    fn accumulate(&self, values: S<'_>, sums: M<'_>, fresh: bool) {
        let values = values.get::<f32>();
        match sums.dtype() {
            DType::I64 => {
                self.accumulate_in(values, sums.get(), fresh, 0i64, |s, v| fixed::add(s, fixed::from_f32(v)))
            }
            DType::BF16 => {
                self.accumulate_in(values, sums.get(), fresh, bf16::ZERO, |s, v| Float::narrow(s.wide() + v));
            }
            _ => self.accumulate_in(values, sums.get(), fresh, 0f32, |s, v| s + v),
        }
    }

    fn sum_squares(&self, gradient: S<'_>, into: M<'_>) {
        let g = Gradient::of(gradient);
        let (tasks, size) = self.parts(g.len(), BLOCK);
        // Integer sums: the order in which tasks arrive cannot matter.
        let total = Mutex::new(Wide::default());
        self.parallel(tasks, |t| {
            let mut sum = Wide::default();
            let mut block = [0f32; BLOCK];
            let end = ((t + 1) * size).min(g.len());
            for start in (t * size..end).step_by(BLOCK) {
                let block = &mut block[..BLOCK.min(end - start)];
                g.read(start, block);
                let mut squares = 0.0;
                sum_of_squares(self.family, block, &mut squares);
                sum = sum.plus(Wide::of(squares));
            }
            let mut total = total.lock().expect("no task panics");
            *total = total.plus(sum);
        });
        add_wide(into.get::<i64>(), total.into_inner().expect("no task panics"));
    }

    fn clip_factor(&self, squares: S<'_>, limit: Option<f32>, out: M<'_>) {
        let squares: &[i64; Wide::LEN] = squares.get().try_into().expect("a wide sum has its length");
        let norm = Wide::from_elements(*squares).value().sqrt();
        let out = out.get::<f32>();
        if norm.is_finite() {
            out[0] = limit.map_or(1.0, |l| (f64::from(l) / (norm + 1e-6)).min(1.0) as f32);
            out[1] = norm as f32;
        } else {
            out.copy_from_slice(&[0.0, f32::INFINITY]);
        }
    }

    fn adamw(
        &self,
        settings: AdamW,
        clip: S<'_>,
        gradient: S<'_>,
        parameter: M<'_>,
        first: M<'_>,
        second: M<'_>,
        rounded: Option<M<'_>>,
    ) {
        let clip = clip.get::<f32>();
        if !clip[1].is_finite() {
            return;
        }
        let step = Step::new(&settings, clip[0]);
        let g = Gradient::of(gradient);
        let (p, m, v) = (parameter.get::<f32>(), first.get::<f32>(), second.get::<f32>());
        assert!([p.len(), m.len(), v.len()] == [g.len(); 3], "a parameter, its gradient and its moments");
        let rounded = rounded.map(|r| r.get::<bf16>());
        assert!(rounded.as_ref().is_none_or(|r| r.len() == g.len()), "a parameter and its rounded copy");
        let (p, m, v, rounded) = (Shared::of(p), Shared::of(m), Shared::of(v), rounded.map(Shared::of));
        let (tasks, size) = self.parts(g.len(), BLOCK);
        self.parallel(tasks, |t| {
            let mut block = [0f32; BLOCK];
            let end = ((t + 1) * size).min(g.len());
            for start in (t * size..end).step_by(BLOCK) {
                let n = BLOCK.min(end - start);
                g.read(start, &mut block[..n]);
                // SAFETY: task `t` takes its own part.
                unsafe {
                    let (p, m, v) = (p.part(start, n), m.part(start, n), v.part(start, n));
                    adamw(self.family, step, &block[..n], p, m, v);
                    if let Some(rounded) = rounded {
                        let rounded = rounded.part(start, n);
                        rounded.iter_mut().zip(p).for_each(|(r, p)| *r = Float::narrow(*p));
                    }
                }
            }
        });
    }
}

/// The scalars of a step as the inner loop uses them.
#[derive(Clone, Copy)]
struct Step {
    clip: f32,
    beta1: f32,
    beta2: f32,
    /// One minus each, rounded from f64: in f32 the difference would lose 1e-5 of itself at 0.999.
    rest1: f32,
    rest2: f32,
    keep: f32,
    rate: f32,
    root_correction: f32,
    eps: f32,
}

impl Step {
    fn new(s: &AdamW, clip: f32) -> Self {
        let t = i32::try_from(s.step).unwrap_or(i32::MAX);
        Self {
            clip,
            beta1: s.beta1 as f32,
            beta2: s.beta2 as f32,
            rest1: (1.0 - s.beta1) as f32,
            rest2: (1.0 - s.beta2) as f32,
            keep: (1.0 - s.learning_rate * s.weight_decay) as f32,
            rate: (s.learning_rate / (1.0 - s.beta1.powi(t))) as f32,
            root_correction: (1.0 / (1.0 - s.beta2.powi(t)).sqrt()) as f32,
            eps: s.eps as f32,
        }
    }
}

kernel! {
    fn adamw(s: Step, g: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        for i in 0..g.len().min(p.len()).min(m.len()).min(v.len()) {
            let g = g[i] * s.clip;
            m[i] = s.beta1.mul_add(m[i], s.rest1 * g);
            v[i] = s.beta2.mul_add(v[i], s.rest2 * (g * g));
            let root = v[i].sqrt().mul_add(s.root_correction, s.eps);
            p[i] = p[i].mul_add(s.keep, -(s.rate * (m[i] / root)));
        }
    }
}
