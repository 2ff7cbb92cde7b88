//! The nearest right name to a misspelt one.

use super::schema::{self, Key};

/// Longer names are not compared: the distance takes time and memory by the product of the lengths.
const LONGEST: usize = 64;

/// How far a written name is from a right one: smaller is nearer, `None` is not near at all.
fn distance(written: &str, right: &str) -> Option<usize> {
    let written = written.to_lowercase().replace('-', "_");
    let length = written.chars().count();
    if length > LONGEST {
        return None;
    }
    let edits = strsim::damerau_levenshtein(&written, right);
    let longer = length.max(right.len());
    if edits <= (longer / 3).max(1) && edits < longer {
        return Some(edits);
    }
    // One within the other ("warmup", "max_steps") comes after every misspelling.
    let shorter = length.min(right.len());
    (shorter >= 4 && (written.contains(right) || right.contains(&written))).then_some(LONGEST + edits)
}

/// The name among `right` that is nearest to `written`, the first of those equally near.
pub(super) fn nearest<'a>(written: &str, right: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    right
        .into_iter()
        .filter_map(|name| Some((distance(written, name)?, name)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The key nearest to `name` as written in `section`, which may be a key of another section. Among
/// keys equally near, one of the same section wins.
pub(super) fn nearest_key(section: &str, name: &str) -> Option<&'static Key> {
    schema::KEYS
        .iter()
        .filter_map(|key| Some(((distance(name, key.name)?, key.section != section), key)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, key)| key)
}

/// The section nearest to `name`.
pub(super) fn nearest_section(name: &str) -> Option<&'static str> {
    nearest(name, schema::SECTIONS.iter().map(|section| section.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_nearest_key() {
        for (section, name, right) in [
            ("train", "stpes", "train.steps"),
            ("train", "Steps", "train.steps"),
            ("train", "micro-batch", "train.micro_batch"),
            ("train", "max_steps", "train.steps"),
            ("train", "learning_rate", "optimizer.learning_rate"),
            ("optimizer", "warmup", "optimizer.warmup_steps"),
            ("optimizer", "steps", "train.steps"),
            ("data", "seq_length", "data.sequence_length"),
        ] {
            assert_eq!(nearest_key(section, name).map(Key::path).as_deref(), Some(right), "{name}");
        }
    }

    #[test]
    fn gives_no_far_name() {
        assert!(nearest_key("train", "zzz").is_none());
        assert!(nearest_key("train", "").is_none());
        assert!(nearest_key("train", &"steps".repeat(100_000)).is_none());
        assert_eq!(nearest_section("optimiser"), Some("optimizer"));
        assert_eq!(nearest_section("x"), None);
    }
}
