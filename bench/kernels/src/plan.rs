//! How long predictions take: of a model of 8 billion parameters, and of single dry operations.

use crate::{Common, Fault, quiet, write_markdown};
use memwall_cli::profile::{self, Machine};
use memwall_comm::Groups;
use memwall_engine::{
    AdamWSettings, Decay, Keep, MicroBatch, Place, Precision, Rank, Schedule, Settings, Zero, predict,
    predict_by_running,
};
use memwall_layout::Placements;
use memwall_model::{ModelSpec, Preset};
use memwall_tensor::device::Memory;
use memwall_tensor::{Category, DType, Description, Dry, Shape, Tensor, ops};
use std::fmt::Write;
use std::time::Instant;

const MODEL: &str = "llama-3.1-8b";
const DESCRIPTION: Description = Description { threads: 8 };
const BUDGET: u64 = 1 << 46;
/// Operations that are timed together.
const OPERATIONS: usize = 1000;

fn settings(keep: Keep) -> Settings {
    Settings {
        micro_batch: 1,
        micro_batches: 1,
        sequence: 8192,
        precision: Precision::Bf16,
        gradients: Precision::Bf16,
        deterministic: false,
        zero: Zero::None,
        clip: Some(1.0),
        seed: 1,
        snapshot: 0,
        keep,
        optimizer: AdamWSettings { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
        schedule: Schedule { peak: 1e-4, last: 0.0, warmup: 0, steps: 100, decay: Decay::Cosine },
    }
}

/// A table of medians.
struct Table {
    runs: usize,
    text: String,
}

impl Table {
    /// Adds a row: microseconds of one of `parts` parts of `run`, the median of all runs and its fastest and slowest tenth.
    fn row(&mut self, what: &str, parts: usize, mut run: impl FnMut()) {
        let mut micros: Vec<f64> = (0..self.runs)
            .map(|_| {
                let start = Instant::now();
                run();
                start.elapsed().as_secs_f64() * 1e6 / parts as f64
            })
            .collect();
        micros.sort_by(f64::total_cmp);
        let n = self.runs;
        let [median, fast, slow] = [n / 2, n / 10, n - 1 - n / 10].map(|i| micros[i]);
        let _ = writeln!(self.text, "| {what} | {median:.3} | {fast:.3} | {slow:.3} |");
    }
}

/// Prints the table.
///
/// # Errors
/// Other processes use the machine; a prediction fails.
pub(crate) fn plan(common: &Common) -> Result<(), Fault> {
    quiet::require(common)?;
    let others = quiet::Others::new(&[]);
    let runs = if common.tiny { 3 } else { 100 * common.rounds as usize };
    let mut table = Table { runs, text: String::new() };
    let preset = Preset::find(MODEL).ok_or("the model is not known")?;
    let spec = ModelSpec::new(preset.model_config()?);
    for (name, keep) in [("", Keep::ALL), (", full recompute", Keep::INPUT)] {
        let s = settings(keep);
        let whole =
            |evaluates| predict(&spec, &s, Place::SINGLE, DESCRIPTION, BUDGET, evaluates).expect("it fits");
        table.row(&format!("a step of {MODEL}{name}, composed"), 1, || drop(whole(false)));
        table.row(&format!("the same{name}, with an evaluation"), 1, || drop(whole(true)));
        table.row(&format!("the same{name}, all units run, two steps"), 1, || {
            predict_by_running(&spec, &s, Place::SINGLE, DESCRIPTION, BUDGET, false).expect("it fits");
        });
    }
    steps(&mut table, spec)?;
    operations(&mut table)?;
    let text = format!(
        "{}; {}; memwall {}; medians of {runs} runs; other processes used {:.2} cores\n\n| what | us | fastest tenth | slowest tenth |\n|---|---|---|---|\n{}",
        profile::today(),
        Machine::this(),
        env!("CARGO_PKG_VERSION"),
        others.cores(),
        table.text
    );
    println!("{text}");
    write_markdown(common, &text)
}

/// One step after the rank is made, all units run: operations and what they allocate.
fn steps(table: &mut Table, spec: ModelSpec) -> Result<(), Fault> {
    let device = Dry::new(DESCRIPTION, BUDGET)?;
    let ledger = device.ledger().clone();
    let mut rank = Rank::new(device, Groups::solo(), spec, settings(Keep::ALL))?;
    let mut load = |_: usize, _: &mut MicroBatch<'_>| {};
    ledger.record();
    rank.step(&mut load, 1)?;
    let events = ledger.recorded().len();
    table.row(&format!("only its second step, all units run: {events} takes and gives back"), 1, || {
        rank.step(&mut load, 1).expect("it fits");
    });
    Ok(())
}

/// Single operations, many at a time.
fn operations(table: &mut Table) -> Result<(), Fault> {
    let device = Dry::new(DESCRIPTION, BUDGET)?;
    let new = |shape| Tensor::new(&device, shape, DType::F32, Placements::REPLICATED, Category::Weights);
    let (x, w) = (new(Shape::matrix(512, 256))?, new(Shape::matrix(1024, 256))?);
    let mut y = new(Shape::matrix(512, 1024))?;
    let mut many = |what: &str, run: &mut dyn FnMut()| {
        table.row(what, OPERATIONS, || (0..OPERATIONS).for_each(|_| run()));
    };
    many("a dry `linear` that allocates its result and drops it", &mut || {
        ops::linear(&device, x.view(), w.view()).expect("it fits");
    });
    many("a dry `linear` into a tensor that is there", &mut || {
        ops::linear_into(&device, x.view(), w.view(), y.view_mut(), false).expect("it fits");
    });
    many("a dry copy that allocates its result and drops it", &mut || {
        ops::copy_like(&device, x.view()).expect("it fits");
    });
    Ok(())
}
