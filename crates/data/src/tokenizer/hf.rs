//! Tokenizers that a Hugging Face tokenizer.json defines.

use std::{panic, path::Path};

use serde::de::IgnoredAny;
use serde_json::Value;

use super::{Cuts, TOKENIZER_CONFIG_JSON, TOKENIZER_JSON, read, tokenizer_config};
use crate::DataError;

/// Files beside tokenizer.json that belong to the tokenizer.
const SIDE_FILES: [&str; 2] = [TOKENIZER_CONFIG_JSON, "special_tokens_map.json"];

/// What tokenizers call the end of a document, if no config says it.
const END_OF_DOCUMENT_TEXTS: [&str; 5] = ["<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "<eos>"];

/// Where text holds characters that are not complete.
const REPLACEMENT: char = '\u{fffd}';

/// Tokens, of at least one byte each, that the start of a character takes at most.
const CHARACTER_START: usize = 3;

/// So many tokens whose text ends in U+FFFD do not all wait for the rest of one character.
const MANY: usize = 8;

/// So many tokens are never held back.
const TOO_MANY: usize = 32;

/// A tokenizer, with the files that it was loaded from.
pub(super) struct HfTokenizer {
    tokenizer: tokenizers::Tokenizer,
    vocab_size: usize,
    end_of_document: Option<u32>,
    cuts: Cuts,
    /// Names and contents. They are kept so that a model is saved with the tokenizer it was trained with,
    /// even if the files have changed since.
    files: Vec<(&'static str, Vec<u8>)>,
}

impl HfTokenizer {
    /// The tokenizer that `json`, the content of the file at `path`, defines.
    pub(super) fn new(path: &Path, json: Vec<u8>) -> Result<HfTokenizer, DataError> {
        let malformed = |reason: String| DataError::TokenizerMalformed {
            path: path.to_path_buf(),
            kind: "Hugging Face tokenizer",
            reason,
        };
        let mut tokenizer = parse(&json).map_err(malformed)?;
        // A tokenizer.json may truncate and pad, which suits classifiers and would ruin a corpus.
        tokenizer.with_truncation(None).map_err(|error| malformed(error.to_string()))?;
        tokenizer.with_padding(None);
        let largest = tokenizer.get_vocab(true).into_values().max();
        let vocab_size = largest.ok_or_else(|| malformed("its vocabulary is empty".into()))? as usize + 1;

        let cuts = serde_json::from_slice(&json).map_or(Cuts::Nowhere, |definition| Cuts::of(&definition));
        let mut files = vec![(TOKENIZER_JSON, json)];
        let mut named = None;
        for name in SIDE_FILES {
            let side = path.with_file_name(name);
            if side.exists() {
                let content = read(&side)?;
                if name == TOKENIZER_CONFIG_JSON {
                    named = end_of_document_text(&side, &content)?;
                }
                files.push((name, content));
            }
        }
        let mut candidates = named.as_deref().into_iter().chain(END_OF_DOCUMENT_TEXTS);
        let end_of_document = candidates.find_map(|text| tokenizer.token_to_id(text));
        Ok(HfTokenizer { tokenizer, vocab_size, end_of_document, cuts, files })
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub(super) fn end_of_document(&self) -> Option<u32> {
        self.end_of_document
    }

    pub(super) fn cuts(&self) -> Cuts {
        self.cuts
    }

    pub(super) fn hash(&self) -> String {
        let json = self.files.iter().find(|(name, _)| *name == TOKENIZER_JSON).map(|(_, content)| content);
        blake3::hash(json.map_or(&[], Vec::as_slice)).to_hex().to_string()
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let encoding = caught(|| self.tokenizer.encode_fast(text, false).map_err(|error| error.to_string()));
        encoding.map(|encoding| encoding.get_ids().to_vec()).map_err(|reason| DataError::Encode { reason })
    }

    pub(super) fn decode(&self, ids: &[u32]) -> String {
        // The end of a document need not be marked as special, so the tokenizer would not skip it.
        let ids: Vec<u32> = ids.iter().copied().filter(|&id| Some(id) != self.end_of_document).collect();
        let text = caught(|| self.tokenizer.decode(&ids, true).map_err(|error| error.to_string()));
        text.unwrap_or_else(|_| {
            // Only a decoder with a broken rule fails. The plain tokens are of more use than nothing.
            ids.iter().filter_map(|&id| self.tokenizer.id_to_token(id)).collect()
        })
    }

    /// Names and contents of the files that define the tokenizer.
    pub(super) fn files(&self) -> Vec<(&'static str, Vec<u8>)> {
        let mut files = self.files.clone();
        if !files.iter().any(|(name, _)| *name == TOKENIZER_CONFIG_JSON) {
            let text = self.end_of_document.and_then(|id| self.tokenizer.id_to_token(id));
            files.push((TOKENIZER_CONFIG_JSON, tokenizer_config(text.as_deref()).into_bytes()));
        }
        files
    }
}

/// The tokenizer that a tokenizer.json defines, or what is wrong with it.
fn parse(json: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    // The crate panics at some definitions that it should refuse: at JSON that breaks off within its
    // decoder, for one. The most frequent fault, a damaged file, is found here, with its line.
    serde_json::from_slice::<IgnoredAny>(json).map_err(|error| error.to_string())?;
    caught(|| tokenizers::Tokenizer::from_bytes(json).map_err(|error| error.to_string()))
}

/// What the tokenizers library makes of something. It panics at some definitions that it should refuse, when they are
/// read or only when they are used.
fn caught<T>(call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    // Nothing of ours is changed by the call, and the library's caches are only written whole.
    panic::catch_unwind(panic::AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err("a part of it has a form that the tokenizers library does not know".into()))
}

/// The `eos_token` of a tokenizer_config.json: a text, or an object with the text as its "content".
fn end_of_document_text(path: &Path, content: &[u8]) -> Result<Option<String>, DataError> {
    let config: Value = serde_json::from_slice(content).map_err(|error| DataError::TokenizerMalformed {
        path: path.to_path_buf(),
        kind: "tokenizer config",
        reason: error.to_string(),
    })?;
    let token = &config["eos_token"];
    let text = token.as_str().or_else(|| token["content"].as_str());
    Ok(text.map(str::to_string))
}

/// Decodes tokens one by one.
///
/// What a token reads as may depend on the tokens before it. So each text is obtained by decoding the
/// tokens together with those of the text before, and taking off the text of those.
pub(super) struct HfStream<'a> {
    tokenizer: &'a HfTokenizer,
    /// Tokens of the text that was last returned, then those whose text is not yet returned.
    ids: Vec<u32>,
    /// How many are of the former kind.
    returned: usize,
}

impl<'a> HfStream<'a> {
    pub(super) fn new(tokenizer: &'a HfTokenizer) -> HfStream<'a> {
        HfStream { tokenizer, ids: Vec::new(), returned: 0 }
    }

    /// The text that is settled by this id.
    pub(super) fn push(&mut self, id: u32) -> String {
        self.ids.push(id);
        let Some(settled) = self.settled() else { return String::new() };
        let text = self.text_to(settled);
        self.ids.drain(..self.returned);
        self.returned = settled - self.returned;
        text
    }

    /// What is left of a character that was not completed.
    pub(super) fn finish(self) -> String {
        self.text_to(self.ids.len())
    }

    /// Ids that are kept; a bounded number.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.ids.len()
    }

    /// Up to which token the text can be returned, if there is more of it.
    fn settled(&self) -> Option<usize> {
        let end = self.ids.len();
        let waiting = end - self.returned;
        let text = self.text_to(end);
        if text.ends_with(REPLACEMENT) {
            let boundary = if waiting < MANY { None } else { self.character_boundary() };
            return boundary.or((waiting >= TOO_MANY).then_some(end));
        }
        // Tokens without text are kept waiting, so that there is always a text to take off.
        (!text.is_empty() || waiting >= TOO_MANY).then_some(end)
    }

    /// The first place near the end that does not lie within a character: taking the tokens apart there
    /// does not change how they read.
    fn character_boundary(&self) -> Option<usize> {
        let whole = self.tokenizer.decode(&self.ids);
        (self.ids.len() - CHARACTER_START..self.ids.len()).find(|&place| {
            let (before, after) = self.ids.split_at(place);
            self.tokenizer.decode(before) + &self.tokenizer.decode(after) == whole
        })
    }

    /// The text of the ids up to `end` that are not yet returned.
    fn text_to(&self, end: usize) -> String {
        let before = self.tokenizer.decode(&self.ids[..self.returned]);
        let all = self.tokenizer.decode(&self.ids[..end]);
        match all.strip_prefix(&before) {
            Some(text) => text.to_string(),
            // The new tokens changed how the old ones read, which only bytes that are not UTF-8 do.
            None => self.tokenizer.decode(&self.ids[self.returned..end]),
        }
    }
}
