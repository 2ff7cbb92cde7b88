//! The linear layer and its gradients, of matrices that lie either way.

use super::proof::{Operand, Operation, Sizes};
use crate::common::Stream;
use memwall_tensor::ops::{self, Matrix};
use memwall_tensor::{Cpu, Shape, Tensor};

/// Whole numbers for operands `(name, rows, columns)`, each the index of a size.
fn operands(named: &[(&'static str, usize, usize)], sizes: Sizes) -> Vec<Operand> {
    let mut s = Stream::new(1);
    let shape = |r: usize, c: usize| Shape::matrix(sizes[r], sizes[c]);
    named.iter().map(|(name, r, c)| Operand::whole_numbers(name, shape(*r, *c), &mut s)).collect()
}

const TOKENS: usize = 0;
const IN: usize = 1;
const OUT: usize = 2;

/// The last of some tensors.
fn last(mut tensors: Vec<Tensor<Cpu>>) -> (Tensor<Cpu>, Vec<Tensor<Cpu>>) {
    (tensors.pop().unwrap(), tensors)
}

#[test]
fn linear() {
    let either_way = |transposed: bool| {
        Operation {
            name: "linear",
            operands: &|sizes| {
                let mut all = operands(&[("x", TOKENS, IN)], sizes);
                let w = if transposed { ("w", IN, OUT) } else { ("w", OUT, IN) };
                let w = operands(&[w], sizes).remove(0);
                all.push(if transposed { w.lying() } else { w });
                all
            },
            run: &|d, _, t| {
                let w = Matrix { view: t[1].view(), transposed };
                Ok(vec![ops::linear(d, t[0].view(), w)?])
            },
        }
        .prove([(11, 70); 2]);
    };
    either_way(false);
    either_way(true);
}

#[test]
fn linear_added_to_what_is_there() {
    Operation {
        name: "linear",
        operands: &|sizes| operands(&[("x", TOKENS, IN), ("w", OUT, IN), ("y", TOKENS, OUT)], sizes),
        run: &|d, _, t| {
            let (mut y, t) = last(t);
            ops::linear_into(d, t[0].view(), t[1].view(), y.view_mut(), true)?;
            Ok(vec![y])
        },
    }
    .prove([(11, 718); 2]);
}

#[test]
fn linear_and_a_bias() {
    Operation {
        name: "linear, bias",
        operands: &|sizes| {
            let b = Operand::whole_numbers("b", Shape::vector(sizes[OUT]), &mut Stream::new(4));
            [operands(&[("x", TOKENS, IN), ("w", OUT, IN)], sizes), vec![b]].concat()
        },
        run: &|d, _, t| Ok(vec![ops::affine(d, t[0].view(), t[1].view(), Some(t[2].view()))?]),
    }
    .prove([(6, 480); 2]);
}

#[test]
fn linear_and_an_activation() {
    Operation {
        name: "linear, gelu",
        operands: &|sizes| operands(&[("x", TOKENS, IN), ("w", OUT, IN)], sizes),
        run: &|d, _, t| {
            let (y, out) = ops::affine_gelu(d, t[0].view(), t[1].view(), None)?;
            Ok(vec![y, out])
        },
    }
    .prove([(7, 74); 2]);
    Operation {
        name: "linear, swiglu",
        operands: &|sizes| operands(&[("x", TOKENS, IN), ("w", OUT, IN), ("gate", TOKENS, OUT)], sizes),
        run: &|d, _, t| {
            let (y, out) = ops::affine_swiglu(d, t[0].view(), t[1].view(), None, t[2].view())?;
            Ok(vec![y, out])
        },
    }
    .prove([(7, 722); 2]);
}

#[test]
fn linear_input_gradient() {
    let either_way = |transposed: bool| {
        Operation {
            name: "linear backward for the input",
            operands: &|sizes| {
                let mut all = operands(&[("dy", TOKENS, OUT)], sizes);
                let w = if transposed { ("w", IN, OUT) } else { ("w", OUT, IN) };
                let w = operands(&[w], sizes).remove(0);
                all.push(if transposed { w.lying() } else { w });
                all
            },
            run: &|d, _, t| {
                let w = Matrix { view: t[1].view(), transposed };
                Ok(vec![ops::linear_input_gradient(d, t[0].view(), w)?])
            },
        }
        .prove([(11, 70); 2]);
    };
    either_way(false);
    either_way(true);
}

#[test]
fn linear_input_gradient_added_to_what_is_there() {
    Operation {
        name: "linear backward for the input",
        operands: &|sizes| operands(&[("dy", TOKENS, OUT), ("w", OUT, IN), ("dx", TOKENS, IN)], sizes),
        run: &|d, _, t| {
            let (mut dx, t) = last(t);
            ops::linear_input_gradient_into(d, t[0].view(), t[1].view(), dx.view_mut(), true)?;
            Ok(vec![dx])
        },
    }
    .prove([(11, 718); 2]);
}

#[test]
fn linear_weight_gradient() {
    Operation {
        name: "linear backward for the weight",
        operands: &|sizes| operands(&[("dy", TOKENS, OUT), ("x", TOKENS, IN), ("dw", OUT, IN)], sizes),
        run: &|d, _, t| {
            let (mut dw, t) = last(t);
            ops::linear_weight_gradient(d, t[0].view(), t[1].view(), dw.view_mut(), true)?;
            Ok(vec![dw])
        },
    }
    .prove([(12, 717); 2]);
}
