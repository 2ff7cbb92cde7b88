//! The engine against an independent implementation in float64: logits, loss, every gradient, AdamW.

use super::common::{FOLDERS, Reference, cpu, deviation, settings, weight, without_key_bias};
use memwall_engine::{AdamWSettings, Generator, Schedule, Settings};
use memwall_model::ParamId;

/// Largest deviation of a tensor, relative to its largest element. Rounding to f32 is 6e-8; sums of up to a few
/// hundred terms through two layers leave some tens of it, and the independent implementation's own f32 run
/// deviates from its f64 run by up to 1e-6 (`meta.json`). A wrong term shows at 1e-2 and more.
const TOLERANCE: f64 = 1e-5;

/// How far a parameter may be off after three steps of AdamW under the recipe "plain" (eps 1e-6, no clip), which divides by
/// the root of the second moment: where a gradient `g` is near zero, its rounding error becomes a visible step. The first
/// step is `rate g / (|g| + eps)`; an error `d` of `g` changes it by at most `rate d / (|g| + eps)`. Step 2 divides by
/// `sqrt(v)`, at least 0.70 `|g|` for beta2 = 0.95, a first moment that two errors are in; step 3 by at least 0.56 `|g|` with
/// three: 1 + 2 / 0.70 + 3 / 0.56 = 9.2 of these in all. `d` is what the gradients' test allows. Most elements' gradients are within a
/// factor of ten of the largest: for them this is 1e-5 of absolute size; the independent implementation's own f32 run is
/// off by 3e-5 to 8e-4 where gradients are smallest (`meta.json`), and where that is depends on the order of sums.
const STEPS_OF_AN_ERROR: f64 = 9.2;

#[test]
fn logits_equal_the_reference() {
    for name in FOLDERS {
        let r = Reference::read(name);
        let (ids, want) = (r.tokens("input_ids", 0), r.result("logits.f64"));
        let vocabulary = r.spec.config.vocab_size;
        for (row, ids) in ids.chunks(16).enumerate() {
            // Token by token, so that the key/value cache is checked too.
            let mut g = Generator::new(cpu(2), &r.spec, 16).unwrap();
            r.load(&mut g);
            for (t, id) in ids.iter().enumerate() {
                let at = (row * 16 + t) * vocabulary;
                let d = deviation(&g.read(&[*id]).unwrap(), &want[at..at + vocabulary]);
                assert!(d < TOLERANCE, "{name}, row {row}, token {t}: {d:e}");
            }
        }
    }
}

#[test]
fn a_prompt_read_at_once_or_in_parts_gives_the_same_logits() {
    let r = Reference::read(FOLDERS[0]);
    let ids = &r.tokens("input_ids", 0)[..16];
    let vocabulary = r.spec.config.vocab_size;
    let want = &r.result("logits.f64")[15 * vocabulary..16 * vocabulary];
    for cut in [1, 5, 15] {
        let mut g = Generator::new(cpu(1), &r.spec, 16).unwrap();
        r.load(&mut g);
        g.read(&ids[..cut]).unwrap();
        assert!(deviation(&g.read(&ids[cut..]).unwrap(), want) < TOLERANCE);
    }
}

#[test]
fn greedy_generation_equals_the_reference() {
    for name in FOLDERS {
        let r = Reference::read(name);
        let want = r.integers("greedy");
        for (row, want) in r.tokens("input_ids", 0).chunks(16).zip(want.chunks(8)) {
            let mut g = Generator::new(cpu(2), &r.spec, 24).unwrap();
            r.load(&mut g);
            let mut logits = g.read(row).unwrap();
            for want in want {
                let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
                assert_eq!(best as i64, *want, "{name}");
                logits = g.read(&[best as i32]).unwrap();
            }
        }
    }
}

#[test]
fn loss_and_every_gradient_equal_the_reference() {
    for name in FOLDERS {
        for deterministic in [false, true] {
            for (targets, prefix, loss) in
                [("targets", "grad.f64.", "loss_f64"), ("targets_masked", "grad_masked.", "loss_masked_f64")]
            {
                let r = Reference::read(name);
                let mut rank = r.rank(Settings { deterministic, ..settings() });
                let report = r.batch(targets, 0).step(&mut rank).unwrap();
                let want = r.meta[loss].as_f64().unwrap();
                assert!((report.loss / want - 1.0).abs() < TOLERANCE, "{name}: {} for {want}", report.loss);
                for (i, p) in r.spec.params.iter().enumerate() {
                    let want = r.result(&format!("{prefix}{}", p.name));
                    let d = deviation(&rank.gradient(ParamId(i)), &want);
                    assert!(d < TOLERANCE, "{name}, {}: {d:e}", p.name);
                }
            }
        }
    }
}

#[test]
fn parameters_after_adamw_with_and_without_clipping_equal_the_reference() {
    let optimizer = AdamWSettings { beta1: 0.9, beta2: 0.999, eps: 1e-5, weight_decay: 0.1 };
    let clip = ("clip", Some(0.25), optimizer, 5e-3);
    let plain = ("plain", None, settings().optimizer, 1e-2);
    for name in FOLDERS {
        for (recipe, clip, optimizer, peak) in [plain, clip] {
            for deterministic in [false, true] {
                let mut r = Reference::read(name);
                if recipe == "plain" {
                    r.spec.params.iter_mut().for_each(|p| p.decay = true);
                }
                let schedule = Schedule { peak, ..settings().schedule };
                let s = Settings { clip, optimizer, schedule, deterministic, ..settings() };
                let mut rank = r.rank(s);
                let meta = &r.meta[format!("adamw_{recipe}")]["f64"];
                for k in 0..3 {
                    let report = r.batch("targets", k).step(&mut rank).unwrap();
                    let loss = meta["losses"][k].as_f64().unwrap();
                    let norm = meta["grad_norms_before_clip"][k].as_f64().unwrap();
                    assert!((report.loss / loss - 1.0).abs() < TOLERANCE, "{name} {recipe} step {k}");
                    assert!(
                        (report.gradient_norm / norm - 1.0).abs() < TOLERANCE,
                        "{name} {recipe} step {k}"
                    );
                }
                for (i, p) in r.spec.params.iter().enumerate() {
                    let want = r.result(&format!("adamw_{recipe}.f64.{}", p.name));
                    let compared = |x: &[f64]| without_key_bias(&p.name, x);
                    let got = compared(&weight(&rank, i).into_iter().map(f64::from).collect::<Vec<_>>());
                    let want = compared(&want);
                    if recipe == "clip" {
                        let d = deviation(&got, &want);
                        assert!(d < TOLERANCE, "{name} {recipe}, {}: {d:e}", p.name);
                        continue;
                    }
                    let largest = |x: &[f64]| x.iter().fold(0f64, |m, x| m.max(x.abs()));
                    let gradient = compared(&r.result(&format!("grad.f64.{}", p.name)));
                    let error = TOLERANCE * largest(&gradient);
                    for (i, g) in gradient.iter().enumerate() {
                        let off = (got[i] - want[i]).abs();
                        let step = STEPS_OF_AN_ERROR * peak * error / (g.abs() + optimizer.eps);
                        assert!(
                            off < TOLERANCE * largest(&want) + step,
                            "{name} {recipe}, element {i} of {}: {off:e} for a gradient of {g:e}",
                            p.name
                        );
                    }
                }
            }
        }
    }
}
