//! What a folder of prepared data says of itself: `manifest.json`, the last file that is written into it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use serde::{Deserialize, Serialize};

use crate::{DataError, Tokenizer};

/// Name of the file.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The format that this version writes and reads.
const FORMAT: u32 = 1;

/// All that the tokens depend on. Equal recipes mean equal tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipe {
    /// Version of the format of the folder.
    pub format: u32,
    /// Hash of the tokenizer ([`Tokenizer::hash`]).
    pub tokenizer: String,
    /// The largest id of the tokenizer plus 1.
    pub vocabulary: u64,
    /// The token after each document, if there is one.
    pub end_of_document: Option<u32>,
    /// The field or column that holds the text, where files have fields.
    pub field: Option<String>,
    /// The files, sorted by path.
    pub sources: Vec<SourceFile>,
}

/// A file as it was when it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Path, absolute and without links.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the last change, in nanoseconds since 1970; 0 where the file system keeps none.
    pub modified: u64,
}

/// The content of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// What the tokens were made from.
    #[serde(flatten)]
    pub recipe: Recipe,
    /// Documents with at least one token.
    pub documents: u64,
    /// Documents without a token, which were left out.
    pub empty_documents: u64,
    /// Tokens of all documents, end-of-document tokens included.
    pub tokens: u64,
    /// The largest token id.
    pub largest_token: u32,
    /// Bytes of one token: 2 if the vocabulary fits, else 4.
    pub token_bytes: u64,
    /// The files with the tokens, in order.
    pub token_files: Vec<DataFile>,
    /// The file with the end of each document.
    pub ends_file: DataFile,
    /// The files of the tokenizer, in the folder `tokenizer`.
    pub tokenizer_files: Vec<DataFile>,
}

/// A file of the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFile {
    /// Name, relative to the folder.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Hash of the content, in hexadecimal.
    pub blake3: String,
}

impl Recipe {
    /// The recipe for these files as they are now.
    pub(crate) fn new(files: &[PathBuf], field: &str, tokenizer: &Tokenizer) -> Result<Recipe, DataError> {
        let sources = files.iter().map(|path| SourceFile::new(path)).collect::<Result<_, _>>()?;
        let fields = files.iter().any(|path| crate::source::has_fields(path));
        Ok(Recipe {
            format: FORMAT,
            tokenizer: tokenizer.hash(),
            vocabulary: tokenizer.vocab_size() as u64,
            end_of_document: tokenizer.end_of_document(),
            field: fields.then(|| field.to_owned()),
            sources,
        })
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.sources.iter().map(|source| source.bytes).sum()
    }

    /// A name that other recipes do not have.
    pub(crate) fn key(&self) -> String {
        let text = serde_json::to_vec(self).unwrap_or_default();
        blake3::hash(&text).to_hex()[..32].to_owned()
    }
}

impl SourceFile {
    /// The file as it is now.
    pub(crate) fn new(path: &Path) -> Result<SourceFile, DataError> {
        let unreadable = |reason| DataError::Unreadable { path: path.to_path_buf(), reason };
        let metadata = fs::metadata(path).map_err(unreadable)?;
        let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let path = fs::canonicalize(path).map_err(unreadable)?;
        let modified = modified.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0));
        // A name that is not UTF-8 has no place in JSON.
        let path = path.to_string_lossy().into_owned().into();
        Ok(SourceFile { path, bytes: metadata.len(), modified })
    }
}

impl Manifest {
    /// Reads the manifest of a folder and checks what it says against itself.
    pub(crate) fn read(folder: &Path) -> Result<Manifest, DataError> {
        let path = folder.join(MANIFEST);
        let refused = |reason: String| DataError::Prepared { path: path.clone(), reason };
        let text = fs::read(&path).map_err(|error| refused(format!("cannot read it: {error}")))?;
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|error| refused(format!("it is not JSON: {error}")))?;
        match value["format"].as_u64() {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(other) => {
                return Err(refused(format!("it has format {other}, this version reads {FORMAT}")));
            }
            None => return Err(refused("it is not a manifest of prepared data".into())),
        }
        let manifest: Manifest =
            serde_json::from_value(value).map_err(|error| refused(format!("it is damaged: {error}")))?;
        manifest.check().map_err(|reason| refused(reason.into()))?;
        Ok(manifest)
    }

    /// Whether the numbers agree with each other.
    fn check(&self) -> Result<(), &'static str> {
        let tokens = self.token_files.iter().try_fold(0_u64, |sum, file| sum.checked_add(file.bytes));
        if !matches!(self.token_bytes, 2 | 4)
            || self.tokens.checked_mul(self.token_bytes) != tokens
            || self.token_files.iter().any(|file| file.bytes == 0 || file.bytes % self.token_bytes != 0)
        {
            return Err("the sizes of the token files do not make its number of tokens");
        }
        if self.documents.checked_mul(8) != Some(self.ends_file.bytes) {
            return Err("the size of the index does not make its number of documents");
        }
        if self.documents == 0 || self.tokens < self.documents {
            return Err("it holds no token");
        }
        if i32::try_from(self.largest_token).is_err() {
            return Err("its largest token id is above 2147483647");
        }
        let files = self.token_files.iter().chain(&self.tokenizer_files).chain([&self.ends_file]);
        let plain = |name: &str| {
            Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)))
        };
        if !files.map(|file| file.name.as_str()).all(plain) {
            return Err("it names a file outside its folder");
        }
        Ok(())
    }

    /// All files but the manifest.
    pub fn files(&self) -> impl Iterator<Item = &DataFile> {
        self.token_files.iter().chain([&self.ends_file]).chain(&self.tokenizer_files)
    }

    /// A hash of the tokens and documents, wherever the files came from: equal if and only if these are.
    pub fn content(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for number in [self.tokens, self.documents, self.token_bytes, self.token_files.len() as u64] {
            hasher.update(&number.to_le_bytes());
        }
        for file in self.token_files.iter().chain([&self.ends_file]) {
            hasher.update(&file.bytes.to_le_bytes());
            hasher.update(file.blake3.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}
