//! The account: all of it comes back, and the dry device's is the real one's.

mod common;

use common::*;
use memwall_layout::Placements;
use memwall_tensor::device::{AttentionDims, Device, Memory};
use memwall_tensor::{Category, Cpu, DType, Description, Error, Event, LedgerState, Shape, Tensor, ops};
use proptest::prelude::*;

/// One act of a random program.
#[derive(Debug, Clone)]
enum Act {
    Take(usize, DType, Category),
    Drop(prop::sample::Index),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let dtype = prop::sample::select(&[DType::F32, DType::I32, DType::I64][..]);
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

/// A forward and a backward through every operation.
fn train<D: Device>(device: &D, dims: AttentionDims) -> Result<(), Error> {
    let (tokens, width) = (dims.batch * dims.queries, dims.heads * dims.head_dim);
    let kv_width = dims.kv_heads * dims.head_dim;
    let ids = vector(device, &vec![0i32; tokens]);
    let mut table = matrix(device, 3, &vec![0.5; 3 * width]);
    let angles = matrix(device, 1, &vec![1.0; dims.head_dim]);
    let (norm, mut dnorm) = (vector(device, &vec![1f32; width]), vector(device, &vec![0f32; width]));
    let [w, mut dw] = [(); 2].map(|()| matrix(device, kv_width, &vec![0.1; kv_width * width]));

    let x = ops::embedding(device, ids.view(), table.view())?;
    let n = ops::rms_norm(device, x.view(), norm.view(), 1e-5)?;
    let mut q = ops::copy_like(device, n.y.view())?;
    ops::rope(device, q.view_mut(), ids.view(), angles.view(), false)?;
    let (k, v) = (ops::linear(device, n.y.view(), w.view())?, ops::linear(device, n.y.view(), w.view())?);
    let f = ops::attention(device, dims, q.view(), k.view(), v.view())?;
    let (mut gate, mut up) = (ops::copy_like(device, f.out.view())?, f.out);
    let mut logits = ops::swiglu(device, gate.view(), up.view())?;
    let mut losses = vector(device, &vec![0f32; tokens]);
    ops::cross_entropy(device, logits.view_mut(), ids.view(), losses.view_mut(), Some(1.0))?;
    ops::swiglu_backward(device, gate.view_mut(), up.view_mut(), logits.view())?;

    let f = ops::attention(device, dims, q.view(), k.view(), v.view())?;
    let g = ops::attention_backward(device, dims, q.view(), k.view(), v.view(), &f, up.view())?;
    ops::linear_weight_gradient(device, g.dk.view(), n.y.view(), dw.view_mut(), true)?;
    let dy = ops::linear_input_gradient(device, g.dv.view(), w.view())?;
    let mut dx = g.dq;
    ops::rms_norm_weight_gradient(device, x.view(), n.rstd.view(), dy.view(), dnorm.view_mut(), false)?;
    ops::rms_norm_input_gradient(device, x.view(), norm.view(), n.rstd.view(), dy.view(), dx.view_mut())?;
    ops::embedding_gradient(device, ids.view(), dx.view(), table.view_mut(), true)
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
    fn training_leaves_the_same_account_on_both_devices(
        batch in 1usize..3, queries in 1usize..20, kv_heads in 1usize..3, group in 1usize..3,
        half in 1usize..8, threads in 1usize..=3,
    ) {
        let (heads, head_dim) = (kv_heads * group, 2 * half);
        let dims = AttentionDims { batch, queries, keys: queries, heads, kv_heads, head_dim };
        let (real, dry) = (fresh_cpu(threads), dry(threads));
        real.ledger().record();
        dry.ledger().record();
        train(&real, dims).unwrap();
        train(&dry, dims).unwrap();
        prop_assert_eq!(real.ledger().recorded(), dry.ledger().recorded());
        prop_assert_eq!(real.ledger().state(), dry.ledger().state());
        prop_assert_eq!(real.ledger().state().live.total(), scratch(threads));
    }

    #[test]
    fn the_dry_device_counts_two_flops_for_each_multiply_add(
        batch in 1usize..4, queries in 1usize..30, ahead in 0usize..30, kv_heads in 1usize..3,
        group in 1usize..3, head_dim in 1usize..10,
    ) {
        let device = dry(1);
        let (heads, keys) = (kv_heads * group, queries + ahead);
        let dims = AttentionDims { batch, queries, keys, heads, kv_heads, head_dim };
        let q = matrix(&device, batch * queries, &vec![0.0; batch * queries * heads * head_dim]);
        let k = matrix(&device, batch * keys, &vec![0.0; batch * keys * kv_heads * head_dim]);
        let f = ops::attention(&device, dims, q.view(), k.view(), k.view()).unwrap();
        // Scores, then values: a multiply-add a dim for each query and each key that it sees.
        let seen: usize = (0..queries).map(|i| ahead + i + 1).sum();
        let forward = (2 * 2 * batch * heads * head_dim * seen) as u64;
        prop_assert_eq!(device.flops(), forward);
        ops::attention_backward(&device, dims, q.view(), k.view(), k.view(), &f, q.view()).unwrap();
        prop_assert_eq!(device.flops(), 3 * forward);
        let (m, n, k) = (batch, keys, head_dim);
        let (x, w) = (matrix(&device, m, &vec![0.0; m * k]), matrix(&device, n, &vec![0.0; n * k]));
        ops::linear(&device, x.view(), w.view()).unwrap();
        prop_assert_eq!(device.flops(), 3 * forward + (2 * m * n * k) as u64);
    }
}
