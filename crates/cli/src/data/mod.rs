//! The data of a job: prepared where it is not yet, and cut into samples.

pub(crate) mod inspect;
pub(crate) mod prepare;
mod set;
mod show;

use crate::failure::Failure;
use crate::job::{DataFrom, Job, Packing, SourceJob};
use crate::machine;
use memwall_data::{Cut, Dataset, Prepared, Source, Tokenizer};
use set::PreparedSet;
use show::Show;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Share of the tokens held out of prepared data that has no part to evaluate on, where the job does not say.
const HELD_OUT: f64 = 0.05;

/// Prepared data, to train on and to evaluate on.
pub(crate) struct Gathered {
    /// With their weights.
    pub(crate) train: Vec<(Arc<Prepared>, f64)>,
    pub(crate) evaluation: Option<Arc<Prepared>>,
}

impl Gathered {
    /// Finds the data of a job, or prepares it.
    pub(crate) fn of(job: &Job, tokenizer: &Tokenizer) -> Result<Self, Failure> {
        let gathered = match &job.data.from {
            DataFrom::Prepared(folder) => PreparedSet::read(folder)?.open(folder)?,
            DataFrom::Files { train, evaluation } => {
                let cache = cache(job)?;
                let mut show = Show::new();
                let mut prepare = |source: &SourceJob| {
                    let prepared =
                        files(source).prepare(tokenizer, &cache, &mut |progress| show.progress(&progress));
                    show.end();
                    prepared.map(Arc::new)
                };
                let train =
                    train.iter().map(|s| Ok((prepare(s)?, s.weight))).collect::<Result<_, Failure>>()?;
                Self { train, evaluation: evaluation.as_ref().map(&mut prepare).transpose()? }
            }
        };
        for data in gathered.all() {
            data.expect_tokenizer(tokenizer)?;
        }
        Ok(gathered)
    }

    /// All of it.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Prepared>> {
        self.train.iter().map(|(data, _)| data).chain(&self.evaluation)
    }

    /// Cut as the job says.
    pub(crate) fn dataset(&self, job: &Job) -> Result<Dataset, Failure> {
        let d = &job.data;
        let evaluation = self.evaluation.clone().filter(|_| d.evaluates());
        let validation = match (d.validation, &evaluation) {
            (Some(share), Some(data)) if share > 0.0 => {
                return Err(Failure::Refused(format!(
                    "data.validation = {share:?} contradicts the data to evaluate on that is in {}: leave it out, or \
                     write 0 to train without evaluation",
                    data.folder().display()
                )));
            }
            (Some(share), _) => share,
            (None, Some(_)) => 0.0,
            (None, None) => HELD_OUT,
        };
        let cut = Cut {
            sequence_length: d.sequence_length,
            packing: match d.packing {
                Packing::Packed => memwall_data::Packing::Packed,
                Packing::Documents => memwall_data::Packing::Documents,
            },
            validation,
            seed: job.train.seed,
        };
        Ok(Dataset::new(self.train.clone(), evaluation, cut)?)
    }
}

/// The data of a job for a model with this vocabulary.
pub(crate) fn dataset(job: &Job, tokenizer: &Tokenizer, vocabulary: usize) -> Result<Dataset, Failure> {
    let data = Gathered::of(job, tokenizer)?.dataset(job)?;
    // Ids of the tokenizer that no text has do no harm: many have some that are kept for later.
    if data.max_token() as usize >= vocabulary {
        return Err(Failure::Refused(format!(
            "the data has the token {}, but the model's vocab_size is {vocabulary} (the tokenizer {:?} has {} tokens): \
             give a tokenizer that belongs to the model, or a larger vocab_size",
            data.max_token(),
            job.data.tokenizer,
            tokenizer.vocab_size()
        )));
    }
    Ok(data)
}

/// A source of the job as the data crate takes it.
fn files(source: &SourceJob) -> Source {
    Source { globs: source.files.clone(), base: ".".into(), field: source.field.clone() }
}

/// Folder that prepared data is kept in.
fn cache(job: &Job) -> Result<PathBuf, Failure> {
    if let Some(folder) = &job.data.cache {
        return writable(folder).map(|()| folder.clone()).map_err(|e| {
            Failure::Refused(format!(
                "cannot write to data.cache = {:?}: {e}; give another folder",
                folder.display()
            ))
        });
    }
    let beside = job.run.dir.parent().unwrap_or(Path::new("")).join("data-cache");
    let mut refusals = Vec::new();
    for folder in machine::user_cache().into_iter().chain([beside]) {
        match writable(&folder) {
            Ok(()) => return Ok(folder),
            Err(e) => refusals.push(format!("{}: {e}", folder.display())),
        }
    }
    Err(Failure::Refused(format!(
        "no folder can be written to that prepared data could be kept in ({}); give one (data.cache)",
        refusals.join("; ")
    )))
}

/// Makes a folder, and a file in it that goes at once.
fn writable(folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let probe = folder.join(format!("probe-{}", std::process::id()));
    File::create(&probe)?;
    fs::remove_file(probe)
}
