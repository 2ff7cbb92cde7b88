//! `memwall data prepare`: tokenizes the data of a job before a run needs it.

use super::set::{Member, PreparedSet, SET};
use super::show::Show;
use super::{Gathered, files};
use crate::args::PrepareArgs;
use crate::failure::{Failure, Outcome};
use crate::job::{self, DataFrom, Job, SourceJob, show_bytes};
use crate::report;
use memwall_checkpoint::Disk;
use memwall_data::{Prepared, Tokenizer};
use std::path::{Path, PathBuf};

/// Prepares the data of a job in the cache, or in a folder of its own.
pub(crate) fn prepare(args: &PrepareArgs) -> Result<(), Failure> {
    let job = job::load(&args.job.job, &args.job.set)?.pinned()?.validate()?;
    let DataFrom::Files { train, evaluation } = &job.data.from else {
        return Err(Failure::Refused(
            "data.prepared is prepared already; give data.train to prepare files, or look at it with memwall data \
             inspect"
                .into(),
        ));
    };
    let tokenizer = Tokenizer::load(&job.data.tokenizer)?;
    let gathered = match &args.out {
        Some(folder) => into_folder(folder, train, evaluation.as_ref(), &tokenizer)?,
        None => Gathered::of(&job, &tokenizer)?,
    };
    tell!("{}", summary(&job, &gathered));
    if let Some(folder) = &args.out {
        say!("use it     data.prepared = {:?}", folder.display().to_string());
    }
    Ok(())
}

/// Prepares all sources in one folder, which appears when all is in it.
fn into_folder(
    folder: &Path,
    train: &[SourceJob],
    evaluation: Option<&SourceJob>,
    tokenizer: &Tokenizer,
) -> Result<Gathered, Failure> {
    if folder.exists() {
        return Err(memwall_data::DataError::Exists { path: folder.into() }.into());
    }
    let mut partial = folder.as_os_str().to_owned();
    partial.push(format!(".partial-{}", std::process::id()));
    let partial = PathBuf::from(partial);
    let made = fill(&partial, train, evaluation, tokenizer);
    let placed = made.and_then(|()| {
        std::fs::rename(&partial, folder).map_err(|e| {
            Failure::Refused(format!("cannot write {}: {e}; choose another folder", folder.display()))
        })
    });
    if placed.is_err() && partial.exists() {
        // The reason is told; that this cannot be removed either would hide it.
        let _ = std::fs::remove_dir_all(&partial);
    }
    placed?;
    PreparedSet::read(folder)?.open(folder)
}

fn fill(
    folder: &Path,
    train: &[SourceJob],
    evaluation: Option<&SourceJob>,
    tokenizer: &Tokenizer,
) -> Result<(), Failure> {
    let mut show = Show::new();
    let mut one = |name: &str, source: &SourceJob| {
        let to = folder.join(name);
        let prepared = files(source).prepare_into(tokenizer, &to, &mut |progress| show.progress(&progress));
        show.end();
        prepared.map(|_| name.to_owned())
    };
    let members = train.iter().enumerate().map(|(number, source)| {
        Ok(Member { folder: one(&format!("train-{number}"), source)?, weight: source.weight })
    });
    let train = members.collect::<Result<_, Failure>>()?;
    let evaluation = evaluation.map(|source| one("evaluation", source)).transpose()?;
    let text = serde_json::to_string_pretty(&PreparedSet { train, evaluation })
        .map_err(|e| Failure::Failed(format!("cannot describe the data: {e}")))?;
    Disk::default().replace(&folder.join(SET), format!("{text}\n").as_bytes()).refuse()
}

/// What there is now.
fn summary(job: &Job, gathered: &Gathered) -> String {
    let mut text = format!("tokenizer  {}\n", job.data.tokenizer);
    let line = |what: &str, data: &Prepared| {
        let m = data.manifest();
        let empty = match m.empty_documents {
            0 => String::new(),
            n => format!(" ({n} without text left out)"),
        };
        format!(
            "{what:<10} {} documents{empty}, {} tokens ({}) of {} files ({})\n           {}\n",
            m.documents,
            report::count(m.tokens as f64),
            show_bytes(m.token_files.iter().map(|file| file.bytes).sum()),
            m.recipe.sources.len(),
            show_bytes(m.recipe.bytes()),
            data.folder().display()
        )
    };
    for (data, _) in &gathered.train {
        text.push_str(&line("train", data));
    }
    if let Some(data) = &gathered.evaluation {
        text.push_str(&line("evaluation", data));
    }
    text
}
