//! A TOML table as JSON: a model configuration given inline, for those who read `config.json`.

/// The deepest that tables and arrays may nest: more than any model configuration, and little enough
/// that the TOML parser reads `job.toml` back.
const DEEPEST: usize = 32;

/// Converts `table`, the value of the key called `name`, to a JSON object.
///
/// Fails on what JSON does not have, dates and numbers that are not finite, and on absurd nesting.
pub(super) fn table_to_json(name: &str, table: &toml::Table) -> Result<serde_json::Value, String> {
    object(name, table, 1)
}

/// Converts a table that is `depth` deep, counting itself.
fn object(name: &str, table: &toml::Table, depth: usize) -> Result<serde_json::Value, String> {
    let mut object = serde_json::Map::new();
    for (key, value) in table {
        object.insert(key.clone(), any(&format!("{name}.{key}"), value, depth)?);
    }
    Ok(serde_json::Value::Object(object))
}

/// Converts a value within `depth` tables and arrays.
fn any(name: &str, value: &toml::Value, depth: usize) -> Result<serde_json::Value, String> {
    if depth > DEEPEST {
        return Err(format!("{name}: is nested more than {DEEPEST} deep: write fewer levels"));
    }
    Ok(match value {
        toml::Value::String(text) => text.clone().into(),
        toml::Value::Integer(number) => (*number).into(),
        toml::Value::Float(number) => match serde_json::Number::from_f64(*number) {
            Some(number) => number.into(),
            None => return Err(format!("{name} = {value} is not finite: write a finite number")),
        },
        toml::Value::Boolean(switch) => (*switch).into(),
        toml::Value::Datetime(date) => {
            return Err(format!("{name} = {date} is a date, which JSON does not have: write a string"));
        }
        toml::Value::Array(items) => {
            let items = items.iter().enumerate();
            items
                .map(|(index, item)| any(&format!("{name}[{index}]"), item, depth + 1))
                .collect::<Result<Vec<_>, _>>()?
                .into()
        }
        toml::Value::Table(table) => object(name, table, depth + 1)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(toml: &str) -> Result<serde_json::Value, String> {
        table_to_json("model.config", &toml.parse().unwrap())
    }

    #[test]
    fn converts_every_type() {
        let json = convert("s = 'x'\ni = 1\nf = 1e-5\nb = true\na = [1, 'y']\nt = {u = {v = 2.0}}").unwrap();
        let expected = serde_json::json!({
            "s": "x", "i": 1, "f": 1e-5, "b": true, "a": [1, "y"], "t": {"u": {"v": 2.0}}
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn refuses_what_json_does_not_have() {
        assert_eq!(
            convert("t = {a = [1, inf]}").unwrap_err(),
            "model.config.t.a[1] = inf is not finite: write a finite number"
        );
        assert_eq!(
            convert("d = 1979-05-27").unwrap_err(),
            "model.config.d = 1979-05-27 is a date, which JSON does not have: write a string"
        );
    }

    #[test]
    fn refuses_absurd_nesting() {
        let nested = |levels: usize| format!("a = {}1{}", "{a = ".repeat(levels), "}".repeat(levels));
        assert!(convert(&nested(DEEPEST - 1)).is_ok());
        let error = convert(&nested(DEEPEST)).unwrap_err();
        assert!(error.ends_with(".a: is nested more than 32 deep: write fewer levels"), "{error}");
    }
}
