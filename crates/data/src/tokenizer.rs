//! Text to token ids and back.

mod bytes;
mod cuts;
mod hf;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use crate::DataError;
use bytes::ByteStream;
pub(crate) use cuts::Cuts;
use hf::{HfStream, HfTokenizer};

/// The file that a Hugging Face tokenizer is defined by.
const TOKENIZER_JSON: &str = "tokenizer.json";
/// The file beside it that says how `transformers` is to use it.
const TOKENIZER_CONFIG_JSON: &str = "tokenizer_config.json";

/// A tokenizer: the built-in one, whose ids are the bytes of the text, or one of Hugging Face's.
pub struct Tokenizer(Kind);

enum Kind {
    Bytes,
    Hf(Box<HfTokenizer>),
}

impl Tokenizer {
    /// Loads `"bytes"`, or the tokenizer.json at a path (or in the folder at a path).
    ///
    /// Of `"bytes"`, the ids 0 to 255 are the bytes of the UTF-8 text and 256 is `<|endoftext|>`. A
    /// tokenizer.json that [`write_hf_files`](Tokenizer::write_hf_files) wrote for it loads as it again.
    ///
    /// # Errors
    ///
    /// [`DataError::TokenizerUnreadable`] and [`DataError::TokenizerMalformed`], for the tokenizer.json or
    /// for a tokenizer_config.json beside it.
    pub fn load(spec: &str) -> Result<Tokenizer, DataError> {
        if spec == "bytes" {
            return Ok(Tokenizer(Kind::Bytes));
        }
        let path = Path::new(spec);
        if path.is_dir() { Tokenizer::load_from_model_dir(path) } else { Tokenizer::load_file(path) }
    }

    /// Loads the tokenizer.json of a model's folder.
    ///
    /// # Errors
    ///
    /// As of [`load`](Tokenizer::load).
    pub fn load_from_model_dir(dir: &Path) -> Result<Tokenizer, DataError> {
        Tokenizer::load_file(&dir.join(TOKENIZER_JSON))
    }

    fn load_file(path: &Path) -> Result<Tokenizer, DataError> {
        let json = read(path)?;
        if json == bytes::tokenizer_json().as_bytes() {
            return Ok(Tokenizer(Kind::Bytes));
        }
        Ok(Tokenizer(Kind::Hf(Box::new(HfTokenizer::new(path, json)?))))
    }

    /// The largest id plus 1, added tokens included: what a model's vocabulary must at least be.
    pub fn vocab_size(&self) -> usize {
        match &self.0 {
            Kind::Bytes => bytes::VOCAB_SIZE,
            Kind::Hf(tokenizer) => tokenizer.vocab_size(),
        }
    }

    /// The token that ends a document. Of a Hugging Face tokenizer it is the `eos_token` of the
    /// tokenizer_config.json beside it, or else the first that it has of `<|endoftext|>`, `</s>`,
    /// `<|end_of_text|>`, `<|im_end|>` and `<eos>`, if any.
    pub fn end_of_document(&self) -> Option<u32> {
        match &self.0 {
            Kind::Bytes => Some(bytes::END_OF_DOCUMENT),
            Kind::Hf(tokenizer) => tokenizer.end_of_document(),
        }
    }

    /// The tokens of a text. Nothing is added before or after it, and it is not truncated. A special token
    /// that is spelt out in the text is that token, except in `"bytes"`, where it is its bytes.
    ///
    /// # Errors
    ///
    /// [`DataError::Encode`] if the tokenizer does not cover the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        match &self.0 {
            Kind::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Kind::Hf(tokenizer) => tokenizer.encode(text),
        }
    }

    /// What the tokens depend on: the blake3 hash of the tokenizer.json in hexadecimal, or `"bytes"`.
    pub fn hash(&self) -> String {
        match &self.0 {
            Kind::Bytes => "bytes".into(),
            Kind::Hf(tokenizer) => tokenizer.hash(),
        }
    }

    /// Where a text may be cut so that its parts have the tokens of the whole.
    pub(crate) fn cuts(&self) -> Cuts {
        match &self.0 {
            Kind::Bytes => Cuts::Anywhere,
            Kind::Hf(tokenizer) => tokenizer.cuts(),
        }
    }

    /// The text of tokens. End-of-document, other special tokens and ids outside the vocabulary have
    /// none; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        match &self.0 {
            Kind::Bytes => bytes::decode(ids),
            Kind::Hf(tokenizer) => tokenizer.decode(ids),
        }
    }

    /// A decoder for tokens that come one by one. To continue a prompt, push its tokens first: some
    /// tokenizers drop the space at the start of a text, and only there.
    pub fn decode_stream(&self) -> DecodeStream<'_> {
        DecodeStream(match &self.0 {
            Kind::Bytes => StreamKind::Bytes(ByteStream::default()),
            Kind::Hf(tokenizer) => StreamKind::Hf(HfStream::new(tokenizer)),
        })
    }

    /// Writes the files that `transformers.AutoTokenizer.from_pretrained(dir)` needs, and returns their
    /// names.
    ///
    /// Files of a Hugging Face tokenizer are written byte for byte as they were when it was loaded;
    /// if it came without a tokenizer_config.json, a small one is made. The folder is created if it is
    /// missing, and files of the same names are replaced.
    ///
    /// # Errors
    ///
    /// [`DataError::Write`].
    pub fn write_hf_files(&self, dir: &Path) -> Result<Vec<String>, DataError> {
        let files = match &self.0 {
            Kind::Bytes => vec![
                (TOKENIZER_JSON, bytes::tokenizer_json().into_bytes()),
                (TOKENIZER_CONFIG_JSON, tokenizer_config(Some(bytes::END_OF_DOCUMENT_TEXT)).into_bytes()),
            ],
            Kind::Hf(tokenizer) => tokenizer.files(),
        };
        let refused = |path: PathBuf| move |reason| DataError::Write { path, reason };
        fs::create_dir_all(dir).map_err(refused(dir.to_path_buf()))?;
        for (name, content) in &files {
            let path = dir.join(name);
            fs::write(&path, content).map_err(refused(path))?;
        }
        Ok(files.iter().map(|(name, _)| name.to_string()).collect())
    }
}

impl fmt::Debug for Tokenizer {
    /// Without the vocabulary, which may have hundreds of thousands of entries.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Kind::Bytes => "bytes",
            Kind::Hf(_) => "hf",
        };
        formatter
            .debug_struct("Tokenizer")
            .field("kind", &kind)
            .field("vocab_size", &self.vocab_size())
            .field("end_of_document", &self.end_of_document())
            .finish()
    }
}

/// Decodes tokens one by one into whole characters; made by
/// [`decode_stream`](Tokenizer::decode_stream).
///
/// The pieces joined are what [`decode`](Tokenizer::decode) makes of all tokens, up to the number of
/// U+FFFD that stand for bytes that are not UTF-8.
pub struct DecodeStream<'a>(StreamKind<'a>);

enum StreamKind<'a> {
    Bytes(ByteStream),
    Hf(HfStream<'a>),
}

impl DecodeStream<'_> {
    /// Adds a token. Returns the text that is settled by it, which is not empty, or `None` if there is
    /// none: within a character, or for a token without text.
    pub fn push(&mut self, id: u32) -> Option<String> {
        let text = match &mut self.0 {
            StreamKind::Bytes(stream) => stream.push(id),
            StreamKind::Hf(stream) => stream.push(id),
        };
        Some(text).filter(|text| !text.is_empty())
    }

    /// The text that was held back, often empty. Half a character becomes U+FFFD.
    pub fn finish(self) -> String {
        match self.0 {
            StreamKind::Bytes(stream) => stream.finish(),
            StreamKind::Hf(stream) => stream.finish(),
        }
    }
}

/// Content of a tokenizer file.
fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    fs::read(path).map_err(|reason| DataError::TokenizerUnreadable { path: path.to_path_buf(), reason })
}

/// A tokenizer_config.json for a tokenizer that has none.
fn tokenizer_config(end_of_document: Option<&str>) -> String {
    let mut config = serde_json::json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        // Some versions of transformers would else remove spaces before punctuation when they decode.
        "clean_up_tokenization_spaces": false,
    });
    if let Some(token) = end_of_document {
        config["eos_token"] = token.into();
    }
    format!("{config:#}\n")
}

#[cfg(test)]
mod cuts_tests;
#[cfg(test)]
mod tests;
