//! Readers of files, against files that other programs wrote (`tests/fixtures/make.py`).

use std::{fs, path::PathBuf};

use proptest::prelude::*;

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// All pieces of a file.
fn pieces(path: &Path, field: &str, cuts: Cuts) -> Result<Vec<Piece>, DataError> {
    let mut pieces = Vec::new();
    let read = AtomicU64::new(0);
    let result = documents(path, field, cuts, &read, &mut |piece| {
        pieces.push(piece);
        Ok(())
    });
    match result {
        Ok(()) => {
            assert_eq!(read.into_inner(), fs::metadata(path).unwrap().len());
            Ok(pieces)
        }
        Err(Stop::Failed(error)) => Err(error),
        Err(Stop::Unwanted) => panic!("nobody stopped it"),
    }
}

/// The documents of a file, put together from their pieces.
fn texts(path: &Path, field: &str) -> Result<Vec<String>, DataError> {
    let mut texts = vec![String::new()];
    for piece in pieces(path, field, Cuts::Anywhere)? {
        texts.last_mut().unwrap().push_str(&piece.text);
        if piece.last {
            texts.push(String::new());
        }
    }
    assert_eq!(texts.pop().as_deref(), Some(""), "the last document does not end");
    Ok(texts)
}

fn written(name: &str, content: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    (folder, path)
}

#[test]
fn parquet_of_every_packing_and_encoding_is_read() {
    let expected: Vec<String> =
        (0..40).map(|row| format!("row {row}: {}", "naïve 日本 \n".repeat(row % 4))).collect();
    for name in ["none", "snappy", "gzip", "zstd", "zstd-v2"] {
        assert_eq!(texts(&fixture(&format!("{name}.parquet")), "body").unwrap(), expected, "{name}");
    }
}

#[test]
fn parquet_that_cannot_be_read_says_why() {
    for (name, field, words) in [
        ("lz4.parquet", "body", &["lz4.parquet", "LZ4", "snappy, gzip, zstd"][..]),
        ("none.parquet", "text", &["none.parquet", "\"text\"", "\"id\", \"body\""]),
        ("none.parquet", "id", &["\"id\" holds INT64, not strings"]),
        ("odd.parquet", "body", &["odd.parquet, row 3", "holds null"]),
        ("odd.parquet", "many", &["\"many\"", "\"many.list.element\""]),
    ] {
        let error = texts(&fixture(name), field).unwrap_err().to_string();
        for word in words {
            assert!(error.to_lowercase().contains(&word.to_lowercase()), "no {word:?} in {error}");
        }
    }
}

#[test]
fn packed_text_is_read_through_all_members_and_frames() {
    let expected: String = (0..200).map(|line| format!("line {line} of the text\n")).collect();
    assert_eq!(texts(&fixture("text.gz"), "").unwrap(), [expected.as_str()]);
    assert_eq!(texts(&fixture("text.zst"), "").unwrap(), [expected.as_str()]);
}

#[test]
fn packed_json_lines_are_json_lines() {
    use std::io::Write;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(b"{\"text\": \"one\"}\n{\"text\": \"two\"}").unwrap();
    let (_folder, path) = written("A.NDJSON.GZ", &packed.finish().unwrap());
    assert_eq!(texts(&path, "text").unwrap(), ["one", "two"]);
}

#[test]
fn packed_files_that_are_cut_or_damaged_are_refused() {
    for name in ["text.gz", "text.zst"] {
        let whole = fs::read(fixture(name)).unwrap();
        for length in [1, 10, whole.len() / 2, whole.len() - 3] {
            let (_folder, path) = written(name, &whole[..length]);
            let error = texts(&path, "").unwrap_err();
            assert!(matches!(error, DataError::Unpack { .. }), "{length}: {error}");
            assert!(error.to_string().contains(name), "{error}");
        }
        // The checksum of the last member or frame.
        let mut changed = whole.clone();
        let end = changed.len();
        changed[end - if name == "text.gz" { 6 } else { 2 }] ^= 1;
        let (_folder, path) = written(name, &changed);
        assert!(matches!(texts(&path, ""), Err(DataError::Unpack { .. })), "{name}");
    }
}

#[test]
fn json_lines_give_the_field_and_nothing_else() {
    let content = "\u{feff}{\"text\": \"a\\u00e9\\n\", \"n\": [1, {\"text\": 2}]}\r\n  \n{\"x\": {}, \"text\": \"\"}\n\
                   {\"t\\u0065xt\": \"escaped\"}";
    let (_folder, path) = written("a.jsonl", content.as_bytes());
    assert_eq!(texts(&path, "text").unwrap(), ["aé\n", "", "escaped"]);
    let places: Vec<Place> =
        pieces(&path, "text", Cuts::Nowhere).unwrap().into_iter().map(|piece| piece.place).collect();
    assert_eq!(places, [Place::Line(1), Place::Line(3), Place::Line(4)]);
}

#[test]
fn the_ending_says_the_format() {
    for (name, expected) in [
        ("a.txt", "Text None"),
        ("a", "Text None"),
        ("a.rs", "Text None"),
        ("a.JSONL", "JsonLines None"),
        ("a.ndjson.zst", "JsonLines Zstandard"),
        ("a.md.gz", "Text Gzip"),
        ("a.parquet", "Parquet None"),
        ("a.parquet.gz", "Text Gzip"),
        (".jsonl", "JsonLines None"),
        ("jsonl", "Text None"),
    ] {
        let (records, packing) = Format::of(Path::new(name));
        assert_eq!(format!("{records:?} {packing:?}"), expected, "{name}");
    }
}

#[test]
fn a_long_document_comes_in_pieces_of_bounded_size() {
    let text = "a line of text\n".repeat(200_000);
    for (name, content) in
        [("a.txt", text.clone()), ("a.jsonl", serde_json::json!({"text": text.clone()}).to_string())]
    {
        let (_folder, path) = written(name, content.as_bytes());
        for (cuts, several) in [(Cuts::Anywhere, true), (Cuts::Lines, true), (Cuts::Nowhere, false)] {
            let pieces = pieces(&path, "text", cuts).unwrap();
            assert_eq!(pieces.len() > 4, several, "{name}, {cuts:?}");
            assert!(!several || pieces.iter().all(|piece| piece.text.len() <= 2 * PIECE));
            assert_eq!(pieces.iter().filter(|piece| piece.last).count(), 1);
            assert_eq!(pieces.iter().map(|piece| piece.text.as_str()).collect::<String>(), text);
        }
    }
}

#[test]
fn characters_across_blocks_are_whole_and_faults_have_their_offset() {
    let mut text = "x".to_owned() + &"日本語".repeat(100_000);
    let (_folder, path) = written("a.txt", text.as_bytes());
    assert_eq!(texts(&path, "").unwrap(), [text.as_str()]);
    let good = text.len() as u64;
    text.push('\0');
    for (end, at) in
        [(text.as_bytes().to_vec(), good), ([&text.as_bytes()[..good as usize], b"\xff"].concat(), good)]
    {
        let (_folder, path) = written("a.txt", &end);
        let error = texts(&path, "").unwrap_err();
        assert!(matches!(error, DataError::NotText { offset, .. } if offset == at), "{error}");
    }
}

#[test]
fn only_regular_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let error = texts(folder.path(), "").unwrap_err();
    assert!(matches!(error, DataError::Unreadable { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn damaged_files_are_read_or_refused(
        name in prop::sample::select(vec!["snappy.parquet", "zstd-v2.parquet", "gzip.parquet", "text.zst", "text.gz"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut content = fs::read(fixture(name)).unwrap();
        for (at, byte) in changes {
            let at = at.index(content.len());
            content[at] = byte;
        }
        let (_folder, path) = written(name, &content);
        // Either way; what must not happen is a panic.
        let _ = texts(&path, "body");
    }
}
