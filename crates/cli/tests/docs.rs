//! The generated pages are those of this program, and the examples are jobs that it takes.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn generated(page: &str) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_memwall")).args(["docs", page]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn committed(page: &str) -> String {
    std::fs::read_to_string(root().join(format!("docs/{page}.md"))).unwrap_or_default()
}

#[track_caller]
fn same(page: &str) {
    let (now, then) = (generated(page), committed(page));
    let at = now.lines().zip(then.lines()).position(|(a, b)| a != b);
    assert!(
        now == then,
        "docs/{page}.md is not what the program says (line {}): write it anew with\n    \
         cargo run -- docs {page} > docs/{page}.md\nand read the difference",
        at.map_or_else(|| "that is missing".to_owned(), |n| (n + 1).to_string())
    );
}

#[test]
fn the_reference_of_the_job_file_is_the_schema() {
    same("job");
}

#[test]
fn the_page_of_what_is_supported_is_what_the_validator_says() {
    same("support");
}

// The page says what it must: a feature that works, one that does not with its reason, and no pair left open.
#[test]
fn every_pair_of_features_works_or_has_a_reason() {
    let page = generated("support");
    let (architectures, pairs) = page.split_once("## Pairs").unwrap();
    assert!(architectures.contains("| RoPE scaling: llama3 | yes |"), "{architectures}");
    for refused in ["MambaForCausalLM: the architecture", "quantization_config = {\"bits\":4}"] {
        assert!(architectures.contains(refused), "{refused}");
    }
    let rows: Vec<&str> = pairs.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| |")).collect();
    assert!(rows.len() > 15);
    let reasons = pairs
        .lines()
        .filter(|l| l.split_once(". ").is_some_and(|(n, r)| n.parse::<u32>().is_ok() && !r.contains('`')));
    let reasons = reasons.count();
    for (i, row) in rows.iter().enumerate() {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells[0], (i + 1).to_string());
        for (j, cell) in cells[2..].iter().enumerate() {
            let number = cell.parse::<usize>().is_ok_and(|n| (1..=reasons).contains(&n));
            let said = *cell == "yes" || *cell == "-" || number;
            assert_eq!(said, j <= i, "{row}");
        }
        assert_eq!(cells[2 + i], "yes", "a feature by itself: {row}");
    }
    for reason in ["train.steps and train.tokens are given", "data.validation = 0, which holds out nothing"] {
        assert!(pairs.contains(reason), "{reason}");
    }
}

#[test]
fn every_example_is_a_job_that_is_taken() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "toml") {
            continue;
        }
        seen += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("# ")
                && text.contains(&format!("examples/{}", path.file_name().unwrap().to_str().unwrap())),
            "{} does not begin with what it is for and how it is run",
            path.display()
        );
        let job =
            memwall_cli::job::load(&path, &[]).and_then(|job| job.pinned()).and_then(|job| job.validate());
        let job = job.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        if let memwall_cli::job::ModelSource::ConfigTable(config) = &job.model {
            memwall_model::ModelConfig::from_value(config)
                .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
    }
    assert!(seen >= 3, "{seen}");
}

// The sizes of what docs/performance.md compares, and what it says of them.
#[test]
fn the_jobs_of_the_comparison_of_steps_are_taken_in_every_mode() {
    let modes: [&[&str]; 4] = [
        &[],
        &["precision.mode=bf16"],
        &["memory.recompute=full"],
        &["data.sequence_length=8192", "train.micro_batch=1", "train.global_batch=1"],
    ];
    for (name, parameters) in [("S", 109_529_856u64), ("XS", 5_261_568)] {
        for mode in modes {
            let mut args = vec!["plan".to_owned(), format!("bench/step/{name}.toml"), "--json".to_owned()];
            args.extend(mode.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
            args.extend(["--set".to_owned(), "memory.budget=1 TiB".to_owned()]);
            let out =
                Command::new(env!("CARGO_BIN_EXE_memwall")).args(&args).current_dir(root()).output().unwrap();
            assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
            let plan: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
            assert_eq!(plan["parameters"], parameters, "{name}");
        }
    }
}
