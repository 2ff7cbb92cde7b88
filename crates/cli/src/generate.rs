//! `memwall generate`: text from a model folder.

use crate::args::GenerateArgs;
use crate::failure::{Failure, Outcome};
use crate::machine;
use crate::setup::read_config;
use memwall_checkpoint::ModelFile;
use memwall_data::Tokenizer;
use memwall_engine::{Generator, Sampler, Sampling};
use memwall_model::ModelSpec;
use memwall_tensor::{Cpu, Description};
use std::io::Write;
use std::path::Path;

/// Prints the prompt and what the model goes on with.
pub(crate) fn generate(args: &GenerateArgs) -> Result<(), Failure> {
    let sampling =
        Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, seed: args.seed };
    let threads = if args.threads == 0 { machine::cores() } else { args.threads };
    let mut out = std::io::stdout().lock();
    let mut say = |text: &str| {
        // A reader that has gone (head, a closed pipe) wants no more.
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
    };
    write_text(&args.model, &args.prompt, args.max_tokens, sampling, threads, &mut say)?;
    say("\n");
    Ok(())
}

/// Hands the prompt, then the text that the model writes, to `say`, piece by piece, while it returns true.
pub(crate) fn write_text(
    folder: &Path,
    prompt: &str,
    max_tokens: usize,
    sampling: Sampling,
    threads: usize,
    say: &mut dyn FnMut(&str) -> bool,
) -> Result<(), Failure> {
    let config = read_config(&folder.join("config.json"))?;
    let (vocabulary, longest) = (config.vocab_size, config.max_positions);
    let spec = ModelSpec::new(config);
    let tokenizer = Tokenizer::load_from_model_dir(folder)?;
    let file = ModelFile::open(folder, &spec).refuse()?;
    let ids = prompt_ids(&tokenizer, prompt, vocabulary)?;
    if ids.len() >= longest {
        return Err(Failure::Refused(format!(
            "the prompt has {} tokens, but the model's max_position_embeddings is {longest}",
            ids.len()
        )));
    }
    let capacity = longest.min(ids.len() + max_tokens);
    let device = Cpu::new(Description { threads }, machine::available_memory())
        .map_err(|e| Failure::Failed(e.to_string()))?;
    let mut model = Generator::new(device, &spec, capacity)?;
    file.load(&mut model).refuse()?;
    let mut stream = tokenizer.decode_stream();
    for id in &ids {
        // The prompt is shown as it was given.
        let _ = stream.push(*id as u32);
    }
    if !say(prompt) {
        return Ok(());
    }
    let mut sampler = Sampler::new(sampling);
    let mut logits = model.read(&ids)?;
    for _ in 0..max_tokens {
        let next = sampler.choose(&logits);
        if Some(next as u32) == tokenizer.end_of_document() {
            break;
        }
        if stream.push(next as u32).is_some_and(|piece| !say(&piece)) {
            return Ok(());
        }
        if model.room() == 0 {
            break;
        }
        logits = model.read(&[next as i32])?;
    }
    say(&stream.finish());
    Ok(())
}

/// The prompt's tokens; an empty one begins a document.
fn prompt_ids(tokenizer: &Tokenizer, prompt: &str, vocabulary: usize) -> Result<Vec<i32>, Failure> {
    let mut ids = tokenizer.encode(prompt)?;
    if ids.is_empty() {
        ids.extend(tokenizer.end_of_document());
    }
    if ids.is_empty() {
        return Err(Failure::Refused("the prompt has no tokens; give --prompt some text".into()));
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
        return Err(Failure::Refused(format!(
            "the tokenizer gives token {id}, but the model's vocab_size is {vocabulary}: they do not belong together"
        )));
    }
    Ok(ids.into_iter().map(|id| id as i32).collect())
}
