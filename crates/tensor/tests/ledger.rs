//! The account: all of it comes back, and the dry device's is the real one's.

mod common;

use common::*;
use memwall_layout::Placements;
use memwall_tensor::device::{AdamW, AttentionDims, Device, Dropout, Memory};
use memwall_tensor::fixed::Wide;
use memwall_tensor::ops::{Attended, Matrix, NormWeights};
use memwall_tensor::queued::Queued;
use memwall_tensor::{Category, Cpu, DType, Description, Error, Event, LedgerState, Shape, Tensor, ops};
use proptest::prelude::*;

/// One act of a random program.
#[derive(Debug, Clone)]
enum Act {
    Take(usize, DType, Category),
    Drop(prop::sample::Index),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let dtype = prop::sample::select(&[DType::F32, DType::BF16, DType::I32, DType::I64][..]);
    let take = (0usize..40_000_000, dtype, prop::sample::select(&Category::ALL[..]));
    let act = prop_oneof![
        3 => take.prop_map(|(n, d, c)| Act::Take(n, d, c)),
        2 => any::<prop::sample::Index>().prop_map(Act::Drop),
    ];
    prop::collection::vec(act, 1..60)
}

/// What a program leaves in the account: its events, the state before and after its last buffers went, and
/// the refusals.
type Account = (Vec<Event>, LedgerState, LedgerState, Vec<Error>);

fn carry_out<D: Device>(device: &D, acts: &[Act]) -> Account {
    device.ledger().record();
    let (mut live, mut refused) = (Vec::new(), Vec::new());
    for act in acts {
        match act {
            Act::Take(n, dtype, category) => {
                match Tensor::new(device, Shape::vector(*n), *dtype, Placements::REPLICATED, *category) {
                    Ok(t) => live.push(t),
                    Err(e) => refused.push(e),
                }
            }
            Act::Drop(which) if !live.is_empty() => {
                live.swap_remove(which.index(live.len()));
            }
            Act::Drop(_) => {}
        }
    }
    let full = device.ledger().state();
    drop(live);
    (device.ledger().recorded(), full, device.ledger().state(), refused)
}

/// A forward and a backward through every operation, with activations and weights of type `dtype`.
fn train<D: Device>(device: &D, dims: AttentionDims, dtype: DType) -> Result<(), Error> {
    let (tokens, width) = (dims.batch * dims.queries, dims.heads * dims.head_dim);
    let kv_width = dims.kv_heads * dims.head_dim;
    let new = |shape: Shape, value: f32| typed(device, dtype, shape, &vec![value; shape.len()]);
    let ids = vector(device, &vec![0i32; tokens]);
    let (table, mut dtable) = (new(Shape::matrix(3, width), 0.5), matrix(device, 3, &vec![0.0; 3 * width]));
    let angles = matrix(device, 1, &vec![1.0; dims.head_dim]);
    let [norm, bias] = [1.0, 0.1].map(|x| new(Shape::vector(width), x));
    let [mut dnorm, mut dbias] = [(); 2].map(|()| vector(device, &vec![0f32; width]));
    let [w, mut dw] = [(); 2].map(|()| new(Shape::matrix(kv_width, width), 0.1));
    let turned = new(Shape::matrix(width, kv_width), 0.1);
    let keys = vector(device, &vec![1i64; dims.batch]);
    let dropout = Dropout { keys: keys.view().slice, salt: 1, rate: 0.1 };

    let mut x = ops::embedding(device, ids.view(), table.view())?;
    ops::add_embedding(device, ids.view(), table.view(), x.view_mut())?;
    ops::dropout(device, x.view_mut(), dropout)?;
    let layer = NormWeights { w: norm.view(), b: Some(bias.view()), eps: 1e-5 };
    let centred = ops::norm(device, x.view(), layer)?;
    let n = ops::norm(device, centred.y.view(), NormWeights { w: norm.view(), b: None, eps: 1e-5 })?;
    let square = new(Shape::matrix(width, width), 0.1);
    let (mut q, _) = ops::affine_gelu(device, n.y.view(), square.view(), Some(bias.view()))?;
    drop(ops::affine_swiglu(device, n.y.view(), square.view(), None, q.view())?);
    ops::rope(device, q.view_mut(), ids.view(), angles.view(), false)?;
    let k = ops::linear(device, n.y.view(), w.view())?;
    let v = ops::linear(device, n.y.view(), Matrix { view: turned.view(), transposed: true })?;
    let positions = ids.view();
    let input = Attended {
        q: q.view(),
        k: k.view(),
        v: v.view(),
        positions,
        dropout: Some(dropout),
        first_head: None,
    };
    let f = ops::attention(device, dims, input)?;
    let (mut gate, mut up) = (ops::copy_like(device, f.out.view())?, f.out);
    ops::add(device, gate.view_mut(), q.view())?;
    let half = ops::columns(device, gate.view(), 0, width / 2)?;
    ops::set_columns(device, half.view(), up.view_mut(), width - width / 2)?;
    let hidden = ops::gelu(device, up.view())?;
    ops::gelu_backward(device, up.view_mut(), hidden.view())?;
    let act = ops::swiglu(device, gate.view(), up.view())?;
    let mut logits = matrix(device, tokens, &vec![0.0; tokens * width]);
    device.cast(act.view().slice, logits.view_mut().slice);
    let mut losses = vector(device, &vec![0f32; tokens]);
    ops::cross_entropy(device, logits.view_mut(), ids.view(), losses.view_mut(), Some(1.0))?;
    let mut loss = vector(device, &[0i64; Wide::LEN]);
    ops::sum_wide(device, losses.view(), 1.0, loss.view_mut())?;
    ops::swiglu_backward(device, gate.view_mut(), up.view_mut(), act.view())?;

    let f = ops::attention(device, dims, input)?;
    let g = ops::attention_backward(device, dims, input, &f, up.view())?;
    ops::linear_weight_gradient(device, g.dk.view(), n.y.view(), dw.view_mut(), true)?;
    let dy = ops::linear_input_gradient(device, g.dv.view(), w.view())?;
    let mut dx = g.dq;
    ops::norm_weight_gradient(device, centred.y.view(), &n, dy.view(), dnorm.view_mut(), false)?;
    ops::norm_input_gradient(device, centred.y.view(), norm.view(), &n, dy.view(), dx.view_mut())?;
    ops::norm_weight_gradient(device, x.view(), &centred, dy.view(), dnorm.view_mut(), true)?;
    ops::norm_input_gradient(device, x.view(), norm.view(), &centred, dy.view(), dx.view_mut())?;
    ops::bias_gradient(device, dx.view(), dbias.view_mut(), true)?;
    ops::embedding_gradient(device, ids.view(), dx.view(), dtable.view_mut(), true)?;
    step(device, &dnorm, dtype);
    Ok(())
}

/// A step of the optimizer on a parameter, whose gradient is summed first.
fn step<D: Device>(device: &D, gradient: &Tensor<D>, dtype: DType) {
    let n = gradient.shape().len();
    let mut sums = typed(device, dtype, gradient.shape(), &vec![0.0; n]);
    let (mut squares, mut clip) = (vector(device, &[0i64; Wide::LEN]), vector(device, &[0f32; 2]));
    device.accumulate(gradient.view().slice, sums.view_mut().slice, true);
    device.sum_squares(sums.view().slice, squares.view_mut().slice);
    device.clip_factor(squares.view().slice, Some(1.0), clip.view_mut().slice);
    let [mut p, mut m, mut v] = [(); 3].map(|()| vector(device, &vec![0f32; n]));
    let mut copy = typed(device, DType::BF16, gradient.shape(), &vec![0.0; n]);
    let settings =
        AdamW { learning_rate: 0.1, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 1 };
    device.adamw(
        settings,
        clip.view().slice,
        sums.view().slice,
        p.view_mut().slice,
        m.view_mut().slice,
        v.view_mut().slice,
        Some(copy.view_mut().slice),
    );
}

/// A CPU device that has not allocated anything yet but its working space.
fn fresh_cpu(threads: usize) -> Cpu {
    Cpu::new(Description { threads }, BUDGET).unwrap()
}

/// What a device keeps for itself.
fn scratch(threads: usize) -> u64 {
    memwall_tensor::Arena::rounded(Description { threads }.scratch_bytes() as u64)
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn the_dry_device_keeps_the_same_account_and_all_comes_back(
        acts in acts(), threads in 1usize..=4,
    ) {
        let (real, dry) = (carry_out(&fresh_cpu(threads), &acts), carry_out(&dry(threads), &acts));
        prop_assert_eq!(&real, &dry);
        let (_, full, end, _) = real;
        prop_assert_eq!(end.live.total(), scratch(threads));
        prop_assert_eq!(end.live[Category::Workspace], scratch(threads));
        prop_assert_eq!((end.at_peak, end.reserved), (full.at_peak, full.reserved));
        prop_assert!(
            full.live.total() <= end.at_peak.total()
                && end.at_peak.total() <= end.reserved
                && end.reserved <= BUDGET
        );
    }

    #[test]
    fn training_leaves_the_same_account_on_all_devices(
        batch in 1usize..3, queries in 1usize..20, kv_heads in 1usize..3, group in 1usize..3,
        half in 1usize..8, window in prop::option::of(1usize..20), dtype in prop::sample::select(&FLOATS[..]),
        threads in 1usize..=3,
    ) {
        let (heads, head_dim) = (kv_heads * group, 2 * half);
        let dims = AttentionDims { batch, queries, keys: queries, heads, kv_heads, head_dim, window };
        let (real, dry) = (fresh_cpu(threads), dry(threads));
        real.ledger().record();
        dry.ledger().record();
        train(&real, dims, dtype).unwrap();
        train(&dry, dims, dtype).unwrap();
        let queued = Queued::new(Description { threads }, BUDGET, queries as u64).unwrap();
        queued.ledger().record();
        train(&queued, dims, dtype).unwrap();
        prop_assert_eq!(queued.faults(), []);
        let events = dry.ledger().recorded();
        prop_assert_eq!(&real.ledger().recorded(), &events);
        prop_assert_eq!(&queued.ledger().recorded(), &events);
        prop_assert_eq!(queued.ledger().state(), dry.ledger().state());
        prop_assert_eq!(real.ledger().state(), dry.ledger().state());
        prop_assert_eq!(real.ledger().state().live.total(), scratch(threads));
    }

    #[test]
    fn the_dry_device_counts_two_flops_for_each_multiply_add(
        batch in 1usize..4, queries in 1usize..30, ahead in 0usize..30, kv_heads in 1usize..3,
        group in 1usize..3, head_dim in 1usize..10, window in prop::option::of(1usize..70),
    ) {
        let device = dry(1);
        let (heads, keys) = (kv_heads * group, queries + ahead);
        let dims = AttentionDims { batch, queries, keys, heads, kv_heads, head_dim, window };
        let q = matrix(&device, batch * queries, &vec![0.0; batch * queries * heads * head_dim]);
        let k = matrix(&device, batch * keys, &vec![0.0; batch * keys * kv_heads * head_dim]);
        let positions = vector(&device, &vec![0i32; batch * queries]);
        let input =
            Attended { q: q.view(), k: k.view(), v: k.view(), positions: positions.view(), dropout: None, first_head: None };
        let f = ops::attention(&device, dims, input).unwrap();
        // Scores, then values: a multiply-add a dim for each query and each key that it sees.
        let sees = |i: usize, l: usize| l <= ahead + i && window.is_none_or(|w| ahead + i - l < w);
        let seen: usize = (0..queries).map(|i| (0..keys).filter(|l| sees(i, *l)).count()).sum();
        let forward = (2 * 2 * batch * heads * head_dim * seen) as u64;
        prop_assert_eq!(device.flops(), forward);
        ops::attention_backward(&device, dims, input, &f, q.view()).unwrap();
        prop_assert_eq!(device.flops(), 3 * forward);
        let (m, n, k) = (batch, keys, head_dim);
        let (x, w) = (matrix(&device, m, &vec![0.0; m * k]), matrix(&device, n, &vec![0.0; n * k]));
        ops::linear(&device, x.view(), w.view()).unwrap();
        prop_assert_eq!(device.flops(), 3 * forward + (2 * m * n * k) as u64);
    }
}
