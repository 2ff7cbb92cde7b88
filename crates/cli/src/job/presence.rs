//! Which keys a job may and must have.

use toml::Value;

use super::schema::{self, Fallback, KEYS, SECTIONS};
use super::written::WrittenJob;
use super::{kind, names};

/// Refuses names that are not in the schema. Returns the right names they were taken for, a section
/// or `section.key`, so that these are not reported as missing on top.
pub(super) fn refuse_unknown(written: &WrittenJob, problems: &mut Vec<String>) -> Vec<String> {
    let mut meant = Vec::new();
    for (section, value) in &written.table {
        let known = SECTIONS.iter().any(|known| known.name == section);
        match value {
            Value::Table(keys) if known => {
                for name in keys.keys().filter(|name| schema::find(section, name).is_none()) {
                    problems.push(match names::nearest_key(section, name) {
                        Some(near) => {
                            meant.push(near.path());
                            format!("{section}.{name}: no such key; did you mean {}?", near.path())
                        }
                        None => {
                            let known = KEYS.iter().filter(|key| key.section == section);
                            let list: Vec<&str> = known.map(|key| key.name).collect();
                            format!("{section}.{name}: no such key; [{section}] has {}", list.join(", "))
                        }
                    });
                }
            }
            other if known => {
                meant.push(section.clone());
                let got = kind::type_of(other);
                problems.push(format!("{section}: expected a section [{section}] with keys, got {got}"));
            }
            Value::Table(_) => problems.push(match names::nearest_section(section) {
                Some(near) => {
                    meant.push(near.to_owned());
                    format!("[{section}]: no such section; did you mean [{near}]?")
                }
                None => format!("[{section}]: no such section; {}", the_sections()),
            }),
            _ => problems.push(match names::nearest_key("", section) {
                Some(near) => {
                    meant.push(near.path());
                    format!("{section}: stands in no section; did you mean {}?", near.path())
                }
                None => format!("{section}: stands in no section; {}", the_sections()),
            }),
        }
    }
    meant
}

/// The list of sections for a message.
fn the_sections() -> String {
    let names: Vec<String> = SECTIONS.iter().map(|section| format!("[{}]", section.name)).collect();
    format!("the sections are {}", names.join(", "))
}

/// Refuses a job without a key that it must have.
pub(super) fn refuse_missing(written: &WrittenJob, meant: &[String], problems: &mut Vec<String>) {
    let misspelt = |section: &str, name: &str| {
        meant.iter().any(|meant| meant == section || *meant == format!("{section}.{name}"))
    };
    let there = |section, name| written.get(section, name).is_some() || misspelt(section, name);
    for key in KEYS.iter().filter(|key| matches!(key.fallback, Fallback::Required)) {
        if !there(key.section, key.name) {
            let meaning = key.meaning.trim_end_matches('.');
            problems.push(format!("{}: missing; write {} ({meaning})", key.path(), key.kind.describe()));
        }
    }
    refuse_no_length(written, meant, problems);
    match (there("data", "train"), there("data", "prepared")) {
        (false, false) if !misspelt("data", "train") => problems.push(
            "data: nothing to train on; write data.train (glob patterns of files) or data.prepared (a folder that \
             memwall data prepare --out has written)"
                .to_owned(),
        ),
        (true, true) if !misspelt("data", "train") && !misspelt("data", "prepared") => problems.push(
            "data: both data.train and data.prepared are given; write only data.train for files, or only \
             data.prepared for a folder of prepared data"
                .to_owned(),
        ),
        _ => {}
    }
    match (there("model", "path"), there("model", "config")) {
        (false, false) => problems.push(
            "model: nothing to train; write model.path (the folder of a model to fine-tune) or \
             model.config (a config.json or a table, for random initialization)"
                .to_owned(),
        ),
        (true, true) if !misspelt("model", "path") && !misspelt("model", "config") => problems.push(
            "model: both model.path and model.config are given; write only model.path to fine-tune, or \
             only model.config for random initialization"
                .to_owned(),
        ),
        (false, true) if !misspelt("model", "config") && !there("data", "tokenizer") => problems.push(
            "data.tokenizer: missing, and model.config brings none; write \"bytes\" or the path of a \
             tokenizer.json"
                .to_owned(),
        ),
        _ => {}
    }
}

/// The keys that say how long a run is: a job has exactly one of them.
pub(super) const LENGTHS: [&str; 3] = ["steps", "tokens", "epochs"];

/// Refuses a job without a length, or with several. One that was refused by its value is there, but a length
/// that a misspelt name was taken for is only not missing.
fn refuse_no_length(written: &WrittenJob, meant: &[String], problems: &mut Vec<String>) {
    let given: Vec<String> = LENGTHS
        .iter()
        .filter(|name| written.get("train", name).is_some())
        .map(|name| format!("train.{name}"))
        .collect();
    let misspelt = meant.iter().any(|m| m == "train" || LENGTHS.iter().any(|l| *m == format!("train.{l}")));
    if given.is_empty() && !misspelt {
        problems.push(
            "train: no length; write exactly one of train.steps, train.tokens and train.epochs".to_owned(),
        );
    } else if given.len() > 1 {
        problems.push(format!(
            "train: {} are given, and each says how long the run is; write exactly one of train.steps, \
             train.tokens and train.epochs",
            given.join(" and ")
        ));
    }
}
