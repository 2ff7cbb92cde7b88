//! Operands that do not fit are refused with an error, on every device, and never with a panic.

mod common;

use common::*;
use memwall_layout::{Axis, Placement, Placements};
use memwall_tensor::device::{AttentionDims, Device};
use memwall_tensor::{Error, Shape, Tensor, View, ViewMut, ops};

/// What an operation said.
type Said = Result<(), Error>;

const HALF_ROWS: Placement = Placement::Shard(0);
const HALF_COLUMNS: Placement = Placement::Shard(1);
const OWED: Placement = Placement::Partial;

/// A matrix of zeros.
fn m<D: Device>(device: &D, rows: usize, cols: usize) -> Tensor<D> {
    upload(device, Shape::matrix(rows, cols), &vec![0f32; rows * cols])
}

/// A vector of zeros.
fn v<D: Device>(device: &D, n: usize) -> Tensor<D> {
    vector(device, &vec![0f32; n])
}

/// A vector of ids, all zero.
fn ids<D: Device>(device: &D, n: usize) -> Tensor<D> {
    vector(device, &vec![0i32; n])
}

/// A tensor as if it were placed so among tensor-parallel ranks.
fn at<D: Device>(t: &Tensor<D>, placement: Placement) -> View<'_, D> {
    View { placements: Placements::REPLICATED.with(Axis::Tp, placement), ..t.view() }
}

/// [`at`], to write.
fn into<D: Device>(t: &mut Tensor<D>, placement: Placement) -> ViewMut<'_, D> {
    ViewMut { placements: Placements::REPLICATED.with(Axis::Tp, placement), ..t.view_mut() }
}

/// Every one of `said` is refused, by what `kind` recognizes.
fn all_refused(kind: fn(&Error) -> bool, said: &[(&str, Said)]) {
    for (what, said) in said {
        assert!(said.as_ref().is_err_and(kind), "{what}: {said:?}");
    }
}

fn attention_of<D: Device>(d: &D, dims: AttentionDims, q: [usize; 2], k: [usize; 2], v: [usize; 2]) -> Said {
    let [q, k, v] = [q, k, v].map(|[rows, cols]| m(d, rows, cols));
    ops::attention(d, dims, q.view(), k.view(), v.view()).map(drop)
}

fn shapes_of_products<D: Device>(d: &D) -> Vec<(&'static str, Said)> {
    let t = |rows, cols| m(d, rows, cols);
    vec![
        ("linear: inner dims", ops::linear(d, t(3, 4).view(), t(5, 6).view()).map(drop)),
        ("linear: rows", ops::linear_into(d, t(3, 4).view(), t(5, 4).view(), t(2, 5).view_mut(), true)),
        ("linear: columns", ops::linear_into(d, t(3, 4).view(), t(5, 4).view(), t(3, 4).view_mut(), false)),
        ("dx: inner dims", ops::linear_input_gradient(d, t(3, 4).view(), t(5, 4).view()).map(drop)),
        (
            "dx: result",
            ops::linear_input_gradient_into(d, t(3, 5).view(), t(5, 4).view(), t(3, 5).view_mut(), true),
        ),
        (
            "dw: tokens",
            ops::linear_weight_gradient(d, t(3, 5).view(), t(2, 4).view(), t(5, 4).view_mut(), true),
        ),
        (
            "dw: result",
            ops::linear_weight_gradient(d, t(3, 5).view(), t(3, 4).view(), t(4, 5).view_mut(), true),
        ),
    ]
}

fn shapes_of_attention<D: Device>(d: &D) -> Vec<(&'static str, Said)> {
    let a = AttentionDims { batch: 2, queries: 3, keys: 4, heads: 4, kv_heads: 2, head_dim: 6 };
    let (q, k) = ([6, 24], [8, 12]);
    let backward = |saved: AttentionDims, dout: [usize; 2]| {
        let [sq, skv] = [saved.queries * 2, saved.keys * 2];
        let (saved_q, saved_k) = (m(d, sq, saved.heads * 6), m(d, skv, saved.kv_heads * 6));
        let f = ops::attention(d, saved, saved_q.view(), saved_k.view(), saved_k.view())?;
        let (q, k) = (m(d, q[0], q[1]), m(d, k[0], k[1]));
        ops::attention_backward(d, a, q.view(), k.view(), k.view(), &f, m(d, dout[0], dout[1]).view())
            .map(drop)
    };
    assert_eq!(attention_of(d, a, q, k, k), Ok(()));
    assert_eq!(backward(a, q), Ok(()));
    vec![
        ("queries", attention_of(d, a, [5, 24], k, k)),
        ("query heads", attention_of(d, a, [6, 12], k, k)),
        ("keys", attention_of(d, a, q, [6, 12], k)),
        ("values", attention_of(d, a, q, k, [8, 24])),
        ("fewer keys than queries", attention_of(d, AttentionDims { keys: 2, ..a }, q, [4, 12], [4, 12])),
        (
            "heads that do not divide",
            attention_of(d, AttentionDims { kv_heads: 3, ..a }, q, [8, 18], [8, 18]),
        ),
        ("no key heads", attention_of(d, AttentionDims { kv_heads: 0, ..a }, q, [8, 0], [8, 0])),
        ("a head too long", {
            let long = AttentionDims { head_dim: 1000, heads: 1, kv_heads: 1, ..a };
            attention_of(d, long, [6, 1000], [8, 1000], [8, 1000])
        }),
        ("gradient", backward(a, [6, 12])),
        ("another attention's forward", backward(AttentionDims { queries: 2, ..a }, q)),
        ("another count of heads in the forward", backward(AttentionDims { heads: 2, ..a }, q)),
    ]
}

fn shapes_of_norms<D: Device>(d: &D) -> Vec<(&'static str, Said)> {
    let dx = |w, rstd, dy: [usize; 2], dx: [usize; 2]| {
        let (w, rstd, dy, mut dx) = (v(d, w), v(d, rstd), m(d, dy[0], dy[1]), m(d, dx[0], dx[1]));
        ops::rms_norm_input_gradient(d, m(d, 3, 4).view(), w.view(), rstd.view(), dy.view(), dx.view_mut())
    };
    let dw = |rstd, dy: [usize; 2], dw| {
        let (rstd, dy, mut dw) = (v(d, rstd), m(d, dy[0], dy[1]), v(d, dw));
        ops::rms_norm_weight_gradient(d, m(d, 3, 4).view(), rstd.view(), dy.view(), dw.view_mut(), true)
    };
    assert_eq!(dx(4, 3, [3, 4], [3, 4]), Ok(()));
    assert_eq!(dw(3, [3, 4], 4), Ok(()));
    vec![
        ("weight", ops::rms_norm(d, m(d, 3, 4).view(), v(d, 3).view(), 1e-5).map(drop)),
        ("dx: weight", dx(3, 3, [3, 4], [3, 4])),
        ("dx: rstd", dx(4, 4, [3, 4], [3, 4])),
        ("dx: dy", dx(4, 3, [4, 3], [3, 4])),
        ("dx: result", dx(4, 3, [3, 4], [3, 5])),
        ("dw: rstd", dw(4, [3, 4], 4)),
        ("dw: dy", dw(3, [2, 4], 4)),
        ("dw: result", dw(3, [3, 4], 3)),
    ]
}

fn shapes_of_the_rest<D: Device>(d: &D) -> Vec<(&'static str, Said)> {
    let rope = |x: [usize; 2], positions, table: [usize; 2]| {
        let (positions, table) = (ids(d, positions), m(d, table[0], table[1]));
        ops::rope(d, m(d, x[0], x[1]).view_mut(), positions.view(), table.view(), false)
    };
    let entropy = |logits: [usize; 2], targets, losses| {
        let (mut l, t, mut out) = (m(d, logits[0], logits[1]), ids(d, targets), v(d, losses));
        ops::cross_entropy(d, l.view_mut(), t.view(), out.view_mut(), None)
    };
    assert_eq!(rope([3, 8], 3, [2, 4]), Ok(()));
    assert_eq!(entropy([3, 5], 3, 3), Ok(()));
    vec![
        ("rope: width", rope([3, 9], 3, [2, 4])),
        ("rope: positions", rope([3, 8], 4, [2, 4])),
        ("rope: an odd head", rope([3, 9], 3, [2, 3])),
        ("rope: an empty head", rope([3, 8], 3, [2, 0])),
        ("swiglu", ops::swiglu(d, m(d, 3, 4).view(), m(d, 4, 3).view()).map(drop)),
        (
            "swiglu backward: up",
            ops::swiglu_backward(d, m(d, 3, 4).view_mut(), m(d, 3, 5).view_mut(), m(d, 3, 4).view()),
        ),
        (
            "swiglu backward: gradient",
            ops::swiglu_backward(d, m(d, 3, 4).view_mut(), m(d, 3, 4).view_mut(), m(d, 3, 5).view()),
        ),
        (
            "embedding backward: tokens",
            ops::embedding_gradient(d, ids(d, 3).view(), m(d, 2, 4).view(), m(d, 5, 4).view_mut(), true),
        ),
        (
            "embedding backward: width",
            ops::embedding_gradient(d, ids(d, 3).view(), m(d, 3, 5).view(), m(d, 5, 4).view_mut(), true),
        ),
        ("cross_entropy: targets", entropy([3, 5], 2, 3)),
        ("cross_entropy: losses", entropy([3, 5], 3, 2)),
        ("sum_wide", ops::sum_wide(d, v(d, 3).view(), 1.0, vector(d, &[0i64; 2]).view_mut())),
    ]
}

/// Operands whose shapes all fit, under placements that do not mix.
fn placements<D: Device>(d: &D) -> Vec<(&'static str, Said)> {
    let [x, y] = [(); 2].map(|()| m(d, 4, 4));
    let (mut z, mut u) = (m(d, 4, 4), m(d, 4, 4));
    let [w, rstd] = [(); 2].map(|()| v(d, 4));
    let (mut dw, t) = (v(d, 4), ids(d, 4));
    let r = Placement::Replicated;
    let a = AttentionDims { batch: 1, queries: 4, keys: 4, heads: 1, kv_heads: 1, head_dim: 4 };
    let f = ops::attention(d, a, x.view(), x.view(), x.view()).unwrap();
    vec![
        (
            "linear: a whole row of x, half a row of w",
            ops::linear(d, x.view(), at(&y, HALF_COLUMNS)).map(drop),
        ),
        ("linear: owed into whole", ops::linear_into(d, at(&x, OWED), y.view(), into(&mut z, r), true)),
        ("dx", ops::linear_input_gradient(d, at(&x, HALF_COLUMNS), y.view()).map(drop)),
        (
            "dx: whole into half",
            ops::linear_input_gradient_into(d, x.view(), y.view(), into(&mut z, HALF_ROWS), true),
        ),
        (
            "dw: half the tokens",
            ops::linear_weight_gradient(d, at(&x, HALF_ROWS), y.view(), into(&mut z, OWED), true),
        ),
        ("dw: owed into whole", {
            ops::linear_weight_gradient(d, at(&x, HALF_ROWS), at(&y, HALF_ROWS), into(&mut z, r), true)
        }),
        ("attention: owed", ops::attention(d, a, at(&x, OWED), at(&x, OWED), at(&x, OWED)).map(drop)),
        ("attention: mixed", ops::attention(d, a, at(&x, HALF_COLUMNS), x.view(), x.view()).map(drop)),
        ("attention backward", {
            ops::attention_backward(d, a, x.view(), x.view(), x.view(), &f, at(&y, OWED)).map(drop)
        }),
        ("rms_norm: owed", ops::rms_norm(d, at(&x, OWED), w.view(), 1e-5).map(drop)),
        ("rms_norm: half a row", ops::rms_norm(d, at(&x, HALF_COLUMNS), w.view(), 1e-5).map(drop)),
        ("norm dx: whole into half", {
            ops::rms_norm_input_gradient(
                d,
                x.view(),
                w.view(),
                rstd.view(),
                y.view(),
                into(&mut z, HALF_ROWS),
            )
        }),
        ("norm dx: x and dy differ", {
            let dx = into(&mut z, HALF_ROWS);
            ops::rms_norm_input_gradient(d, x.view(), w.view(), rstd.view(), at(&y, HALF_ROWS), dx)
        }),
        ("norm dw: owed into whole", {
            let (x, dy) = (at(&x, HALF_ROWS), at(&y, HALF_ROWS));
            ops::rms_norm_weight_gradient(d, x, rstd.view(), dy, into(&mut dw, r), true)
        }),
        ("embedding: half the ids, half the table", {
            ops::embedding(d, at(&t, HALF_ROWS), at(&x, HALF_ROWS)).map(drop)
        }),
        ("embedding backward", {
            ops::embedding_gradient(d, at(&t, HALF_ROWS), at(&y, HALF_ROWS), into(&mut z, r), true)
        }),
        ("swiglu: owed", ops::swiglu(d, at(&x, OWED), at(&y, OWED)).map(drop)),
        ("swiglu: mixed", ops::swiglu(d, at(&x, HALF_COLUMNS), y.view()).map(drop)),
        ("swiglu backward", { ops::swiglu_backward(d, z.view_mut(), u.view_mut(), at(&x, HALF_COLUMNS)) }),
        ("cross_entropy: owed", ops::cross_entropy(d, into(&mut z, OWED), t.view(), dw.view_mut(), None)),
    ]
}

/// Runs a list of misfits on both devices.
macro_rules! refused {
    ($name:ident, $list:ident, $kind:ident) => {
        #[test]
        fn $name() {
            let kind = |e: &Error| matches!(e, Error::$kind(_));
            all_refused(kind, &$list(&cpu(2)));
            all_refused(kind, &$list(&dry(2)));
        }
    };
}

refused!(shapes_of_products_that_do_not_fit, shapes_of_products, Shape);
refused!(shapes_of_attention_that_do_not_fit, shapes_of_attention, Shape);
refused!(shapes_of_norms_that_do_not_fit, shapes_of_norms, Shape);
refused!(other_shapes_that_do_not_fit, shapes_of_the_rest, Shape);
refused!(placements_that_do_not_mix, placements, Placement);
