//! Where a text may be cut so that its parts have the tokens of the whole.

use serde_json::Value;

/// How the regular expressions of byte-level tokenizers begin that this crate knows: GPT-2's, and those of Llama 3
/// and Qwen 2. In all of them a single line feed between two characters that are not white space ends a
/// match: no alternative goes on after a line feed with anything but white space, and the one alternative that looks
/// ahead, `\s+(?!\S)`, cannot match a white space that stands alone before something else.
pub(super) const KNOWN: [&str; 3] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// Where a text may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cuts {
    /// Between any two characters.
    Anywhere,
    /// After a line feed that stands between two characters that are not white space.
    Lines,
    /// Nowhere: the tokenizer may look at the whole text, so a document is tokenized on one thread.
    Nowhere,
}

impl Cuts {
    /// What the tokenizer of a tokenizer.json allows. What is not known to be safe is not done.
    pub(super) fn of(json: &Value) -> Cuts {
        let added = json["added_tokens"].as_array().is_none_or(|tokens| {
            tokens.iter().all(|token| {
                // A token with a line feed in it, or one that takes in the white space beside it, may lie across.
                let strips = |side: &str| token[side].as_bool().unwrap_or(false);
                let content = token["content"].as_str().unwrap_or("\n");
                !content.contains(['\n', '\r']) && !strips("lstrip") && !strips("rstrip")
            })
        });
        if added && normalizes_locally(&json["normalizer"]) && splits_at_lines(&json["pre_tokenizer"]) {
            Cuts::Lines
        } else {
            Cuts::Nowhere
        }
    }

    /// A place to cut `text`, at `wanted` bytes or soon after; `None` if there is none.
    pub(crate) fn after(self, text: &str, wanted: usize) -> Option<usize> {
        let cut = match self {
            Cuts::Anywhere => (wanted..text.len()).find(|&at| text.is_char_boundary(at)),
            Cuts::Lines => {
                let start = (wanted..text.len()).find(|&at| text.is_char_boundary(at))?;
                text[start..].match_indices('\n').map(|(at, _)| start + at).find_map(|at| {
                    let before = text[..at].chars().next_back()?;
                    let after = text[at + 1..].chars().next()?;
                    (!is_space(before) && !is_space(after)).then_some(at + 1)
                })
            }
            Cuts::Nowhere => None,
        };
        cut.filter(|&at| at > 0 && at < text.len())
    }
}

/// White space in any sense that one of the tokenizers could mean.
fn is_space(character: char) -> bool {
    character.is_whitespace() || character.is_control() || ('\u{200b}'..='\u{200f}').contains(&character)
}

/// Whether a normalizer changes characters with regard to none but those that combine with them: a line feed
/// combines with nothing.
fn normalizes_locally(normalizer: &Value) -> bool {
    match normalizer["type"].as_str() {
        None => normalizer.is_null(),
        Some("NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase") => true,
        Some("Sequence") => {
            normalizer["normalizers"].as_array().is_some_and(|all| all.iter().all(normalizes_locally))
        }
        Some(_) => false,
    }
}

/// Whether a pre-tokenizer never lets a token lie across a lone line feed's end.
fn splits_at_lines(pre: &Value) -> bool {
    let flag = |name: &str| pre[name].as_bool();
    match pre["type"].as_str() {
        Some("WhitespaceSplit" | "Whitespace" | "BertPreTokenizer") => true,
        Some("ByteLevel") => flag("add_prefix_space") == Some(false) && flag("use_regex").unwrap_or(true),
        Some("Sequence") => {
            let Some([split, bytes]) = pre["pretokenizers"].as_array().map(Vec::as_slice) else {
                return false;
            };
            let known = split["pattern"]["Regex"].as_str().is_some_and(|regex| KNOWN.contains(&regex));
            known
                && split["type"] == "Split"
                && split["behavior"] == "Isolated"
                && split["invert"] == false
                && bytes["type"] == "ByteLevel"
                && bytes["add_prefix_space"] == false
        }
        _ => false,
    }
}
