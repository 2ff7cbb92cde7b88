//! `memwall data inspect`: what prepared data or the data of a job holds.

use super::Gathered;
use super::set::{PreparedSet, SET};
use crate::args::DataInspectArgs;
use crate::batches::{Batches, Share};
use crate::failure::Failure;
use crate::job::{self, Job, show_bytes};
use memwall_data::{Cut, Dataset, Packing, Prepared, Tokenizer};
use serde_json::{Value, json};
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

/// Sequence length that padding is told for where no job says one.
const USUAL_LENGTH: usize = 2048;

/// Documents that are shown, and characters of each.
const DOCUMENTS: usize = 3;
const CHARACTERS: usize = 240;

/// Prints counts and a few documents, or the samples of a step or of an evaluation.
pub(crate) fn inspect(args: &DataInspectArgs) -> Result<(), Failure> {
    if args.path.is_dir() {
        if args.step.is_some() || args.evaluation || !args.set.is_empty() {
            return Err(Failure::Refused(format!(
                "--step, --evaluation and --set belong to a job, and {} is a folder of prepared data: name the job file",
                args.path.display()
            )));
        }
        let gathered = if args.path.join(SET).exists() {
            PreparedSet::read(&args.path)?.open(&args.path)?
        } else {
            Gathered { train: vec![(Arc::new(Prepared::open(&args.path)?), 1.0)], evaluation: None }
        };
        let tokenizer = gathered.train[0].0.tokenizer()?;
        return show(args, &gathered, &tokenizer, USUAL_LENGTH);
    }
    let job = job::load(&args.path, &args.set)?.pinned()?.validate()?;
    let tokenizer = Tokenizer::load(&job.data.tokenizer)?;
    let gathered = Gathered::of(&job, &tokenizer)?;
    if args.step.is_none() && !args.evaluation {
        return show(args, &gathered, &tokenizer, job.data.sequence_length);
    }
    verify(args, &gathered)?;
    let data = gathered.dataset(&job)?;
    match args.step {
        Some(step) => samples(args, step_samples(&job, step)?, &data, &tokenizer),
        None => samples(args, evaluation_samples(&job, &data)?, &data, &tokenizer),
    }
}

/// Reads all files again, if asked to.
fn verify(args: &DataInspectArgs, gathered: &Gathered) -> Result<(), Failure> {
    if args.verify {
        for data in gathered.all() {
            data.verify(&mut |_| {})?;
        }
    }
    Ok(())
}

fn show(
    args: &DataInspectArgs,
    gathered: &Gathered,
    tokenizer: &Tokenizer,
    length: usize,
) -> Result<(), Failure> {
    verify(args, gathered)?;
    let documents = args.samples.unwrap_or(DOCUMENTS);
    let shares: Vec<f64> = gathered.train.iter().map(|(_, weight)| *weight).collect();
    let whole: f64 = shares.iter().sum();
    let mut all = Vec::new();
    for (number, data) in gathered.all().enumerate() {
        let role = match shares.get(number) {
            Some(weight) => json!({"role": "train", "share": weight / whole}),
            None => json!({"role": "evaluation"}),
        };
        all.push(Shown::of(data, role, tokenizer, length, documents)?);
    }
    if args.json {
        let all: Vec<Value> = all.iter().map(Shown::to_json).collect();
        say!("{:#}", json!({"sequence_length": length, "verified": args.verify, "sources": all}));
        return Ok(());
    }
    for shown in &all {
        tell!("{}", shown.to_text(length));
    }
    if args.verify {
        say!("verified   every file has the content that its manifest says");
    }
    Ok(())
}

/// What is told of prepared data.
struct Shown<'a> {
    data: &'a Prepared,
    role: Value,
    vocabulary: u64,
    /// Documents with less than twice as many tokens as the first number, and at least as many.
    histogram: Vec<(u64, u64)>,
    /// Share of padding: packed, and one document a sequence.
    padding: [f64; 2],
    documents: Vec<String>,
}

impl<'a> Shown<'a> {
    fn of(
        data: &'a Arc<Prepared>,
        role: Value,
        tokenizer: &Tokenizer,
        length: usize,
        documents: usize,
    ) -> Result<Self, Failure> {
        let mut counts = [0_u64; 64];
        for document in 0..data.documents() {
            let extent = data.extent(document);
            counts[(extent.end - extent.start).ilog2() as usize] += 1;
        }
        let histogram =
            counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(bits, n)| (1 << bits, *n)).collect();
        let padding = |packing| {
            let cut = Cut { sequence_length: length, packing, validation: 0.0, seed: 0 };
            let sizes = Dataset::new(vec![(Arc::clone(data), 1.0)], None, cut).map(|d| d.train_sizes());
            // Without a token to predict there is no sample to pad.
            sizes.map_or(0.0, |sizes| sizes[0].padding(length))
        };
        let shown = (documents as u64).min(data.documents());
        // Spread over all documents, so that the first files do not stand for the rest.
        let texts = (0..shown).map(|i| begins(data, i * data.documents() / shown, tokenizer));
        Ok(Self {
            data,
            role,
            vocabulary: data.manifest().recipe.vocabulary,
            histogram,
            padding: [padding(Packing::Packed), padding(Packing::Documents)],
            documents: texts.collect::<Result<_, Failure>>()?,
        })
    }

    fn to_json(&self) -> Value {
        let m = self.data.manifest();
        let histogram =
            self.histogram.iter().map(|(from, n)| json!({"from": from, "below": 2 * from, "documents": n}));
        let mut object = json!({
            "folder": self.data.folder(),
            "tokenizer": m.recipe.tokenizer,
            "vocabulary": self.vocabulary,
            "end_of_document": m.recipe.end_of_document,
            "field": m.recipe.field,
            "files": m.recipe.sources.len(),
            "file_bytes": m.recipe.bytes(),
            "documents": m.documents,
            "empty_documents": m.empty_documents,
            "tokens": m.tokens,
            "largest_token": m.largest_token,
            "token_bytes": m.token_bytes,
            "bytes": m.files().map(|file| file.bytes).sum::<u64>(),
            "lengths": histogram.collect::<Vec<_>>(),
            "padding": {"packed": self.padding[0], "documents": self.padding[1]},
            "begins": self.documents,
        });
        if let (Some(object), Some(role)) = (object.as_object_mut(), self.role.as_object()) {
            object.extend(role.clone());
        }
        object
    }

    fn to_text(&self, length: usize) -> String {
        let m = self.data.manifest();
        let mut text = format!(
            "{:<10} {}",
            self.role["role"].as_str().unwrap_or_default(),
            self.data.folder().display()
        );
        if let Some(share) = self.role["share"].as_f64().filter(|share| *share < 1.0) {
            let _ = write!(text, " ({:.1}% of the samples)", 100.0 * share);
        }
        let end = m
            .recipe
            .end_of_document
            .map_or("no end of document".into(), |id| format!("end of document {id}"));
        let _ = writeln!(text, "\ntokenizer  {}, vocabulary {}, {end}", m.recipe.tokenizer, self.vocabulary);
        let _ = writeln!(
            text,
            "files      {} ({}){}",
            m.recipe.sources.len(),
            show_bytes(m.recipe.bytes()),
            m.recipe.field.as_ref().map_or(String::new(), |field| format!(", field {field:?}"))
        );
        let _ = writeln!(
            text,
            "documents  {} ({} without text left out)\ntokens     {} in {} of {} bytes each, the largest id is {}",
            m.documents,
            m.empty_documents,
            m.tokens,
            show_bytes(m.token_files.iter().map(|file| file.bytes).sum()),
            m.token_bytes,
            m.largest_token
        );
        let most = self.histogram.iter().map(|(_, n)| *n).max().unwrap_or(1);
        for (i, (from, n)) in self.histogram.iter().enumerate() {
            let bar = "#".repeat((40 * n).div_ceil(most) as usize);
            let what = if i == 0 { "lengths" } else { "" };
            let _ = writeln!(text, "{what:<10} {from:>9} to {:<9} {n:>9} {bar}", 2 * from - 1);
        }
        let _ = writeln!(
            text,
            "padding    at {length} tokens: {:.1}% packed, {:.1}% with one document a sequence",
            100.0 * self.padding[0],
            100.0 * self.padding[1]
        );
        for document in &self.documents {
            let _ = writeln!(text, "document   {document:?}");
        }
        text
    }
}

/// How a document begins.
fn begins(data: &Prepared, document: u64, tokenizer: &Tokenizer) -> Result<String, Failure> {
    let extent = data.extent(document);
    let count = (extent.end - extent.start).min(CHARACTERS as u64);
    let mut tokens = vec![0; count as usize];
    data.copy(extent.start, &mut tokens)?;
    let ids: Vec<u32> = tokens.iter().map(|&id| id as u32).collect();
    Ok(tokenizer.decode(&ids).chars().take(CHARACTERS).collect())
}

/// Numbers of the samples that a step trains on.
fn step_samples(job: &Job, step: u64) -> Result<Range<u64>, Failure> {
    let batch = job.train.global_batch as u64;
    step.checked_sub(1)
        .and_then(|steps| steps.checked_mul(batch))
        .map(|first| first..first.saturating_add(batch))
        .ok_or_else(|| Failure::Refused("--step counts from 1, as metrics.jsonl does".into()))
}

/// Numbers of the samples that an evaluation takes.
fn evaluation_samples(job: &Job, data: &Dataset) -> Result<Range<u64>, Failure> {
    let t = &job.train;
    let batches = Batches::new(data, t.global_batch, t.micro_batch, Share::ALL);
    let batches = batches.evaluation_batches(t.evaluate_batches);
    let count = data.validation_samples().min((batches * t.micro_batch) as u64);
    if count == 0 {
        return Err(Failure::Refused(
            "--evaluation: the job evaluates on nothing; set data.validation or data.evaluation".into(),
        ));
    }
    Ok(0..count)
}

/// Prints training samples of these numbers, or with --evaluation those that are evaluated on.
fn samples(
    args: &DataInspectArgs,
    numbers: Range<u64>,
    data: &Dataset,
    tokenizer: &Tokenizer,
) -> Result<(), Failure> {
    let length = data.sequence_length();
    let (mut tokens, mut targets, mut positions) = (vec![0; length], vec![0; length], vec![0; length]);
    for number in numbers.take(args.samples.unwrap_or(usize::MAX)) {
        let (origin, valid) = if args.evaluation {
            data.fill_validation(number, &mut tokens, &mut targets, &mut positions)?;
            (None, data.validation_valid(number))
        } else {
            data.fill_train(number, &mut tokens, &mut targets, &mut positions)?;
            let pick = data.pick(number);
            (Some((pick.source, pick.epoch)), data.train_valid(number))
        };
        if args.json {
            let mut sample = json!({"sample": number, "valid": valid, "tokens": tokens, "targets": targets,
                                    "positions": positions});
            if let (Some((source, epoch)), Some(object)) = (origin, sample.as_object_mut()) {
                object.extend([("source".into(), source.into()), ("epoch".into(), epoch.into())]);
            }
            say!("{sample}");
            continue;
        }
        let origin =
            origin.map_or(String::new(), |(source, epoch)| format!("source {source}, epoch {epoch}, "));
        say!("sample     {number}: {origin}{valid} of {length} targets count");
        let ids: Vec<u32> = tokens.iter().map(|&id| id as u32).collect();
        // A document begins wherever positions do.
        let starts: Vec<usize> = (0..length).filter(|&at| positions[at] == 0).collect();
        for (i, &start) in starts.iter().enumerate() {
            let end = starts.get(i + 1).copied().unwrap_or(length);
            let padding = targets[start..].iter().all(|&target| target < 0);
            if padding && i + 1 == starts.len() && end - start > 1 {
                say!("         | {} tokens of padding", end - start);
            } else {
                say!("         | {:?}", tokenizer.decode(&ids[start..end]));
            }
        }
    }
    Ok(())
}
