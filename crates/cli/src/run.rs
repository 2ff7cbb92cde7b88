//! A run, on the rank that this process is: made, trained, saved and exported. All ranks do this at the same time, and the
//! first also writes and tells.

use crate::advice;
use crate::balance::{Account, Spent};
use crate::batches::{Batches, Share};
use crate::early_stop::{Stopped, Watch};
use crate::exact::Exact;
use crate::failure::{Failure, Outcome};
use crate::finish;
use crate::job::{Exactness, ExportType};
use crate::profile::Peak;
use crate::progress::Progress;
use crate::resident;
use crate::run_folder::{Metrics, RunFolder, StepMetrics};
use crate::saves::Saves;
use crate::seat::{Seat, device};
use crate::setup::Setup;
use crate::train::Checked;
use crate::wire::Wire;
use indicatif::ProgressDrawTarget;
use memwall_checkpoint::{Export, FloatType, ModelFile, Pace, RunState, Saving, Store, write_model};
use memwall_data::{Dataset, Tokenizer};
use memwall_engine::{EngineError, MicroBatch, Prediction, Rank};
use memwall_tensor::Cpu;
use memwall_tensor::device::Memory;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Carries out a job that has been checked, from a checkpoint or from the beginning.
///
/// # Errors
/// Whatever ends the run before its end.
pub(crate) fn run(
    checked: &Checked,
    folder: &RunFolder,
    from: Option<u64>,
    peak: Peak,
    seat: Seat,
) -> Result<(), Failure> {
    let (setup, prediction) = (&checked.setup, &checked.prediction);
    let Seat { share, groups, fabric, stop, stop_after, screen } = seat;
    let device = device(setup, share.rank, fabric.as_ref())?;
    let required = setup.job.memory.exact == Exactness::Require;
    let mut exact = Exact::new(device.ledger().clone(), required);
    let mut made = None;
    let begun = exact.during("at the start", &prediction.events.init, 1, || {
        made = Some(Rank::new(device, groups, setup.spec.clone(), setup.settings)?);
        Ok::<(), EngineError>(())
    });
    Seat::tell(fabric.as_ref(), share.rank, begun)?;
    let Some(rank) = made else { return Err(Failure::Failed("there is no rank".into())) };
    let mut run = Run {
        setup,
        data: &checked.data,
        folder,
        store: folder.store(&setup.job),
        saving: None,
        saves: Saves::default(),
        rank,
        share,
        prediction,
        resident: resident::Peak::default(),
        exact,
        wire: Wire::new(prediction.step_traffic),
        spent: Spent::default(),
        peak,
        consumed: (0, 0),
        watch: Watch::new(setup.job.train.stop, setup.job.train.evaluate_every),
        stop,
        stop_after,
    };
    let outcome = run.whole(from, checked.weights.as_ref(), &checked.tokenizer, screen);
    if outcome.is_err() && fabric.is_none() {
        // What is being saved is of a step that was good. What failed first is what is told.
        let _ = run.finish_saving();
    }
    let ended = Seat::tell(fabric.as_ref(), share.rank, outcome)?;
    // Its memory goes before a sample takes some.
    drop(run);
    if !ended {
        return Ok(());
    }
    // The run is done and saved: a sample that cannot be had does not make it a failure.
    if share.rank == 0
        && let Err(e) = finish::sample(setup, folder, &checked.data, &checked.tokenizer)
    {
        say!("sample     none: {e}");
    }
    Ok(())
}

/// A run that has started.
pub(crate) struct Run<'a> {
    pub(crate) setup: &'a Setup,
    data: &'a Dataset,
    pub(crate) folder: &'a RunFolder,
    store: Store,
    /// The checkpoint that is being written.
    saving: Option<Saving>,
    /// What checkpoints have taken so far.
    pub(crate) saves: Saves,
    pub(crate) rank: Rank<Cpu>,
    pub(crate) share: Share,
    pub(crate) prediction: &'a Prediction,
    /// What the process has taken.
    pub(crate) resident: resident::Peak,
    /// Whether memory is what was predicted.
    pub(crate) exact: Exact,
    /// Whether bytes on the wire are.
    pub(crate) wire: Wire,
    /// What the steps' time went into.
    pub(crate) spent: Spent,
    /// What MFU refers to.
    pub(crate) peak: Peak,
    /// Samples and valid tokens consumed so far, over all ranks.
    pub(crate) consumed: (u64, u64),
    /// Sees whether the run is to stop early.
    watch: Watch,
    stop: Arc<AtomicBool>,
    stop_after: Option<u64>,
}

/// How the loop of steps ended.
pub(crate) struct End {
    pub(crate) seconds: f64,
    pub(crate) steps: u64,
    /// Why it ended before its length, if it did.
    pub(crate) stopped: Option<Stopped>,
    /// Whether there is more to train, another time.
    pub(crate) more: bool,
}

impl Run<'_> {
    /// Whether this rank is the one that writes and tells.
    pub(crate) fn leads(&self) -> bool {
        self.share.rank == 0
    }

    /// From its first values to its summary. Returns whether it has come to its end.
    fn whole(
        &mut self,
        from: Option<u64>,
        weights: Option<&ModelFile>,
        tokenizer: &Tokenizer,
        screen: Option<ProgressDrawTarget>,
    ) -> Result<bool, Failure> {
        self.load(from, weights)?;
        self.rank.compare_state()?;
        let done = self.rank.steps_done();
        say!("run        {}", self.folder.root().display());
        let mut metrics = None;
        if self.leads() {
            self.folder.write_job(&self.setup.resolved)?;
            metrics = Some(Metrics::open(self.folder, done)?);
        }
        // Every rank decides by itself when to stop early, from the same losses.
        if self.setup.job.train.stop.is_some() {
            let evaluations = Metrics::evaluations(self.folder, done)?;
            evaluations.iter().for_each(|(step, loss)| self.watch.evaluated(*step, *loss));
        }
        let end = self.train(metrics.as_mut(), screen)?;
        // The last that ranks do together: none has to wait while the first exports.
        let account = finish::account(self, &end);
        let ranks = self.rank.gather_statistics(account.to_numbers())?;
        let Some(metrics) = metrics else { return Ok(!end.more) };
        if !end.more {
            self.export(tokenizer, weights)?;
            self.look();
        }
        finish::report(self, ranks.into_iter().map(Account::from_numbers).collect(), &metrics, &end)?;
        Ok(!end.more)
    }

    /// Loads a checkpoint, a model folder, or random values.
    fn load(&mut self, from: Option<u64>, weights: Option<&ModelFile>) -> Result<(), Failure> {
        if let Some(step) = from {
            let state = self.store.load(step, &mut self.rank).refuse()?;
            // A run that has done no step may have any data.
            if !state.data.is_empty() && state.data != self.data.fingerprint() {
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

    fn train(
        &mut self,
        mut metrics: Option<&mut Metrics>,
        screen: Option<ProgressDrawTarget>,
    ) -> Result<End, Failure> {
        let steps = self.setup.settings.schedule.steps;
        let mut progress = Progress::new(steps, self.rank.steps_done(), screen);
        let start = Instant::now();
        let first = self.rank.steps_done();
        while self.rank.steps_done() < steps && self.watch.stopped().is_none() {
            let mut m = self.step().inspect_err(|_| progress.end())?;
            let step = m.report.step;
            if step == first + 1 {
                self.look();
            }
            if self.setup.job.data.evaluates()
                && (step == steps || due(step, self.setup.job.train.evaluate_every))
            {
                let loss = self.evaluate().inspect_err(|_| progress.end())?;
                m.evaluation_loss = Some(loss);
                self.watch.evaluated(step, loss);
                self.look();
            }
            let last = step == steps || self.watch.stopped().is_some();
            if let Some(metrics) = &mut metrics {
                metrics.push(&m)?;
            }
            progress.step(&m);
            if due(step, self.setup.job.parallel.check_every) {
                self.rank.compare_state().inspect_err(|_| progress.end())?;
            }
            // Whether to stop is asked once a step, so that all ranks stop after the same one.
            let stopping = !last && self.rank.agree(self.stop.load(Ordering::Relaxed))?;
            let more = !last && self.stop_after.is_some_and(|n| step - first >= n);
            if let Some(saving) = &mut self.saving {
                saving.check().fail().inspect_err(|_| progress.end())?;
            }
            if last || stopping || more || due(step, self.setup.job.checkpoint.every) {
                if let Some(metrics) = &metrics {
                    metrics.sync()?;
                }
                let pace = if last || stopping || more { Pace::Now } else { Pace::Background };
                self.save(pace).inspect_err(|_| progress.end())?;
                self.look();
            }
            if stopping {
                progress.end();
                return Err(Failure::Interrupted(format!(
                    "stopped after step {step}, which is saved; go on with --resume"
                )));
            }
            if more {
                break;
            }
        }
        progress.end();
        Ok(End {
            seconds: start.elapsed().as_secs_f64(),
            steps: self.rank.steps_done() - first,
            stopped: self.watch.stopped(),
            more: self.rank.steps_done() < steps && self.watch.stopped().is_none(),
        })
    }

    fn step(&mut self) -> Result<StepMetrics, Failure> {
        let first = self.consumed.0;
        let t = &self.setup.job.train;
        let batches = batches(self.setup, self.data, self.share);
        let (traffic, clock) = (self.rank.groups().traffic(), self.rank.groups().clock());
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
        let elapsed = start.elapsed();
        let groups = self.rank.groups();
        self.wire.step(report.step, traffic, groups.traffic());
        self.spent.step(elapsed, clock, groups.clock());
        let seconds = elapsed.as_secs_f64();
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
        let batches = batches(self.setup, self.data, self.share);
        let n = batches.evaluation_batches(self.setup.job.train.evaluate_batches);
        let own = batches.evaluation_share(n);
        let mut load = |micro: usize, b: &mut MicroBatch<'_>| batches.fill_evaluation(n, micro, b);
        let rank = &mut self.rank;
        let loss = self.exact.during(
            &format!("evaluation after step {}", rank.steps_done()),
            &self.prediction.events.evaluation,
            own as u64,
            || rank.evaluate(own, &mut load, batches.evaluation_valid(n)),
        );
        batches.check().map_err(|e| Failure::Failed(e.to_string()))?;
        loss
    }

    /// Sees how much memory the process has.
    fn look(&mut self) {
        let shared = self.rank.device().shared_region().and_then(|region| region.resident());
        self.resident.look(shared);
    }

    /// Begins a checkpoint, once the one before is complete; at this pace `Now`, completes it.
    fn save(&mut self, pace: Pace) -> Result<(), Failure> {
        self.finish_saving()?;
        let state = RunState {
            step: self.rank.steps_done(),
            samples: self.consumed.0,
            tokens: self.consumed.1,
            data: self.data.fingerprint().to_owned(),
            job: self.setup.resolved.to_toml(),
            code: crate::VERSION.into(),
        };
        self.saving = Some(self.store.begin(&mut self.rank, &state, pace).fail()?);
        if pace == Pace::Now { self.finish_saving() } else { Ok(()) }
    }

    /// Waits until the checkpoint that is being written is complete.
    fn finish_saving(&mut self) -> Result<(), Failure> {
        if let Some(saving) = self.saving.take() {
            let saved = saving.finish(&mut self.rank).fail()?;
            self.saves.add(&saved);
        }
        Ok(())
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
        if self.rank.holds_all() {
            write_model(disk, &partial, &mut &self.rank, &export).fail()?;
        } else {
            // What ranks hold in parts they have just saved.
            let step = self.rank.steps_done();
            self.store.verify(step).fail()?;
            write_model(disk, &partial, &mut &self.store.open(step).fail()?, &export).fail()?;
        }
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

/// The run's samples in their order, and a rank's share of them.
fn batches<'a>(setup: &Setup, data: &'a Dataset, share: Share) -> Batches<'a> {
    let t = &setup.job.train;
    Batches::new(data, t.global_batch, t.micro_batch, share)
}

fn due(step: u64, every: Option<u64>) -> bool {
    every.is_some_and(|n| step.is_multiple_of(n))
}
