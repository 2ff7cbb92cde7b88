//! What a checkpoint's files hold: which part of which parameter's state stands where, as a function of the model and of the
//! number of parts alone.

use crate::export::entries;
use crate::manifest::FileRecord;
use crate::tensor_write::Entry;
use memwall_engine::{FlatLayout, Part};
use memwall_model::{ModelSpec, ParamId};
use std::ops::Range;

/// Parts of a rank's state, each with the prefix of its tensors' names.
pub(crate) type Kind = [(Part, &'static str)];

/// The kinds of files, in the order in which manifests list them.
pub(crate) const KINDS: [(&str, &Kind); 2] = [
    ("weights", &[(Part::Weight, "")]),
    ("optimizer", &[(Part::FirstMoment, "exp_avg."), (Part::SecondMoment, "exp_avg_sq.")]),
];

/// A tensor of a checkpoint, whole.
#[derive(Debug, Clone)]
pub(crate) struct Whole {
    pub(crate) part: Part,
    pub(crate) param: ParamId,
    pub(crate) entry: Entry,
}

/// The tensors of a kind of files, in order.
pub(crate) fn tensors(spec: &ModelSpec, kind: &Kind) -> Vec<Whole> {
    let mut all = Vec::new();
    for (part, prefix) in kind {
        // What is frozen has no moments.
        let params = entries(spec).into_iter().enumerate();
        let params = params.filter(|(i, _)| *part == Part::Weight || !spec.params[*i].frozen);
        all.extend(params.map(|(i, e)| {
            let entry = Entry { name: format!("{prefix}{}", e.name), shape: e.shape };
            Whole { part: *part, param: ParamId(i), entry }
        }));
    }
    all
}

/// A tensor of one file: all of a whole one, or elements of it.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub(crate) part: Part,
    pub(crate) param: ParamId,
    /// As the file has it.
    pub(crate) entry: Entry,
    /// Which elements of the whole tensor.
    pub(crate) elements: Range<usize>,
}

/// What the file of part `index` of `parts` holds.
pub(crate) fn share(
    spec: &ModelSpec,
    layout: &FlatLayout,
    kind: &Kind,
    index: usize,
    parts: usize,
) -> Vec<Share> {
    let of = |whole: Whole| {
        let Whole { part, param, entry } = whole;
        let elements = layout.part(param, index, parts);
        let shape = if elements.len() == entry.len() { entry.shape } else { vec![elements.len()] };
        Share { part, param, entry: Entry { name: entry.name, shape }, elements }
    };
    tensors(spec, kind).into_iter().map(of).filter(|s| !s.elements.is_empty()).collect()
}

/// The file of part `index` of `parts` of a kind.
pub(crate) fn file_name(base: &str, index: usize, parts: usize) -> String {
    match parts {
        1 => format!("{base}.safetensors"),
        _ => format!("{base}-{:05}-of-{parts:05}.safetensors", index + 1),
    }
}

/// The files of a checkpoint in `parts` parts: weights first.
pub(crate) fn file_names(parts: usize) -> Vec<String> {
    KINDS.iter().flat_map(|(base, _)| (0..parts).map(|index| file_name(base, index, parts))).collect()
}

/// Each kind with its files, of all that a manifest lists.
pub(crate) fn by_kind(files: &[FileRecord]) -> impl Iterator<Item = (&'static Kind, &[FileRecord])> {
    let parts = (files.len() / KINDS.len()).max(1);
    KINDS.iter().map(|(_, kind)| *kind).zip(files.chunks(parts))
}
