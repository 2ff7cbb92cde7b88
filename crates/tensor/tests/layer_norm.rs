//! LayerNorm against f64, its gradients against differences of the f64 forward.

mod common;

use common::*;
use memwall_tensor::ops::{NormWeights, Normed};
use memwall_tensor::{Cpu, Shape, Tensor, ops};
use proptest::prelude::*;

const EPS: f64 = 1e-5;

/// What a row is normed by, in f64, and how far off f32 may be.
struct Row {
    mean: f64,
    rstd: f64,
    /// Of the mean, absolutely: a sum of terms in `dim / 16 + 5` roundings each, divided.
    mean_error: f64,
    /// Of `rstd`, relatively.
    rstd_error: f64,
}

impl Row {
    /// The error of `rstd`: the mean of squares is a sum of positive terms, each in `dim / 16 + 10` roundings with
    /// those of the deviation and of its square; the mean's error `m` adds its own square (deviations from the true
    /// mean sum to zero), and `2 u m` times a deviation. The root halves all that, and it, the sum with `eps` and
    /// the quotient round once each.
    fn of(x: &[f64]) -> Self {
        let dim = x.len() as f64;
        let mean = x.iter().sum::<f64>() / dim;
        let rstd = 1.0 / (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / dim + EPS).sqrt();
        let terms = (x.len() / 16 + 6) as f64 * UNIT;
        let mean_error = terms * x.iter().map(|x| x.abs()).sum::<f64>() / dim;
        let moved = mean_error * rstd;
        let rstd_error = (terms + 6.0 * UNIT + moved * moved + 2.0 * UNIT * moved) / 2.0 + 3.0 * UNIT;
        Self { mean, rstd, mean_error, rstd_error }
    }

    fn normed(&self, x: f64) -> f64 {
        (x - self.mean) * self.rstd
    }

    /// What a normed element is off by: the mean's error, and three roundings beside that of `rstd`.
    fn normed_error(&self, x: f64) -> f64 {
        self.mean_error * self.rstd + self.normed(x).abs() * (self.rstd_error + 3.0 * UNIT)
    }
}

/// `<dy, layer_norm(x)>`, whose derivatives are the gradients.
fn objective(x: &[f64], w: &[f64], b: &[f64], dy: &[f64]) -> f64 {
    let rows = x.chunks(w.len()).zip(dy.chunks(w.len()));
    rows.map(|(x, dy)| {
        let row = Row::of(x);
        (0..w.len()).map(|i| dy[i] * (row.normed(x[i]) * w[i] + b[i])).sum::<f64>()
    })
    .sum()
}

/// LayerNorm on a device.
fn layer_norm(device: &Cpu, x: &Tensor<Cpu>, w: &Tensor<Cpu>, b: &Tensor<Cpu>) -> Normed<Cpu> {
    ops::norm(device, x.view(), NormWeights { w: w.view(), b: Some(b.view()), eps: EPS }).unwrap()
}

/// Rows around `offset`: a variance far below the square of the mean.
fn rows_around(s: &mut Stream, n: usize, offset: f32, size: f32) -> Vec<f32> {
    s.floats(n, size).iter().map(|x| x + offset).collect()
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn layer_norm_is_that_of_f64(
        rows in 1usize..30, dim in 1usize..300, size in 0.01f32..100.0,
        offset in prop::sample::select(&[0.0f32, -3.0, 100.0][..]), threads in 1usize..=3, seed: u64,
    ) {
        let device = cpu(threads);
        let mut s = Stream::new(seed);
        let (x, w, b) = (rows_around(&mut s, rows * dim, offset, size), s.floats(dim, 2.0), s.floats(dim, 2.0));
        let normed = layer_norm(
            &device, &matrix(&device, rows, &x), &vector(&device, &w), &vector(&device, &b),
        );
        let (x, w, b) = (wide(&x), wide(&w), wide(&b));
        let stats: Vec<Row> = x.chunks(dim).map(Row::of).collect();
        let column = |f: fn(&Row) -> f64| stats.iter().map(f).collect::<Vec<_>>();
        // Twice the first order, for the higher ones.
        assert_near("mean", &floats(&device, normed.mean.as_ref().unwrap()), &column(|r| r.mean), |i| {
            2.0 * stats[i].mean_error
        });
        assert_near("rstd", &floats(&device, &normed.rstd), &column(|r| r.rstd), |i| {
            2.0 * stats[i].rstd_error * stats[i].rstd
        });
        let y: Vec<f64> =
            (0..x.len()).map(|i| stats[i / dim].normed(x[i]) * w[i % dim] + b[i % dim]).collect();
        assert_near("y", &floats(&device, &normed.y), &y, |i| {
            2.0 * (w[i % dim].abs() * stats[i / dim].normed_error(x[i]) + UNIT * y[i].abs())
        });
    }

    #[test]
    fn the_input_gradient_is_added_and_is_the_forwards_slope(
        rows in 1usize..6, dim in 1usize..40, offset in prop::sample::select(&[0.0f32, 5.0][..]), seed: u64,
    ) {
        let device = cpu(2);
        let mut s = Stream::new(seed);
        let (x, w, b) = (rows_around(&mut s, rows * dim, offset, 2.0), s.floats(dim, 2.0), s.floats(dim, 2.0));
        let (dy, before) = (s.floats(rows * dim, 1.0), s.floats(rows * dim, 1.0));
        let [xt, dyt, mut dxt] = [&x, &dy, &before].map(|v| matrix(&device, rows, v));
        let [wt, bt] = [&w, &b].map(|v| vector(&device, v));
        let normed = layer_norm(&device, &xt, &wt, &bt);
        ops::norm_input_gradient(&device, xt.view(), wt.view(), &normed, dyt.view(), dxt.view_mut()).unwrap();

        let (x, w, b, dy) = (wide(&x), wide(&w), wide(&b), wide(&dy));
        let (mut want, mut bound) = (Vec::new(), Vec::new());
        for row in 0..rows {
            let part = row * dim..(row + 1) * dim;
            let (x, dy) = (&x[part.clone()], &dy[part.clone()]);
            let stats = Row::of(x);
            let g: Vec<f64> = (0..dim).map(|i| (w[i] * dy[i]).abs()).collect();
            let mean = |f: &dyn Fn(usize) -> f64| (0..dim).map(|i| g[i] * f(i)).sum::<f64>() / dim as f64;
            let (ones, along) = (mean(&|_| 1.0), mean(&|i| stats.normed(x[i]).abs()));
            let shift = mean(&|i| stats.normed_error(x[i]));
            for i in 0..dim {
                let start = f64::from(before[part.start + i]);
                want.push(start + derivative(|x| objective(x, &w, &b, dy), x, i));
                // Three terms: the gradient, its mean, and its part along the normed row. Each carries rstd's error
                // and up to `dim / 16 + 12` roundings; the last also the errors of the normed elements, in the
                // mean and before it.
                let n = stats.normed(x[i]).abs();
                let size = g[i] + ones + n * along;
                let error = (stats.rstd_error + (dim / 16 + 12) as f64 * UNIT) * size
                    + n * shift
                    + stats.normed_error(x[i]) * along;
                // A row of like values is steep: its derivatives are of order r^3.
                let difference = DIFFERENCE_ERROR * (1.0 + stats.rstd.powi(3));
                bound.push(
                    2.0 * stats.rstd * error + UNIT * (start.abs() + stats.rstd * size) + difference,
                );
            }
        }
        assert_near("dx", &floats(&device, &dxt), &want, |i| bound[i]);
    }

    #[test]
    fn the_parameters_gradients_are_the_forwards_slopes_and_replace_or_add(
        rows in 1usize..60, dim in 1usize..100, accumulate: bool, seed: u64,
    ) {
        let device = cpu(2);
        let mut s = Stream::new(seed);
        let (x, w, b) = (s.floats(rows * dim, 2.0), s.floats(dim, 2.0), s.floats(dim, 2.0));
        let (dy, before) = (s.floats(rows * dim, 1.0), s.floats(dim, 1.0));
        let [xt, dyt] = [&x, &dy].map(|v| matrix(&device, rows, v));
        let [wt, bt, mut dwt, mut dbt] = [&w, &b, &before, &before].map(|v| vector(&device, v));
        let normed = layer_norm(&device, &xt, &wt, &bt);
        ops::norm_weight_gradient(&device, xt.view(), &normed, dyt.view(), dwt.view_mut(), accumulate).unwrap();
        ops::bias_gradient(&device, dyt.view(), dbt.view_mut(), accumulate).unwrap();

        let (x, w, b, dy) = (wide(&x), wide(&w), wide(&b), wide(&dy));
        let start = |i: usize| if accumulate { f64::from(before[i]) } else { 0.0 };
        let dw: Vec<f64> =
            (0..dim).map(|i| start(i) + derivative(|w| objective(&x, w, &b, &dy), &w, i)).collect();
        let db: Vec<f64> =
            (0..dim).map(|i| start(i) + derivative(|b| objective(&x, &w, b, &dy), &b, i)).collect();
        // Chains over the rows; those of the weight have terms that carry the normed elements' errors.
        let stats: Vec<Row> = x.chunks(dim).map(Row::of).collect();
        let chain = (rows + 1) as f64 * UNIT;
        let over_rows = |f: &dyn Fn(usize, usize) -> f64, i: usize| {
            (0..rows).map(|row| f(row, row * dim + i)).sum::<f64>()
        };
        assert_near("dw", &floats(&device, &dwt), &dw, |i| {
            let size = over_rows(&|row, at| (dy[at] * stats[row].normed(x[at])).abs(), i);
            let error = over_rows(&|row, at| dy[at].abs() * stats[row].normed_error(x[at]), i);
            2.0 * error + chain * (start(i).abs() + size) + DIFFERENCE_ERROR * rows as f64
        });
        assert_near("db", &floats(&device, &dbt), &db, |i| {
            chain * (start(i).abs() + over_rows(&|_, at| dy[at].abs(), i)) + DIFFERENCE_ERROR * rows as f64
        });
    }
}

#[test]
fn a_row_of_one_value_becomes_the_bias() {
    let device = cpu(1);
    let (x, w, b) = (matrix(&device, 2, &[7.0; 6]), vector(&device, &[1.0f32; 3]), [1.0f32, -2.0, 3.0]);
    let normed = layer_norm(&device, &x, &w, &vector(&device, &b));
    assert_eq!(floats(&device, &normed.y), [1.0, -2.0, 3.0, 1.0, -2.0, 3.0]);
    assert_eq!(normed.rstd.shape(), Shape::vector(2));
    assert_eq!(floats(&device, normed.mean.as_ref().unwrap()), [7.0, 7.0]);
}
