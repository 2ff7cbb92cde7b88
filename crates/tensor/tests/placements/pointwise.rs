//! Elementwise operations, lookups, the rotary embedding, columns, biases and dropout.

use super::proof::{Operand, Operation, Sizes};
use crate::common::{Stream, vector};
use memwall_layout::{Axis, Cut, Placement, Placements};
use memwall_tensor::device::Dropout;
use memwall_tensor::{Category, DType, Error, Shape, Tensor, ops};

/// `[tokens, features]` of small whole numbers, by name.
fn numbers<const N: usize>(names: [&'static str; N], [tokens, features, _]: Sizes) -> Vec<Operand> {
    let mut s = Stream::new(2);
    names.map(|n| Operand::whole_numbers(n, Shape::matrix(tokens, features), &mut s)).into()
}

/// `[tokens, features]` of any numbers, by name.
fn reals<const N: usize>(names: [&'static str; N], [tokens, features, _]: Sizes) -> Vec<Operand> {
    let mut s = Stream::new(3);
    names.map(|n| Operand::reals(n, Shape::matrix(tokens, features), &mut s)).into()
}

#[test]
fn add() {
    Operation {
        name: "add",
        operands: &|sizes| numbers(["x", "y"], sizes),
        run: &|d, _, mut t| {
            let y = t.pop().unwrap();
            ops::add(d, t[0].view_mut(), y.view())?;
            Ok(t)
        },
    }
    .prove([(8, 73); 2]);
}

#[test]
fn bias_gradient() {
    Operation {
        name: "bias backward",
        operands: &|sizes| {
            let db = Operand::whole_numbers("db", Shape::vector(sizes[1]), &mut Stream::new(5));
            [numbers(["dy"], sizes), vec![db]].concat()
        },
        run: &|d, _, mut t| {
            let mut db = t.pop().unwrap();
            ops::bias_gradient(d, t[0].view(), db.view_mut(), true)?;
            Ok(vec![db])
        },
    }
    .prove([(8, 46); 2]);
}

#[test]
fn columns() {
    Operation {
        name: "columns",
        operands: &|sizes| numbers(["x"], sizes),
        run: &|d, _, t| Ok(vec![ops::columns(d, t[0].view(), 1, 3)?]),
    }
    .prove([(6, 3); 2]);
}

#[test]
fn set_columns() {
    Operation {
        name: "columns",
        operands: &|sizes| [numbers(["x"], [sizes[0], 4, 0]), numbers(["out"], sizes)].concat(),
        run: &|d, _, mut t| {
            let mut out = t.pop().unwrap();
            ops::set_columns(d, t[0].view(), out.view_mut(), 2)?;
            Ok(vec![out])
        },
    }
    .prove([(6, 75); 2]);
}

#[test]
fn copies() {
    Operation {
        name: "copy",
        operands: &|sizes| numbers(["x"], sizes),
        run: &|d, _, t| Ok(vec![ops::copy_like(d, t[0].view())?]),
    }
    .prove([(9, 0); 2]);
}

#[test]
fn gelu() {
    Operation {
        name: "gelu",
        operands: &|sizes| reals(["x"], sizes),
        run: &|d, _, t| Ok(vec![ops::gelu(d, t[0].view())?]),
    }
    .prove([(7, 2); 2]);
}

#[test]
fn gelu_backward() {
    Operation {
        name: "gelu backward",
        operands: &|sizes| reals(["x", "dout"], sizes),
        run: &|d, _, mut t| {
            let dout = t.pop().unwrap();
            ops::gelu_backward(d, t[0].view_mut(), dout.view())?;
            Ok(t)
        },
    }
    .prove([(7, 74); 2]);
}

#[test]
fn swiglu() {
    Operation {
        name: "swiglu",
        operands: &|sizes| reals(["gate", "up"], sizes),
        run: &|d, _, t| Ok(vec![ops::swiglu(d, t[0].view(), t[1].view())?]),
    }
    .prove([(7, 74); 2]);
}

#[test]
fn swiglu_backward() {
    Operation {
        name: "swiglu backward",
        operands: &|sizes| reals(["gate", "up", "dout"], sizes),
        run: &|d, _, mut t| {
            let dout = t.pop().unwrap();
            let [gate, up] = &mut t[..] else { unreachable!("two are left") };
            ops::swiglu_backward(d, gate.view_mut(), up.view_mut(), dout.view())?;
            Ok(t)
        },
    }
    .prove([(7, 722); 2]);
}

#[test]
fn rope() {
    const HEAD: usize = 4;
    const POSITIONS: usize = 8;
    for inverse in [false, true] {
        Operation {
            name: "rope",
            operands: &|[tokens, ..]| {
                let mut s = Stream::new(6);
                vec![
                    Operand::whole_numbers("x", Shape::matrix(tokens, 6 * HEAD), &mut s),
                    Operand::ids("positions", tokens, POSITIONS, &mut s),
                    // No angles, but as many numbers: the operation is linear in them too.
                    Operand::whole_numbers("table", Shape::matrix(POSITIONS, HEAD), &mut s),
                ]
            },
            run: &|d, _, mut t| {
                let (table, positions) = (t.pop().unwrap(), t.pop().unwrap());
                ops::rope(d, t[0].view_mut(), positions.view(), table.view(), inverse)?;
                Ok(t)
            },
        }
        .prove([(6, 480); 2]);
    }
}

/// Ids and a table `[vocabulary, features]`.
fn lookup([tokens, features, vocabulary]: Sizes) -> Vec<Operand> {
    let mut s = Stream::new(7);
    let ids = Operand::ids("ids", tokens, vocabulary, &mut s);
    vec![ids, Operand::whole_numbers("table", Shape::matrix(vocabulary, features), &mut s)]
}

#[test]
fn embedding() {
    Operation {
        name: "embedding",
        operands: &lookup,
        run: &|d, _, t| Ok(vec![ops::embedding(d, t[0].view(), t[1].view())?]),
    }
    .prove([(6, 48); 2]);
}

#[test]
fn embedding_added_to_what_is_there() {
    Operation {
        name: "embedding",
        operands: &|sizes| [lookup(sizes), numbers(["x"], sizes)].concat(),
        run: &|d, _, mut t| {
            let mut x = t.pop().unwrap();
            ops::add_embedding(d, t[0].view(), t[1].view(), x.view_mut())?;
            Ok(vec![x])
        },
    }
    .prove([(6, 480); 2]);
}

#[test]
fn embedding_gradient() {
    Operation {
        name: "embedding backward",
        operands: &|sizes| {
            let [ids, mut table] = lookup(sizes).try_into().expect("two operands");
            table.name = "dtable";
            [vec![ids], numbers(["dy"], sizes), vec![table]].concat()
        },
        run: &|d, _, mut t| {
            let mut dtable = t.pop().unwrap();
            ops::embedding_gradient(d, t[0].view(), t[1].view(), dtable.view_mut(), true)?;
            Ok(vec![dtable])
        },
    }
    .prove([(8, 478); 2]);
}

#[test]
fn dropout() {
    /// Tokens of a sequence.
    const LENGTH: usize = 2;
    let keys: Vec<i64> = (0..6).map(|i| 1000 + 7 * i).collect();
    Operation {
        name: "dropout",
        operands: &|sizes| numbers(["x"], sizes),
        run: &|d, starts, mut t| {
            let (first, n) = (starts[0][0] / LENGTH, t[0].shape().rows() / LENGTH);
            let keys = vector(d, &keys[first..first + n]);
            // What is left doubles: whole numbers stay whole.
            let dropout = Dropout { keys: keys.view().slice, salt: 3, rate: 0.5 };
            ops::dropout(d, t[0].view_mut(), dropout)?;
            Ok(t)
        },
    }
    .prove([(3, 6), (2, 7)]);
}

/// An activation that takes what is owed for what is held: as a wrong rule would.
fn wrong_gelu(wrong: fn(Placement) -> Option<Placement>) {
    Operation {
        name: "gelu",
        operands: &|sizes| reals(["x"], sizes),
        run: &|d, _, t| {
            let mut placements = Placements::REPLICATED;
            for axis in Axis::ALL {
                let Some(p) = wrong(t[0].placements().on(axis)) else {
                    return Err(ops::gelu(d, t[0].view()).expect_err("another rule would refuse it"));
                };
                placements = placements.with(axis, p);
            }
            let (shape, replicated) = (t[0].shape(), Placements::REPLICATED);
            let x = memwall_tensor::View { placements: replicated, ..t[0].view() };
            let y = ops::gelu(d, x)?;
            let mut out = Tensor::new(d, shape, DType::F32, placements, Category::Activations)?;
            memwall_tensor::device::Memory::copy(d, y.view().slice, out.view_mut().slice);
            Ok::<_, Error>(vec![out])
        },
    }
    .prove([(8, 1), (8, 1)]);
}

#[test]
#[should_panic(expected = "is not")]
fn a_rule_that_lets_a_nonlinear_function_meet_a_sum_that_is_owed_is_found() {
    wrong_gelu(|p| (p != Placement::Partial(memwall_layout::Reduction::Max)).then_some(p));
}

#[test]
#[should_panic(expected = "replicas differ")]
fn a_rule_that_forgets_a_shard_is_found() {
    wrong_gelu(|p| match p {
        Placement::Shard(0, Cut::Even) => Some(Placement::Replicated),
        Placement::Partial(_) => None,
        p => Some(p),
    });
}
