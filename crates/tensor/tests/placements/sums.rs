//! The loss, exact sums, and what the optimizer does.

use super::cut::Host;
use super::proof::{Operand, Operation, Sizes};
use crate::common::Stream;
use memwall_tensor::device::AdamW;
use memwall_tensor::ops::{self, Stepped};
use memwall_tensor::{DType, Shape};

#[test]
fn cross_entropy() {
    Operation {
        name: "cross_entropy",
        operands: &|[tokens, vocabulary, _]: Sizes| {
            let mut s = Stream::new(31);
            let logits = Operand::reals("logits", Shape::matrix(tokens, vocabulary), &mut s);
            let mut targets = Operand::ids("targets", tokens, vocabulary, &mut s);
            targets.whole.values[1] = -1.0;
            vec![logits, targets, Operand::reals("losses", Shape::vector(tokens), &mut s)]
        },
        run: &|d, _, t| {
            let [mut logits, targets, mut losses] = t.try_into().expect("three operands");
            let scale = Some(0.25);
            ops::cross_entropy(d, logits.view_mut(), targets.view(), losses.view_mut(), scale)?;
            Ok(vec![logits, losses])
        },
    }
    .prove([(3, 321); 2]);
}

/// A vector of small whole numbers, and a wide sum to add it to.
fn summed(name: &'static str, n: usize) -> Vec<Operand> {
    vec![Operand::whole_numbers(name, Shape::vector(n), &mut Stream::new(32)), Operand::wide("into")]
}

#[test]
fn sum_wide() {
    Operation {
        name: "sum_wide",
        operands: &|sizes| summed("values", sizes[2]),
        run: &|d, _, mut t| {
            let mut into = t.pop().unwrap();
            ops::sum_wide(d, t[0].view(), 0.125, into.view_mut())?;
            Ok(vec![into])
        },
    }
    .prove([(4, 14); 2]);
}

#[test]
fn sum_squares() {
    Operation {
        name: "sum_squares",
        operands: &|sizes| summed("values", sizes[2]),
        run: &|d, _, mut t| {
            let mut into = t.pop().unwrap();
            ops::sum_squares(d, t[0].view(), into.view_mut())?;
            Ok(vec![into])
        },
    }
    .prove([(4, 14); 2]);
}

#[test]
fn accumulate() {
    Operation {
        name: "accumulate",
        operands: &|sizes| {
            let mut s = Stream::new(33);
            ["values", "sums"].map(|n| Operand::whole_numbers(n, Shape::vector(sizes[2]), &mut s)).into()
        },
        run: &|d, _, mut t| {
            let mut sums = t.pop().unwrap();
            ops::accumulate(d, t[0].view(), sums.view_mut(), false)?;
            Ok(vec![sums])
        },
    }
    .prove([(5, 31); 2]);
}

#[test]
fn clip_factor() {
    Operation {
        name: "clip_factor",
        operands: &|_| {
            let out = Host::new(Shape::vector(2), DType::F32, vec![0.0; 2]);
            vec![Operand::wide("squares"), Operand::new("out", out).scalar()]
        },
        run: &|d, _, mut t| {
            let mut out = t.pop().unwrap();
            ops::clip_factor(d, t[0].view(), Some(0.5), out.view_mut())?;
            Ok(vec![out])
        },
    }
    .prove([(1, 8); 2]);
}

#[test]
fn optimizer() {
    let settings =
        AdamW { learning_rate: 0.1, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 3 };
    Operation {
        name: "optimizer",
        operands: &|sizes| {
            let mut s = Stream::new(34);
            let clip = Host::new(Shape::vector(2), DType::F32, vec![0.5, 2.0]);
            let names = ["parameter", "gradient", "first moment", "second moment"];
            let mut all = vec![Operand::new("clip", clip).scalar()];
            all.extend(names.map(|n| Operand::reals(n, Shape::vector(sizes[2]), &mut s)));
            all[4].whole.values.iter_mut().for_each(|v| *v = v.abs());
            all
        },
        run: &|d, _, t| {
            let [clip, mut p, g, mut m, mut v] = t.try_into().expect("five operands");
            let stepped =
                Stepped { parameter: p.view_mut(), first: m.view_mut(), second: v.view_mut(), rounded: None };
            ops::adamw(d, settings, clip.view(), g.view(), stepped)?;
            Ok(vec![p, m, v])
        },
    }
    .prove([(4, 3884); 2]);
}
