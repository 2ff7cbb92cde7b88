//! Prepared data: the tokens of all documents of a source, in files that are mapped and never read as a whole.
//!
//! A folder holds `tokens-00000.bin` and so on (ids as little-endian integers of 2 or 4 bytes, one stream cut into
//! files), `ends.bin` (for each document, the number of tokens up to its end, as 8 little-endian bytes), `tokenizer/`
//! and `manifest.json`. Each document's tokens are followed by the end-of-document token, if there is one. How samples
//! are cut is not decided here.

pub(crate) mod cache;
pub(crate) mod manifest;
mod map;
pub(crate) mod pipeline;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

use std::{
    fs::File,
    io::Read,
    ops::Range,
    path::{Path, PathBuf},
};

use crate::{DataError, Tokenizer};
use manifest::{DataFile, Manifest};
use map::Map;

/// A folder of prepared data, open to read.
#[derive(Debug)]
pub struct Prepared {
    folder: PathBuf,
    manifest: Manifest,
    tokens: Vec<Map>,
    /// Tokens before each of the maps.
    starts: Vec<u64>,
    ends: Map,
}

impl Prepared {
    /// Opens a folder.
    ///
    /// Checks the manifest, the size of every file, and that the index ascends and ends with the last token; it
    /// does not read the tokens. Their hashes were taken while they were written, and to read a terabyte at each
    /// start would take longer than what it guards against is likely; [`verify`](Prepared::verify) does it.
    ///
    /// # Errors
    ///
    /// [`DataError::Prepared`], which names the file.
    pub fn open(folder: &Path) -> Result<Prepared, DataError> {
        let manifest = Manifest::read(folder)?;
        let mut tokens = Vec::with_capacity(manifest.token_files.len());
        let mut starts = Vec::with_capacity(manifest.token_files.len());
        let mut start = 0;
        for file in &manifest.token_files {
            tokens.push(Map::open(&folder.join(&file.name), file.bytes)?);
            starts.push(start);
            start += file.bytes / manifest.token_bytes;
        }
        let path = folder.join(&manifest.ends_file.name);
        let ends = Map::open(&path, manifest.ends_file.bytes)?;
        let prepared = Prepared { folder: folder.to_path_buf(), manifest, tokens, starts, ends };
        let mut last = 0;
        for document in 0..prepared.documents() {
            let end = prepared.end(document);
            if end <= last {
                let reason =
                    format!("the end of document {document} ({end}) is not after the one before ({last})");
                return Err(DataError::Prepared { path, reason });
            }
            last = end;
        }
        if last != prepared.manifest.tokens {
            let reason =
                format!("its last document ends at {last}, there are {} tokens", prepared.manifest.tokens);
            return Err(DataError::Prepared { path, reason });
        }
        Ok(prepared)
    }

    /// Reads every file and compares its hash; `progress` is told the bytes that are done.
    ///
    /// # Errors
    ///
    /// [`DataError::Prepared`], which names the first file that differs.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<(), DataError> {
        let mut done = 0;
        for DataFile { name, bytes, blake3: expected } in self.manifest.files() {
            let path = self.folder.join(name);
            let refused = |reason: String| DataError::Prepared { path: path.clone(), reason };
            let failed = |error: std::io::Error| refused(format!("cannot read it: {error}"));
            let mut file = File::open(&path).map_err(failed)?;
            let mut hasher = blake3::Hasher::new();
            let mut block = vec![0; 1 << 20];
            let mut length = 0;
            loop {
                let read = file.read(&mut block).map_err(failed)?;
                if read == 0 {
                    break;
                }
                hasher.update(&block[..read]);
                length += read as u64;
                progress(done + length);
            }
            if length != *bytes || hasher.finalize().to_hex().as_str() != expected {
                return Err(refused("its content is not what its manifest says".into()));
            }
            done += length;
        }
        Ok(())
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the folder says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The tokenizer that it was prepared with.
    ///
    /// # Errors
    ///
    /// As of [`Tokenizer::load`].
    pub fn tokenizer(&self) -> Result<Tokenizer, DataError> {
        Tokenizer::load_from_model_dir(&self.folder.join("tokenizer"))
    }

    /// Refuses data that was prepared with another tokenizer.
    ///
    /// # Errors
    ///
    /// [`DataError::OtherTokenizer`].
    pub fn expect_tokenizer(&self, tokenizer: &Tokenizer) -> Result<(), DataError> {
        let shown = |hash: &str, end: Option<u32>| match end {
            Some(end) => format!("{hash} (end of document {end})"),
            None => format!("{hash} (no end of document)"),
        };
        let recipe = &self.manifest.recipe;
        let theirs = shown(&recipe.tokenizer, recipe.end_of_document);
        let ours = shown(&tokenizer.hash(), tokenizer.end_of_document());
        if theirs == ours {
            return Ok(());
        }
        Err(DataError::OtherTokenizer { folder: self.folder.clone(), theirs, ours })
    }

    /// Documents, at least 1.
    pub fn documents(&self) -> u64 {
        self.manifest.documents
    }

    /// Where a document lies in the stream of tokens, its end-of-document token included.
    ///
    /// # Panics
    ///
    /// If there is no such document.
    pub fn extent(&self, document: u64) -> Range<u64> {
        let start = if document == 0 { 0 } else { self.end(document - 1) };
        start..self.end(document)
    }

    /// The number of tokens up to the end of a document.
    fn end(&self, document: u64) -> u64 {
        let at = document as usize * 8;
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.ends.bytes()[at..at + 8]);
        u64::from_le_bytes(bytes)
    }

    /// Copies the tokens of the stream from `start` on into `tokens`.
    ///
    /// # Errors
    ///
    /// [`DataError::Prepared`] for an id that is larger than any that was written: the file was damaged.
    ///
    /// # Panics
    ///
    /// If the stream ends before `tokens` is full.
    pub fn copy(&self, start: u64, tokens: &mut [i32]) -> Result<(), DataError> {
        let mut rest = tokens;
        let mut start = start;
        while !rest.is_empty() {
            let file = self.starts.partition_point(|&first| first <= start) - 1;
            let bytes = self.tokens[file].bytes();
            let width = self.manifest.token_bytes as usize;
            let from = (start - self.starts[file]) as usize * width;
            let count = rest.len().min((bytes.len() - from) / width);
            assert!(count > 0, "tokens past the end of the stream are asked for");
            let (now, later) = rest.split_at_mut(count);
            let bytes = &bytes[from..from + count * width];
            let mut largest = 0;
            if width == 2 {
                for (token, bytes) in now.iter_mut().zip(bytes.chunks_exact(2)) {
                    let id = u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
                    largest = largest.max(id);
                    *token = id as i32;
                }
            } else {
                for (token, bytes) in now.iter_mut().zip(bytes.chunks_exact(4)) {
                    let id = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                    largest = largest.max(id);
                    *token = id as i32;
                }
            }
            if largest > self.manifest.largest_token {
                return Err(DataError::Prepared {
                    path: self.folder.join(&self.manifest.token_files[file].name),
                    reason: format!(
                        "it holds the token id {largest}, the largest that was written is {}",
                        self.manifest.largest_token
                    ),
                });
            }
            start += count as u64;
            rest = later;
        }
        Ok(())
    }
}
