//! RMSNorm against f64, its gradients against differences of the f64 forward.

mod common;

use common::*;
use memwall_tensor::ops::{NormWeights, Normed};
use memwall_tensor::{Cpu, Shape, Tensor, ops};
use proptest::prelude::*;

const EPS: f64 = 1e-5;

/// Relative error of `rstd`: the mean of squares is a sum of positive terms, each in `dim / 16 + 5`
/// roundings, divided (1) and increased (1, and 1 of `eps` itself); the root halves all that, and it and
/// the quotient round once each.
fn rstd_error(dim: usize) -> f64 {
    ((dim / 16 + 8) as f64 / 2.0 + 2.0) * UNIT
}

/// Relative error of the terms of `dx`: the projection's mean rounds each term `dim / 16 + 8` times, and
/// takes `rstd` squared (twice its error); then comes `rstd` again, and 8 roundings on the way.
fn dx_error(dim: usize) -> f64 {
    3.0 * rstd_error(dim) + (dim / 16 + 16) as f64 * UNIT
}

/// RMSNorm on a device.
fn rms_norm(device: &Cpu, x: &Tensor<Cpu>, w: &Tensor<Cpu>) -> Normed<Cpu> {
    ops::norm(device, x.view(), NormWeights { w: w.view(), b: None, eps: EPS }).unwrap()
}

/// `1 / sqrt(mean(x^2) + eps)`.
fn rstd(x: &[f64]) -> f64 {
    1.0 / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + EPS).sqrt()
}

/// `<dy, rms_norm(x)>`, whose derivatives are the gradients.
fn objective(x: &[f64], w: &[f64], dy: &[f64]) -> f64 {
    let rows = x.chunks(w.len()).zip(dy.chunks(w.len()));
    rows.map(|(x, dy)| (0..w.len()).map(|i| dy[i] * x[i] * rstd(x) * w[i]).sum::<f64>()).sum()
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn rms_norm_is_that_of_f64(
        rows in 1usize..30, dim in 1usize..300, size in 0.001f32..100.0, threads in 1usize..=3,
        seed: u64,
    ) {
        let device = cpu(threads);
        let mut s = Stream::new(seed);
        let (x, w) = (s.floats(rows * dim, size), s.floats(dim, 2.0));
        let normed = rms_norm(&device, &matrix(&device, rows, &x), &vector(&device, &w));
        let r: Vec<f64> = x.chunks(dim).map(|x| rstd(&wide(x))).collect();
        let y: Vec<f64> =
            x.iter().enumerate().map(|(i, x)| f64::from(*x) * r[i / dim] * f64::from(w[i % dim])).collect();
        assert_near("rstd", &floats(&device, &normed.rstd), &r, |i| rstd_error(dim) * r[i]);
        assert_near("y", &floats(&device, &normed.y), &y, |i| (rstd_error(dim) + 2.0 * UNIT) * y[i].abs());
    }

    #[test]
    fn the_input_gradient_is_added_and_is_the_forwards_slope(
        rows in 1usize..6, dim in 1usize..40, seed: u64,
    ) {
        let device = cpu(2);
        let mut s = Stream::new(seed);
        let (x, w) = (s.floats(rows * dim, 2.0), s.floats(dim, 2.0));
        let (dy, before) = (s.floats(rows * dim, 1.0), s.floats(rows * dim, 1.0));
        let [xt, dyt, mut dxt] = [&x, &dy, &before].map(|v| matrix(&device, rows, v));
        let wt = vector(&device, &w);
        let normed = rms_norm(&device, &xt, &wt);
        ops::norm_input_gradient(&device, xt.view(), wt.view(), &normed, dyt.view(), dxt.view_mut()).unwrap();

        let (x, w, dy) = (wide(&x), wide(&w), wide(&dy));
        let (mut want, mut bound) = (Vec::new(), Vec::new());
        for row in 0..rows {
            let part = row * dim..(row + 1) * dim;
            let (x, dy) = (&x[part.clone()], &dy[part.clone()]);
            let r = rstd(x);
            let mean = (0..dim).map(|i| (w[i] * dy[i] * x[i]).abs()).sum::<f64>() / dim as f64;
            for i in 0..dim {
                let start = f64::from(before[part.start + i]);
                want.push(start + derivative(|x| objective(x, &w, dy), x, i));
                let size = r * ((w[i] * dy[i]).abs() + x[i].abs() * r * r * mean);
                // A row of small values is steep: its derivatives are of order r^3.
                let difference = DIFFERENCE_ERROR * (1.0 + r.powi(3));
                bound.push(dx_error(dim) * size + UNIT * (start.abs() + size) + difference);
            }
        }
        assert_near("dx", &floats(&device, &dxt), &want, |i| bound[i]);
    }

    #[test]
    fn the_weight_gradient_is_the_forwards_slope_and_replaces_or_adds(
        rows in 1usize..60, dim in 1usize..100, accumulate: bool, seed: u64,
    ) {
        let device = cpu(2);
        let mut s = Stream::new(seed);
        let (x, w) = (s.floats(rows * dim, 2.0), s.floats(dim, 2.0));
        let (dy, before) = (s.floats(rows * dim, 1.0), s.floats(dim, 1.0));
        let [xt, dyt] = [&x, &dy].map(|v| matrix(&device, rows, v));
        let (wt, mut dwt) = (vector(&device, &w), vector(&device, &before));
        let normed = rms_norm(&device, &xt, &wt);
        ops::norm_weight_gradient(&device, xt.view(), &normed, dyt.view(), dwt.view_mut(), accumulate).unwrap();

        let (x, w, dy) = (wide(&x), wide(&w), wide(&dy));
        let start = |i: usize| if accumulate { f64::from(before[i]) } else { 0.0 };
        let want: Vec<f64> =
            (0..dim).map(|i| start(i) + derivative(|w| objective(&x, w, &dy), &w, i)).collect();
        // A chain over the rows, of terms that carry rstd's error and one rounding.
        let error = rstd_error(dim) + (rows + 1) as f64 * UNIT;
        let size = |i: usize| {
            (0..rows)
                .map(|row| (dy[row * dim + i] * x[row * dim + i] * rstd(&x[row * dim..][..dim])).abs())
                .sum::<f64>()
        };
        assert_near("dw", &floats(&device, &dwt), &want, |i| {
            error * (start(i).abs() + size(i)) + DIFFERENCE_ERROR * rows as f64
        });
    }
}

#[test]
fn a_row_of_zeros_stays_finite() {
    let device = cpu(1);
    let normed = rms_norm(&device, &matrix(&device, 2, &[0.0; 6]), &vector(&device, &[1.0f32; 3]));
    assert_eq!(floats(&device, &normed.y), [0.0; 6]);
    assert_eq!(normed.rstd.shape(), Shape::vector(2));
    assert!(floats(&device, &normed.rstd).iter().all(|r| r.is_finite()));
}
