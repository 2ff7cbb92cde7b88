//! JSON Lines: each line an object, one field of it the document.

use std::{fmt, io, io::BufRead, path::Path};

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{Emit, Place, Stop, in_pieces};
use crate::{DataError, tokenizer::Cuts};

/// Hands the field called `field` of each line to `emit`; lines of white space are passed over.
pub(super) fn documents(
    path: &Path,
    reader: &mut dyn BufRead,
    field: &str,
    cuts: Cuts,
    failed: &dyn Fn(io::Error) -> DataError,
    emit: Emit<'_>,
) -> Result<(), Stop> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            break;
        }
        let bytes = match number {
            // Some programs begin a file with a byte order mark, which JSON does not have.
            1 => line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line),
            _ => &line,
        };
        if bytes.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let text = value_of(bytes, field).map_err(|reason| DataError::Record {
            path: path.to_path_buf(),
            place: Place::Line(number).suffix(),
            reason,
        })?;
        in_pieces(text, Place::Line(number), cuts, emit)?;
    }
    Ok(())
}

/// The string that a field of a JSON object holds, or what is wrong with the line.
fn value_of(line: &[u8], field: &str) -> Result<String, String> {
    let mut json = serde_json::Deserializer::from_slice(line);
    let picked = Pick(field).deserialize(&mut json).and_then(|picked| json.end().map(|()| picked));
    let found = picked.map_err(|error| format!("it is not a JSON object ({error})"))?;
    match found {
        Some(Held::Text(text)) => Ok(text),
        Some(Held::Other(kind)) => Err(format!("the field {field:?} holds {kind}, not a string")),
        // The line is gone through again for its names only now, since it hardly ever is.
        None => {
            let object: serde_json::Map<String, serde_json::Value> =
                serde_json::from_slice(line).unwrap_or_default();
            Err(format!("there is no field {field:?}; {}", super::fields(object.keys())))
        }
    }
}

/// Reads an object for one of its fields, and passes over the others.
struct Pick<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Pick<'_> {
    type Value = Option<Held>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Pick<'_> {
    type Value = Option<Held>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Name(wanted)) = map.next_key_seed(IsName(self.0))? {
            if wanted {
                found = Some(map.next_value::<Held>()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Whether a name is the wanted one; compared without a copy of it.
struct Name(bool);

struct IsName<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for IsName<'_> {
    type Value = Name;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Name, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for IsName<'_> {
    type Value = Name;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Name, E> {
        Ok(Name(name == self.0))
    }
}

/// What a field holds.
enum Held {
    Text(String),
    Other(&'static str),
}

impl<'de> Deserialize<'de> for Held {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Held, D::Error> {
        Ok(match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Held::Text(text),
            serde_json::Value::Null => Held::Other("null"),
            serde_json::Value::Bool(_) => Held::Other("true or false"),
            serde_json::Value::Number(_) => Held::Other("a number"),
            serde_json::Value::Array(_) => Held::Other("an array"),
            serde_json::Value::Object(_) => Held::Other("an object"),
        })
    }
}
