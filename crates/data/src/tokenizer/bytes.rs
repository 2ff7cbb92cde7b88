//! The built-in tokenizer, whose ids are the bytes of the text.

use serde_json::{Map, Value, json};

/// The id that ends a document.
pub(super) const END_OF_DOCUMENT: u32 = 256;
/// How that token is spelt.
pub(super) const END_OF_DOCUMENT_TEXT: &str = "<|endoftext|>";
/// The bytes and the end of a document.
pub(super) const VOCAB_SIZE: usize = 257;

/// The text of those ids that are bytes.
pub(super) fn decode(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().filter_map(|&id| u8::try_from(id).ok()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Bytes that may be the start of a character, of which the rest is still to come: at most 3.
#[derive(Default)]
pub(super) struct ByteStream {
    pending: Vec<u8>,
}

impl ByteStream {
    /// The text that is settled by this id.
    pub(super) fn push(&mut self, id: u32) -> String {
        let Ok(byte) = u8::try_from(id) else { return String::new() };
        self.pending.push(byte);
        let settled = match std::str::from_utf8(&self.pending) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to() + error.error_len().unwrap_or(0),
        };
        let mut text = String::from_utf8_lossy(&self.pending[..settled]).into_owned();
        self.pending.drain(..settled);
        // A byte that breaks a character off begins the next one, and may be all of it.
        if let Ok(rest) = std::str::from_utf8(&self.pending) {
            text.push_str(rest);
            self.pending.clear();
        }
        text
    }

    /// What is left of a character that was not completed.
    pub(super) fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// The same tokenizer as a tokenizer.json: a byte-level BPE in which nothing is merged.
///
/// It differs in one way that the format imposes: `<|endoftext|>` spelt out in a text is the token.
pub(super) fn tokenizer_json() -> String {
    let vocabulary: Map<String, Value> =
        byte_characters().into_iter().zip(0_u32..).map(|(c, id)| (c.to_string(), id.into())).collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [{
            "id": END_OF_DOCUMENT,
            "content": END_OF_DOCUMENT_TEXT,
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": true,
        }],
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocabulary,
            "merges": [],
        },
    });
    format!("{tokenizer:#}\n")
}

/// The printable character that byte-level BPE writes for each byte: that of the same number if it is
/// visible, or else the next one from U+0100 on. The table is that of GPT-2.
fn byte_characters() -> Vec<char> {
    let mut substitutes = '\u{100}'..;
    (0..=u8::MAX)
        .filter_map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => Some(char::from(byte)),
            _ => substitutes.next(),
        })
        .collect()
}
