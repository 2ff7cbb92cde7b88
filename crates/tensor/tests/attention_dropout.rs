//! Which probabilities of attention a dropout sets to zero.

mod common;

use common::attention::*;
use common::*;
use memwall_tensor::device::AttentionDims;
use memwall_tensor::{Cpu, DType, ops};
use proptest::prelude::*;

/// An attention that shows its probabilities: all scores are zero, and value `l` is the `l`-th unit vector.
fn bare(batch: usize, length: usize, heads: usize, kv_heads: usize, window: Option<usize>) -> Case {
    let head_dim = length;
    let d = AttentionDims { batch, queries: length, keys: length, heads, kv_heads, head_dim, window };
    let mut case = Case::random(d, 1.0, 1);
    case.q.fill(0.0);
    case.v.fill(0.0);
    for b in 0..batch {
        for l in 0..length {
            for h in 0..heads {
                let at = case.key(b, l, h) + l;
                case.v[at] = 1.0;
            }
        }
    }
    case
}

/// Which probabilities survive in head `h` of sequence `b`, a row a query.
fn survivors(device: &Cpu, case: &Case, b: usize, h: usize) -> Vec<bool> {
    let loaded = case.load(device, DType::F32);
    let out = floats(device, &ops::attention(device, case.dims, loaded.input()).unwrap().out);
    let length = case.dims.queries;
    (0..length).flat_map(|i| out[case.query(b, i, h)..][..length].iter().map(|p| *p != 0.0)).collect()
}

/// Pairs of a query and a key that it sees, as places in [`survivors`].
fn seen(case: &Case, b: usize) -> Vec<usize> {
    let n = case.dims.queries;
    (0..n * n).filter(|at| case.sees(b, at / n, at % n)).collect()
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn zeros_are_where_the_documented_function_puts_them(
        length in 1usize..100, heads in 1usize..3, rate in 0.05f32..0.9, seed: u64,
    ) {
        let case = bare(2, length, heads, 1, None).dropped(rate, seed);
        for b in 0..2 {
            for h in 0..heads {
                let found = survivors(&cpu(2), &case, b, h);
                for at in seen(&case, b) {
                    prop_assert_eq!(found[at], case.factor(b, h, at / length, at % length) > 0.0);
                }
            }
        }
    }

    #[test]
    fn zeros_depend_on_key_salt_head_query_and_key_index_alone(
        length in 1usize..100, window in 1usize..100, rate in 0.05f32..0.9, seed: u64,
    ) {
        let case = bare(1, length, 2, 1, None).dropped(rate, seed);
        let want = survivors(&cpu(1), &case, 0, 1);
        let zeros = case.zeros.clone().unwrap();
        // Beside other sequences, with other grouping of heads, in a window, on other threads.
        let keys = vec![zeros.keys[0] ^ 5, zeros.keys[0], 7];
        let crowd = Case { zeros: Some(Zeros { keys, ..zeros }), ..bare(3, length, 4, 2, Some(window)) };
        let found = survivors(&cpu(3), &crowd, 1, 1);
        for at in seen(&crowd, 1) {
            prop_assert_eq!(found[at], want[at]);
        }
    }

    #[test]
    fn each_of_key_salt_head_query_and_key_index_matters_and_the_share_is_the_rate(
        rate in 0.1f32..0.9, seed: u64,
    ) {
        const LENGTH: usize = 96;
        let case = bare(1, LENGTH, 2, 1, None).dropped(rate, seed);
        let (device, pairs) = (cpu(2), seen(&case, 0));
        let n = pairs.len() as f64;
        let one = survivors(&device, &case, 0, 0);
        let kept = pairs.iter().filter(|at| one[**at]).count() as f64;
        let rate = f64::from(rate);
        // Six standard deviations of a share of n draws.
        let allowed = 6.0 * (rate * (1.0 - rate) * n).sqrt();
        prop_assert!((kept - (1.0 - rate) * n).abs() <= allowed, "{kept} of {n} are kept at rate {rate}");

        // Two independent masks agree on this share.
        let agreement = rate * rate + (1.0 - rate) * (1.0 - rate);
        let allowed = 6.0 * (agreement * (1.0 - agreement) * n).sqrt();
        let independent = |what: &str, other: &dyn Fn(usize) -> bool| {
            let alike = pairs.iter().filter(|at| one[**at] == other(**at)).count() as f64;
            assert!((alike - agreement * n).abs() <= allowed, "{what}: {alike} of {n} agree, at rate {rate}");
        };
        let changed = |change: fn(&mut Zeros)| {
            let mut other = case.clone();
            change(other.zeros.as_mut().unwrap());
            survivors(&device, &other, 0, 0)
        };
        let (key, salt) = (changed(|z| z.keys[0] += 1), changed(|z| z.salt += 1));
        let head = survivors(&device, &case, 0, 1);
        independent("key", &|at| key[at]);
        independent("salt", &|at| salt[at]);
        independent("head", &|at| head[at]);
        // Along a diagonal, and one query on, or one key on.
        let reference = |i: usize, l: usize| case.factor(0, 0, i, l) > 0.0;
        independent("query", &|at| reference(at / LENGTH + 1, at % LENGTH));
        independent("key index", &|at| reference(at / LENGTH, at % LENGTH + 1));
        independent("query and key", &|at| reference(at / LENGTH + 1, at % LENGTH + 1));
    }
}
