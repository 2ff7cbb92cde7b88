//! RMSNorm and LayerNorm, and their gradients.

use super::cut::Host;
use super::proof::{Operand, Operation, Sizes};
use crate::common::Stream;
use memwall_tensor::ops::{self, NormWeights, Normed};
use memwall_tensor::{Category, Cpu, DType, Shape, Tensor};

fn reals(name: &'static str, shape: Shape, seed: u64) -> Operand {
    Operand::reals(name, shape, &mut Stream::new(seed))
}

fn numbers(name: &'static str, shape: Shape, seed: u64) -> Operand {
    Operand::whole_numbers(name, shape, &mut Stream::new(seed))
}

#[test]
fn norm() {
    for bias in [false, true] {
        Operation {
            name: "norm",
            operands: &|[tokens, dim, _]: Sizes| {
                let x = reals("x", Shape::matrix(tokens, dim), 1);
                let [w, b] = ["w", "b"].map(|name| reals(name, Shape::vector(dim), 2));
                if bias { vec![x, w, b] } else { vec![x, w] }
            },
            run: &|d, _, t| {
                let weights = NormWeights { w: t[1].view(), b: t.get(2).map(Tensor::view), eps: 1e-5 };
                let Normed { y, mean, rstd } = ops::norm(d, t[0].view(), weights)?;
                Ok([y, rstd].into_iter().chain(mean).collect())
            },
        }
        .prove(if bias { [(3, 321); 2] } else { [(3, 51); 2] });
    }
}

/// Dims of a head.
const HEAD: usize = 4;

#[test]
fn norm_of_heads() {
    Operation {
        name: "norm",
        operands: &|[tokens, ..]: Sizes| {
            let x = reals("x", Shape::matrix(tokens, 6 * HEAD), 3);
            vec![x, reals("w", Shape::vector(HEAD), 4)]
        },
        run: &|d, _, t| {
            let weights = NormWeights { w: t[1].view(), b: None, eps: 1e-5 };
            let Normed { y, rstd, .. } = ops::norm(d, t[0].view().in_rows_of(HEAD), weights)?;
            Ok(vec![y.in_rows_of(t[0].shape().cols()), rstd])
        },
    }
    // Heads that two axes shard.
    .prove_but(1, [(4, 50); 2]);
}

#[test]
fn weight_gradient_of_a_norm_of_heads() {
    Operation {
        name: "norm backward for the weight",
        operands: &|[tokens, ..]: Sizes| {
            let [x, dy] = ["x", "dy"].map(|n| numbers(n, Shape::matrix(tokens, 6 * HEAD), n.len() as u64));
            vec![x, dy, numbers("dw", Shape::vector(HEAD), 5)]
        },
        run: &|d, _, t| {
            let [x, dy, mut dw] = t.try_into().expect("three operands");
            let (x, dy) = (x.view().in_rows_of(HEAD), dy.view().in_rows_of(HEAD));
            let twos = vec![2.0; x.shape.rows()];
            let rstd = Host::new(Shape::vector(twos.len()), DType::F32, twos).upload(d, x.placements);
            let unread = Tensor::new(d, x.shape, DType::F32, x.placements, Category::Activations)?;
            ops::norm_weight_gradient(d, x, &normed(unread, rstd, None), dy, dw.view_mut(), true)?;
            Ok(vec![dw])
        },
    }
    .prove_but(1, [(4, 482); 2]);
}

/// What a forward yielded, with `y` in the place of the rows that no gradient reads.
fn normed(y: Tensor<Cpu>, rstd: Tensor<Cpu>, mean: Option<Tensor<Cpu>>) -> Normed<Cpu> {
    Normed { y, mean, rstd }
}

#[test]
fn norm_input_gradient() {
    for bias in [false, true] {
        Operation {
            name: "norm backward for the input",
            operands: &|[tokens, dim, _]: Sizes| {
                let rows = Shape::matrix(tokens, dim);
                let [x, dy, dx] = ["x", "dy", "dx"].map(|n| reals(n, rows, n.len() as u64 + 5));
                let (w, rstd) = (reals("w", Shape::vector(dim), 8), reals("rstd", Shape::vector(tokens), 9));
                let mean = reals("mean", Shape::vector(tokens), 10);
                // With a mean, `dx` follows `dy`: without, all mixes of these two were tried.
                if bias { vec![x, w, rstd, dy, dx.like(3), mean] } else { vec![x, w, rstd, dy, dx] }
            },
            run: &|d, _, t| {
                let mut t = t.into_iter();
                let mut next = || t.next().unwrap();
                let (x, w, rstd, dy, mut dx) = (next(), next(), next(), next(), next());
                let unread = Host::download(d, &dy).upload(d, dy.placements());
                let normed = normed(unread, rstd, t.next());
                ops::norm_input_gradient(d, x.view(), w.view(), &normed, dy.view(), dx.view_mut())?;
                Ok(vec![dx])
            },
        }
        .prove(if bias { [(3, 17_493); 2] } else { [(3, 26_241); 2] });
    }
}

#[test]
fn norm_weight_gradient() {
    for bias in [false, true] {
        Operation {
            name: "norm backward for the weight",
            operands: &|[tokens, dim, _]: Sizes| {
                let rows = Shape::matrix(tokens, dim);
                let (x, dy) = (numbers("x", rows, 11), numbers("dy", rows, 12));
                let (rstd, dw) =
                    (numbers("rstd", Shape::vector(tokens), 13), numbers("dw", Shape::vector(dim), 14));
                let mean = numbers("mean", Shape::vector(tokens), 15);
                if bias { vec![x, rstd, dy, dw, mean] } else { vec![x, rstd, dy, dw] }
            },
            run: &|d, _, t| {
                let mut t = t.into_iter();
                let mut next = || t.next().unwrap();
                let (x, rstd, dy, mut dw) = (next(), next(), next(), next());
                let unread = Host::download(d, &dy).upload(d, dy.placements());
                let normed = normed(unread, rstd, t.next());
                ops::norm_weight_gradient(d, x.view(), &normed, dy.view(), dw.view_mut(), true)?;
                Ok(vec![dw])
            },
        }
        .prove(if bias { [(3, 17_493); 2] } else { [(3, 2913); 2] });
    }
}
