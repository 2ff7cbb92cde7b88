//! Operands whose shapes do not fit are refused with an error, on every device, and never with a panic.

mod common;

use common::misfits::*;
use common::*;
use memwall_tensor::device::{AttentionDims, Device, Dropout};
use memwall_tensor::ops::{Attended, AttentionForward, Matrix, NormWeights, Normed};
use memwall_tensor::{Tensor, ops};

/// Attention on operands of these sizes, with as many positions, and as many keys of a dropout.
fn attention_of<D: Device>(
    d: &D,
    dims: AttentionDims,
    [q, k, v]: [[usize; 2]; 3],
    positions: usize,
    keys: Option<usize>,
) -> Said {
    let [q, k, v] = [q, k, v].map(|[rows, cols]| m(d, rows, cols));
    let (positions, keys) = (ids(d, positions), keys.map(|n| vector(d, &vec![0i64; n])));
    let dropout = keys.as_ref().map(|keys| Dropout { keys: keys.view().slice, salt: 0, rate: 0.5 });
    let positions = positions.view();
    let input = Attended { q: q.view(), k: k.view(), v: v.view(), positions, dropout, first_head: None };
    ops::attention(d, dims, input).map(drop)
}

fn shapes_of_products<D: Device>(d: &D) -> Misfits {
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
        ("linear: a matrix that lies transposed", {
            let w = t(5, 4);
            ops::linear(d, t(3, 4).view(), Matrix { view: w.view(), transposed: true }).map(drop)
        }),
        ("dx: a matrix that lies transposed", {
            let w = t(5, 4);
            ops::linear_input_gradient(d, t(3, 5).view(), Matrix { view: w.view(), transposed: true })
                .map(drop)
        }),
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

fn shapes_of_attention<D: Device>(d: &D) -> Misfits {
    let a =
        AttentionDims { batch: 2, queries: 3, keys: 4, heads: 4, kv_heads: 2, head_dim: 6, window: Some(2) };
    let (q, k) = ([6, 24], [8, 12]);
    let forward = |dims, operands| attention_of(d, dims, operands, 6, Some(2));
    let backward = |saved: AttentionDims, dout: [usize; 2]| {
        let [sq, skv] = [saved.queries * 2, saved.keys * 2];
        let (saved_q, saved_k) = (m(d, sq, saved.heads * 6), m(d, skv, saved.kv_heads * 6));
        let (places, saved_places) = (ids(d, 6), ids(d, sq));
        let (q, k) = (m(d, q[0], q[1]), m(d, k[0], k[1]));
        let attend = |q: &Tensor<D>, k: &Tensor<D>, places: &Tensor<D>, f: Option<&AttentionForward<D>>| {
            let input = Attended {
                q: q.view(),
                k: k.view(),
                v: k.view(),
                positions: places.view(),
                dropout: None,
                first_head: None,
            };
            match f {
                None => ops::attention(d, saved, input).map(Some),
                Some(f) => {
                    ops::attention_backward(d, a, input, f, m(d, dout[0], dout[1]).view()).map(|_| None)
                }
            }
        };
        let f = attend(&saved_q, &saved_k, &saved_places, None)?;
        attend(&q, &k, &places, f.as_ref()).map(drop)
    };
    assert_eq!(forward(a, [q, k, k]), Ok(()));
    assert_eq!(attention_of(d, a, [q, k, k], 6, None), Ok(()));
    assert_eq!(backward(a, q), Ok(()));
    vec![
        ("queries", forward(a, [[5, 24], k, k])),
        ("query heads", forward(a, [[6, 12], k, k])),
        ("keys", forward(a, [q, [6, 12], k])),
        ("values", forward(a, [q, k, [8, 24]])),
        ("fewer keys than queries", forward(AttentionDims { keys: 2, ..a }, [q, [4, 12], [4, 12]])),
        ("heads that do not divide", forward(AttentionDims { kv_heads: 3, ..a }, [q, [8, 18], [8, 18]])),
        ("no key heads", forward(AttentionDims { kv_heads: 0, ..a }, [q, [8, 0], [8, 0]])),
        ("an empty head", forward(AttentionDims { head_dim: 0, ..a }, [[6, 0], [8, 0], [8, 0]])),
        ("a head too long", {
            let long = AttentionDims { head_dim: 1000, heads: 1, kv_heads: 1, ..a };
            forward(long, [[6, 1000], [8, 1000], [8, 1000]])
        }),
        ("a window of nothing", forward(AttentionDims { window: Some(0), ..a }, [q, k, k])),
        ("positions of other tokens", attention_of(d, a, [q, k, k], 8, None)),
        ("keys of dropout for other sequences", attention_of(d, a, [q, k, k], 6, Some(1))),
        ("gradient", backward(a, [6, 12])),
        ("another attention's forward", backward(AttentionDims { queries: 2, ..a }, q)),
        ("another count of heads in the forward", backward(AttentionDims { heads: 2, ..a }, q)),
    ]
}

/// What a norm of `rows` rows of 4 elements yields, with a bias or without.
fn normed<D: Device>(d: &D, rows: usize, bias: bool) -> Normed<D> {
    let (w, b) = (v(d, 4), v(d, 4));
    let weights = NormWeights { w: w.view(), b: bias.then(|| b.view()), eps: 1e-5 };
    ops::norm(d, m(d, rows, 4).view(), weights).unwrap()
}

fn shapes_of_norms<D: Device>(d: &D) -> Misfits {
    let norm = |x: [usize; 2], w, b: Option<usize>| {
        let (w, b) = (v(d, w), b.map(|b| v(d, b)));
        let weights = NormWeights { w: w.view(), b: b.as_ref().map(Tensor::view), eps: 1e-5 };
        ops::norm(d, m(d, x[0], x[1]).view(), weights).map(drop)
    };
    let dx = |w, normed: Normed<D>, dy: [usize; 2], dx: [usize; 2]| {
        let (w, dy, mut dx) = (v(d, w), m(d, dy[0], dy[1]), m(d, dx[0], dx[1]));
        ops::norm_input_gradient(d, m(d, 3, 4).view(), w.view(), &normed, dy.view(), dx.view_mut())
    };
    let dw = |normed: Normed<D>, dy: [usize; 2], dw| {
        let (dy, mut dw) = (m(d, dy[0], dy[1]), v(d, dw));
        ops::norm_weight_gradient(d, m(d, 3, 4).view(), &normed, dy.view(), dw.view_mut(), true)
    };
    let rows = |n, bias| normed(d, n, bias);
    // Means of other rows than the rest.
    let mixed = || Normed { mean: rows(4, true).mean, ..rows(3, true) };
    for bias in [false, true] {
        assert_eq!(norm([3, 4], 4, bias.then_some(4)), Ok(()));
        assert_eq!(dx(4, rows(3, bias), [3, 4], [3, 4]), Ok(()));
        assert_eq!(dw(rows(3, bias), [3, 4], 4), Ok(()));
    }
    vec![
        ("weight", norm([3, 4], 3, None)),
        ("weight, with a bias", norm([3, 4], 3, Some(4))),
        ("bias", norm([3, 4], 4, Some(3))),
        ("empty rows", norm([3, 0], 0, None)),
        ("dx: weight", dx(3, rows(3, false), [3, 4], [3, 4])),
        ("dx: rstd", dx(4, rows(4, false), [3, 4], [3, 4])),
        ("dx: mean", dx(4, mixed(), [3, 4], [3, 4])),
        ("dx: dy", dx(4, rows(3, false), [4, 3], [3, 4])),
        ("dx: result", dx(4, rows(3, true), [3, 4], [3, 5])),
        ("dw: rstd", dw(rows(4, true), [3, 4], 4)),
        ("dw: mean", dw(mixed(), [3, 4], 4)),
        ("dw: dy", dw(rows(3, false), [2, 4], 4)),
        ("dw: result", dw(rows(3, true), [3, 4], 3)),
    ]
}

fn shapes_of_the_rest<D: Device>(d: &D) -> Misfits {
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
        ("cross_entropy: no vocabulary", entropy([3, 0], 3, 3)),
        ("sum_wide", ops::sum_wide(d, v(d, 3).view(), 1.0, vector(d, &[0i64; 2]).view_mut())),
    ]
}

/// Operations on rows, columns and elements.
fn shapes_of_rows<D: Device>(d: &D) -> Misfits {
    let add_embedding = |n, table: [usize; 2], x: [usize; 2]| {
        let (ids, table) = (ids(d, n), m(d, table[0], table[1]));
        ops::add_embedding(d, ids.view(), table.view(), m(d, x[0], x[1]).view_mut())
    };
    let columns = |cols, start, n| ops::columns(d, m(d, 3, cols).view(), start, n).map(drop);
    let set = |x: [usize; 2], out: [usize; 2], start| {
        ops::set_columns(d, m(d, x[0], x[1]).view(), m(d, out[0], out[1]).view_mut(), start)
    };
    let dropout = |rows, n| {
        let keys = vector(d, &vec![0i64; n]);
        let dropout = Dropout { keys: keys.view().slice, salt: 0, rate: 0.5 };
        ops::dropout(d, m(d, rows, 5).view_mut(), dropout)
    };
    let bias = |x: [usize; 2], b| {
        ops::affine(d, m(d, x[0], 3).view(), m(d, x[1], 3).view(), Some(v(d, b).view())).map(drop)
    };
    let sum = |x: [usize; 2], b| ops::bias_gradient(d, m(d, x[0], x[1]).view(), v(d, b).view_mut(), false);
    assert_eq!(add_embedding(3, [5, 4], [3, 4]), Ok(()));
    assert_eq!((columns(4, 1, 3), set([3, 2], [3, 4], 2)), (Ok(()), Ok(())));
    assert_eq!((dropout(6, 2), dropout(0, 2)), (Ok(()), Ok(())));
    assert_eq!((bias([3, 4], 4), sum([3, 4], 4)), (Ok(()), Ok(())));
    assert_eq!((bias([0, 4], 4), sum([0, 4], 4)), (Ok(()), Ok(())));
    vec![
        ("embedding: an empty table", ops::embedding(d, ids(d, 3).view(), m(d, 5, 0).view()).map(drop)),
        ("embedding backward: an empty table", {
            ops::embedding_gradient(d, ids(d, 3).view(), m(d, 3, 0).view(), m(d, 5, 0).view_mut(), false)
        }),
        ("added embedding: tokens", add_embedding(3, [5, 4], [2, 4])),
        ("added embedding: width", add_embedding(3, [5, 4], [3, 5])),
        ("added embedding: an empty table", add_embedding(3, [5, 0], [3, 0])),
        ("gelu backward", ops::gelu_backward(d, m(d, 3, 4).view_mut(), m(d, 4, 3).view())),
        ("add", ops::add(d, m(d, 3, 4).view_mut(), m(d, 4, 3).view())),
        ("bias", bias([3, 4], 3)),
        ("bias backward", sum([3, 4], 3)),
        ("columns: beyond the last", columns(4, 2, 3)),
        ("columns: none", columns(4, 2, 0)),
        ("columns: beyond all numbers", columns(4, usize::MAX, 2)),
        ("set columns: beyond the last", set([3, 2], [3, 4], 3)),
        ("set columns: rows", set([2, 2], [3, 4], 1)),
        ("set columns: none", set([3, 0], [3, 4], 1)),
        ("dropout: rows that are not whole sequences", dropout(5, 2)),
        ("dropout: no keys", dropout(5, 0)),
    ]
}

refused!(shapes_of_products_that_do_not_fit, shapes_of_products, Shape);
refused!(shapes_of_attention_that_do_not_fit, shapes_of_attention, Shape);
refused!(shapes_of_norms_that_do_not_fit, shapes_of_norms, Shape);
refused!(shapes_of_rows_that_do_not_fit, shapes_of_rows, Shape);
refused!(other_shapes_that_do_not_fit, shapes_of_the_rest, Shape);
