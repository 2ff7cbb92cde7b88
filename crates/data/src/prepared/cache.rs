//! Where prepared data is kept and found again. A folder has the hash of its recipe as its name, and appears
//! whole, by being renamed.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    num::NonZero,
    path::{Path, PathBuf},
    process, thread,
};

use super::{
    Prepared,
    manifest::{MANIFEST, Recipe},
    pipeline::{self, Progress},
    writer::{Writer, refused, sync},
};
use crate::{DataError, Tokenizer, files};

/// Tokens in a file of tokens: a gigabyte or half of one.
const TOKENS_PER_FILE: u64 = 1 << 28;

/// Files of text, JSON Lines or Parquet, which become one stream of documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Globs, relative to `base` unless they are absolute.
    ///
    /// `**` matches any number of folders. Names that begin with a dot are left out unless the glob has such a
    /// name, and so are names that are not UTF-8. A file that several globs or links lead to is read once.
    pub globs: Vec<String>,
    /// Folder that relative globs start from.
    pub base: PathBuf,
    /// The field of JSON Lines, or column of Parquet files, that holds the text.
    pub field: String,
}

impl Source {
    /// The data of this source, prepared: found in the folder `cache`, or put there.
    ///
    /// The format of a file goes by its ending: `.jsonl` and `.ndjson` are JSON Lines, `.parquet` is Parquet, all
    /// else is text, one document a file; `.gz` and `.zst` after it mean that it is packed. Data is found again as
    /// long as the tokenizer, the field and every file's path, size and time of change are the same. Two processes
    /// that want the same data at once make it once. `progress` is called from this thread.
    ///
    /// # Errors
    ///
    /// [`DataError::BadGlob`], [`DataError::BaseNotUnicode`] and [`DataError::NoMatch`] for a glob;
    /// [`DataError::Unreadable`], [`DataError::NotText`] (not UTF-8, or a NUL byte), [`DataError::Record`],
    /// [`DataError::Unpack`], [`DataError::Parquet`], [`DataError::Changed`] and [`DataError::EncodeFile`] for the
    /// first document, in the order of the files, that cannot be read; [`DataError::NoTokens`] if all are empty;
    /// [`DataError::TokenTooLarge`]; [`DataError::Write`] if the cache cannot be written; [`DataError::Prepared`] if
    /// what is found there is damaged. Nothing half-written is left.
    pub fn prepare(
        &self,
        tokenizer: &Tokenizer,
        cache: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Prepared, DataError> {
        let (files, recipe) = self.recipe(tokenizer)?;
        let key = recipe.key();
        let folder = cache.join(&key);
        let found = || folder.join(MANIFEST).exists().then(|| Prepared::open(&folder));
        if let Some(prepared) = found() {
            return prepared;
        }
        fs::create_dir_all(cache).map_err(refused(cache))?;
        let lock_path = cache.join(format!("{key}.lock"));
        let lock = lock(&lock_path, progress)?;
        if let Some(prepared) = found() {
            return prepared;
        }
        let partial = format!("{key}.partial-");
        if lock.is_some() {
            // Whoever made these was killed: the lock was theirs.
            remove_all(cache, &partial)?;
        }
        make(
            &files,
            recipe,
            tokenizer,
            &cache.join(format!("{partial}{}", process::id())),
            &folder,
            progress,
        )?;
        // Only now: with the data in place nobody who comes later needs the lock.
        let _ = fs::remove_file(&lock_path);
        Prepared::open(&folder)
    }

    /// Prepares the data into a folder of its own, which must not exist.
    ///
    /// # Errors
    ///
    /// As of [`prepare`](Source::prepare), and [`DataError::Exists`].
    pub fn prepare_into(
        &self,
        tokenizer: &Tokenizer,
        folder: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Prepared, DataError> {
        if folder.exists() {
            return Err(DataError::Exists { path: folder.to_path_buf() });
        }
        let (files, recipe) = self.recipe(tokenizer)?;
        let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(refused(parent))?;
        let mut partial = folder.as_os_str().to_owned();
        partial.push(format!(".partial-{}", process::id()));
        make(&files, recipe, tokenizer, Path::new(&partial), folder, progress)?;
        Prepared::open(folder)
    }

    /// Whether [`prepare`](Source::prepare) would find the data in `cache`.
    ///
    /// # Errors
    ///
    /// As of [`prepare`](Source::prepare), for globs and for files that cannot be looked at.
    pub fn is_prepared(&self, tokenizer: &Tokenizer, cache: &Path) -> Result<bool, DataError> {
        let (_, recipe) = self.recipe(tokenizer)?;
        Ok(cache.join(recipe.key()).join(MANIFEST).exists())
    }

    /// The files, and what their tokens will depend on.
    fn recipe(&self, tokenizer: &Tokenizer) -> Result<(Vec<PathBuf>, Recipe), DataError> {
        let files = files::matching(&self.globs, &self.base)?;
        let recipe = Recipe::new(&files, &self.field, tokenizer)?;
        Ok((files, recipe))
    }
}

/// Makes a folder of prepared data under the name `partial`, and renames it to `folder`.
fn make(
    files: &[PathBuf],
    recipe: Recipe,
    tokenizer: &Tokenizer,
    partial: &Path,
    folder: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), DataError> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let made = fill(files, recipe, tokenizer, partial, threads, TOKENS_PER_FILE, progress);
    let placed = made.and_then(|()| match fs::rename(partial, folder) {
        // Where files cannot be locked another process may have been as fast; its data is the same.
        Err(_) if folder.join(MANIFEST).exists() => Ok(()),
        renamed => renamed.map_err(refused(folder)),
    });
    if partial.exists() {
        // What cannot be removed now is removed by the next attempt.
        let _ = fs::remove_dir_all(partial);
    }
    placed?;
    match folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => sync(parent).map_err(refused(parent)),
        None => Ok(()),
    }
}

/// Makes the folder `partial` and all that belongs into it.
pub(super) fn fill(
    files: &[PathBuf],
    recipe: Recipe,
    tokenizer: &Tokenizer,
    partial: &Path,
    threads: usize,
    tokens_per_file: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), DataError> {
    fs::create_dir(partial).map_err(refused(partial))?;
    let mut writer = Writer::new(partial, &recipe, tokens_per_file)?;
    pipeline::run(files, &recipe, tokenizer, threads, &mut writer, progress)?;
    writer.finish(recipe, tokenizer, files.len())?;
    sync(partial).map_err(refused(partial))
}

/// Waits for the lock; `None` on a file system that has none.
fn lock(path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Option<File>, DataError> {
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(refused(path))?;
    let unsupported = |error: &io::Error| error.kind() == io::ErrorKind::Unsupported;
    match file.try_lock() {
        Ok(()) => return Ok(Some(file)),
        Err(TryLockError::WouldBlock) => progress(Progress { waiting: true, ..Progress::default() }),
        Err(TryLockError::Error(error)) if unsupported(&error) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(refused(path)(error)),
    }
    file.lock().map_err(refused(path))?;
    Ok(Some(file))
}

/// Removes the folders in `cache` whose names begin like this.
fn remove_all(cache: &Path, prefix: &str) -> Result<(), DataError> {
    for entry in fs::read_dir(cache).map_err(refused(cache))? {
        let path = entry.map_err(refused(cache))?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)) {
            fs::remove_dir_all(&path).map_err(refused(&path))?;
        }
    }
    Ok(())
}
