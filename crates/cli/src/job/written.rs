//! The job as written: the TOML text with the `--set` overrides merged in.

use std::path::Path;

use toml::{Table, Value};

use super::{JobError, kind};

/// The most names in the key of a `--set`: enough for any model configuration, and few enough that
/// nothing that walks the tables by recursion runs out of stack.
const DEEPEST_SET: usize = 16;

/// A job that is known to be TOML, and no more.
#[derive(Clone, Debug, Default)]
pub(super) struct WrittenJob {
    /// The name of the job file, without its extension.
    pub name: String,
    /// What the file and the overrides say.
    pub table: Table,
}

impl WrittenJob {
    /// The value given for a key, if its section is there and is one.
    pub fn get(&self, section: &str, name: &str) -> Option<&Value> {
        self.table.get(section)?.as_table()?.get(name)
    }
}

/// Reads the file at `path` and merges `sets` over it.
pub(super) fn read(path: &Path, sets: &[String]) -> Result<WrittenJob, JobError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| JobError::one(format!("{}: cannot read the job file: {error}", path.display())))?;
    parse(path, &text, sets)
}

/// Parses `text`, which came from `path`, and merges `sets` over it.
pub(super) fn parse(path: &Path, text: &str, sets: &[String]) -> Result<WrittenJob, JobError> {
    let mut problems = Vec::new();
    let mut table = text.parse::<Table>().unwrap_or_else(|error| {
        problems.push(syntax_problem(path, text, &error));
        Table::new()
    });
    for set in sets {
        if let Err(why) = apply(&mut table, set) {
            problems.push(format!("--set {set}: {why}"));
        }
    }
    JobError::if_any(problems)?;
    let name = path.file_stem().map_or_else(|| "job".into(), |stem| stem.to_string_lossy().into_owned());
    Ok(WrittenJob { name, table })
}

/// Says where the text stops being TOML, counting lines and columns (in characters) from 1.
fn syntax_problem(path: &Path, text: &str, error: &toml::de::Error) -> String {
    let start = error.span().map_or(0, |span| span.start);
    // The parser may point past a final line break or into a character: count whole characters.
    let before = text.char_indices().take_while(|(at, _)| *at < start).map(|(_, c)| c);
    let (mut line, mut column) = (1, 1);
    for c in before {
        (line, column) = if c == '\n' { (line + 1, 1) } else { (line, column + 1) };
    }
    format!("{}:{line}:{column}: not valid TOML: {}", path.display(), error.message())
}

/// Puts the value of one `section.key=value` into the table. A key may go deeper, into the tables
/// within (`model.config.hidden_size=64`).
fn apply(table: &mut Table, set: &str) -> Result<(), String> {
    const FORM: &str = "write section.key=value, such as train.steps=100";
    let (key, value) = set.split_once('=').ok_or_else(|| format!("there is no =; {FORM}"))?;
    let names: Vec<&str> = key.split('.').map(str::trim).collect();
    if names.len() > DEEPEST_SET {
        return Err(format!("the key has more than {DEEPEST_SET} names; {FORM}"));
    }
    if names.iter().any(|name| name.is_empty()) {
        return Err(format!("a name is empty; {FORM}"));
    }
    let Some((last, [first, outer @ ..])) = names.split_last() else {
        return Err(format!("the section is missing; {FORM}"));
    };
    let mut inner = descend(table, first, first)?;
    for (depth, name) in outer.iter().enumerate() {
        inner = descend(inner, name, &names[..depth + 2].join("."))?;
    }
    let value = value.trim();
    let value = value.parse().unwrap_or_else(|_| Value::String(value.to_owned()));
    inner.insert((*last).to_owned(), value);
    Ok(())
}

/// The table called `name` within `table`, made if it is not there. `path` is its full name.
fn descend<'a>(table: &'a mut Table, name: &str, path: &str) -> Result<&'a mut Table, String> {
    match table.entry(name).or_insert_with(|| Value::Table(Table::new())) {
        Value::Table(inner) => Ok(inner),
        other => Err(format!("{path} is {} in the job, and has no keys to set", kind::type_of(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str, sets: &[&str]) -> Result<Table, String> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        parse(Path::new("a/job.toml"), text, &sets).map(|job| job.table).map_err(|error| error.to_string())
    }

    #[test]
    fn sets_go_over_the_file() {
        let table = parsed(
            "[train]\nsteps = 1\nseed = 2",
            &["train.steps=5", "memory.budget = 2 GiB", "model.config.rope.theta=1e4", "data.train=[\"a\"]"],
        );
        let expected = "train = {steps = 5, seed = 2}\nmemory.budget = '2 GiB'\n\
                        model.config.rope.theta = 1e4\ndata.train = ['a']";
        assert_eq!(table, Ok(expected.parse().unwrap()));
    }

    #[test]
    fn a_set_value_that_is_not_toml_is_a_string() {
        for text in ["a b", "x=y", "", "1\nseed = 2", "'open", "data/*.txt"] {
            let table = parsed("", &[&format!("a.b={text}")]).unwrap();
            assert_eq!(table["a"]["b"].as_str(), Some(text));
        }
    }

    #[test]
    fn refuses_malformed_sets_and_reports_all() {
        let long = "a.".repeat(100_000) + "b=1";
        let error = parsed("t = 1", &["train.steps", "steps=1", "a..b=1", "=1", "t.x=1"]).unwrap_err();
        let form = "write section.key=value, such as train.steps=100";
        let expected = [
            format!("--set train.steps: there is no =; {form}"),
            format!("--set steps=1: the section is missing; {form}"),
            format!("--set a..b=1: a name is empty; {form}"),
            format!("--set =1: a name is empty; {form}"),
            "--set t.x=1: t is a whole number in the job, and has no keys to set".to_owned(),
        ];
        assert_eq!(error, expected.join("\n"));
        assert!(parsed("", &[&long]).unwrap_err().contains("more than 16 names"));
    }

    #[test]
    fn a_set_does_not_go_into_a_string() {
        let error = parsed("model.config = 'c.json'", &["model.config.n_layer=2"]).unwrap_err();
        let end = "model.config is a string in the job, and has no keys to set";
        assert_eq!(error, format!("--set model.config.n_layer=2: {end}"));
    }

    #[test]
    fn syntax_errors_say_file_line_and_column() {
        for (text, place) in [
            ("[train]\nsteps = \n", "a/job.toml:2:9: not valid TOML: string values must be quoted"),
            ("[train\n", "a/job.toml:1:7: not valid TOML: unclosed table"),
            ("a = 1\na = 2\n", "a/job.toml:2:1: not valid TOML: duplicate key"),
            ("\u{e9}\u{e9} = 1", "a/job.toml:1:1: not valid TOML"),
            ("a = '\u{e9}\u{e9}' x", "a/job.toml:1:10: not valid TOML"),
        ] {
            let error = parsed(text, &[]).unwrap_err();
            assert!(error.starts_with(place), "{error}");
        }
    }

    #[test]
    fn an_unreadable_file_is_named() {
        let error = read(Path::new("/nowhere/job.toml"), &[]).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/job.toml: cannot read the job file: "), "{error}");
    }
}
