//! Prepared data: found again, made anew when it must be, whole or not there, refused when damaged.

use std::{fs, sync::Arc, thread};

use proptest::prelude::*;

use super::{
    cache::{self, Source},
    manifest::{MANIFEST, Recipe},
    pipeline::Progress,
    writer::Writer,
    *,
};

/// Prepared data of these documents, each followed by `end`, with so many tokens a file.
pub(crate) fn made_of(
    documents: &[Vec<u32>],
    end: Option<u32>,
    vocabulary: u64,
    tokens_per_file: u64,
) -> (tempfile::TempDir, Arc<Prepared>) {
    // In memory where that is to be had: hundreds of cases would else wait for the disk.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let recipe = Recipe {
        format: 1,
        tokenizer: "none".into(),
        vocabulary,
        end_of_document: end,
        field: None,
        sources: Vec::new(),
    };
    let mut writer = Writer::new(folder.path(), &recipe, tokens_per_file).unwrap();
    for document in documents {
        let (first, second) = document.split_at(document.len() / 2);
        writer.push(first).unwrap();
        writer.push(second).unwrap();
        writer.end_document().unwrap();
    }
    writer.finish(recipe, &Tokenizer::load("bytes").unwrap(), 1).unwrap();
    let prepared = Prepared::open(folder.path()).unwrap();
    (folder, Arc::new(prepared))
}

/// A folder with some text, and a cache in it.
struct Place {
    folder: tempfile::TempDir,
    tokenizer: Tokenizer,
}

impl Place {
    fn new(files: &[(&str, &[u8])]) -> Place {
        let place =
            Place { folder: tempfile::tempdir().unwrap(), tokenizer: Tokenizer::load("bytes").unwrap() };
        for (name, content) in files {
            place.write(name, content);
        }
        place
    }

    fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.path(name), content).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn source(&self, glob: &str) -> Source {
        Source { globs: vec![glob.into()], base: self.folder.path().into(), field: "text".into() }
    }

    /// Prepares, and says whether anything was tokenized for it.
    fn prepare(&self, source: &Source) -> Result<(Prepared, bool), DataError> {
        let mut ran = false;
        let prepared =
            source.prepare(&self.tokenizer, &self.path("cache"), &mut |progress| ran |= !progress.waiting)?;
        Ok((prepared, ran))
    }

    fn cached(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path("cache")) else { return Vec::new() };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.ends_with(".lock")).collect()
    }
}

fn all_tokens(prepared: &Prepared) -> Vec<i32> {
    let mut tokens = vec![0; prepared.manifest().tokens as usize];
    prepared.copy(0, &mut tokens).unwrap();
    tokens
}

/// Every file of a folder: name, content, time of change.
fn snapshot(folder: &Path) -> Vec<(PathBuf, Vec<u8>, std::time::SystemTime)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.path().is_dir() {
            files.extend(snapshot(&entry.path()));
        } else {
            let modified = entry.metadata().unwrap().modified().unwrap();
            files.push((entry.path(), fs::read(entry.path()).unwrap(), modified));
        }
    }
    files.sort();
    files
}

#[test]
fn documents_lie_in_the_order_of_the_files() {
    let place = Place::new(&[("b.txt", b"bb"), ("a.txt", b"a"), ("c.txt", b"")]);
    let (prepared, _) = place.prepare(&place.source("*.txt")).unwrap();
    assert_eq!(all_tokens(&prepared), [97, 256, 98, 98, 256]);
    assert_eq!((prepared.extent(0), prepared.extent(1)), (0..2, 2..5));
    let manifest = prepared.manifest();
    assert_eq!((manifest.documents, manifest.empty_documents, manifest.tokens), (2, 1, 5));
    assert_eq!((manifest.token_bytes, manifest.largest_token), (2, 256));
    let paths: Vec<_> =
        manifest.recipe.sources.iter().map(|source| source.path.file_name().unwrap()).collect();
    assert_eq!(paths, ["a.txt", "b.txt", "c.txt"]);
    assert_eq!(prepared.tokenizer().unwrap().hash(), "bytes");
}

#[test]
fn a_second_start_does_not_tokenize_again() {
    let place = Place::new(&[("a.txt", b"some text"), ("b.jsonl", br#"{"text": "more"}"#)]);
    let source = place.source("*.*");
    let (first, ran) = place.prepare(&source).unwrap();
    assert!(ran && !place.cached().is_empty());
    let before = snapshot(first.folder());
    let (second, ran) = place.prepare(&source).unwrap();
    assert!(!ran, "it was tokenized again");
    assert!(source.is_prepared(&place.tokenizer, &place.path("cache")).unwrap());
    assert_eq!(snapshot(second.folder()), before);
}

#[test]
fn a_changed_file_field_or_tokenizer_is_tokenized() {
    let mut place = Place::new(&[("a.jsonl", br#"{"text": "one", "body": "two"}"#)]);
    let mut source = place.source("*.jsonl");
    let (first, _) = place.prepare(&source).unwrap();

    source.field = "body".into();
    let (other, ran) = place.prepare(&source).unwrap();
    assert!(ran && all_tokens(&other) != all_tokens(&first));

    source.field = "text".into();
    place.write("a.jsonl", br#"{"text": "six", "body": "two"}"#);
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(2);
    fs::File::options().write(true).open(place.path("a.jsonl")).unwrap().set_modified(later).unwrap();
    let (changed, ran) = place.prepare(&source).unwrap();
    assert!(ran && all_tokens(&changed)[0] == i32::from(b's'));

    place.write("b.jsonl", br#"{"text": "new"}"#);
    assert!(place.prepare(&source).unwrap().1, "a file more");

    place.tokenizer = letters("e");
    let (tokenized, ran) = place.prepare(&source).unwrap();
    assert!(ran && tokenized.expect_tokenizer(&place.tokenizer).is_ok());
    let error = tokenized.expect_tokenizer(&Tokenizer::load("bytes").unwrap()).unwrap_err();
    assert!(error.to_string().contains("bytes"), "{error}");
}

/// A tokenizer of which this letter ends a document.
fn letters(end: &str) -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "e": 1}, "unk_token": "<unk>"},
    });
    fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    let config = serde_json::json!({"eos_token": end});
    fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    Tokenizer::load_from_model_dir(folder.path()).unwrap()
}

#[test]
fn where_text_files_alone_are_read_the_field_is_of_no_account() {
    let place = Place::new(&[("a.txt", b"text")]);
    let mut source = place.source("*.txt");
    place.prepare(&source).unwrap();
    source.field = "body".into();
    assert!(!place.prepare(&source).unwrap().1);
}

#[test]
fn who_prepares_at_the_same_time_gets_the_same() {
    for _ in 0..4 {
        let place = Place::new(&[("a.txt", &b"some text ".repeat(20_000))]);
        let source = place.source("*.txt");
        let folders: Vec<PathBuf> = thread::scope(|scope| {
            let start = || place.prepare(&source).unwrap().0.folder().to_path_buf();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(folders.iter().all(|folder| *folder == folders[0]));
        assert_eq!(place.cached().len(), 1, "{:?}", place.cached());
        Prepared::open(&folders[0]).unwrap().verify(&mut |_| {}).unwrap();
    }
}

#[test]
fn what_a_killed_process_left_is_cleared_away() {
    let place = Place::new(&[("a.txt", b"text")]);
    let source = place.source("*.txt");
    let key = place.prepare(&source).unwrap().0.folder().file_name().unwrap().to_owned();
    let key = key.to_str().unwrap();
    fs::remove_dir_all(place.path("cache")).unwrap();
    let left = place.path("cache").join(format!("{key}.partial-1"));
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("tokens-00000.bin"), "half").unwrap();
    let other = place.path("cache/ffffffffffffffffffffffffffffffff.partial-1");
    fs::create_dir_all(&other).unwrap();
    place.prepare(&source).unwrap();
    assert!(!left.exists());
    // Someone may be at work there.
    assert!(other.exists());
}

#[test]
fn a_source_that_cannot_be_read_leaves_nothing() {
    for (name, content, words) in [
        ("a.txt", &b"good\0"[..], &["a.txt", "NUL", "offset 4"][..]),
        ("a.txt", b"caf\xe9 x", &["a.txt", "UTF-8", "offset 3"]),
        ("a.txt", b"caf\xc3", &["a.txt", "within a character", "offset 3"]),
        ("a.txt", b"", &["no text", "1 matched file"]),
        (
            "a.jsonl",
            b"{\"text\": \"x\"}\n\n{\"body\": 1, \"n\": 2}",
            &["a.jsonl, line 3", "\"text\"", "\"body\", \"n\""],
        ),
        ("a.jsonl", b"{\"text\": 3}", &["a.jsonl, line 1", "holds a number"]),
        ("a.jsonl", b"{\"text\": null}", &["line 1", "holds null"]),
        ("a.jsonl", b"{\"text\": \"x\"}\n[1]", &["line 2", "not a JSON object"]),
        ("a.jsonl", b"{\"text\": \"x\"} 7", &["line 1", "trailing"]),
        ("a.jsonl", b"{\"text\": \"x\"", &["line 1", "EOF"]),
        ("a.jsonl", b"{\"text\": \"\xff\"}", &["line 1", "not a JSON object"]),
        ("a.jsonl.gz", b"{\"text\": \"x\"}", &["a.jsonl.gz", "gzip"]),
        ("a.txt.zst", b"text", &["a.txt.zst", "zstd"]),
        ("a.parquet", b"text", &["a.parquet", "Parquet"]),
    ] {
        let place = Place::new(&[(name, content)]);
        let error = place.prepare(&place.source("a.*")).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "no {word:?} in {error}");
        }
        assert_eq!(place.cached(), [""; 0], "{name}");
        let folder = place.path("out");
        assert!(place.source("a.*").prepare_into(&place.tokenizer, &folder, &mut |_| {}).is_err());
        let left: Vec<_> =
            fs::read_dir(place.folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(
            left.iter().filter(|name| name.to_str().unwrap().starts_with("out")).count(),
            0,
            "{left:?}"
        );
    }
}

#[test]
fn the_result_does_not_depend_on_the_threads() {
    let files: Vec<(String, Vec<u8>)> = (0..40_usize)
        .map(|index| {
            (format!("{index:02}.txt"), format!("text {index}\n").repeat(index * index * 40).into_bytes())
        })
        .collect();
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, content)| (name.as_str(), &content[..])).collect();
    let place = Place::new(&files);
    let paths: Vec<PathBuf> = files.iter().map(|(name, _)| place.path(name)).collect();
    let fill = |threads: usize| {
        let folder = place.path("made");
        let _ = fs::remove_dir_all(&folder);
        let recipe = Recipe::new(&paths, "text", &place.tokenizer).unwrap();
        cache::fill(&paths, recipe, &place.tokenizer, &folder, threads, 1 << 20, &mut |_| {})?;
        let made = snapshot(&folder).into_iter().map(|(path, content, _)| (path, content));
        Ok::<_, DataError>(made.collect::<Vec<_>>())
    };
    let one = fill(1).unwrap();
    for threads in [2, 3, 32] {
        assert!(fill(threads).unwrap() == one, "{threads} threads");
    }
    for index in [17, 21, 30] {
        fs::write(&paths[index], b"\xff").unwrap();
    }
    for threads in [1, 2, 3, 32].repeat(5) {
        let error = fill(threads).unwrap_err();
        assert!(matches!(&error, DataError::NotText { path, .. } if *path == paths[17]), "{error}");
    }
}

#[test]
fn progress_goes_up_to_the_end() {
    let place = Place::new(&[("a.txt", &b"text\n".repeat(300_000)), ("b.txt", b"more")]);
    let mut all = Vec::new();
    let prepared =
        place.source("*.txt").prepare(&place.tokenizer, &place.path("cache"), &mut |p| all.push(p)).unwrap();
    assert!(all.len() > 4 && all.is_sorted_by_key(|progress| (progress.bytes, progress.tokens)));
    let total = 1_500_004;
    let end = Progress { waiting: false, bytes: total, total_bytes: total, documents: 2, tokens: total + 2 };
    assert_eq!(all.last(), Some(&end));
    assert_eq!(prepared.manifest().tokens, total + 2);
}

/// What is in memory is what has been read and not been written, whatever the size of the file.
#[test]
fn reading_stays_a_few_pieces_ahead_of_writing() {
    use crate::source::PIECE;
    let place = Place::new(&[("a.txt", &b"text\n".repeat(8 << 20))]);
    let paths = [place.path("a.txt")];
    let recipe = Recipe::new(&paths, "text", &place.tokenizer).unwrap();
    let (threads, mut most) = (2, 0);
    cache::fill(&paths, recipe, &place.tokenizer, &place.path("made"), threads, 1 << 30, &mut |progress| {
        // A slow disk.
        thread::sleep(std::time::Duration::from_millis(1));
        // A token is a byte.
        most = most.max(progress.bytes.saturating_sub(progress.tokens));
    })
    .unwrap();
    // Four batches a thread, the one that waits, and what the reader holds to find a place to cut.
    assert!(most > 0 && most <= (4 * threads as u64 + 1 + 4) * PIECE as u64, "{most} bytes");
}

#[test]
fn wide_vocabularies_take_four_bytes() {
    for (vocabulary, bytes) in [(1 << 16, 2), ((1 << 16) + 1, 4)] {
        let largest = vocabulary as u32 - 1;
        let (_folder, prepared) = made_of(&[vec![1, largest]], None, vocabulary, 3);
        assert_eq!(prepared.manifest().token_bytes, bytes);
        assert_eq!(all_tokens(&prepared), [1, largest as i32]);
    }
}

#[test]
fn damaged_folders_are_refused_by_file() {
    let documents: Vec<Vec<u32>> = (1..20).map(|n| vec![n; n as usize]).collect();
    let (folder, prepared) = made_of(&documents, Some(0), 300, 50);
    let all = folder.path();
    prepared.verify(&mut |_| {}).unwrap();
    let opened =
        || Prepared::open(all).and_then(|prepared| prepared.verify(&mut |_| {})).unwrap_err().to_string();
    let mut names: Vec<String> = prepared.manifest().files().map(|file| file.name.clone()).collect();
    assert!(names.len() >= 7, "{names:?}");
    names.push(MANIFEST.into());
    drop(prepared);
    for name in &names {
        let path = all.join(name);
        let whole = fs::read(&path).unwrap();
        // Cut short, longer, gone, and a folder in its place.
        for content in [&whole[..whole.len() - 2], &[&whole[..], b" x"].concat()] {
            fs::write(&path, content).unwrap();
            assert!(opened().starts_with(path.to_str().unwrap()), "{}", opened());
        }
        fs::remove_file(&path).unwrap();
        assert!(opened().starts_with(path.to_str().unwrap()), "{}", opened());
        fs::create_dir(&path).unwrap();
        assert!(opened().starts_with(path.to_str().unwrap()), "{}", opened());
        fs::remove_dir(&path).unwrap();
        let mut changed = whole.clone();
        let middle = changed.len() / 2;
        changed[middle] ^= 1;
        fs::write(&path, &changed).unwrap();
        if name != MANIFEST {
            assert!(opened().starts_with(path.to_str().unwrap()), "{}", opened());
        }
        fs::write(&path, &whole).unwrap();
    }
    Prepared::open(all).unwrap().verify(&mut |_| {}).unwrap();
    let error = Prepared::open(Path::new("/no/such")).unwrap_err().to_string();
    assert!(error.contains("/no/such/manifest.json") && error.contains("memwall data prepare"), "{error}");
}

#[test]
fn a_token_that_was_never_written_is_refused() {
    let (folder, prepared) = made_of(&[vec![1, 2, 3]], None, 300, 50);
    let path = folder.path().join(&prepared.manifest().token_files[0].name);
    drop(prepared);
    fs::write(&path, [1, 0, 200, 0, 3, 0]).unwrap();
    // It has the right size, so only what is read tells.
    let error = Prepared::open(folder.path()).unwrap().copy(0, &mut [0; 3]).unwrap_err().to_string();
    assert!(error.starts_with(path.to_str().unwrap()) && error.contains("200"), "{error}");
}

#[test]
fn a_manifest_is_taken_at_its_word_only_where_it_agrees_with_itself() {
    let (folder, prepared) = made_of(&[vec![1, 2, 3]], None, 300, 50);
    let path = folder.path().join(MANIFEST);
    drop(prepared);
    let good: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (pointer, value, word) in [
        ("/format", serde_json::json!(2), "format 2"),
        ("/format", serde_json::json!("x"), "not a manifest"),
        ("/tokens", serde_json::json!(4), "sizes"),
        ("/tokens", serde_json::json!(u64::MAX), "sizes"),
        ("/documents", serde_json::json!(0), "index"),
        ("/documents", serde_json::json!(-1), "damaged"),
        ("/token_bytes", serde_json::json!(3), "sizes"),
        ("/largest_token", serde_json::json!(u32::MAX), "2147483647"),
        ("/ends_file/name", serde_json::json!("../ends.bin"), "outside"),
        ("/token_files/0/name", serde_json::json!("/etc/passwd"), "outside"),
    ] {
        let mut changed = good.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        fs::write(&path, changed.to_string()).unwrap();
        let error = Prepared::open(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with(path.to_str().unwrap()) && error.contains(word), "{pointer}: {error}");
    }
}

#[test]
fn a_folder_that_exists_is_not_written_to() {
    let place = Place::new(&[("a.txt", b"text")]);
    let folder = place.path("out/deep");
    let source = place.source("*.txt");
    source.prepare_into(&place.tokenizer, &folder, &mut |_| {}).unwrap();
    let before = snapshot(&folder);
    let error = source.prepare_into(&place.tokenizer, &folder, &mut |_| {}).unwrap_err();
    assert!(matches!(error, DataError::Exists { .. }), "{error}");
    assert_eq!(snapshot(&folder), before);
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let place = Place::new(&[("a.txt", b"text"), ("cache", b"a file")]);
    let error = place.prepare(&place.source("*.txt")).unwrap_err();
    assert!(matches!(&error, DataError::Write { path, .. } if *path == place.path("cache")), "{error}");
}

proptest! {
    #[test]
    fn any_range_reads_as_it_was_written(
        documents in prop::collection::vec(prop::collection::vec(0_u32..70_000, 1..40), 1..20),
        end in prop::option::of(0_u32..70_000),
        per_file in 1_u64..60,
        from: prop::sample::Index,
        to: prop::sample::Index,
    ) {
        let (_folder, prepared) = made_of(&documents, end, 70_000, per_file);
        let stream: Vec<i32> =
            documents.iter().flat_map(|d| d.iter().copied().chain(end)).map(|t| t as i32).collect();
        prop_assert_eq!(prepared.manifest().tokens, stream.len() as u64);
        let (a, b) = (from.index(stream.len() + 1), to.index(stream.len() + 1));
        let (a, b) = (a.min(b), a.max(b));
        let mut read = vec![0; b - a];
        prepared.copy(a as u64, &mut read).unwrap();
        prop_assert_eq!(&read, &stream[a..b]);
    }
}
