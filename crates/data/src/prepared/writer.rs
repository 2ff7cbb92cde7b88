//! Writes a folder of prepared data, one token after another.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use super::manifest::{DataFile, MANIFEST, Manifest, Recipe};
use crate::{DataError, Tokenizer};

/// A folder that is being written. It is no prepared data before [`finish`](Writer::finish) has written the
/// manifest.
pub(crate) struct Writer {
    folder: PathBuf,
    token_bytes: u64,
    tokens_per_file: u64,
    end_of_document: Option<u32>,
    current: Option<Output>,
    token_files: Vec<DataFile>,
    ends: Output,
    tokens: u64,
    documents: u64,
    empty_documents: u64,
    largest_token: u32,
    /// Tokens of the document that has not ended.
    open: u64,
    bytes: Vec<u8>,
}

impl Writer {
    /// Begins in an empty folder. A file gets `tokens_per_file` tokens.
    pub(crate) fn new(folder: &Path, recipe: &Recipe, tokens_per_file: u64) -> Result<Writer, DataError> {
        Ok(Writer {
            folder: folder.to_path_buf(),
            token_bytes: if recipe.vocabulary <= 1 << 16 { 2 } else { 4 },
            tokens_per_file,
            end_of_document: recipe.end_of_document,
            current: None,
            token_files: Vec::new(),
            ends: Output::new(folder, "ends.bin".into())?,
            tokens: 0,
            documents: 0,
            empty_documents: 0,
            largest_token: 0,
            open: 0,
            bytes: Vec::new(),
        })
    }

    /// Documents and tokens so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.documents, self.tokens)
    }

    /// Appends tokens to the document.
    pub(crate) fn push(&mut self, tokens: &[u32]) -> Result<(), DataError> {
        self.open += tokens.len() as u64;
        self.append(tokens)
    }

    /// Ends the document. One without tokens is left out.
    pub(crate) fn end_document(&mut self) -> Result<(), DataError> {
        if std::mem::take(&mut self.open) == 0 {
            self.empty_documents += 1;
            return Ok(());
        }
        if let Some(end) = self.end_of_document {
            self.append(&[end])?;
        }
        self.documents += 1;
        self.ends.write(&self.tokens.to_le_bytes())
    }

    fn append(&mut self, tokens: &[u32]) -> Result<(), DataError> {
        let mut rest = tokens;
        while !rest.is_empty() {
            let used = self.tokens % self.tokens_per_file;
            if used == 0 {
                if let Some(full) = self.current.take() {
                    self.token_files.push(full.finish()?);
                }
                let name = format!("tokens-{:05}.bin", self.token_files.len());
                self.current = Some(Output::new(&self.folder, name)?);
            }
            let room = usize::try_from(self.tokens_per_file - used).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(rest.len().min(room));
            self.bytes.clear();
            for &token in now {
                self.largest_token = self.largest_token.max(token);
                match self.token_bytes {
                    // A tokenizer has no id that is not below its vocabulary, which decides on the width.
                    2 => self.bytes.extend_from_slice(&(token as u16).to_le_bytes()),
                    _ => self.bytes.extend_from_slice(&token.to_le_bytes()),
                }
            }
            if let Some(output) = &mut self.current {
                output.write(&self.bytes)?;
            }
            self.tokens += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Writes what is left, and last of all the manifest. `files` were read.
    pub(crate) fn finish(
        mut self,
        recipe: Recipe,
        tokenizer: &Tokenizer,
        files: usize,
    ) -> Result<Manifest, DataError> {
        if self.documents == 0 {
            return Err(DataError::NoTokens { files });
        }
        if i32::try_from(self.largest_token).is_err() {
            return Err(DataError::TokenTooLarge { token: self.largest_token });
        }
        if let Some(last) = self.current.take() {
            self.token_files.push(last.finish()?);
        }
        let mut tokenizer_files = Vec::new();
        let folder = self.folder.join("tokenizer");
        for name in tokenizer.write_hf_files(&folder)? {
            let path = folder.join(&name);
            let content = sync(&path).and_then(|()| fs::read(&path)).map_err(refused(&path))?;
            tokenizer_files.push(DataFile {
                name: format!("tokenizer/{name}"),
                bytes: content.len() as u64,
                blake3: blake3::hash(&content).to_hex().to_string(),
            });
        }
        sync(&folder).map_err(refused(&folder))?;
        let manifest = Manifest {
            recipe,
            documents: self.documents,
            empty_documents: self.empty_documents,
            tokens: self.tokens,
            largest_token: self.largest_token,
            token_bytes: self.token_bytes,
            token_files: self.token_files,
            ends_file: self.ends.finish()?,
            tokenizer_files,
        };
        let text = serde_json::to_string_pretty(&manifest)
            .map_err(|error| refused(&self.folder)(std::io::Error::other(error)))?;
        replace(&self.folder.join(MANIFEST), format!("{text}\n").as_bytes())?;
        Ok(manifest)
    }
}

/// Writes a file so that it is there whole, or not at all.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), DataError> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let written = File::create(&partial).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&partial, path)).map_err(refused(path))?;
    match path.parent() {
        Some(folder) => sync(folder).map_err(refused(folder)),
        None => Ok(()),
    }
}

/// Waits until a file or folder is on the disk.
pub(crate) fn sync(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

/// The error for a path that cannot be written.
pub(crate) fn refused(path: &Path) -> impl Fn(std::io::Error) -> DataError {
    let path = path.to_path_buf();
    move |reason| DataError::Write { path: path.clone(), reason }
}

/// A file whose hash is taken as it is written.
struct Output {
    path: PathBuf,
    name: String,
    file: BufWriter<File>,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl Output {
    fn new(folder: &Path, name: String) -> Result<Output, DataError> {
        let path = folder.join(&name);
        let file = File::create_new(&path).map_err(refused(&path))?;
        let file = BufWriter::with_capacity(1 << 16, file);
        Ok(Output { path, name, file, hasher: blake3::Hasher::new(), bytes: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.file.write_all(bytes).map_err(refused(&self.path))?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn finish(self) -> Result<DataFile, DataError> {
        let synced =
            self.file.into_inner().map_err(|error| error.into_error()).and_then(|file| file.sync_all());
        synced.map_err(refused(&self.path))?;
        let blake3 = self.hasher.finalize().to_hex().to_string();
        Ok(DataFile { name: self.name, bytes: self.bytes, blake3 })
    }
}
