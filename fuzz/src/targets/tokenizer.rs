//! A tokenizer.json: read, then used on a short text.

use super::{Definition, Outcome, Target};
use crate::mutate::Form;
use memwall_data::Tokenizer;
use std::fs;
use std::path::{Path, PathBuf};

/// Words, numbers, spaces, accents, characters of every UTF-8 length, and spelt-out special tokens.
const TEXT: &str =
    "Hello, w\u{f6}rld!  123 the\u{a0}end\n\u{4e2d}\u{6587} \u{1f600}e\u{301} <|endoftext|></s>a";

pub(super) const DEFINITION: Definition = Definition {
    name: "tokenizer",
    form: Form::Text,
    words: &[
        "\"BPE\"",
        "\"WordLevel\"",
        "\"WordPiece\"",
        "\"Unigram\"",
        "\"vocab\"",
        "\"merges\"",
        "\"unk_token\"",
        "\"unk_id\"",
        "\"byte_fallback\"",
        "\"ignore_merges\"",
        "\"dropout\"",
        "\"fuse_unk\"",
        "\"continuing_subword_prefix\"",
        "\"end_of_word_suffix\"",
        "\"max_input_chars_per_word\"",
        "\"added_tokens\"",
        "\"normalizer\"",
        "\"pre_tokenizer\"",
        "\"post_processor\"",
        "\"decoder\"",
        "\"ByteLevel\"",
        "\"Whitespace\"",
        "\"WhitespaceSplit\"",
        "\"Split\"",
        "\"Digits\"",
        "\"Punctuation\"",
        "\"Metaspace\"",
        "\"Sequence\"",
        "\"Replace\"",
        "\"Strip\"",
        "\"Prepend\"",
        "\"NFC\"",
        "\"NFKD\"",
        "\"Lowercase\"",
        "\"Precompiled\"",
        "\"precompiled_charsmap\"",
        "\"BertNormalizer\"",
        "\"CTC\"",
        "\"Fuse\"",
        "\"ByteFallback\"",
        "\"TemplateProcessing\"",
        "\"RobertaProcessing\"",
        "\"FixedLength\"",
        "\"length\"",
        "\"pattern\"",
        "\"Regex\"",
        "\"String\"",
        "\"behavior\"",
        "\"Isolated\"",
        "\"Removed\"",
        "\"MergedWithPrevious\"",
        "\"invert\"",
        "\"(a+)+b\"",
        "\"(?=\"",
        "\"\\\\p{L}+\"",
        "\"\"",
        "\"truncation\"",
        "\"padding\"",
        "\"max_length\"",
        "\"stride\"",
        "\"special\"",
        "\"lstrip\"",
        "\"single_word\"",
        "\"normalized\"",
        "\"content\"",
        "\"id\"",
        "\"start\"",
        "\"stop\"",
        "\"left\"",
        "\"right\"",
        "\"ab c\"",
    ],
    inputs: Vec::new,
    target: |folder: &Path| Box::new(Text { file: folder.join("tokenizer.json") }),
    for_tests: false,
};

struct Text {
    file: PathBuf,
}

impl Target for Text {
    fn run(&mut self, input: &[u8]) -> Outcome {
        fs::write(&self.file, input).expect("the scratch folder can be written");
        let tokenizer = match Tokenizer::load(&self.file.to_string_lossy()) {
            Ok(tokenizer) => tokenizer,
            Err(e) => return Outcome::Refused(e.to_string()),
        };
        let ids = match tokenizer.encode(TEXT) {
            Ok(ids) => ids,
            Err(e) => return Outcome::Refused(e.to_string()),
        };
        let size = tokenizer.vocab_size();
        assert!(ids.iter().all(|id| (*id as usize) < size), "an id is not below the size of the vocabulary");
        tokenizer.decode(&ids);
        let mut stream = tokenizer.decode_stream();
        for id in ids.iter().take(16) {
            stream.push(*id);
        }
        stream.finish();
        Outcome::Accepted
    }
}
