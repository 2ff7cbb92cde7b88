//! What each kind of operation does to placements. One rule an operation, written once for all devices.
//!
//! Activations have dims `[tokens, features]`, weights `[out, in]`. An operation that is not listed for a
//! mix of placements is refused: the sum of a partial tensor and a replicated one, say, would count the
//! replicated one once for each rank.

use crate::Placement::{Partial, Replicated, Shard};
use crate::{PlacementError, Placements};

type Out = Result<Placements, PlacementError>;

/// `y = x w^T`, with `x [tokens, in]`, `w [out, in]`, `y [tokens, out]`.
pub fn linear(x: &Placements, w: &Placements) -> Out {
    Placements::per_axis("linear", [x, w], |p| match p {
        [Replicated, Replicated] => Some(Replicated),
        [Shard(0), Replicated] => Some(Shard(0)),
        [Replicated, Shard(0)] => Some(Shard(1)),
        [Shard(1), Shard(1)] => Some(Partial),
        // Linear in x: a sum owed before is a sum owed after.
        [Partial, Replicated] => Some(Partial),
        _ => None,
    })
}

/// `dx = dy w`, the gradient of [`linear`] for its input.
pub fn linear_input_gradient(dy: &Placements, w: &Placements) -> Out {
    Placements::per_axis("linear backward for the input", [dy, w], |p| match p {
        [Replicated, Replicated] => Some(Replicated),
        [Shard(0), Replicated] => Some(Shard(0)),
        [Shard(1), Shard(0)] => Some(Partial),
        [Replicated, Shard(1)] => Some(Shard(1)),
        [Partial, Replicated] => Some(Partial),
        _ => None,
    })
}

/// `dw = dy^T x`, the gradient of [`linear`] for its weight.
pub fn linear_weight_gradient(dy: &Placements, x: &Placements) -> Out {
    Placements::per_axis("linear backward for the weight", [dy, x], |p| match p {
        [Replicated, Replicated] => Some(Replicated),
        [Shard(0), Shard(0)] => Some(Partial),
        [Shard(1), Replicated] => Some(Shard(0)),
        [Replicated, Shard(1)] => Some(Shard(1)),
        [Partial, Replicated] | [Replicated, Partial] => Some(Partial),
        _ => None,
    })
}

/// A sum of two tensors.
pub fn add(a: &Placements, b: &Placements) -> Out {
    Placements::per_axis("add", [a, b], |[a, b]| (a == b).then_some(a))
}

/// A bias `[out]` added to every row of `x [tokens, out]`. To a sum that is owed it would be added once by each rank.
pub fn bias(x: &Placements, b: &Placements) -> Out {
    Placements::per_axis("bias", [x, b], |p| match p {
        [Replicated, Replicated] => Some(Replicated),
        [Shard(0), Replicated] => Some(Shard(0)),
        [Shard(1), Shard(0)] => Some(Shard(1)),
        _ => None,
    })
}

/// The gradient of a [`bias`]: the sum of the rows of `dy`.
pub fn bias_gradient(dy: &Placements) -> Out {
    Placements::per_axis("bias backward", [dy], |p| match p {
        [Replicated] => Some(Replicated),
        [Shard(0)] | [Partial] => Some(Partial),
        [Shard(1)] => Some(Shard(0)),
        _ => None,
    })
}

/// Some columns of a matrix: the columns may not be sharded.
pub fn columns(x: &Placements) -> Out {
    Placements::per_axis("columns", [x], |[p]| (p != Shard(1)).then_some(p))
}

/// Random zeros, a function of the place within a whole sequence: columns that are sharded would draw the zeros of
/// the first ones. A sum that is owed loses the same terms on every rank.
pub fn dropout(x: &Placements) -> Out {
    Placements::per_axis("dropout", [x], |[p]| (p != Shard(1)).then_some(p))
}

/// Elementwise and not linear (activations, products): a partial operand is refused.
pub fn elementwise<const N: usize>(operation: &'static str, operands: [&Placements; N]) -> Out {
    Placements::per_axis(operation, operands, |p| {
        (p[0] != Partial && p.iter().all(|q| *q == p[0])).then_some(p[0])
    })
}

/// A function of each token's whole row with a replicated weight (norms): the tokens may be sharded.
pub fn rowwise(operation: &'static str, x: &Placements, w: &Placements) -> Out {
    Placements::per_axis(operation, [x, w], |p| match p {
        [Replicated, Replicated] => Some(Replicated),
        [Shard(0), Replicated] => Some(Shard(0)),
        _ => None,
    })
}

/// The gradient of a [`rowwise`] operation for its weight: a sum over tokens.
pub fn rowwise_weight_gradient(operation: &'static str, dy: &Placements, x: &Placements) -> Out {
    Placements::per_axis(operation, [dy, x], |p| match p {
        [Replicated, Replicated] => Some(Replicated),
        [Shard(0), Shard(0)] => Some(Partial),
        _ => None,
    })
}

/// A lookup of rows of a table `[vocabulary, features]` by token ids.
pub fn lookup(ids: &Placements, table: &Placements) -> Out {
    Placements::per_axis("embedding", [ids, table], |p| match p {
        [Replicated, Replicated] => Some(Replicated),
        [Shard(0), Replicated] => Some(Shard(0)),
        [Replicated, Shard(1)] => Some(Shard(1)),
        // Rows that another rank holds are read as zero.
        [Replicated, Shard(0)] => Some(Partial),
        _ => None,
    })
}

/// Attention: whole sequences a rank (tokens sharded by sequence) or whole heads a rank (features).
pub fn attention(q: &Placements, k: &Placements, v: &Placements) -> Out {
    elementwise("attention", [q, k, v])
}

/// What is accumulated into what: both must be owed or held alike.
pub fn accumulate(
    operation: &'static str,
    into: &Placements,
    value: &Placements,
) -> Result<(), PlacementError> {
    Placements::per_axis(operation, [into, value], |[a, b]| (a == b).then_some(a)).map(|_| ())
}

/// The optimizer takes a gradient only where it takes the parameter.
pub fn optimizer(parameter: &Placements, gradient: &Placements) -> Result<(), PlacementError> {
    Placements::per_axis("optimizer", [parameter, gradient], |[p, g]| (p == g && p != Partial).then_some(p))
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Placement};

    fn tp(p: Placement) -> Placements {
        Placements::REPLICATED.with(Axis::Tp, p)
    }

    #[test]
    fn column_then_row_split_owes_a_sum() {
        let h = linear(&tp(Replicated), &tp(Shard(0))).unwrap();
        assert_eq!(h.on(Axis::Tp), Shard(1));
        assert_eq!(linear(&h, &tp(Shard(1))).unwrap().on(Axis::Tp), Partial);
    }

    #[test]
    fn the_weight_gradient_of_sharded_tokens_is_partial_and_the_optimizer_refuses_it() {
        let dp = |p| Placements::REPLICATED.with(Axis::DpReplicate, p);
        let g = linear_weight_gradient(&dp(Shard(0)), &dp(Shard(0))).unwrap();
        assert_eq!(g.on(Axis::DpReplicate), Partial);
        let e = optimizer(&dp(Replicated), &g).unwrap_err();
        assert_eq!(e.axis, Axis::DpReplicate);
        assert!(e.to_string().contains("dp_replicate") && e.to_string().contains("partial"), "{e}");
    }

    #[test]
    fn a_partial_sum_never_meets_a_nonlinear_function_or_a_replicated_summand() {
        assert!(elementwise("swiglu", [&tp(Partial), &tp(Partial)]).is_err());
        assert!(rowwise("rms_norm", &tp(Partial), &tp(Replicated)).is_err());
        assert!(add(&tp(Partial), &tp(Replicated)).is_err());
        assert!(add(&tp(Partial), &tp(Partial)).is_ok());
    }

    #[test]
    fn a_bias_is_cut_as_the_columns_are_and_never_added_to_a_sum_that_is_owed() {
        assert_eq!(bias(&tp(Replicated), &tp(Replicated)).unwrap().on(Axis::Tp), Replicated);
        assert_eq!(bias(&tp(Shard(0)), &tp(Replicated)).unwrap().on(Axis::Tp), Shard(0));
        assert_eq!(bias(&tp(Shard(1)), &tp(Shard(0))).unwrap().on(Axis::Tp), Shard(1));
        for (x, b) in [
            (Partial, Replicated),
            (Partial, Partial),
            (Replicated, Partial),
            (Shard(1), Replicated),
            (Shard(0), Shard(0)),
            (Replicated, Shard(0)),
        ] {
            let e = bias(&tp(x), &tp(b)).unwrap_err();
            assert_eq!((e.operation, e.axis, e.found), ("bias", Axis::Tp, vec![x, b]));
        }
    }

    #[test]
    fn the_gradient_of_a_bias_is_cut_as_the_bias_is_and_owed_over_sharded_tokens() {
        for (dy, db) in
            [(Replicated, Replicated), (Shard(0), Partial), (Shard(1), Shard(0)), (Partial, Partial)]
        {
            assert_eq!(bias_gradient(&tp(dy)).unwrap().on(Axis::Tp), db);
        }
        assert!(bias_gradient(&tp(Shard(2))).is_err());
    }

    #[test]
    fn columns_that_are_sharded_are_neither_picked_nor_dropped() {
        for rule in [columns, dropout] {
            for p in [Replicated, Shard(0), Partial] {
                assert_eq!(rule(&tp(p)).unwrap().on(Axis::Tp), p);
            }
            assert_eq!(rule(&tp(Shard(1))).unwrap_err().axis, Axis::Tp);
        }
    }

    #[test]
    fn a_matrix_that_lies_transposed_is_the_same_layer() {
        let lying = |p| tp(p).transposed();
        assert_eq!(linear(&tp(Replicated), &lying(Shard(1))).unwrap().on(Axis::Tp), Shard(1));
        assert_eq!(linear(&tp(Shard(1)), &lying(Shard(0))).unwrap().on(Axis::Tp), Partial);
        for p in [Replicated, Partial, Shard(0), Shard(1)] {
            assert_eq!(tp(p).transposed().transposed(), tp(p));
        }
    }
}
