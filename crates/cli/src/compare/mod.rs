//! `memwall compare`: runs two jobs from the same state, and says whether one may take the place of the other.

mod noise;
mod show;
mod side;
mod trial;

use crate::args::CompareArgs;
use crate::failure::{Failure, Outcome};
use memwall_checkpoint::Disk;
use std::path::{Path, PathBuf};

pub(crate) use show::{text, to_json};
pub(crate) use side::{Side, checkpoint, link_folder, set};
pub(crate) use trial::{Trial, learned};

/// Exit code when the two jobs are not interchangeable.
const DIFFERENT: u8 = 1;

/// Runs both jobs and prints the comparison.
pub(crate) fn compare(args: &CompareArgs) -> Result<(), Failure> {
    let work = Work::new(args.dir.as_deref())?;
    let a = Side::new("a", &args.a, &args.set, work.path("a"), None)?;
    let b = Side::new("b", &args.b, &args.set, work.path("b"), Some(&a))?;
    let sides = [a, b];
    let (text, json, safe) = match args.until_loss {
        Some(loss) => {
            let judged = noise::judge(&sides, loss, args.seeds)?;
            (judged.text(), judged.to_json(), judged.alike())
        }
        None => {
            let from = args.from.as_deref().map(checkpoint).transpose()?;
            let trial = Trial::run(&sides, from.as_ref(), args.steps)?;
            (text(&sides, &trial), to_json(&sides, &trial), trial.verdict.is_safe())
        }
    };
    work.keep("report.txt", &text)?;
    work.keep("report.json", &format!("{json:#}\n"))?;
    if args.json {
        say!("{json:#}");
    } else {
        tell!("{text}");
        if let Some(dir) = &args.dir {
            say!("runs       {}", dir.display());
        }
    }
    if safe { Ok(()) } else { Err(Failure::Told(DIFFERENT)) }
}

/// Where the runs of a comparison are: a folder that the user wants, or one that goes at the end.
pub(crate) struct Work {
    root: PathBuf,
    kept: bool,
}

impl Work {
    /// A new folder.
    pub(crate) fn new(dir: Option<&Path>) -> Result<Self, Failure> {
        let root = match dir {
            Some(dir) => dir.to_owned(),
            None => std::env::temp_dir().join(format!("memwall-compare-{}", std::process::id())),
        };
        if std::fs::read_dir(&root).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(Failure::Refused(format!("{} is not empty; give a new folder", root.display())));
        }
        Disk::default().make_folder(&root).refuse()?;
        Ok(Self { root, kept: dir.is_some() })
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Writes a file that is kept, if anything is.
    fn keep(&self, name: &str, contents: &str) -> Result<(), Failure> {
        if self.kept {
            Disk::default().replace(&self.path(name), contents.as_bytes()).fail()?;
        }
        Ok(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if !self.kept {
            // What cannot be deleted is in the system's folder for such things.
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}
