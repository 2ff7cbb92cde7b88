//! The engine, its groups and checkpoints do not ask which device they are on.

use std::fs;
use std::path::{Path, PathBuf};

/// Source files under a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    entries.flat_map(|p| if p.is_dir() { sources(&p) } else { vec![p] }).collect()
}

#[test]
fn engine_comm_and_checkpoint_have_no_branch_on_the_dry_device() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    // What makes predictions makes dry devices; the dry group and the line that exports it.
    let allowed = ["engine/src/predict/", "comm/src/dry.rs", "comm/src/lib.rs"];
    let mut seen = 0;
    for krate in ["engine", "comm", "checkpoint"] {
        for path in sources(&crates.join(krate).join("src")) {
            let name = path.strip_prefix(crates).unwrap().to_str().unwrap().to_owned();
            let text = fs::read_to_string(&path).unwrap();
            seen += 1;
            // A generic program can learn its types by these alone.
            for word in ["TypeId", "type_name", "downcast", "dyn Any"] {
                assert!(!text.contains(word), "{name} has {word}");
            }
            let dry = text.contains("Dry") && !allowed.iter().any(|a| name.starts_with(a));
            assert!(!dry, "{name} speaks of the dry device");
        }
    }
    assert!(seen > 40, "only {seen} files");
}
