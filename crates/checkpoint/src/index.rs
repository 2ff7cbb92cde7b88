//! `model.safetensors.index.json`: which file holds which tensor.

use crate::error::{CheckpointError, shown};
use crate::files;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use std::collections::HashMap;
use std::fmt;
use std::path::{Component, Path};

/// The file's name.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Which file holds which tensor.
#[derive(Debug)]
pub(crate) struct Index {
    /// Names of files in the index's folder.
    pub(crate) files: Vec<String>,
    /// Tensors by name, as indexes into `files`.
    pub(crate) places: HashMap<String, usize>,
}

impl Index {
    /// Reads an index. Of its keys, only `weight_map` says anything about the weights.
    pub(crate) fn read(path: &Path) -> Result<Self, CheckpointError> {
        let bad = |reason: String| {
            CheckpointError::malformed(path, format!("is not an index of weights: {reason}"))
        };
        let bytes = files::read(path)?;
        let WeightMap(index) = serde_json::from_slice(&bytes).map_err(|e| bad(shown(&e.to_string())))?;
        for file in &index.files {
            // Anything else could lead out of the folder.
            let mut parts = Path::new(file).components();
            let plain = matches!(parts.next(), Some(Component::Normal(name)) if name == file.as_str());
            if !plain || file.contains('\0') {
                let what = format!("{:?} is not the name of a file in the same folder", shown(file));
                return Err(bad(format!("{what}; write plain names")));
            }
        }
        Ok(index)
    }
}

struct WeightMap(Index);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TopVisitor;
        impl<'de> Visitor<'de> for TopVisitor {
            type Value = WeightMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a weight_map")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut index = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key != "weight_map" {
                        map.next_value::<IgnoredAny>()?;
                    } else if index.replace(map.next_value::<Places>()?.0).is_some() {
                        return Err(A::Error::duplicate_field("weight_map"));
                    }
                }
                index.map(WeightMap).ok_or_else(|| A::Error::missing_field("weight_map"))
            }
        }
        deserializer.deserialize_map(TopVisitor)
    }
}

struct Places(Index);

impl<'de> Deserialize<'de> for Places {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PlacesVisitor;
        impl<'de> Visitor<'de> for PlacesVisitor {
            type Value = Places;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of file names by tensor names")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Places, A::Error> {
                let mut index = Index { files: Vec::new(), places: HashMap::new() };
                let mut numbers: HashMap<String, usize> = HashMap::new();
                while let Some((tensor, file)) = map.next_entry::<String, String>()? {
                    let next = index.files.len();
                    let number = *numbers.entry(file).or_insert_with_key(|file| {
                        index.files.push(file.clone());
                        next
                    });
                    if index.places.contains_key(&tensor) {
                        return Err(A::Error::custom(format!("{} is there twice", shown(&tensor))));
                    }
                    index.places.insert(tensor, number);
                }
                Ok(Places(index))
            }
        }
        deserializer.deserialize_map(PlacesVisitor)
    }
}
