//! Attention and its backward: packed documents, grouped heads, a window and dropout.

use super::cut::Host;
use super::proof::{Operand, Operation};
use crate::common::{Stream, cpu, vector};
use memwall_layout::Placements;
use memwall_tensor::device::{AttentionDims, Dropout};
use memwall_tensor::ops::{self, Attended, AttentionForward};
use memwall_tensor::{Cpu, DType, Error, Shape, Tensor};

/// Sequences.
const BATCH: usize = 6;
/// Tokens of each.
const LENGTH: usize = 3;
/// Heads of queries.
const HEADS: usize = 12;
/// Heads of keys and values.
const KV_HEADS: usize = 6;
/// Dims of a head.
const HEAD: usize = 2;

/// Queries, keys, values and positions.
fn inputs() -> Vec<Operand> {
    let mut s = Stream::new(21);
    let tokens = BATCH * LENGTH;
    let mut heads = |name, n| Operand::reals(name, Shape::matrix(tokens, n * HEAD), &mut s);
    let (q, k, v) = (heads("q", HEADS), heads("k", KV_HEADS), heads("v", KV_HEADS));
    // In every other sequence a document begins at its second token.
    let position =
        |i: usize| if (i / LENGTH).is_multiple_of(2) { i % LENGTH } else { (i % LENGTH).saturating_sub(1) };
    let positions = (0..tokens).map(|i| position(i) as f64).collect();
    let positions = Operand::new("positions", Host::new(Shape::vector(tokens), DType::I32, positions));
    vec![q, k, v, positions]
}

/// What is dropped out, and whether the operation is told which heads it has.
#[derive(Clone, Copy, PartialEq)]
enum Zeros {
    None,
    Told,
    Untold,
}

/// Calls `then` with the sizes and inputs of a rank.
fn with<T>(
    d: &Cpu,
    starts: &[[usize; 2]],
    t: &[Tensor<Cpu>],
    zeros: Zeros,
    then: impl FnOnce(AttentionDims, Attended<'_, Cpu>) -> Result<T, Error>,
) -> Result<T, Error> {
    let (rows, heads) = (t[0].shape().rows(), |i: usize| t[i].shape().cols() / HEAD);
    let (queries, batch) = (LENGTH, rows / LENGTH);
    let dims = AttentionDims {
        batch,
        queries,
        keys: LENGTH,
        heads: heads(0),
        kv_heads: heads(1),
        head_dim: HEAD,
        window: Some(2),
    };
    let keys: Vec<i64> = (0..batch).map(|b| 77 * (starts[0][0] / LENGTH + b) as i64).collect();
    let keys = vector(d, &keys);
    let dropout = Dropout { keys: keys.view().slice, salt: 5, rate: 0.4 };
    let input = Attended {
        q: t[0].view(),
        k: t[1].view(),
        v: t[2].view(),
        positions: t[3].view(),
        dropout: (zeros != Zeros::None).then_some(dropout),
        first_head: (zeros == Zeros::Told).then_some(starts[0][1] / HEAD),
    };
    then(dims, input)
}

#[test]
fn attention() {
    for (zeros, counts) in [
        (Zeros::None, [(3, 4371), (2, 4372)]),
        (Zeros::Told, [(3, 4371), (2, 4372)]),
        (Zeros::Untold, [(2, 4372), (1, 4373)]),
    ] {
        Operation {
            name: "attention",
            operands: &|_| inputs(),
            run: &|d, starts, t| {
                let AttentionForward { out, lse } =
                    with(d, starts, &t, zeros, |dims, input| ops::attention(d, dims, input))?;
                Ok(vec![out, lse])
            },
        }
        .prove(counts);
    }
}

#[test]
fn attention_backward() {
    let zeros = Zeros::Told;
    let operands = {
        let d = cpu(1);
        let all = inputs();
        let t: Vec<_> = all.iter().map(|o| o.whole.upload(&d, Placements::REPLICATED)).collect();
        let f = with(&d, &[[0; 2]; 4], &t, zeros, |dims, input| ops::attention(&d, dims, input)).unwrap();
        let [q, k, v, positions] = all.try_into().expect("four operands");
        let [out, lse] =
            [("out", f.out), ("lse", f.lse)].map(|(name, t)| Operand::new(name, Host::download(&d, &t)));
        let dout = Operand::reals("dout", q.whole.shape, &mut Stream::new(22));
        // Of the three, all mixes are tried forward.
        vec![q, k.like(0), v.like(0), positions, out, lse, dout]
    };
    Operation {
        name: "attention backward",
        operands: &|_| operands.clone(),
        run: &|d, starts, mut t| {
            let (dout, lse, out) = (t.pop().unwrap(), t.pop().unwrap(), t.pop().unwrap());
            let forward = AttentionForward { out, lse };
            let g = with(d, starts, &t, zeros, |dims, input| {
                ops::attention_backward(d, dims, input, &forward, dout.view())
            })?;
            Ok(vec![g.dq, g.dk, g.dv])
        },
    }
    .prove([(3, 39_363), (2, 39_364)]);
}
