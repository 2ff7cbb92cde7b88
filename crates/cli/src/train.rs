//! `memwall train`: checks, says what it will do, trains, and says what came out.

use crate::advice;
use crate::args::TrainArgs;
use crate::batches::Batches;
use crate::data;
use crate::early_stop::{Stopped, Watch};
use crate::exact::Exact;
use crate::failure::{Failure, Outcome};
use crate::finish;
use crate::job::{Exactness, ExportType, ModelSource, show_bytes};
use crate::machine;
use crate::profile::{self, Peak};
use crate::progress::Progress;
use crate::report;
use crate::resident;
use crate::run_folder::{Metrics, RunFolder, StepMetrics, read_back};
use crate::setup::Setup;
use memwall_checkpoint::{Export, FloatType, ModelFile, RunState, Store, write_model};
use memwall_comm::Groups;
use memwall_data::{Dataset, Tokenizer};
use memwall_engine::{Decay, EngineError, MicroBatch, Prediction, Rank};
use memwall_tensor::Cpu;
use memwall_tensor::device::Memory;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Keys that may change when a run goes on: they change what it costs or how long it is, not what it learns
/// at a step. (With a schedule that decays, other `train.steps` change the rates of the steps to come; the
/// run says so.)
const CHANGEABLE: [&str; 13] = [
    "data.cache",
    "train.steps",
    "train.evaluate_every",
    "train.evaluate_batches",
    "train.stop_patience",
    "train.stop_min_delta",
    "memory.budget",
    "memory.recompute",
    "memory.exact",
    "checkpoint.every",
    "checkpoint.keep",
    "run.dir",
    "run.threads",
];

/// Trains as the job says.
pub(crate) fn train(args: &TrainArgs) -> Result<(), Failure> {
    let setup = Setup::read(&args.job.job, &args.job.set)?;
    let prediction =
        setup.predict(setup.budget).map_err(|e| Failure::Refused(advice::does_not_fit(&setup, &e)))?;
    let tokenizer = Tokenizer::load(&setup.job.data.tokenizer)?;
    let weights = match &setup.job.model {
        ModelSource::Folder(folder) => Some(ModelFile::open(folder, &setup.spec).refuse()?),
        ModelSource::ConfigFile(_) | ModelSource::ConfigTable(_) => None,
    };
    let data = data::dataset(&setup.job, &tokenizer, setup.spec.config.vocab_size)?;
    let setup = setup.with_data(data.epoch_samples())?;
    let folder = RunFolder::enter(&setup.job.run.dir)?;
    let store = folder.store(setup.job.checkpoint.keep);
    let from = starting_point(&setup, &folder, &store, args.resume)?;

    tell!("{}", report::model(&setup.spec, setup.settings.sequence));
    tell!("{}", data_lines(&data));
    tell!("{}", report::schedule(&setup));
    tell!("{}", report::predicted(&prediction, setup.limit()));
    let available = machine::available_memory();
    if prediction.run.reserved > available {
        complain!(
            "memwall: the budget allows it, but this machine has only {} available: the system may swap or end the run",
            show_bytes(available)
        );
    }
    let peak = profile::peak(setup.description).map_err(|e| Failure::Failed(e.to_string()))?;
    say!(
        "machine    {} threads, {}FLOP/s in matrix products, which MFU refers to ({})",
        setup.description.threads,
        report::count(peak.flops),
        peak.source
    );

    let device = Cpu::new(setup.description, setup.budget).map_err(|e| Failure::Failed(e.to_string()))?;
    // With fewer threads than cores, which cores they should have is nobody's to say: another run may be on the first ones.
    let cores = memwall_tensor::allowed_cores();
    if cores.len() == setup.description.threads {
        device.pin(&cores);
    }
    let required = setup.job.memory.exact == Exactness::Require;
    let mut exact = Exact::new(device.ledger().clone(), required);
    let rank = exact.during("at the start", &prediction.events.init, 1, || {
        Rank::new(device, Groups::solo(), setup.spec.clone(), setup.settings)
    })?;
    let mut run = Run {
        setup: &setup,
        data: &data,
        folder: &folder,
        store,
        rank,
        prediction: &prediction,
        resident: resident::Peak::default(),
        exact,
        peak,
        consumed: (0, 0),
        watch: Watch::new(setup.job.train.stop, setup.job.train.evaluate_every),
    };
    run.load(from, weights.as_ref())?;
    say!("run        {}", folder.root().display());
    folder.write_job(&setup.resolved)?;
    let mut metrics = Metrics::open(&folder, run.rank.steps_done())?;
    if setup.job.train.stop.is_some() {
        metrics
            .evaluations(run.rank.steps_done())?
            .iter()
            .for_each(|(step, loss)| run.watch.evaluated(*step, *loss));
    }
    let end = run.train(&mut metrics)?;
    run.export(&tokenizer, weights.as_ref())?;
    run.resident.look();
    finish::report(&run, &metrics, &end)?;
    // Its memory goes before a sample takes some.
    drop(run);
    // The run is done and saved: a sample that cannot be had does not make it a failure.
    if let Err(e) = finish::sample(&setup, &folder, &data, &tokenizer) {
        say!("sample     none: {e}");
    }
    Ok(())
}

fn data_lines(data: &Dataset) -> String {
    let (mut documents, mut tokens) = (0, 0);
    for size in data.train_sizes() {
        (documents, tokens) = (documents + size.documents, tokens + size.tokens);
    }
    let epoch = match data.epoch_samples() {
        Some(samples) => format!("{samples} sequences an epoch"),
        None => format!("{} sources", data.train_sizes().len()),
    };
    let held = data.validation_size();
    format!(
        "data       {documents} documents, {} tokens to train on ({epoch}); {} documents, {} tokens held out\n",
        report::count(tokens as f64),
        held.documents,
        report::count(held.tokens as f64),
    )
}

/// The checkpoint to go on from, or `None` to begin.
fn starting_point(
    setup: &Setup,
    folder: &RunFolder,
    store: &Store,
    resume: bool,
) -> Result<Option<u64>, Failure> {
    let root = folder.root().display();
    let (before, latest) = (folder.job()?, store.latest().refuse()?);
    if !resume {
        if before.is_none() && latest.is_none() {
            return Ok(None);
        }
        return Err(Failure::Refused(format!(
            "{root} already holds a run; give --resume to go on with it, or another run.dir \
             (--set run.dir=DIR)"
        )));
    }
    let Some(before) = before else {
        return Err(Failure::Refused(format!("there is no run in {root} to go on with; leave out --resume")));
    };
    let changed = setup.resolved.differences(&before);
    if let Some((_, now, then)) = changed.iter().find(|(key, _, _)| key == "train.steps")
        && setup.settings.schedule.decay != Decay::Constant
    {
        complain!(
            "memwall: train.steps was {then}, now {now}: learning rates of the steps to come follow the new length"
        );
    }
    let forbidden: Vec<String> = changed
        .into_iter()
        .filter(|(key, _, _)| !CHANGEABLE.contains(&key.as_str()))
        .map(|(key, now, then)| format!("{key} was {then}, now {now}"))
        .collect();
    if !forbidden.is_empty() {
        return Err(Failure::Refused(format!(
            "--resume goes on with the job of {root}, but {}; take these back, or begin a run in another run.dir",
            forbidden.join("; ")
        )));
    }
    Ok(latest)
}

/// A run that has started.
pub(crate) struct Run<'a> {
    pub(crate) setup: &'a Setup,
    data: &'a Dataset,
    pub(crate) folder: &'a RunFolder,
    store: Store,
    pub(crate) rank: Rank<Cpu>,
    pub(crate) prediction: &'a Prediction,
    /// What the process has taken.
    pub(crate) resident: resident::Peak,
    /// Whether memory is what was predicted.
    pub(crate) exact: Exact,
    /// What MFU refers to.
    pub(crate) peak: Peak,
    /// Samples and valid tokens consumed so far.
    pub(crate) consumed: (u64, u64),
    /// Sees whether the run is to stop early.
    watch: Watch,
}

/// How the loop of steps ended.
pub(crate) struct End {
    pub(crate) seconds: f64,
    pub(crate) steps: u64,
    /// Why it ended before its length, if it did.
    pub(crate) stopped: Option<Stopped>,
}

impl Run<'_> {
    /// Loads a checkpoint, a model folder, or random values.
    fn load(&mut self, from: Option<u64>, weights: Option<&ModelFile>) -> Result<(), Failure> {
        if let Some(step) = from {
            let state = self.store.load(step, &mut self.rank).refuse()?;
            if state.data != self.data.fingerprint() {
                return Err(Failure::Refused(
                    "the data has changed since the checkpoint was written, so the order of samples cannot go on; \
                     restore the files of data.train, or begin a run in another run.dir"
                        .into(),
                ));
            }
            self.consumed = (state.samples, state.tokens);
            say!("resume     from the checkpoint of step {step}");
            return Ok(());
        }
        match weights {
            None => self.rank.initialize(),
            Some(file) => file.load(&mut self.rank).refuse()?,
        }
        Ok(())
    }

    fn train(&mut self, metrics: &mut Metrics) -> Result<End, Failure> {
        let steps = self.setup.settings.schedule.steps;
        let stop = stop_signal();
        let mut progress = Progress::new(steps, self.rank.steps_done());
        let start = Instant::now();
        let first = self.rank.steps_done();
        while self.rank.steps_done() < steps && self.watch.stopped().is_none() {
            let mut m = self.step().inspect_err(|_| progress.end())?;
            let step = m.report.step;
            if step == first + 1 {
                self.resident.look();
            }
            if self.setup.job.data.evaluates()
                && (step == steps || due(step, self.setup.job.train.evaluate_every))
            {
                let loss = self.evaluate()?;
                m.evaluation_loss = Some(loss);
                self.watch.evaluated(step, read_back(loss));
                self.resident.look();
            }
            let last = step == steps || self.watch.stopped().is_some();
            metrics.push(&m)?;
            progress.step(&m);
            let stopping = stop.load(Ordering::Relaxed) && !last;
            if last || stopping || due(step, self.setup.job.checkpoint.every) {
                metrics.sync()?;
                self.save()?;
                self.resident.look();
            }
            if stopping {
                progress.end();
                return Err(Failure::Interrupted(format!(
                    "stopped after step {step}, which is saved; go on with --resume"
                )));
            }
        }
        progress.end();
        Ok(End {
            seconds: start.elapsed().as_secs_f64(),
            steps: self.rank.steps_done() - first,
            stopped: self.watch.stopped(),
        })
    }

    fn step(&mut self) -> Result<StepMetrics, Failure> {
        let first = self.consumed.0;
        let t = &self.setup.job.train;
        let batches = batches(self.setup, self.data);
        let start = Instant::now();
        let tokens = batches.valid(first);
        let mut load = |micro: usize, b: &mut MicroBatch<'_>| batches.fill(first, micro, b);
        let (rank, setup) = (&mut self.rank, self.setup);
        let report = self.exact.during(
            &format!("step {}", rank.steps_done() + 1),
            &self.prediction.events.micro_batch,
            t.micro_batches as u64,
            || rank.step(&mut load, tokens).map_err(|e| explain(setup, e)),
        );
        batches.check().map_err(|e| Failure::Failed(e.to_string()))?;
        let report = report?;
        let seconds = start.elapsed().as_secs_f64();
        self.consumed = (first + t.global_batch as u64, self.consumed.1 + tokens);
        // Padded positions are computed like others, so they count as work.
        let worked = (t.global_batch * self.setup.settings.sequence) as f64;
        let flops = worked * self.setup.spec.flops_per_token(self.setup.settings.sequence) as f64;
        Ok(StepMetrics {
            report,
            tokens,
            seconds,
            mfu: flops / seconds / self.peak.flops,
            evaluation_loss: None,
        })
    }

    fn evaluate(&mut self) -> Result<f64, Failure> {
        let batches = batches(self.setup, self.data);
        let n = batches.evaluation_batches(self.setup.job.train.evaluate_batches);
        let mut load = |micro: usize, b: &mut MicroBatch<'_>| batches.fill_evaluation(micro, b);
        let rank = &mut self.rank;
        let loss = self.exact.during(
            &format!("evaluation after step {}", rank.steps_done()),
            &self.prediction.events.evaluation,
            n as u64,
            || rank.evaluate(n, &mut load, batches.evaluation_valid(n)),
        );
        batches.check().map_err(|e| Failure::Failed(e.to_string()))?;
        loss
    }

    fn save(&self) -> Result<(), Failure> {
        let state = RunState {
            step: self.rank.steps_done(),
            samples: self.consumed.0,
            tokens: self.consumed.1,
            data: self.data.fingerprint().to_owned(),
            job: self.setup.resolved.to_toml(),
        };
        self.store.save(&self.rank, &state).fail().map(|_| ())
    }

    /// Writes the folder that transformers loads as it is.
    fn export(&self, tokenizer: &Tokenizer, source: Option<&ModelFile>) -> Result<(), Failure> {
        let disk = self.folder.disk();
        let partial = self.folder.path("export.partial");
        disk.remove_folder(&partial).fail()?;
        let export = Export {
            dtype: match self.setup.job.export.dtype {
                ExportType::Float32 => FloatType::F32,
                ExportType::BFloat16 => FloatType::BF16,
            },
            max_shard_bytes: self.setup.job.export.max_shard_bytes,
            end_of_document: tokenizer.end_of_document(),
            generation_config: source.and_then(ModelFile::generation_config),
        };
        write_model(disk, &partial, &self.rank, &export).fail()?;
        tokenizer.write_hf_files(&partial).map_err(|e| Failure::Failed(e.to_string()))?;
        self.folder.swap_in(&partial, "export")
    }
}

/// What to say of a step that failed.
fn explain(setup: &Setup, e: EngineError) -> Failure {
    match e.out_of_memory() {
        Some(_) => Failure::Failed(advice::does_not_fit(setup, &e)),
        None => e.into(),
    }
}

/// The run's samples in their order.
fn batches<'a>(setup: &Setup, data: &'a Dataset) -> Batches<'a> {
    let t = &setup.job.train;
    Batches::new(data, t.global_batch, t.micro_batch)
}

fn due(step: u64, every: Option<u64>) -> bool {
    every.is_some_and(|n| step.is_multiple_of(n))
}

/// Set when the user presses Ctrl-C; a second time ends the process at once.
fn stop_signal() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    // Without a handler Ctrl-C ends the process as usual, and the last checkpoint stands.
    let _ = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        complain!("stopping after this step (again to stop at once)");
    });
    stop
}
