//! Tells the program of which commit its code is, where that is known: checkpoints and `--version` say it.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
    };
    // Changes whenever another commit is checked out.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && std::path::Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into());
    println!("cargo:rustc-env=MEMWALL_COMMIT={commit}");
}
