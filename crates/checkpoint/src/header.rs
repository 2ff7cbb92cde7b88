//! The header of a safetensors file: names, types and shapes, and where the tensors lie.
//!
//! Parsed here rather than by the format's library, which takes the last of two tensors of the same name,
//! says of few faults which tensor has them, and copies a header several times.

use crate::error::shown;
use safetensors::Dtype;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor, value};
use std::collections::HashMap;
use std::fmt;

/// More dims than any tensor has; so that a header cannot ask for much more memory than it takes itself.
const MAX_DIMS: usize = 16;

/// A tensor as the header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    pub(crate) dtype: Dtype,
    /// Dims, outermost first.
    pub(crate) shape: Vec<usize>,
    /// First byte, from the end of the header.
    pub(crate) start: u64,
    /// Byte after the last.
    pub(crate) end: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes, if shape and type do not overflow and are whole bytes.
    fn bytes(&self) -> Option<u64> {
        let len = self.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
        let bits = len.checked_mul(self.dtype.bitsize())?;
        (bits % 8 == 0).then_some(bits as u64 / 8)
    }
}

/// The tensors of a file by name.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) tensors: HashMap<String, TensorInfo>,
}

impl Header {
    /// Parses the JSON and checks it against the `data` bytes that come after it in the file: tensors lie one
    /// after another, without gap or overlap, up to the end.
    pub(crate) fn parse(json: &[u8], data: u64) -> Result<Self, String> {
        let header: Self = serde_json::from_slice(json).map_err(|e| shown(&e.to_string()))?;
        let mut order: Vec<(&str, &TensorInfo)> = header.tensors.iter().map(|(n, i)| (&**n, i)).collect();
        order.sort_unstable_by_key(|(name, i)| (i.start, i.end, *name));
        let (mut end, mut before) = (0, "the header");
        for (name, info) in order {
            let relation = if info.start < end { "overlaps" } else { "leaves a hole after" };
            if info.start != end {
                return Err(format!("{} {relation} {}", shown(name), shown(before)));
            }
            if info.bytes() != info.end.checked_sub(info.start) {
                return Err(format!(
                    "{} of shape {:?} and type {} does not take the bytes {} to {}",
                    shown(name),
                    info.shape,
                    info.dtype,
                    info.start,
                    info.end
                ));
            }
            (end, before) = (info.end, name);
        }
        if end != data {
            return Err(format!("its header promises {end} bytes of tensors, the file has {data}"));
        }
        Ok(header)
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut tensors = HashMap::new();
        let mut metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            let twice = if name == "__metadata__" {
                map.next_value::<Option<Texts>>()?;
                std::mem::replace(&mut metadata, true)
            } else {
                let raw: RawInfo<'_> = map.next_value()?;
                let dtype =
                    Dtype::deserialize((&*raw.dtype).into_deserializer()).map_err(|_: value::Error| {
                        let what = format!("{} has the unknown type {:?}", shown(&name), shown(&raw.dtype));
                        A::Error::custom(what)
                    })?;
                let (start, end) = raw.data_offsets;
                let info = TensorInfo { dtype, shape: raw.shape.0, start, end };
                if tensors.contains_key(&name) {
                    return Err(A::Error::custom(format!("{} is there twice", shown(&name))));
                }
                tensors.insert(name, info);
                false
            };
            if twice {
                return Err(A::Error::custom("__metadata__ is there twice"));
            }
        }
        Ok(Header { tensors })
    }
}

#[derive(Deserialize)]
struct RawInfo<'a> {
    #[serde(borrow)]
    dtype: std::borrow::Cow<'a, str>,
    shape: Dims,
    data_offsets: (u64, u64),
}

struct Dims(Vec<usize>);

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DimsVisitor;
        impl<'de> Visitor<'de> for DimsVisitor {
            type Value = Dims;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of dims")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MAX_DIMS {
                        return Err(A::Error::custom(format!("a tensor has more than {MAX_DIMS} dims")));
                    }
                    dims.push(dim);
                }
                Ok(Dims(dims))
            }
        }
        deserializer.deserialize_seq(DimsVisitor)
    }
}

/// An object of texts, none of which is kept.
struct Texts;

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextsVisitor;
        impl<'de> Visitor<'de> for TextsVisitor {
            type Value = Texts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                while map.next_entry::<String, String>()?.is_some() {}
                Ok(Texts)
            }
        }
        deserializer.deserialize_map(TextsVisitor)
    }
}
