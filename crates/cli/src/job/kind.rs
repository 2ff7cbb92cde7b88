//! The kinds of value a key can take: what each accepts, and how it says what it wanted.

use std::ops::{Bound, RangeBounds};

use toml::Value;

use super::{bytes, names, to_json};

/// What values a key takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number from `min` to `max`.
    Whole {
        /// The smallest value taken.
        min: i64,
        /// The largest value taken.
        max: i64,
    },
    /// A finite number within two bounds; a whole number is taken as one too.
    Number(Bound<f64>, Bound<f64>),
    /// `true` or `false`.
    Switch,
    /// A string that is not empty.
    Text,
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// One string or an array of strings, none of them empty.
    Texts,
    /// As [`Kind::Texts`], or an array of tables with `files` (as [`Kind::Texts`]), `weight` (a number above 0) and
    /// `field` (as [`Kind::Text`]), of which only the first is required.
    Sources,
    /// A string, or a table whose keys belong to someone else.
    TextOrTable,
    /// An amount of memory: a string such as `"2 GiB"`, or a whole number of bytes.
    Size,
}

impl Kind {
    /// The type alone, as in "expected a whole number".
    fn expected(self) -> &'static str {
        match self {
            Self::Whole { .. } => "a whole number",
            Self::Number(..) => "a number",
            Self::Switch => "true or false",
            Self::Text | Self::Choice(_) => "a string",
            Self::Texts => "a string or an array of strings",
            Self::Sources => {
                "a string, an array of strings, or an array of tables {files = [...], weight = 1.0, field = \"text\"}"
            }
            Self::TextOrTable => "a string or a table",
            Self::Size => r#"a size such as "2 GiB" or a whole number of bytes"#,
        }
    }

    /// The type with its bounds or choices, as in "a whole number from 1 to 8".
    pub fn describe(self) -> String {
        match self {
            Self::Whole { min, max } => format!("a whole number from {min} to {max}"),
            Self::Number(low, high) => {
                let low = match low {
                    Bound::Included(low) => Some(format!(">= {low}")),
                    Bound::Excluded(low) => Some(format!("> {low}")),
                    Bound::Unbounded => None,
                };
                let high = match high {
                    Bound::Included(high) => Some(format!("<= {high}")),
                    Bound::Excluded(high) => Some(format!("< {high}")),
                    Bound::Unbounded => None,
                };
                let bounds: Vec<String> = low.into_iter().chain(high).collect();
                format!("a number {}", bounds.join(" and ")).trim_end().to_owned()
            }
            Self::Choice(choices) => format!("one of {}", listed(choices)),
            _ => self.expected().to_owned(),
        }
    }

    /// Checks the `value` given for the key called `name`, and brings it to the one form that a
    /// resolved job holds: numbers as floats, lists as arrays, sizes as their exact text.
    pub(super) fn check(self, name: &str, value: &Value) -> Result<Value, String> {
        let wrong_type = || Err(format!("{name}: expected {}, got {}", self.expected(), type_of(value)));
        let refused = |why: &str| Err(format!("{name} = {} {why}: write {}", shown(value), self.describe()));
        match (self, value) {
            (Self::Whole { min, max }, Value::Integer(given)) => {
                if (min..=max).contains(given) {
                    Ok(value.clone())
                } else {
                    refused("is out of range")
                }
            }
            (Self::Number(low, high), Value::Integer(_) | Value::Float(_)) => {
                let given = match value {
                    Value::Integer(given) => *given as f64,
                    _ => value.as_float().unwrap_or(f64::NAN),
                };
                if !given.is_finite() {
                    refused("is not finite")
                } else if (low, high).contains(&given) {
                    Ok(Value::Float(given))
                } else {
                    refused("is out of range")
                }
            }
            (Self::Switch, Value::Boolean(_)) => Ok(value.clone()),
            (Self::Text | Self::TextOrTable | Self::Texts | Self::Sources, Value::String(given))
                if given.is_empty() =>
            {
                refused("is empty")
            }
            (Self::Text | Self::TextOrTable, Value::String(_)) => Ok(value.clone()),
            (Self::Choice(choices), Value::String(given)) => choice(name, choices, given),
            (Self::Texts | Self::Sources, Value::String(_)) => Ok(Value::Array(vec![value.clone()])),
            (Self::Texts | Self::Sources, Value::Array(items)) if items.is_empty() => refused("is empty"),
            (Self::Texts, Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    Self::Text.check(&format!("{name}[{index}]"), item)?;
                }
                Ok(value.clone())
            }
            (Self::Sources, Value::Array(items)) if items.iter().any(Value::is_table) => {
                let sources = items.iter().enumerate();
                let sources = sources.map(|(index, item)| source(&format!("{name}[{index}]"), item));
                sources.collect::<Result<_, _>>().map(Value::Array)
            }
            (Self::Sources, Value::Array(_)) => Self::Texts.check(name, value),
            (Self::TextOrTable, Value::Table(table)) => {
                to_json::table_to_json(name, table).map(|_| value.clone())
            }
            (Self::Size, Value::Integer(given)) => match u64::try_from(*given) {
                Ok(size) if size > 0 => Ok(Value::String(bytes::exact_bytes(size))),
                _ => refused("is out of range"),
            },
            (Self::Size, Value::String(given)) => match bytes::parse_bytes(given) {
                Ok(0) => refused("is out of range"),
                Ok(size) => Ok(Value::String(bytes::exact_bytes(size))),
                Err(why) => Err(format!("{name} = {} {why}", shown(value))),
            },
            _ => wrong_type(),
        }
    }
}

/// The keys of a source in a mixture, and what each takes.
const SOURCE: [(&str, Kind); 3] = [
    ("files", Kind::Texts),
    ("weight", Kind::Number(Bound::Excluded(0.0), Bound::Unbounded)),
    ("field", Kind::Text),
];

/// Checks a source of a mixture, and fills in its weight.
fn source(name: &str, value: &Value) -> Result<Value, String> {
    let Value::Table(given) = value else {
        return Err(format!("{name}: expected a table as the others, got {}", type_of(value)));
    };
    if let Some(unknown) = given.keys().find(|key| SOURCE.iter().all(|(known, _)| known != key)) {
        let known = SOURCE.map(|(key, _)| key);
        return Err(match names::nearest(unknown, known) {
            Some(near) => format!("{name}.{unknown}: no such key; did you mean {near}?"),
            None => format!("{name}.{unknown}: no such key; a source has {}", known.join(", ")),
        });
    }
    if !given.contains_key("files") {
        return Err(format!("{name}.files: missing; write {}", Kind::Texts.describe()));
    }
    let mut checked = toml::Table::new();
    for (key, kind) in SOURCE {
        match given.get(key) {
            Some(value) => drop(checked.insert(key.into(), kind.check(&format!("{name}.{key}"), value)?)),
            None if key == "weight" => drop(checked.insert(key.into(), Value::Float(1.0))),
            None => {}
        }
    }
    Ok(Value::Table(checked))
}

/// Checks a string against the `choices`.
fn choice(name: &str, choices: &[&str], given: &str) -> Result<Value, String> {
    if choices.contains(&given) {
        return Ok(Value::String(given.to_owned()));
    }
    let value = shown(&Value::String(given.to_owned()));
    let list = listed(choices);
    Err(match names::nearest(given, choices.iter().copied()) {
        Some(near) => {
            format!(r#"{name} = {value} is not known; did you mean "{near}"? The values are {list}"#)
        }
        None => format!("{name} = {value} is not known; the values are {list}"),
    })
}

/// The strings of an enumeration, quoted, with commas between.
fn listed(choices: &[&str]) -> String {
    choices.iter().map(|choice| format!("{choice:?}")).collect::<Vec<_>>().join(", ")
}

/// What a value is, as in "got a string".
pub(super) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a string",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number with a point",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date or time",
        Value::Array(_) => "an array",
        Value::Table(_) => "a table",
    }
}

/// A value on one line.
pub(super) fn text_of(value: &Value) -> String {
    match value {
        // TOML's own text of a string may span lines.
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}

/// A value on one line for a message, cut where it grows long.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 80;
    let text = text_of(value);
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound::{Excluded, Included, Unbounded};

    use super::*;

    fn check(kind: Kind, toml: &str) -> Result<Value, String> {
        kind.check("a.b", &toml.parse().unwrap())
    }

    #[test]
    fn brings_values_to_one_form() {
        let any = Kind::Number(Unbounded, Unbounded);
        assert_eq!(check(any, "3"), Ok(Value::Float(3.0)));
        assert_eq!(check(Kind::Texts, "'x'"), Ok(Value::Array(vec!["x".into()])));
        assert_eq!(check(Kind::Sources, "'x'"), Ok(Value::Array(vec!["x".into()])));
        let sources = "[{field = 'f', files = 'x'}, {files = ['y'], weight = 2}]";
        let one_form = "x = [{files = ['x'], weight = 1.0, field = 'f'}, {files = ['y'], weight = 2.0}]";
        assert_eq!(check(Kind::Sources, sources), Ok(one_form.parse::<toml::Table>().unwrap()["x"].clone()));
        assert_eq!(check(Kind::Size, "2048"), Ok("2 KiB".into()));
        assert_eq!(check(Kind::Size, "'0.5 gib'"), Ok("512 MiB".into()));
        assert_eq!(check(Kind::Switch, "true"), Ok(Value::Boolean(true)));
    }

    #[test]
    fn refuses_wrong_types() {
        let whole = Kind::Whole { min: 1, max: 8 };
        for (kind, toml, message) in [
            (whole, "'x'", "a.b: expected a whole number, got a string"),
            (whole, "1.0", "a.b: expected a whole number, got a number with a point"),
            (Kind::Number(Unbounded, Unbounded), "true", "a.b: expected a number, got true or false"),
            (Kind::Switch, "1", "a.b: expected true or false, got a whole number"),
            (Kind::Text, "[]", "a.b: expected a string, got an array"),
            (Kind::Choice(&["x"]), "{}", "a.b: expected a string, got a table"),
            (Kind::Texts, "1979-05-27", "a.b: expected a string or an array of strings, got a date or time"),
            (Kind::Texts, "['x', 1]", "a.b[1]: expected a string, got a whole number"),
            (Kind::TextOrTable, "1", "a.b: expected a string or a table, got a whole number"),
            (Kind::Sources, "[{files = 'x'}, 'y']", "a.b[1]: expected a table as the others, got a string"),
            (Kind::Sources, "['x', 1]", "a.b[1]: expected a string, got a whole number"),
            (Kind::Sources, "[{files = [1]}]", "a.b[0].files[0]: expected a string, got a whole number"),
            (Kind::Sources, "[{weight = 1}]", "a.b[0].files: missing; write a string or an array of strings"),
            (
                Kind::Sources,
                "[{files = 'x', wieght = 1}]",
                "a.b[0].wieght: no such key; did you mean weight?",
            ),
            (
                Kind::Sources,
                "[{files = 'x', zz = 1}]",
                "a.b[0].zz: no such key; a source has files, weight, field",
            ),
            (
                Kind::Size,
                "1.5",
                r#"a.b: expected a size such as "2 GiB" or a whole number of bytes, got a number with a point"#,
            ),
        ] {
            assert_eq!(check(kind, toml), Err(message.to_owned()));
        }
    }

    #[test]
    fn refuses_wrong_values() {
        let whole = Kind::Whole { min: 1, max: 8 };
        let share = Kind::Number(Included(0.0), Included(0.5));
        let rate = Kind::Number(Excluded(0.0), Unbounded);
        for (kind, toml, message) in [
            (whole, "0", "a.b = 0 is out of range: write a whole number from 1 to 8"),
            (share, "0.7", "a.b = 0.7 is out of range: write a number >= 0 and <= 0.5"),
            (rate, "0", "a.b = 0 is out of range: write a number > 0"),
            (rate, "nan", "a.b = nan is not finite: write a number > 0"),
            (rate, "inf", "a.b = inf is not finite: write a number > 0"),
            (Kind::Text, "''", r#"a.b = "" is empty: write a string"#),
            (
                Kind::Sources,
                "[{files = 'x', weight = 0}]",
                "a.b[0].weight = 0 is out of range: write a number > 0",
            ),
            (Kind::Texts, "[]", "a.b = [] is empty: write a string or an array of strings"),
            (Kind::Texts, "['']", r#"a.b[0] = "" is empty: write a string"#),
            (
                Kind::Size,
                "-1",
                r#"a.b = -1 is out of range: write a size such as "2 GiB" or a whole number of bytes"#,
            ),
            (Kind::TextOrTable, "{x = nan}", "a.b.x = nan is not finite: write a finite number"),
            (
                Kind::Choice(&["linear", "cosine"]),
                "'cosin'",
                r#"a.b = "cosin" is not known; did you mean "cosine"? The values are "linear", "cosine""#,
            ),
            (
                Kind::Choice(&["linear", "cosine"]),
                "'zzz'",
                r#"a.b = "zzz" is not known; the values are "linear", "cosine""#,
            ),
        ] {
            assert_eq!(check(kind, toml), Err(message.to_owned()));
        }
    }

    #[test]
    fn cuts_long_values() {
        assert_eq!(shown(&Value::String("\u{e9}".repeat(200))).chars().count(), 83);
    }
}
