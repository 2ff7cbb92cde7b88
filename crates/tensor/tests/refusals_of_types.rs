//! Operands whose element types do not go together are refused with an error, on every device: the dry one too, which
//! would not stumble over them.

mod common;

use common::misfits::*;
use common::*;
use memwall_tensor::device::{AttentionDims, Device, Dropout};
use memwall_tensor::ops::{Attended, AttentionForward, NormWeights};
use memwall_tensor::{DType, Shape, Tensor, ops};

/// A square matrix of bf16 zeros, beside the f32 ones of [`m`].
fn low_m<D: Device>(d: &D) -> Tensor<D> {
    typed(d, DType::BF16, Shape::matrix(4, 4), &[0.0; 16])
}

/// A vector of bf16 zeros, beside the f32 ones of [`v`].
fn low_v<D: Device>(d: &D) -> Tensor<D> {
    typed(d, DType::BF16, Shape::vector(4), &[0.0; 4])
}

/// A square matrix of integers.
fn integers<D: Device>(d: &D) -> Tensor<D> {
    upload(d, Shape::matrix(4, 4), &[0i32; 16])
}

fn types_of_layers<D: Device>(d: &D) -> Misfits {
    let (x, l, i) = (m(d, 4, 4), low_m(d), integers(d));
    let (mut y, mut low_y, mut integer_y) = (m(d, 4, 4), low_m(d), integers(d));
    let (w, low_w, mut dw, mut low_dw) = (v(d, 4), low_v(d), v(d, 4), low_v(d));
    let norm = |x: &Tensor<D>, w: &Tensor<D>, b: &Tensor<D>| {
        ops::norm(d, x.view(), NormWeights { w: w.view(), b: Some(b.view()), eps: 1e-5 })
    };
    let n = norm(&x, &w, &w).unwrap();
    // Products mix.
    assert_eq!(ops::linear_into(d, x.view(), l.view(), low_y.view_mut(), true), Ok(()));
    vec![
        ("linear: integers", ops::linear_into(d, x.view(), l.view(), integer_y.view_mut(), false)),
        ("dx: integers", ops::linear_input_gradient(d, x.view(), i.view()).map(drop)),
        ("dw: integers", ops::linear_weight_gradient(d, i.view(), x.view(), y.view_mut(), false)),
        ("norm: weight", norm(&x, &low_w, &w).map(drop)),
        ("norm: bias", norm(&x, &w, &low_w).map(drop)),
        ("norm dx: dy", ops::norm_input_gradient(d, x.view(), w.view(), &n, l.view(), y.view_mut())),
        ("norm dx: result", ops::norm_input_gradient(d, x.view(), w.view(), &n, x.view(), low_y.view_mut())),
        ("norm dw: dy", ops::norm_weight_gradient(d, x.view(), &n, l.view(), dw.view_mut(), false)),
        ("norm dw: result", ops::norm_weight_gradient(d, x.view(), &n, x.view(), low_dw.view_mut(), false)),
        ("bias", ops::affine(d, x.view(), y.view(), Some(low_w.view())).map(drop)),
        ("bias backward", ops::bias_gradient(d, l.view(), low_dw.view_mut(), false)),
        ("cross_entropy", { ops::cross_entropy(d, low_y.view_mut(), ids(d, 4).view(), dw.view_mut(), None) }),
        ("sum_wide", ops::sum_wide(d, low_w.view(), 1.0, vector(d, &[0i64; 3]).view_mut())),
    ]
}

fn types_of_attention<D: Device>(d: &D) -> Misfits {
    let (x, l, t, keys) = (m(d, 4, 4), low_m(d), ids(d, 4), vector(d, &[0i64]));
    let a = AttentionDims { batch: 1, queries: 4, keys: 4, heads: 1, kv_heads: 1, head_dim: 4, window: None };
    let (float_places, short_keys) = (v(d, 4), ids(d, 1));
    let zeros = |keys| Some(Dropout { keys, salt: 0, rate: 0.5 });
    let dropout = zeros(keys.view().slice);
    let input =
        Attended { q: x.view(), k: x.view(), v: x.view(), positions: t.view(), dropout, first_head: None };
    let low_input = Attended { q: l.view(), k: l.view(), v: l.view(), ..input };
    let backward = |input, f: &AttentionForward<D>, dout: &Tensor<D>| {
        ops::attention_backward(d, a, input, f, dout.view()).map(drop)
    };
    let (f, low_f) = (ops::attention(d, a, input).unwrap(), ops::attention(d, a, low_input).unwrap());
    assert_eq!((backward(input, &f, &x), backward(low_input, &low_f, &l)), (Ok(()), Ok(())));
    let refused = |input| ops::attention(d, a, input).map(drop);
    vec![
        ("keys", refused(Attended { k: l.view(), ..input })),
        ("values", refused(Attended { v: l.view(), ..input })),
        ("positions", refused(Attended { positions: float_places.view(), ..input })),
        ("keys of dropout", refused(Attended { dropout: zeros(short_keys.view().slice), ..input })),
        ("backward: gradient", backward(input, &f, &l)),
        ("backward: another type's forward", backward(input, &low_f, &x)),
        ("backward: log-sum-exp", {
            let lse = typed(d, DType::BF16, Shape::matrix(4, 1), &[0.0; 4]);
            backward(low_input, &AttentionForward { out: low_m(d), lse }, &l)
        }),
    ]
}

fn types_of_the_rest<D: Device>(d: &D) -> Misfits {
    let (x, l, t, places) = (m(d, 4, 4), low_m(d), ids(d, 4), v(d, 4));
    let (mut y, mut low_y) = (m(d, 4, 4), low_m(d));
    let rope = |x: &mut Tensor<D>, places: &Tensor<D>, table: &Tensor<D>| {
        ops::rope(d, x.view_mut(), places.view(), table.view(), false)
    };
    assert_eq!(rope(&mut low_y, &t, &x), Ok(()));
    vec![
        ("embedding: ids", ops::embedding(d, places.view(), x.view()).map(drop)),
        ("added embedding", ops::add_embedding(d, t.view(), l.view(), y.view_mut())),
        ("embedding backward", ops::embedding_gradient(d, t.view(), l.view(), low_y.view_mut(), false)),
        ("rope: positions", rope(&mut y, &places, &x)),
        ("rope: table", rope(&mut y, &t, &l)),
        ("swiglu", ops::swiglu(d, x.view(), l.view()).map(drop)),
        ("swiglu backward", ops::swiglu_backward(d, y.view_mut(), m(d, 4, 4).view_mut(), l.view())),
        ("gelu", ops::gelu(d, integers(d).view()).map(drop)),
        ("gelu backward", ops::gelu_backward(d, y.view_mut(), l.view())),
        ("add", ops::add(d, y.view_mut(), l.view())),
        ("columns", ops::columns(d, integers(d).view(), 0, 1).map(drop)),
        ("set columns", ops::set_columns(d, l.view(), y.view_mut(), 0)),
        ("dropout: keys", {
            let keys = vector(d, &[0i32]);
            ops::dropout(d, y.view_mut(), Dropout { keys: keys.view().slice, salt: 0, rate: 0.5 })
        }),
    ]
}

refused!(types_of_layers_that_do_not_go_together, types_of_layers, Type);
refused!(types_of_attention_that_do_not_go_together, types_of_attention, Type);
refused!(other_types_that_do_not_go_together, types_of_the_rest, Type);
