//! How long a prediction takes: medians, in microseconds, of many runs of it.
//!
//!     cargo run --release -p memwall-engine --example plan_speed

use memwall_comm::DryGroup;
use memwall_engine::{
    AdamWSettings, Decay, Keep, MicroBatch, Precision, Rank, Schedule, Settings, predict, predict_by_running,
};
use memwall_model::{ModelConfig, ModelSpec};
use memwall_tensor::device::Memory;
use memwall_tensor::{Category, DType, Description, Dry, Shape, Tensor, ops};
use std::time::Instant;

const DESCRIPTION: Description = Description { threads: 8 };
const BUDGET: u64 = 1 << 46;

/// The dims of Llama 3.1 8B (config.json of meta-llama/Llama-3.1-8B).
fn llama_8b() -> ModelSpec {
    let config = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072}"#;
    ModelSpec::new(ModelConfig::from_json(config).expect("a config"))
}

fn settings(keep: Keep) -> Settings {
    Settings {
        micro_batch: 1,
        micro_batches: 1,
        sequence: 8192,
        precision: Precision::Bf16,
        gradients: Precision::Bf16,
        deterministic: false,
        clip: Some(1.0),
        seed: 1,
        keep,
        optimizer: AdamWSettings { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
        schedule: Schedule { peak: 1e-4, last: 0.0, warmup: 0, steps: 100, decay: Decay::Cosine },
    }
}

/// Median of `n` runs, and the fastest and slowest tenth, microseconds each.
fn times(n: usize, mut run: impl FnMut()) -> [f64; 3] {
    let mut micros: Vec<f64> = (0..n)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    micros.sort_by(f64::total_cmp);
    [n / 2, n / 10, n - 1 - n / 10].map(|i| micros[i])
}

fn show(what: &str, [median, fast, slow]: [f64; 3]) {
    println!("{what:<58} {median:>10.3} us  ({fast:.3} to {slow:.3})");
}

fn main() {
    let spec = llama_8b();
    for (name, keep) in [("", Keep::ALL), (", full recompute", Keep::INPUT)] {
        let s = settings(keep);
        let whole = |evaluates| {
            predict(&spec, &s, DESCRIPTION, BUDGET, evaluates).expect("it fits");
        };
        show(&format!("8 B model, one device{name}: a step, composed"), times(1000, || whole(false)));
        show(&format!("8 B model, one device{name}: with an evaluation"), times(1000, || whole(true)));
        let long = || {
            predict_by_running(&spec, &s, DESCRIPTION, BUDGET, false).expect("it fits");
        };
        show(&format!("8 B model, one device{name}: all units run, twice"), times(200, long));
    }

    // One step after the rank is made, all units run: operations and what they allocate.
    let device = Dry::new(DESCRIPTION, BUDGET).expect("it fits");
    let ledger = device.ledger().clone();
    let mut rank =
        Rank::new(device, Box::new(DryGroup::new(0, 1)), spec, settings(Keep::ALL)).expect("it fits");
    let mut load = |_: usize, _: &mut MicroBatch<'_>| {};
    ledger.record();
    rank.step(&mut load, 1).expect("it fits");
    let events = ledger.recorded().len();
    show(
        &format!("the same, only the step ({events} takes and gives back)"),
        times(500, || {
            rank.step(&mut load, 1).expect("it fits");
        }),
    );

    // Single operations, a thousand at a time.
    let device = Dry::new(DESCRIPTION, BUDGET).expect("it fits");
    let new = |shape| {
        Tensor::new(&device, shape, DType::F32, memwall_layout::Placements::REPLICATED, Category::Weights)
            .expect("it fits")
    };
    let (x, w) = (new(Shape::matrix(512, 256)), new(Shape::matrix(1024, 256)));
    let mut y = new(Shape::matrix(512, 1024));
    let thousand = |f: &mut dyn FnMut()| times(300, || (0..1000).for_each(|_| f())).map(|t| t / 1000.0);
    show(
        "dry linear that allocates its result and drops it",
        thousand(&mut || {
            ops::linear(&device, x.view(), w.view()).expect("it fits");
        }),
    );
    show(
        "dry linear into a tensor that is there",
        thousand(&mut || {
            ops::linear_into(&device, x.view(), w.view(), y.view_mut(), false).expect("it fits");
        }),
    );
    show(
        "dry copy that allocates its result and drops it",
        thousand(&mut || {
            ops::copy_like(&device, x.view()).expect("it fits");
        }),
    );
}
