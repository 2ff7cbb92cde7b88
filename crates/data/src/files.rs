//! Which files a list of globs names.

use std::{
    collections::HashSet,
    fs,
    path::{Component, Path, PathBuf},
};

use glob::Pattern;

use crate::DataError;

/// The regular files that the globs match, sorted by path. A file that is reached by several paths is
/// listed once, by the first of them.
pub(crate) fn matching(globs: &[String], base: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut files = Vec::new();
    for glob in globs {
        let before = files.len();
        add_matching(glob, base, &mut files)?;
        if files.len() == before {
            return Err(DataError::NoMatch { glob: glob.clone(), base: base.to_path_buf() });
        }
    }
    files.sort_unstable();
    let mut seen = HashSet::new();
    let mut unique = Vec::with_capacity(files.len());
    for file in files {
        let real =
            fs::canonicalize(&file).map_err(|reason| DataError::Unreadable { path: file.clone(), reason })?;
        if seen.insert(real) {
            unique.push(file);
        }
    }
    Ok(unique)
}

/// Appends the regular files that one glob matches.
fn add_matching(glob: &str, base: &Path, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let base = if Path::new(glob).is_absolute() { Path::new("") } else { base };
    let base_text = base.to_str().ok_or_else(|| DataError::BaseNotUnicode { base: base.to_path_buf() })?;
    // The folder is a name, not a pattern, even if it contains a bracket or a star. Taking the path apart
    // and together removes doubled separators, which would match nothing.
    let pattern: PathBuf = Path::new(&Pattern::escape(base_text)).join(glob).components().collect();
    let pattern = pattern.to_string_lossy();
    let matches = glob::glob(&pattern).map_err(|error| DataError::BadGlob {
        glob: pattern.to_string(),
        position: error.pos,
        reason: error.msg,
    })?;
    let hidden = HiddenNames::new(glob, base);
    for found in matches {
        let path = found.map_err(|error| DataError::Unreadable {
            path: error.path().to_path_buf(),
            reason: error.into(),
        })?;
        if hidden.exclude(&path) {
            continue;
        }
        let metadata =
            fs::metadata(&path).map_err(|reason| DataError::Unreadable { path: path.clone(), reason })?;
        if metadata.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// Leaves out names that begin with a dot, unless the glob has such a name itself. They are version
/// control, caches and editors' copies, and a copy of a training file in the validation part would make
/// its loss a lie.
///
/// The crate `glob` has an option for this, but then it panics at names that are not UTF-8, and it does not
/// find `.*` either.
struct HiddenNames {
    /// Names at the start of a path that the user spelt out: they are meant, even with a dot.
    spelt_out: usize,
    wanted: bool,
}

impl HiddenNames {
    fn new(glob: &str, base: &Path) -> HiddenNames {
        let is_pattern = |name: &&[u8]| name.iter().any(|byte| b"*?[".contains(byte));
        let glob = Path::new(glob);
        let literal = names(glob).take_while(|name| !is_pattern(name)).count();
        HiddenNames {
            spelt_out: names(base).count() + literal,
            wanted: names(glob).skip(literal).any(is_hidden),
        }
    }

    fn exclude(&self, path: &Path) -> bool {
        !self.wanted && names(path).skip(self.spelt_out).any(is_hidden)
    }
}

/// The names in a path, without the root, `.` and `..`.
fn names(path: &Path) -> impl Iterator<Item = &[u8]> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.as_encoded_bytes()),
        _ => None,
    })
}

fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(b".")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder, itself with a name that looks like a pattern, that holds empty files with these names.
    fn folder(names: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let holder = tempfile::tempdir().unwrap();
        let base = holder.path().join("a[b]*?");
        for name in names {
            let path = base.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        (holder, base)
    }

    fn found(globs: &[&str], base: &Path) -> Result<Vec<String>, DataError> {
        let globs: Vec<String> = globs.iter().map(|glob| glob.to_string()).collect();
        let files = matching(&globs, base)?;
        Ok(files.iter().map(|file| file.strip_prefix(base).unwrap().display().to_string()).collect())
    }

    #[test]
    fn files_are_sorted_and_listed_once() {
        let (_holder, base) = folder(&["b.txt", "a.txt", "d/c.txt", "d/e/f.txt", "other.md"]);
        assert_eq!(found(&["b.txt", "*.txt"], &base).unwrap(), ["a.txt", "b.txt"]);
        assert_eq!(
            found(&["d/**/*.txt", "**/*.txt"], &base).unwrap(),
            ["a.txt", "b.txt", "d/c.txt", "d/e/f.txt"]
        );
        assert_eq!(found(&["d/../a.txt", "./a.txt", ".//a.txt"], &base).unwrap(), ["a.txt"]);
        let absolute = Path::new(&Pattern::escape(base.to_str().unwrap())).join("*.md");
        assert_eq!(found(&[absolute.to_str().unwrap()], &base).unwrap(), ["other.md"]);
    }

    #[test]
    fn hidden_files_need_their_dot() {
        let (_holder, base) = folder(&["a.txt", ".b.txt", ".git/c.txt"]);
        assert_eq!(found(&["**/*.txt"], &base).unwrap(), ["a.txt"]);
        assert_eq!(found(&[".*.txt", ".git/*"], &base).unwrap(), [".b.txt", ".git/c.txt"]);
        assert_eq!(found(&["*.txt"], &base.join(".git")).unwrap(), ["c.txt"]);
    }

    #[cfg(unix)]
    #[test]
    fn names_that_are_not_utf8_do_no_harm() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let (_holder, base) = folder(&["a.txt"]);
        fs::write(base.join(OsStr::from_bytes(b"\xff.txt")), "").unwrap();
        assert_eq!(found(&["**/*.txt"], &base).unwrap(), ["a.txt"]);
        let error = found(&["*"], Path::new(OsStr::from_bytes(b"/\xff"))).unwrap_err();
        assert!(matches!(error, DataError::BaseNotUnicode { .. }), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn links_to_one_file_are_one_file_and_broken_links_are_unreadable() {
        let (_holder, base) = folder(&["b.txt"]);
        std::os::unix::fs::symlink(base.join("b.txt"), base.join("a.txt")).unwrap();
        assert_eq!(found(&["*.txt"], &base).unwrap(), ["a.txt"]);
        std::os::unix::fs::symlink(base.join("nowhere"), base.join("c.txt")).unwrap();
        assert!(
            matches!(found(&["*.txt"], &base), Err(DataError::Unreadable { path, .. }) if path.ends_with("c.txt"))
        );
    }

    #[test]
    fn a_glob_that_matches_no_file_is_named() {
        let (_holder, base) = folder(&["a.txt", "d/c.txt"]);
        for glob in ["*.md", "d", "missing/*.txt"] {
            let error = found(&["a.txt", glob], &base).unwrap_err();
            assert!(matches!(&error, DataError::NoMatch { glob: named, .. } if named == glob), "{error}");
        }
    }

    #[test]
    fn a_malformed_glob_is_refused() {
        let error = found(&["a/***"], Path::new("/")).unwrap_err();
        assert!(matches!(error, DataError::BadGlob { .. }), "{error}");
    }
}
