//! Properties that hold for any text: no panic, and what resolves reads back the same.

use proptest::prelude::*;

use super::tests::{FINE_TUNE, FROM_TABLE, NONE, resolve};

/// Runs a text through everything that takes one, and checks what must hold if it resolves.
fn try_out(text: &str, sets: &[String]) -> Result<(), TestCaseError> {
    match resolve(text, sets) {
        Ok(job) => {
            let again = resolve(&job.to_toml(), NONE);
            prop_assert_eq!(again.as_ref(), Ok(&job));
            prop_assert_eq!(again.unwrap().validate(), job.validate());
            prop_assert_eq!(job.differences(&job), []);
        }
        Err(error) => {
            prop_assert!(!error.messages().is_empty());
            prop_assert_eq!(error.to_string().lines().count(), error.messages().len());
        }
    }
    Ok(())
}

/// Any value in TOML syntax, and some text that is not.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        (-3i64..300).prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| toml::Value::Float(number).to_string()),
        (0.0..1.0).prop_map(|number: f64| toml::Value::Float(number).to_string()),
        any::<String>().prop_map(|text| toml::Value::String(text).to_string()),
        prop::sample::select(vec!["true", "nan", "-inf", "1979-05-27", "\"cosine\"", "constant", "1.5 GiB"])
            .prop_map(str::to_owned),
        ".{0,12}",
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(", "))),
            ("[a-z]{1,3}", inner).prop_map(|(key, value)| format!("{{{key} = {value}}}")),
        ]
    })
}

/// The path of a real key, or something like one.
fn path() -> impl Strategy<Value = String> {
    let paths: Vec<String> = super::schema::KEYS.iter().map(|key| key.path()).collect();
    prop_oneof![8 => prop::sample::select(paths), 1 => "[a-z_.]{0,20}", 1 => "model\\.config\\.[a-z]{1,3}(\\.[a-z])?"]
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>(), set in any::<String>()) {
        try_out(&text, &[set])?;
    }

    #[test]
    fn mutated_jobs_are_read_or_refused(
        table: bool,
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..6, ".{0,4}"), 0..4),
    ) {
        let mut text: Vec<char> = if table { FROM_TABLE } else { FINE_TUNE }.chars().collect();
        for (at, removed, added) in cuts {
            let start = at.index(text.len());
            let end = (start + removed).min(text.len());
            text.splice(start..end, added.chars());
        }
        try_out(&text.into_iter().collect::<String>(), &[])?;
    }

    #[test]
    fn any_values_are_read_or_refused(
        table: bool,
        sets in prop::collection::vec((path(), value()), 0..4),
    ) {
        let sets: Vec<String> = sets.into_iter().map(|(path, value)| format!("{path}={value}")).collect();
        try_out(if table { FROM_TABLE } else { FINE_TUNE }, &sets)?;
    }
}
