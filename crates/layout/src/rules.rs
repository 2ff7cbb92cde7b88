//! What each kind of operation does to placements. One rule an operation, written once for all devices.
//!
//! Activations have dims `[tokens, features]`, weights `[out, in]`. An operation that is not listed for a
//! mix of placements is refused: the sum of a partial tensor and a replicated one, say, would count the
//! replicated one once for each rank. So is one that would leave other than zeros in the padding of a padded dim.
//!
//! Each rule is proven by `placements` among the tests of `memwall-tensor`, which cut tensors, carry the operation out
//! on every part, and put the results together again.

use crate::Cut::{Even, Padded};
use crate::Placement::{Partial, Replicated, Shard};
use crate::Reduction::{Max, Sum};
use crate::{Axis, Cut, Placement, PlacementError, Placements};

type Out = Result<Placements, PlacementError>;

/// `y = x w^T`, with `x [tokens, in]`, `w [out, in]`, `y [tokens, out]`.
pub fn linear(x: &Placements, w: &Placements) -> Out {
    Placements::per_axis("linear", [("x", x), ("w", w)], |_, p| match p {
        [Replicated, Replicated] => Some(Replicated),
        [Shard(0, cut), Replicated] => Some(Shard(0, cut)),
        [Replicated, Shard(0, cut)] => Some(Shard(1, cut)),
        [Shard(1, cut), Shard(1, same)] if cut == same => Some(Partial(Sum)),
        // Linear in x: a sum owed before is a sum owed after.
        [Partial(Sum), Replicated] => Some(Partial(Sum)),
        _ => None,
    })
}

/// `dx = dy w`, the gradient of [`linear`] for its input.
pub fn linear_input_gradient(dy: &Placements, w: &Placements) -> Out {
    Placements::per_axis("linear backward for the input", [("dy", dy), ("w", w)], |_, p| match p {
        [Replicated, Replicated] => Some(Replicated),
        [Shard(0, cut), Replicated] => Some(Shard(0, cut)),
        [Shard(1, cut), Shard(0, same)] if cut == same => Some(Partial(Sum)),
        [Replicated, Shard(1, cut)] => Some(Shard(1, cut)),
        [Partial(Sum), Replicated] => Some(Partial(Sum)),
        _ => None,
    })
}

/// `dw = dy^T x`, the gradient of [`linear`] for its weight.
pub fn linear_weight_gradient(dy: &Placements, x: &Placements) -> Out {
    Placements::per_axis("linear backward for the weight", [("dy", dy), ("x", x)], |_, p| match p {
        [Replicated, Replicated] => Some(Replicated),
        [Shard(0, cut), Shard(0, same)] if cut == same => Some(Partial(Sum)),
        [Shard(1, cut), Replicated] => Some(Shard(0, cut)),
        [Replicated, Shard(1, cut)] => Some(Shard(1, cut)),
        [Partial(Sum), Replicated] | [Replicated, Partial(Sum)] => Some(Partial(Sum)),
        _ => None,
    })
}

/// A sum of two tensors. A maximum that is owed is not that of the sum.
pub fn add(operation: &'static str, operands: [(&'static str, &Placements); 2]) -> Out {
    let rule = |_, [x, y]: [Placement; 2]| (x == y && x != Partial(Max)).then_some(x);
    Placements::per_axis(operation, operands, rule)
}

/// A bias `[out]` added to every row of `x [tokens, out]`. To a sum that is owed it would be added once by each rank, and
/// padded rows would not stay zero.
pub fn bias(x: &Placements, b: &Placements) -> Out {
    Placements::per_axis("bias", [("the product", x), ("b", b)], |_, p| match p {
        [Replicated, Replicated] => Some(Replicated),
        [Shard(0, cut), Replicated] if !is_padded(cut) => Some(Shard(0, cut)),
        [Shard(1, cut), Shard(0, same)] if cut == same => Some(Shard(1, cut)),
        _ => None,
    })
}

/// The gradient of a [`bias`]: the sum of the rows of `dy`.
pub fn bias_gradient(dy: &Placements) -> Out {
    Placements::per_axis("bias backward", [("dy", dy)], |_, p| match p {
        [Replicated] => Some(Replicated),
        [Shard(0, _)] | [Partial(Sum)] => Some(Partial(Sum)),
        [Shard(1, cut)] => Some(Shard(0, cut)),
        _ => None,
    })
}

/// Some columns of a matrix: the columns may not be sharded.
pub fn columns(x: &Placements) -> Out {
    Placements::per_axis("columns", [("x", x)], |_, [p]| match p {
        Replicated | Shard(0, _) | Partial(_) => Some(p),
        Shard(..) => None,
    })
}

/// Random zeros, a function of the place within a whole sequence: parts of sequences, by tokens or by columns, would draw
/// the zeros of the first ones. A sum that is owed loses the same terms on every rank.
pub fn dropout(x: &Placements) -> Out {
    Placements::per_axis("dropout", [("x", x)], |axis, [p]| match p {
        Replicated | Partial(Sum) => Some(p),
        _ => whole_sequences(axis, p),
    })
}

/// Elementwise, not linear, and zero of zeros (activations and their gradients): all alike, and nothing owed.
pub fn elementwise<const N: usize>(
    operation: &'static str,
    operands: [(&'static str, &Placements); N],
) -> Out {
    Placements::per_axis(operation, operands, |_, p| match p[0] {
        Replicated | Shard(0..=1, _) => p.iter().all(|q| *q == p[0]).then_some(p[0]),
        _ => None,
    })
}

/// A norm of each token's whole row of `x`, with a weight and perhaps a bias: the tokens may be sharded. What it
/// says of a padded row is not zero.
pub fn norm(x: &Placements, w: &Placements, b: Option<&Placements>) -> Out {
    let rule = |_, [x, parameter]: [Placement; 2]| rows(x).filter(|_| parameter == Replicated);
    if let Some(b) = b {
        Placements::per_axis("norm", [("x", x), ("b", b)], rule)?;
    }
    Placements::per_axis("norm", [("x", x), ("w", w)], rule)
}

/// The gradient of a [`norm`] for its input: `w` the weight, and the rest placed like the rows.
pub fn norm_input_gradient<const N: usize>(
    w: &Placements,
    like_rows: [(&'static str, &Placements); N],
) -> Out {
    const NAME: &str = "norm backward for the input";
    let placements = Placements::per_axis(NAME, like_rows, |_, p| all_rows(p))?;
    let operands = [like_rows[0], ("w", w)];
    Placements::per_axis(NAME, operands, |_, [x, w]| (w == Replicated).then_some(x)).map(|_| placements)
}

/// The gradient of a [`norm`] for its weight: a sum over tokens.
pub fn norm_weight_gradient<const N: usize>(like_rows: [(&'static str, &Placements); N]) -> Out {
    Placements::per_axis("norm backward for the weight", like_rows, |_, p| match all_rows(p)? {
        Shard(..) => Some(Partial(Sum)),
        p => Some(p),
    })
}

/// A lookup of rows of a table `[vocabulary, features]` by token ids. The rows may not be sharded: an id is a number of
/// the whole table's.
pub fn lookup(ids: &Placements, table: &Placements) -> Out {
    Placements::per_axis("embedding", [("ids", ids), ("table", table)], |_, p| match p {
        [Replicated, Replicated] => Some(Replicated),
        [Shard(0, cut), Replicated] if !is_padded(cut) => Some(Shard(0, cut)),
        [Replicated, Shard(1, cut)] => Some(Shard(1, cut)),
        _ => None,
    })
}

/// The gradient of a [`lookup`] for its table, a sum over tokens.
pub fn lookup_gradient(dy: &Placements, ids: &Placements) -> Out {
    Placements::per_axis("embedding backward", [("dy", dy), ("ids", ids)], |_, p| match p {
        [Replicated, Replicated] => Some(Replicated),
        [Shard(0, cut), Shard(0, same)] if cut == same => Some(Partial(Sum)),
        [Shard(1, cut), Replicated] => Some(Shard(1, cut)),
        [Partial(Sum), Replicated] => Some(Partial(Sum)),
        _ => None,
    })
}

/// The rotary embedding of `x [tokens, heads x head_dim]`, by the tokens' positions: linear in x; whole heads a rank.
pub fn rope(x: &Placements, positions: &Placements, table: &Placements) -> Out {
    let operands = [("x", x), ("positions", positions), ("table", table)];
    Placements::per_axis("rope", operands, |_, p| match p {
        [x @ (Replicated | Shard(1, Even) | Partial(Sum)), Replicated, Replicated] => Some(x),
        [Shard(0, cut), Shard(0, same), Replicated] if cut == same => Some(Shard(0, cut)),
        _ => None,
    })
}

/// Attention: whole sequences a rank (tokens, on an axis of data) or whole heads a rank (features).
pub fn attention(
    operation: &'static str,
    q: &Placements,
    k: &Placements,
    v: &Placements,
    positions: &Placements,
) -> Out {
    let operands = [("q", q), ("k", k), ("v", v), ("positions", positions)];
    Placements::per_axis(operation, operands, |axis, [q, k, v, positions]| {
        let by_heads = q == Shard(1, Even) && positions == Replicated;
        let by_tokens = q == positions && (q == Replicated || whole_sequences(axis, q).is_some());
        (q == k && k == v && (by_heads || by_tokens)).then_some(q)
    })
}

/// Dropout of attention's probabilities, a function of the head's number in the whole layer: where heads are sharded, the
/// operation must know that of the first.
pub fn attention_dropout(operation: &'static str, q: &Placements, knows_first_head: bool) -> Out {
    Placements::per_axis(operation, [("q", q)], |_, [q]| match q {
        Shard(1, _) => knows_first_head.then_some(q),
        q => Some(q),
    })
}

/// The gradients of [`attention`]'s inputs: what it yielded, and the gradient of that, are placed as it says.
pub fn attention_gradient(
    forward: &Placements,
    out: &Placements,
    lse: &Placements,
    dout: &Placements,
) -> Out {
    let operands = [("q", forward), ("out", out), ("lse", lse), ("dout", dout)];
    Placements::per_axis("attention backward", operands, |_, p| p.iter().all(|q| *q == p[0]).then_some(p[0]))
}

/// The loss of each row of logits: whole rows a rank. A padded row's would not be zero.
pub fn cross_entropy(logits: &Placements, targets: &Placements, losses: &Placements) -> Out {
    let operands = [("logits", logits), ("targets", targets), ("losses", losses)];
    Placements::per_axis("cross_entropy", operands, |_, p| all_rows(p))
}

/// A sum of all elements of a vector, exact, so that parts of it may be summed in any order; of summands that were
/// rounded it would be another.
pub fn sum(operation: &'static str, values: &Placements) -> Out {
    Placements::per_axis(operation, [("values", values)], |_, [p]| match p {
        Replicated => Some(Replicated),
        Shard(0, _) => Some(Partial(Sum)),
        _ => None,
    })
}

/// What an operation yielded, and what it is added to or copied into: both must be owed or held alike.
pub fn accumulate(
    operation: &'static str,
    into: (&'static str, &Placements),
    value: &Placements,
) -> Result<(), PlacementError> {
    let rule = |_, [a, b]: [Placement; 2]| (a == b).then_some(a);
    Placements::per_axis(operation, [into, ("the value", value)], rule).map(|_| ())
}

/// The optimizer takes a gradient only where it takes the parameter, and no sum that is owed: its step is not linear.
pub fn optimizer<const N: usize>(operands: [(&'static str, &Placements); N]) -> Result<(), PlacementError> {
    elementwise("optimizer", operands).map(|_| ())
}

/// A function of scalars that every rank computes for itself.
pub fn replicated<const N: usize>(
    operation: &'static str,
    operands: [(&'static str, &Placements); N],
) -> Result<(), PlacementError> {
    let rule = |_, p: [Placement; N]| p.iter().all(|p| *p == Replicated).then_some(Replicated);
    Placements::per_axis(operation, operands, rule).map(|_| ())
}

fn is_padded(cut: Cut) -> bool {
    matches!(cut, Padded(_))
}

/// Rows that are replicated or sharded, none of them padding.
fn rows(p: Placement) -> Option<Placement> {
    match p {
        Replicated => Some(p),
        Shard(0, cut) if !is_padded(cut) => Some(p),
        _ => None,
    }
}

/// The same of all operands alike.
fn all_rows<const N: usize>(p: [Placement; N]) -> Option<Placement> {
    rows(p[0]).filter(|first| p.iter().all(|q| q == first))
}

/// Tokens that are sharded by whole sequences: along other axes, each rank has a part of every sequence.
fn whole_sequences(axis: Axis, p: Placement) -> Option<Placement> {
    (axis.is_data() && p == Shard(0, Even)).then_some(p)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tp(p: Placement) -> Placements {
        Placements::REPLICATED.with(Axis::Tp, p)
    }

    #[test]
    fn column_then_row_split_owes_a_sum() {
        let h = linear(&tp(Replicated), &tp(Shard(0, Even))).unwrap();
        assert_eq!(h.on(Axis::Tp), Shard(1, Even));
        assert_eq!(linear(&h, &tp(Shard(1, Even))).unwrap().on(Axis::Tp), Partial(Sum));
    }

    #[test]
    fn the_weight_gradient_of_sharded_tokens_is_partial_and_the_optimizer_refuses_it() {
        let dp = |p| Placements::REPLICATED.with(Axis::DpReplicate, p);
        let g = linear_weight_gradient(&dp(Shard(0, Even)), &dp(Shard(0, Even))).unwrap();
        assert_eq!(g.on(Axis::DpReplicate), Partial(Sum));
        let e = optimizer([("parameter", &dp(Replicated)), ("gradient", &g)]).unwrap_err();
        assert_eq!(e.axis, Axis::DpReplicate);
        assert_eq!(
            e.to_string(),
            "optimizer: on axis dp_replicate, parameter is replicated, gradient is partial (a sum is owed); no rule \
             mixes these"
        );
    }

    #[test]
    fn a_matrix_that_lies_transposed_is_the_same_layer() {
        let lying = |p| tp(p).transposed();
        assert_eq!(linear(&tp(Replicated), &lying(Shard(1, Even))).unwrap().on(Axis::Tp), Shard(1, Even));
        assert_eq!(linear(&tp(Shard(1, Even)), &lying(Shard(0, Even))).unwrap().on(Axis::Tp), Partial(Sum));
        for p in [Replicated, Partial(Sum), Partial(Max), Shard(0, Even), Shard(1, Padded(3))] {
            assert_eq!(tp(p).transposed().transposed(), tp(p));
        }
    }

    #[test]
    fn a_dim_that_no_tensor_has_is_never_accepted_where_dims_matter() {
        let third = tp(Shard(2, Even));
        assert!(elementwise("gelu", [("x", &third)]).is_err());
        assert!(columns(&third).is_err() && dropout(&third).is_err() && bias_gradient(&third).is_err());
        assert!(linear(&third, &tp(Replicated)).is_err() && sum("sum_wide", &third).is_err());
    }
}
