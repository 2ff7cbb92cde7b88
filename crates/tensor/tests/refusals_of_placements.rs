//! Operands whose placements do not mix are refused with an error, on every device.

mod common;

use common::misfits::*;
use common::*;
use memwall_layout::{Axis, Placement};
use memwall_tensor::device::{AttentionDims, Device, Dropout};
use memwall_tensor::ops::{Attended, Matrix, NormWeights};
use memwall_tensor::{Dry, Tensor, ops};

/// Operands whose shapes all fit, under placements that do not mix.
fn placements<D: Device>(d: &D) -> Misfits {
    let [x, y] = [(); 2].map(|()| m(d, 4, 4));
    let (mut z, mut u) = (m(d, 4, 4), m(d, 4, 4));
    let w = v(d, 4);
    let (mut dw, t) = (v(d, 4), ids(d, 4));
    let r = Placement::Replicated;
    let a = AttentionDims { batch: 1, queries: 4, keys: 4, heads: 1, kv_heads: 1, head_dim: 4, window: None };
    let attended = |x| Attended { q: x, k: x, v: x, positions: t.view(), dropout: None };
    let f = ops::attention(d, a, attended(x.view())).unwrap();
    let keys = vector(d, &[0i64]);
    let dropout = Dropout { keys: keys.view().slice, salt: 0, rate: 0.5 };
    let weights = |w, b| NormWeights { w, b, eps: 1e-5 };
    let norm = |x, w, b| ops::norm(d, x, weights(w, b)).map(drop);
    let n = ops::norm(d, x.view(), weights(w.view(), None)).unwrap();
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
        ("linear: half a row of a matrix that lies transposed", {
            let w = Matrix { view: at(&y, HALF_ROWS), transposed: true };
            ops::linear(d, x.view(), w).map(drop)
        }),
        ("attention: owed", ops::attention(d, a, attended(at(&x, OWED))).map(drop)),
        ("attention: mixed", {
            let mixed = Attended { q: at(&x, HALF_COLUMNS), ..attended(x.view()) };
            ops::attention(d, a, mixed).map(drop)
        }),
        ("attention: dropout of half the heads", {
            let input = Attended { dropout: Some(dropout), ..attended(at(&x, HALF_COLUMNS)) };
            ops::attention(d, a, input).map(drop)
        }),
        ("attention backward", {
            ops::attention_backward(d, a, attended(x.view()), &f, at(&y, OWED)).map(drop)
        }),
        ("norm: owed", norm(at(&x, OWED), w.view(), None)),
        ("norm: half a row", norm(at(&x, HALF_COLUMNS), w.view(), None)),
        ("norm: half a bias", norm(x.view(), w.view(), Some(at(&w, HALF_ROWS)))),
        ("norm dx: whole into half", {
            ops::norm_input_gradient(d, x.view(), w.view(), &n, y.view(), into(&mut z, HALF_ROWS))
        }),
        ("norm dx: x and dy differ", {
            let dx = into(&mut z, HALF_ROWS);
            ops::norm_input_gradient(d, x.view(), w.view(), &n, at(&y, HALF_ROWS), dx)
        }),
        ("norm dw: owed into whole", {
            let (x, dy) = (at(&x, HALF_ROWS), at(&y, HALF_ROWS));
            ops::norm_weight_gradient(d, x, &n, dy, into(&mut dw, r), true)
        }),
        ("embedding: half the ids, half the table", {
            ops::embedding(d, at(&t, HALF_ROWS), at(&x, HALF_ROWS)).map(drop)
        }),
        ("embedding backward", {
            ops::embedding_gradient(d, at(&t, HALF_ROWS), at(&y, HALF_ROWS), into(&mut z, r), true)
        }),
        ("added embedding: owed into whole", {
            ops::add_embedding(d, t.view(), at(&x, HALF_ROWS), into(&mut z, r))
        }),
        ("gelu: owed", ops::gelu(d, at(&x, OWED)).map(drop)),
        ("gelu backward: mixed", ops::gelu_backward(d, z.view_mut(), at(&x, HALF_COLUMNS))),
        ("add: owed to whole", ops::add(d, z.view_mut(), at(&x, OWED))),
        ("bias: to a sum that is owed", {
            ops::affine(d, at(&x, HALF_COLUMNS), at(&y, HALF_COLUMNS), Some(w.view())).map(drop)
        }),
        ("bias: whole to half a row", ops::affine(d, x.view(), at(&y, HALF_ROWS), Some(w.view())).map(drop)),
        ("gelu of a sum that is owed", {
            ops::affine_gelu(d, at(&x, HALF_COLUMNS), at(&y, HALF_COLUMNS), None).map(drop)
        }),
        ("swiglu: whole by half", {
            ops::affine_swiglu(d, x.view(), at(&y, HALF_ROWS), None, y.view()).map(drop)
        }),
        ("bias backward: owed into whole", ops::bias_gradient(d, at(&x, HALF_ROWS), into(&mut dw, r), true)),
        ("bias backward: half into whole", {
            ops::bias_gradient(d, at(&x, HALF_COLUMNS), into(&mut dw, r), true)
        }),
        ("columns: sharded", ops::columns(d, at(&x, HALF_COLUMNS), 1, 2).map(drop)),
        ("set columns: half into whole", ops::set_columns(d, at(&x, HALF_ROWS), into(&mut z, r), 0)),
        ("set columns: sharded", {
            ops::set_columns(d, at(&x, HALF_COLUMNS), into(&mut z, HALF_COLUMNS), 0)
        }),
        ("dropout: half a row", ops::dropout(d, into(&mut z, HALF_COLUMNS), dropout)),
        ("swiglu: owed", ops::swiglu(d, at(&x, OWED), at(&y, OWED)).map(drop)),
        ("swiglu: mixed", ops::swiglu(d, at(&x, HALF_COLUMNS), y.view()).map(drop)),
        ("swiglu backward", { ops::swiglu_backward(d, z.view_mut(), u.view_mut(), at(&x, HALF_COLUMNS)) }),
        ("cross_entropy: owed", ops::cross_entropy(d, into(&mut z, OWED), t.view(), dw.view_mut(), None)),
    ]
}

refused!(placements_that_do_not_mix, placements, Placement);

#[test]
fn results_are_placed_as_the_rules_say() {
    let d = dry(1);
    let (x, w, mut db, t) = (m(&d, 4, 4), m(&d, 4, 4), v(&d, 4), ids(&d, 4));
    let tp = |t: &Tensor<Dry>| t.placements().on(Axis::Tp);
    // Half of the outputs of a matrix that lies transposed are half of its columns.
    let turned = Matrix { view: at(&w, HALF_COLUMNS), transposed: true };
    assert_eq!(tp(&ops::linear(&d, x.view(), turned).unwrap()), HALF_COLUMNS);
    assert_eq!(tp(&ops::linear_input_gradient(&d, at(&x, HALF_COLUMNS), turned).unwrap()), OWED);
    assert_eq!(tp(&ops::columns(&d, at(&x, HALF_ROWS), 0, 2).unwrap()), HALF_ROWS);
    assert_eq!(tp(&ops::embedding(&d, t.view(), at(&w, HALF_ROWS)).unwrap()), OWED);
    ops::bias_gradient(&d, at(&x, HALF_ROWS), into(&mut db, OWED), false).unwrap();
    ops::bias_gradient(&d, at(&x, HALF_COLUMNS), into(&mut db, HALF_ROWS), false).unwrap();
    ops::bias_gradient(&d, x.view(), into(&mut db, Placement::Replicated), false).unwrap();
}
