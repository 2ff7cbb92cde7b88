//! `memwall docs`: the pages of `docs/` that are generated from the program, so that they cannot drift from it.

use crate::args::{DocsArgs, DocsPage};
use crate::failure::Failure;
use crate::job::schema::{Fallback, KEYS, Key, SECTIONS};
use crate::support;
use std::fmt::Write;

/// Prints a page.
pub(crate) fn docs(args: &DocsArgs) -> Result<(), Failure> {
    match args.page {
        DocsPage::Job => tell!("{}", job()),
        DocsPage::Support => tell!("{}", support::page()?),
    }
    Ok(())
}

/// The reference of the job file: every key, from the table that checks it.
fn job() -> String {
    let mut page = String::from(
        "# The job file\n\
         \n\
         <!-- Generated: cargo run -- docs job > docs/job.md -->\n\
         \n\
         A TOML file. Every value can be overridden on the command line: `--set section.key=value`, where a value that \
         is not TOML is taken as a string. Unknown keys, values out of range and keys that contradict each other are \
         refused before anything starts. The run folder's `job.toml` has every key with the value that it had.\n",
    );
    for section in SECTIONS {
        let _ = write!(page, "\n## [{}]\n\n{}\n", section.name, section.meaning);
        for key in KEYS.iter().filter(|key| key.section == section.name) {
            let _ = write!(
                page,
                "\n### {}\n\n{}\n\n- Takes {}.\n- {}\n",
                key.name,
                key.meaning,
                key.kind.describe(),
                fallback(key)
            );
        }
    }
    page
}

/// What holds where a key is not given.
fn fallback(key: &Key) -> String {
    match key.fallback {
        Fallback::Required => "Required.".into(),
        Fallback::Depends(what) => format!("Defaults to {what}."),
        Fallback::Whole(n) => format!("Defaults to `{n}`."),
        Fallback::Number(x) => format!("Defaults to `{x:?}`."),
        Fallback::Switch(on) => format!("Defaults to `{on}`."),
        Fallback::Text(text) => format!("Defaults to `{text:?}`."),
    }
}
