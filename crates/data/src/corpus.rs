//! Text files read and tokenized in parallel; the result does not depend on how many threads did it.

use std::{
    fs,
    num::NonZero,
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use crate::{DataError, Tokenizer, files};

/// The tokens of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// File that it was read from.
    pub path: PathBuf,
    /// Its tokens, at least one, without an end-of-document token.
    pub tokens: Vec<u32>,
}

/// The tokens of all files, sorted by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Corpus {
    /// One document for each file that holds a token.
    pub documents: Vec<Document>,
    /// Files that hold no token, and are left out.
    pub skipped_empty: usize,
}

impl Corpus {
    /// Reads and tokenizes the files that the globs match.
    ///
    /// A glob is relative to `base` unless it is absolute, and `**` matches any number of folders. Names
    /// that begin with a dot are left out unless the glob has such a name, and so are names that are not
    /// UTF-8. A file that several globs or links lead to is read once. `progress` is called from this
    /// thread with the number of files that are done and their total.
    ///
    /// # Errors
    ///
    /// [`DataError::BadGlob`], [`DataError::BaseNotUnicode`] and [`DataError::NoMatch`] for a glob;
    /// [`DataError::Unreadable`], [`DataError::NotText`] (not UTF-8, or a NUL byte) and
    /// [`DataError::EncodeFile`] for the first file in path order that fails; [`DataError::NoTokens`] if
    /// all files are empty.
    pub fn read(
        globs: &[String],
        base: &Path,
        tokenizer: &Tokenizer,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Corpus, DataError> {
        let files = files::matching(globs, base)?;
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        read_files(&files, tokenizer, threads, progress)
    }

    /// Tokens of all documents, without end-of-document tokens.
    pub fn tokens(&self) -> usize {
        self.documents.iter().map(|document| document.tokens.len()).sum()
    }
}

/// Tokenizes the files on up to `threads` threads.
fn read_files(
    files: &[PathBuf],
    tokenizer: &Tokenizer,
    threads: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Corpus, DataError> {
    let mut results: Vec<Option<Result<Vec<u32>, DataError>>> = files.iter().map(|_| None).collect();
    let next = AtomicUsize::new(0);
    // Files are claimed in order and each claimed file is finished. So although an error stops further
    // claims, the first file that fails is always among the results: which error is reported does not
    // depend on timing.
    let failed = AtomicBool::new(false);
    progress(0, files.len());
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..threads.min(files.len()) {
            let sender = sender.clone();
            let (next, failed) = (&next, &failed);
            scope.spawn(move || {
                while !failed.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(path) = files.get(index) else { break };
                    let result = read_file(path, tokenizer);
                    if result.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    if sender.send((index, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (done, (index, result)) in receiver.into_iter().enumerate() {
            results[index] = Some(result);
            progress(done + 1, files.len());
        }
    });

    let mut corpus = Corpus::default();
    for (path, result) in files.iter().zip(results.into_iter().flatten()) {
        let tokens = result?;
        if tokens.is_empty() {
            corpus.skipped_empty += 1;
        } else {
            corpus.documents.push(Document { path: path.clone(), tokens });
        }
    }
    if corpus.documents.is_empty() {
        return Err(DataError::NoTokens { files: files.len() });
    }
    Ok(corpus)
}

/// The tokens of a file.
fn read_file(path: &Path, tokenizer: &Tokenizer) -> Result<Vec<u32>, DataError> {
    let bytes =
        fs::read(path).map_err(|reason| DataError::Unreadable { path: path.to_path_buf(), reason })?;
    let text = text(&bytes).map_err(|(offset, reason)| DataError::NotText {
        path: path.to_path_buf(),
        offset,
        reason,
    })?;
    tokenizer.encode(text).map_err(|error| match error {
        DataError::Encode { reason } => DataError::EncodeFile { path: path.to_path_buf(), reason },
        other => other,
    })
}

/// The bytes as text, or the offset and nature of what is first in the way.
fn text(bytes: &[u8]) -> Result<&str, (usize, &'static str)> {
    let (valid, result) = match std::str::from_utf8(bytes) {
        Ok(text) => (bytes, Ok(text)),
        Err(error) => {
            let offset = error.valid_up_to();
            let reason = match error.error_len() {
                Some(_) => "an invalid byte sequence",
                None => "the file ends within a character",
            };
            (&bytes[..offset], Err((offset, reason)))
        }
    };
    // NUL is valid UTF-8, but a file that contains it is binary or UTF-16.
    match valid.iter().position(|&byte| byte == 0) {
        Some(offset) => Err((offset, "a NUL byte")),
        None => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes() -> Tokenizer {
        Tokenizer::load("bytes").unwrap()
    }

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(folder.path().join(name), content).unwrap();
        }
        folder
    }

    fn read(folder: &tempfile::TempDir) -> Result<Corpus, DataError> {
        Corpus::read(&["*".to_string()], folder.path(), &bytes(), &mut |_, _| {})
    }

    #[test]
    fn files_become_documents_and_empty_files_are_counted() {
        let folder = folder(&[("b", b"hi"), ("a", "é".as_bytes()), ("c", b"")]);
        let mut calls = Vec::new();
        let corpus = Corpus::read(&["*".to_string()], folder.path(), &bytes(), &mut |done, total| {
            calls.push((done, total));
        })
        .unwrap();
        let documents: Vec<_> = corpus.documents.iter().map(|d| (d.path.clone(), d.tokens.clone())).collect();
        let expected =
            [(folder.path().join("a"), vec![0xc3, 0xa9]), (folder.path().join("b"), vec![0x68, 0x69])];
        assert_eq!(documents, expected);
        assert_eq!((corpus.skipped_empty, corpus.tokens()), (1, 4));
        assert_eq!(calls, [(0, 3), (1, 3), (2, 3), (3, 3)]);
    }

    #[test]
    fn what_is_not_text_is_refused_with_its_place() {
        for (content, place) in [
            (&b"ab\xffcd"[..], (2, "an invalid byte sequence")),
            (b"ab\xe2\x82", (2, "the file ends within a character")),
            (b"abc\0\xff", (3, "a NUL byte")),
            (b"\xff\xfea\0", (0, "an invalid byte sequence")),
        ] {
            let folder = folder(&[("a", b"fine"), ("b", content)]);
            match read(&folder).unwrap_err() {
                DataError::NotText { path, offset, reason } => {
                    assert_eq!((path, (offset, reason)), (folder.path().join("b"), place));
                }
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn only_empty_files_are_refused() {
        assert!(matches!(read(&folder(&[("a", b""), ("b", b"")])), Err(DataError::NoTokens { files: 2 })));
        let none = Corpus::read(&[], Path::new("."), &bytes(), &mut |_, _| {});
        assert!(matches!(none, Err(DataError::NoTokens { files: 0 })));
    }

    #[test]
    fn a_file_that_vanished_is_unreadable() {
        let error = read_files(&[PathBuf::from("/no/such")], &bytes(), 1, &mut |_, _| {}).unwrap_err();
        assert!(matches!(&error, DataError::Unreadable { .. }), "{error}");
        assert!(error.to_string().contains("/no/such"), "{error}");
    }

    #[test]
    fn the_result_does_not_depend_on_the_threads() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        for index in 0..40 {
            files.push(folder.path().join(format!("{index:02}")));
            fs::write(&files[index], "text ".repeat(index * index)).unwrap();
        }
        let one = read_files(&files, &bytes(), 1, &mut |_, _| {}).unwrap();
        assert_eq!(one.documents.len(), 39);
        for threads in [2, 3, 64] {
            assert_eq!(read_files(&files, &bytes(), threads, &mut |_, _| {}).unwrap(), one);
        }
        for index in [17, 21, 30] {
            fs::write(&files[index], b"\xff").unwrap();
        }
        for threads in [1, 2, 3, 64].repeat(5) {
            let error = read_files(&files, &bytes(), threads, &mut |_, _| {}).unwrap_err();
            assert!(matches!(&error, DataError::NotText { path, .. } if *path == files[17]), "{error}");
        }
    }
}
