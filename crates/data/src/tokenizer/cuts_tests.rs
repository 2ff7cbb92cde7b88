//! Where a text may be cut, against the tokenizers library: the parts have the tokens of the whole.

use std::fs;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Cuts, Tokenizer};

/// A byte-level BPE that merges all pairs that tell where words end, with this pre-tokenizer.
fn byte_level(pre: Value, change: impl FnOnce(&mut Value)) -> Tokenizer {
    let mut json: Value = serde_json::from_str(&super::bytes::tokenizer_json()).unwrap();
    let mut vocabulary = json["model"]["vocab"].as_object().unwrap().clone();
    let mut merges = Vec::new();
    // As bytes are written: a line feed is Ċ, a space Ġ, a carriage return č.
    for left in ["Ċ", "Ġ", "č", "a", "'", ".", "1"] {
        for right in ["Ċ", "Ġ", "a", "s", ".", "1"] {
            let next = 300 + merges.len();
            vocabulary.insert(format!("{left}{right}"), next.into());
            merges.push(json!([left, right]));
        }
    }
    json["model"]["vocab"] = vocabulary.into();
    json["model"]["merges"] = merges.into();
    json["pre_tokenizer"] = pre;
    change(&mut json);
    load(&json)
}

fn load(json: &Value) -> Tokenizer {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    Tokenizer::load_from_model_dir(folder.path()).unwrap()
}

fn gpt2() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

fn split(regex: &str) -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]})
}

/// Tokenizers of each kind that lets a text be cut at lines.
fn line_cutters() -> Vec<Tokenizer> {
    let mut all = vec![
        byte_level(gpt2(), |_| {}),
        byte_level(gpt2(), |json| json["normalizer"] = json!({"type": "NFC"})),
        byte_level(json!({"type": "WhitespaceSplit"}), |_| {}),
        byte_level(json!({"type": "Whitespace"}), |_| {}),
        byte_level(json!({"type": "BertPreTokenizer"}), |_| {}),
    ];
    all.extend(super::cuts::KNOWN.map(|regex| byte_level(split(regex), |_| {})));
    all
}

#[test]
fn what_is_not_known_to_be_safe_is_not_cut() {
    let added = |json: &mut Value, key: &str, value: Value| json["added_tokens"][0][key] = value;
    for tokenizer in [
        byte_level(
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
            |_| {},
        ),
        byte_level(
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}),
            |_| {},
        ),
        byte_level(split(r"\s+"), |_| {}),
        byte_level(Value::Null, |_| {}),
        byte_level(
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false}),
            |_| {},
        ),
        byte_level(gpt2(), |json| json["normalizer"] = json!({"type": "Prepend", "prepend": "▁"})),
        byte_level(gpt2(), |json| added(json, "rstrip", true.into())),
        byte_level(gpt2(), |json| added(json, "lstrip", true.into())),
        byte_level(gpt2(), |json| added(json, "content", "a\nb".into())),
    ] {
        assert_eq!(tokenizer.cuts(), Cuts::Nowhere);
    }
    assert_eq!(Tokenizer::load("bytes").unwrap().cuts(), Cuts::Anywhere);
}

#[test]
fn a_cut_stands_after_a_lone_line_feed() {
    assert_eq!(Cuts::Lines.after("a\n\nb\r\nc\n d\ne", 0), Some(11));
    assert_eq!(Cuts::Lines.after("ab\ncd\nef", 3), Some(6));
    assert_eq!(Cuts::Lines.after("ab\n", 0), None);
    assert_eq!(Cuts::Anywhere.after("aé", 2), None);
    assert_eq!(Cuts::Anywhere.after("aéb", 2), Some(3));
    assert_eq!(Cuts::Nowhere.after("ab\ncd", 1), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn parts_have_the_tokens_of_the_whole(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "a", "s", "é", "e\u{301}", "\u{301}", "1", "123", ".", "'s", "'", " ", "  ", "\n", "\n\n", "\r\n", "\r",
                "\t", "\u{a0}", "\u{2028}", "\u{85}", "\u{b}", "\u{200d}", "\u{feff}", "日", "🌀", "<|endoftext|>", "x\ny", "。\n",
            ]),
            0..40,
        ),
        wanted in 0_usize..20,
    ) {
        let text = parts.concat();
        for tokenizer in line_cutters() {
            assert_eq!(tokenizer.cuts(), Cuts::Lines);
            let whole = tokenizer.encode(&text).unwrap();
            let (mut tokens, mut rest) = (Vec::new(), text.as_str());
            while let Some(cut) = tokenizer.cuts().after(rest, wanted) {
                tokens.extend(tokenizer.encode(&rest[..cut]).unwrap());
                rest = &rest[cut..];
            }
            tokens.extend(tokenizer.encode(rest).unwrap());
            prop_assert_eq!(tokens, whole, "{:?}", text);
        }
    }
}
