//! Where the data of a job comes from: how the keys that say it become one value, and how they contradict.

use std::path::PathBuf;

use serde::Deserialize;

use super::JobError;
use super::values::Values;

/// Where the data comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum DataFrom {
    /// A folder that `memwall data prepare --out` has written.
    Prepared(PathBuf),
    /// Files.
    Files {
        /// Sources to train on, at least one.
        train: Vec<SourceJob>,
        /// Files to evaluate on, instead of a part that is held out. Its weight means nothing.
        evaluation: Option<SourceJob>,
    },
}

/// Files of a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceJob {
    /// Glob patterns, at least one.
    pub files: Vec<String>,
    /// Share of the samples beside the weights of the others, above 0.
    pub weight: f64,
    /// Field or column that holds the text.
    pub field: String,
}

/// `data.train`, as a resolved job has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Train {
    Globs(Vec<String>),
    Mixture(Vec<Mixed>),
}

#[derive(Deserialize)]
struct Mixed {
    files: Vec<String>,
    weight: f64,
    field: Option<String>,
}

/// The one value of all the keys.
pub(super) fn from(values: &Values) -> Result<DataFrom, JobError> {
    if let Some(folder) = values.read("data.prepared") {
        return Ok(DataFrom::Prepared(folder));
    }
    let field = |own: Option<String>| own.map_or_else(|| values.need("data.field"), Ok);
    let train = match values.need("data.train")? {
        Train::Globs(files) => vec![SourceJob { files, weight: 1.0, field: field(None)? }],
        Train::Mixture(sources) => sources
            .into_iter()
            .map(|Mixed { files, weight, field: own }| Ok(SourceJob { files, weight, field: field(own)? }))
            .collect::<Result<_, JobError>>()?,
    };
    let evaluation = match values.read("data.evaluation") {
        Some(files) => Some(SourceJob { files, weight: 1.0, field: field(None)? }),
        None => None,
    };
    Ok(DataFrom::Files { train, evaluation })
}

/// Whether `data.field` says something.
pub(super) fn need_a_field(values: &Values) -> bool {
    let train = match values.read("data.train") {
        Some(Train::Globs(_)) => true,
        Some(Train::Mixture(sources)) => sources.iter().any(|source| source.field.is_none()),
        None => false,
    };
    train || values.get("data.evaluation").is_some()
}

/// Prepared data has been made with these keys already.
pub(super) fn files_with_prepared(values: &Values) -> Option<String> {
    values.get("data.prepared")?;
    let given: Vec<&str> = ["data.evaluation", "data.field", "data.cache"]
        .into_iter()
        .filter(|key| values.get(key).is_some())
        .collect();
    (!given.is_empty()).then(|| {
        format!(
            "data.prepared contradicts {}, which belongs to files that are yet to be prepared: remove one of them",
            given.join(" and ")
        )
    })
}

/// No share is filled in beside files to evaluate on, so one that is there was given.
pub(super) fn two_evaluations(values: &Values) -> Option<String> {
    values.get("data.evaluation")?;
    let share: f64 = values.read("data.validation")?;
    Some(format!(
        "data.validation = {share:?} contradicts data.evaluation: remove one of them, to evaluate on files or on what \
         is held out"
    ))
}

pub(super) fn field_of_nothing(values: &Values) -> Option<String> {
    let field: String = values.read("data.field")?;
    (values.get("data.train").is_some() && !need_a_field(values)).then(|| {
        format!(
            "data.field = {field:?} has no effect, since every source of data.train has its own: remove it"
        )
    })
}

pub(super) fn epochs_of_a_mixture(values: &Values) -> Option<String> {
    let epochs: f64 = values.read("train.epochs")?;
    let Train::Mixture(sources) = values.read("data.train")? else { return None };
    (sources.len() > 1).then(|| {
        format!(
            "train.epochs = {epochs:?} means nothing for a mixture, of which each source goes through its own epochs: \
             write train.steps or train.tokens"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::{FINE_TUNE, NONE, resolve};

    fn from(text: &str, sets: &[&str]) -> DataFrom {
        resolve(text, sets).unwrap().validate().unwrap().data.from
    }

    fn source(files: &[&str], weight: f64, field: &str) -> SourceJob {
        SourceJob { files: files.iter().map(|f| f.to_string()).collect(), weight, field: field.into() }
    }

    #[test]
    fn all_forms_of_sources_are_one_value() {
        let train = vec![source(&["data/*.txt"], 1.0, "text")];
        assert_eq!(from(FINE_TUNE, NONE), DataFrom::Files { train: train.clone(), evaluation: None });
        assert_eq!(
            from(FINE_TUNE, &["data.evaluation=e/*", "data.field=body"]),
            DataFrom::Files {
                train: vec![source(&["data/*.txt"], 1.0, "body")],
                evaluation: Some(source(&["e/*"], 1.0, "body")),
            }
        );
        let mixture = "data.train=[{files = ['a', 'b'], weight = 3}, {files = 'c', field = 'body'}]";
        let train = vec![source(&["a", "b"], 3.0, "text"), source(&["c"], 1.0, "body")];
        assert_eq!(from(FINE_TUNE, &[mixture]), DataFrom::Files { train, evaluation: None });
        // In a file it may be written as sections.
        let text =
            FINE_TUNE.replace("train = 'data/*.txt'", "") + "\n[[data.train]]\nfiles = 'x'\nweight = 2\n";
        let train = vec![source(&["x"], 2.0, "text")];
        assert_eq!(from(&text, NONE), DataFrom::Files { train, evaluation: None });
        let prepared = FINE_TUNE.replace("train = 'data/*.txt'", "prepared = 'p'");
        assert_eq!(from(&prepared, NONE), DataFrom::Prepared("p".into()));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let prepared = FINE_TUNE.replace("train = 'data/*.txt'", "prepared = 'p'");
        let none = FINE_TUNE.replace("train = 'data/*.txt'", "");
        let epochs = FINE_TUNE.replace("steps = 10", "epochs = 2");
        for (text, sets, message) in [
            (none.as_str(), &[][..], "data: nothing to train on; write data.train"),
            (&prepared, &["data.train=x"], "data: both data.train and data.prepared are given"),
            (&prepared, &["data.field=x"], "data.prepared contradicts data.field, which belongs to files"),
            (&prepared, &["data.evaluation=x"], "data.prepared contradicts data.evaluation"),
            (&prepared, &["data.cache=x"], "data.prepared contradicts data.cache"),
            (
                FINE_TUNE,
                &["data.evaluation=x", "data.validation=0.1"],
                "data.validation = 0.1 contradicts data.evaluation: remove one",
            ),
            (
                FINE_TUNE,
                &["data.train=[{files = 'x', field = 'f'}]", "data.field=g"],
                "data.field = \"g\" has no effect",
            ),
            (
                &epochs,
                &["data.train=[{files = 'x'}, {files = 'y'}]"],
                "train.epochs = 2.0 means nothing for a mixture",
            ),
        ] {
            let problem = resolve(text, sets).and_then(|job| job.validate()).unwrap_err().to_string();
            assert!(problem.starts_with(message), "{problem}");
        }
    }
}
