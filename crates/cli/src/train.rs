//! `memwall train`: checks, says what it will do, and has it done: by this process, or by ranks that it supervises.

use crate::advice;
use crate::args::TrainArgs;
use crate::data;
use crate::failure::{Failure, Outcome};
use crate::figures::counted;
use crate::job::{ModelSource, show_bytes};
use crate::layout;
use crate::machine;
use crate::profile::{self, Peak};
use crate::ranks::{self, Heir, Kept};
use crate::report;
use crate::resume::starting_point;
use crate::run::run;
use crate::run_folder::RunFolder;
use crate::seat::Seat;
use crate::setup::Setup;
use crate::stop;
use memwall_checkpoint::ModelFile;
use memwall_data::{Dataset, Tokenizer};
use memwall_engine::Prediction;
use std::time::Duration;

/// Trains as the job says.
pub(crate) fn train(args: &TrainArgs) -> Result<(), Failure> {
    if let Some(heir) = Heir::take()? {
        return as_rank(args, heir);
    }
    let checked = Checked::new(args, None)?;
    let setup = &checked.setup;
    let folder = RunFolder::enter(&setup.job.run.dir)?;
    let from = starting_point(setup, &folder, &folder.store(&setup.job), args.resume)?;
    let peak = tell(&checked)?;
    if setup.ranks() == 1 {
        let stop = stop::signal();
        return run(&checked, &folder, from, peak, Seat { stop_after: args.stop_after, ..Seat::alone(stop) });
    }
    // What was read to check the job is the ranks' to read again.
    let Checked { setup, .. } = checked;
    ranks::supervise(&Kept { setup: &setup, folder: &folder, from, peak })
}

/// Trains as one rank of several: the supervisor has checked the job and found out where it begins.
fn as_rank(args: &TrainArgs, mut heir: Heir) -> Result<(), Failure> {
    let stop = heir.stop();
    let checked = Checked::new(args, Some((heir.rank, heir.budget)))?;
    let setup = &checked.setup;
    let timeout = Duration::from_secs(setup.job.parallel.timeout);
    let fabric = heir.fabric(setup.mesh, timeout)?;
    let (share, screen) = (heir.share(setup.mesh), heir.screen());
    let (groups, stop_after) = (fabric.groups(heir.rank), args.stop_after);
    let seat = Seat { share, groups, fabric: Some(fabric), stop, stop_after, screen };
    let folder = RunFolder::inherited(&setup.job.run.dir, heir.lock);
    run(&checked, &folder, heir.from, heir.peak, seat)
}

/// A job and what it reads, all of which has been found to be good.
pub(crate) struct Checked {
    pub(crate) setup: Setup,
    /// What it costs the rank.
    pub(crate) prediction: Prediction,
    pub(crate) tokenizer: Tokenizer,
    /// The model to fine-tune.
    pub(crate) weights: Option<ModelFile>,
    pub(crate) data: Dataset,
}

impl Checked {
    /// Reads and checks a job, for a rank with this number and budget, or for the first.
    pub(crate) fn new(args: &TrainArgs, rank: Option<(usize, u64)>) -> Result<Self, Failure> {
        let read = if args.resume { Setup::read_to_resume } else { Setup::read };
        let mut setup = read(&args.job.job, &args.sets())?;
        let (rank, budget) = rank.unwrap_or((0, setup.budget));
        setup.budget = budget;
        let prediction = setup
            .predict_rank(rank, budget)
            .map_err(|e| Failure::Refused(advice::does_not_fit(&setup, &e)))?;
        let tokenizer = Tokenizer::load(&setup.job.data.tokenizer)?;
        let weights = match &setup.job.model {
            ModelSource::Folder(folder) => Some(ModelFile::open(folder, &setup.spec).refuse()?),
            ModelSource::ConfigFile(_) | ModelSource::ConfigTable(_) => None,
        };
        let data = data::dataset(&setup.job, &tokenizer, setup.spec.config.vocab_size)?;
        let setup = setup.with_data(data.epoch_samples())?;
        Ok(Self { setup, prediction, tokenizer, weights, data })
    }
}

/// Says what the job will do and cost; finds out what MFU refers to.
fn tell(checked: &Checked) -> Result<Peak, Failure> {
    let (setup, prediction) = (&checked.setup, &checked.prediction);
    tell!("{}", report::model(&setup.spec, setup.settings.sequence));
    tell!("{}", data_lines(&checked.data));
    tell!("{}{}", report::schedule(setup), layout::text(setup));
    tell!("{}", report::predicted(prediction, setup.limit()));
    let available = machine::available_memory();
    if prediction.run.reserved.saturating_mul(setup.ranks() as u64) > available {
        complain!(
            "memwall: the budget allows it, but this machine has only {} available: the system may swap or end the run",
            show_bytes(available)
        );
    }
    let threads = setup.threads();
    let peak = profile::peak(threads).map_err(|e| Failure::Failed(e.to_string()))?;
    say!(
        "machine    {}, {}FLOP/s in matrix products, which MFU refers to ({})",
        counted(threads.threads, "thread"),
        report::count(peak.flops),
        peak.source
    );
    Ok(peak)
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
