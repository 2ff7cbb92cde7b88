//! Tests of both kinds of tokenizer, and of one against the other.

use std::{fs, path::Path};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const TEXTS: [&str; 9] = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces \n\n lines\r\n\ttabs  ",
    "naïve café Ærøskøbing",
    "日本語のテキスト и русский",
    "👩‍👩‍👧‍👦 🇩🇪 e\u{301} \u{200b}",
    "\u{0} \u{7f} \u{ad} \u{a0} \u{10ffff}",
    "Ġ is what a space is written as",
];

fn bytes_tokenizer() -> Tokenizer {
    Tokenizer::load("bytes").unwrap()
}

/// The byte tokenizer as the crate `tokenizers` understands its tokenizer.json.
fn bytes_as_hf() -> Tokenizer {
    let json = bytes::tokenizer_json().into_bytes();
    Tokenizer(Kind::Hf(Box::new(HfTokenizer::new(Path::new("/none/tokenizer.json"), json).unwrap())))
}

/// A folder with a tokenizer.json that splits at spaces and knows these words.
fn words(words: &[&str], change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let vocabulary: serde_json::Map<String, Value> =
        words.iter().zip(0_u32..).map(|(word, id)| (word.to_string(), id.into())).collect();
    let mut json = json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    });
    change(&mut json);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(TOKENIZER_JSON), json.to_string()).unwrap();
    folder
}

fn load(folder: &tempfile::TempDir) -> Tokenizer {
    Tokenizer::load_from_model_dir(folder.path()).unwrap()
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let mut stream = tokenizer.decode_stream();
    let mut pieces: Vec<String> = ids.iter().filter_map(|&id| stream.push(id)).collect();
    pieces.push(stream.finish());
    pieces
}

#[test]
fn byte_ids_are_the_bytes() {
    let tokenizer = bytes_tokenizer();
    assert_eq!((tokenizer.vocab_size(), tokenizer.end_of_document()), (257, Some(256)));
    assert_eq!(tokenizer.encode("aé<|endoftext|>").unwrap()[..4], [97, 195, 169, 60]);
    assert_eq!(tokenizer.decode(&[97, 256, 195, 169, 255, 300]), "aé\u{fffd}");
}

#[test]
fn the_generated_file_is_the_same_tokenizer() {
    let (own, hf) = (bytes_tokenizer(), bytes_as_hf());
    assert_eq!((hf.vocab_size(), hf.end_of_document()), (257, Some(256)));
    for text in TEXTS {
        let ids = own.encode(text).unwrap();
        assert_eq!(hf.encode(text).unwrap(), ids, "{text:?}");
        assert_eq!(hf.decode(&ids), text);
        for tokenizer in [&own, &hf] {
            let pieces = streamed(tokenizer, &ids);
            assert_eq!(pieces.concat(), text);
            assert!(pieces.iter().all(|piece| piece.chars().count() <= 1), "{pieces:?}");
        }
    }
    assert_eq!(hf.encode("a<|endoftext|>").unwrap(), [97, 256]);
    assert_eq!(hf.decode(&[97, 256, 98, 300]), "ab");
}

#[test]
fn written_files_load_again() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("new/model");
    let names = bytes_tokenizer().write_hf_files(&dir).unwrap();
    assert_eq!(names, ["tokenizer.json", "tokenizer_config.json"]);
    assert!(matches!(Tokenizer::load_from_model_dir(&dir).unwrap().0, Kind::Bytes));
    let spec = dir.to_str().unwrap();
    assert!(matches!(Tokenizer::load(spec).unwrap().0, Kind::Bytes));
    let config: Value = serde_json::from_slice(&fs::read(dir.join(TOKENIZER_CONFIG_JSON)).unwrap()).unwrap();
    assert_eq!(config["eos_token"], "<|endoftext|>");

    fs::write(folder.path().join("file"), "").unwrap();
    let error = bytes_tokenizer().write_hf_files(&folder.path().join("file")).unwrap_err();
    assert!(matches!(error, DataError::Write { .. }), "{error}");
}

#[test]
fn a_hugging_face_tokenizer_encodes_the_whole_text() {
    let folder = words(&["<unk>", "red", "wheel", "</s>"], |json| {
        json["truncation"] =
            json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        json["padding"] = json!({"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"});
    });
    let tokenizer = load(&folder);
    assert_eq!((tokenizer.vocab_size(), tokenizer.end_of_document()), (4, Some(3)));
    assert_eq!(tokenizer.encode("red wheel barrow red").unwrap(), [1, 2, 0, 1]);
    assert_eq!(tokenizer.decode(&[1, 3, 2, 99]), "red wheel");
    assert_eq!(streamed(&tokenizer, &[1, 3, 2, 3, 99, 1]), ["red", " wheel", " red", ""]);
}

#[test]
fn a_long_run_of_tokens_without_text_is_let_go() {
    let folder = words(&["<unk>", "red", "</s>"], |_| {});
    let tokenizer = load(&folder);
    let mut stream = tokenizer.decode_stream();
    for _ in 0..100 {
        assert_eq!(stream.push(2), None);
    }
    let StreamKind::Hf(inner) = &stream.0 else { panic!("a stream of the other kind") };
    assert!(inner.held() <= 64);
    assert_eq!(stream.push(1).as_deref(), Some("red"));
}

#[test]
fn the_vocabulary_size_covers_gaps_and_added_tokens() {
    let folder = words(&["<unk>", "red"], |json| {
        json["model"]["vocab"]["far"] = 41.into();
    });
    assert_eq!(load(&folder).vocab_size(), 42);
    let folder = words(&["<unk>", "red"], |json| {
        json["added_tokens"] = json!([{"id": 2, "content": "<eos>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}]);
    });
    let tokenizer = load(&folder);
    assert_eq!((tokenizer.vocab_size(), tokenizer.end_of_document()), (3, Some(2)));
    assert_eq!(tokenizer.encode("red<eos>").unwrap(), [1, 2]);
}

#[test]
fn the_config_names_the_end_of_document() {
    for (config, expected) in [
        (json!({"eos_token": "<stop>"}), Some(2)),
        (json!({"eos_token": {"content": "<stop>", "lstrip": false}}), Some(2)),
        (json!({"eos_token": "<unheard-of>"}), Some(1)),
        (json!({"eos_token": null}), Some(1)),
        (json!({}), Some(1)),
        (json!([]), Some(1)),
    ] {
        let folder = words(&["<unk>", "</s>", "<stop>"], |_| {});
        fs::write(folder.path().join(TOKENIZER_CONFIG_JSON), config.to_string()).unwrap();
        assert_eq!(load(&folder).end_of_document(), expected, "{config}");
    }
    assert_eq!(load(&words(&["<unk>"], |_| {})).end_of_document(), None);
}

#[test]
fn files_are_copied_byte_for_byte() {
    let folder = words(&["<unk>", "<|im_end|>"], |_| {});
    let original = fs::read(folder.path().join(TOKENIZER_JSON)).unwrap();
    let target = tempfile::tempdir().unwrap();
    let bare = load(&folder);
    assert_eq!(bare.write_hf_files(target.path()).unwrap(), ["tokenizer.json", "tokenizer_config.json"]);
    assert_eq!(fs::read(target.path().join(TOKENIZER_JSON)).unwrap(), original);
    let config = fs::read(target.path().join(TOKENIZER_CONFIG_JSON)).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["tokenizer_class"], "PreTrainedTokenizerFast");
    assert_eq!(config["eos_token"], "<|im_end|>");

    let sides = [(TOKENIZER_CONFIG_JSON, "{ }"), ("special_tokens_map.json", "{\n}")];
    for (name, content) in sides {
        fs::write(folder.path().join(name), content).unwrap();
    }
    let full = load(&folder);
    // What is written is what was loaded.
    fs::remove_dir_all(folder.path()).unwrap();
    let names = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"];
    assert_eq!(full.write_hf_files(target.path()).unwrap(), names);
    for (name, content) in sides {
        assert_eq!(fs::read_to_string(target.path().join(name)).unwrap(), content);
    }
}

#[test]
fn malformed_files_are_named() {
    let folder = words(&["<unk>"], |_| {});
    let config = folder.path().join(TOKENIZER_CONFIG_JSON);
    fs::write(&config, "{").unwrap();
    let error = Tokenizer::load_from_model_dir(folder.path()).unwrap_err();
    assert!(error.to_string().starts_with(config.to_str().unwrap()), "{error}");
    fs::remove_file(config).unwrap();

    let path = folder.path().join(TOKENIZER_JSON);
    for content in [&b""[..], b"\xff", b"{}", b"[1]", br#"{"model": {"type": "BPE"}}"#] {
        fs::write(&path, content).unwrap();
        let error = Tokenizer::load(path.to_str().unwrap()).unwrap_err();
        assert!(matches!(error, DataError::TokenizerMalformed { .. }), "{error}");
        assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
    }
    let damaged = bytes::tokenizer_json().replace("\"trim_offsets\": true", "\"trim_offsets\" true");
    fs::write(&path, damaged).unwrap();
    let error = Tokenizer::load_from_model_dir(folder.path()).unwrap_err();
    assert!(error.to_string().contains("expected `:` at line"), "{error}");
    let odd = words(&["<unk>"], |json| json["decoder"] = json!({"type": "ByteLevel", "trim_offsets": 1}));
    let error = Tokenizer::load_from_model_dir(odd.path()).unwrap_err();
    assert!(matches!(error, DataError::TokenizerMalformed { .. }), "{error}");
    let empty = words(&[], |_| {});
    let error = Tokenizer::load_from_model_dir(empty.path()).unwrap_err();
    assert!(error.to_string().contains("vocabulary is empty"), "{error}");

    let error = Tokenizer::load("/no/such/tokenizer.json").unwrap_err();
    assert!(matches!(error, DataError::TokenizerUnreadable { .. }), "{error}");
    assert!(error.to_string().contains("/no/such/tokenizer.json"), "{error}");
}

#[test]
fn a_text_that_is_not_covered_is_refused() {
    // Without the unknown token that it promises, the model has no id for other words.
    let tokenizer = load(&words(&["red"], |_| {}));
    assert!(matches!(tokenizer.encode("blue"), Err(DataError::Encode { .. })));
}

#[test]
fn a_decoder_that_the_library_panics_at_gives_the_plain_tokens() {
    // It strips two of them from the end of each token, and the first has only one character.
    let folder = words(&["a", "b  "], |json| {
        json["decoder"] = json!({"type": "Strip", "content": "a", "start": 0, "stop": 2});
    });
    let tokenizer = load(&folder);
    assert_eq!(tokenizer.decode(&[0, 1]), "ab  ");
    assert_eq!(streamed(&tokenizer, &[0, 1]).concat(), "ab  ");
}

#[test]
fn replacement_characters_in_a_text_do_not_break_the_next_character() {
    let text = "\u{fffd}".repeat(20) + "🌀";
    for tokenizer in [bytes_tokenizer(), bytes_as_hf()] {
        let pieces = streamed(&tokenizer, &tokenizer.encode(&text).unwrap());
        assert_eq!(pieces.concat(), text);
        // They are told from characters to come after a few tokens, not at the end.
        assert!(pieces.len() > 5, "{pieces:?}");
    }
}

/// As in Llama 2: words start with a mark for the space, and bytes stand for what is not a word.
#[test]
fn pieces_of_other_decoders_join_to_the_text() {
    let mut known: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    known.extend(["▁red".to_string(), "▁wheel".to_string(), "<unk>".to_string()]);
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let folder = words(&known, |json| {
        json["decoder"] = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]});
    });
    let tokenizer = load(&folder);
    let emoji = || "🌀é".bytes().map(u32::from);
    let ids: Vec<u32> = [256].into_iter().chain(emoji()).chain([257]).chain(emoji()).collect();
    let text = "red🌀é wheel🌀é";
    assert_eq!(tokenizer.decode(&ids), text);
    assert_eq!(streamed(&tokenizer, &ids), ["red", "🌀", "é", " wheel", "🌀", "é", ""]);
    // Bytes that are no text do not hold back what follows, nor is it broken.
    let junk: Vec<u32> = [0xff; 50].into_iter().chain([257]).chain(emoji()).collect();
    assert!(streamed(&tokenizer, &junk).concat().ends_with(" wheel🌀é"));
}

proptest! {
    #[test]
    fn any_text_is_the_same_in_both(text in any::<String>()) {
        let (own, hf) = (bytes_tokenizer(), bytes_as_hf());
        let ids = own.encode(&text).unwrap();
        prop_assert_eq!(&hf.encode(&text).unwrap(), &ids);
        prop_assert_eq!(&own.decode(&ids), &text);
        prop_assert_eq!(&hf.decode(&ids), &text);
        prop_assert_eq!(&streamed(&own, &ids).concat(), &text);
        prop_assert_eq!(&streamed(&hf, &ids).concat(), &text);
    }

    #[test]
    fn any_ids_stream_as_they_decode(ids in prop::collection::vec(0_u32..260, 0..40)) {
        let (own, hf) = (bytes_tokenizer(), bytes_as_hf());
        prop_assert_eq!(streamed(&own, &ids).concat(), own.decode(&ids));
        prop_assert_eq!(streamed(&hf, &ids).concat(), hf.decode(&ids));
    }
}
