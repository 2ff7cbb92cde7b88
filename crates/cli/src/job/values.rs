//! The values of a resolved job by `section.key`, read as the type that is wanted.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::JobError;
use super::schema::Key;

/// Checked values, section by section, in the order of the schema.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Values(Table);

impl Values {
    /// Puts the value of a key.
    pub fn insert(&mut self, key: &Key, value: Value) {
        let section = self.0.entry(key.section).or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(section) = section {
            section.insert(key.name.to_owned(), value);
        }
    }

    /// The value at `section.key`, if it has one.
    pub fn get(&self, path: &str) -> Option<&Value> {
        let (section, name) = path.split_once('.')?;
        self.0.get(section)?.get(name)
    }

    /// The value at `section.key` as a `T`, if it has one.
    pub fn read<T: DeserializeOwned>(&self, path: &str) -> Option<T> {
        self.get(path)?.clone().try_into().ok()
    }

    /// The value at `section.key`, which resolving has made sure is there and of the right type.
    pub fn need<T: DeserializeOwned>(&self, path: &str) -> Result<T, JobError> {
        self.read(path).ok_or_else(|| JobError::one(format!("{path}: has no usable value: write one")))
    }

    /// All of them as one table.
    pub fn table(&self) -> &Table {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::schema;

    #[test]
    fn reads_by_type() {
        let mut values = Values::default();
        values.insert(schema::find("train", "steps").unwrap(), Value::Integer(7));
        assert_eq!(values.read::<usize>("train.steps"), Some(7));
        assert_eq!(values.read::<String>("train.steps"), None);
        assert_eq!(values.read::<u64>("train.seed"), None);
        let error = values.need::<u64>("train.seed").unwrap_err().to_string();
        assert_eq!(error, "train.seed: has no usable value: write one");
    }
}
