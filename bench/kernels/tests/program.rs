//! The program at sizes that take no time: every row is there and is sane. No speed is asserted.

use std::process::Command;

fn run(args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("table.md");
    let mut command = Command::new(env!("CARGO_BIN_EXE_memwall-bench"));
    command.args(args).args(["--tiny", "--even-busy", "--rounds", "1", "--markdown"]).arg(&table);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    std::fs::read_to_string(table).unwrap()
}

/// Cells of the rows of all tables, without their heads.
fn rows(markdown: &str) -> Vec<Vec<String>> {
    let lines = markdown.lines().filter(|l| l.starts_with("| "));
    let cells =
        lines.map(|l| l.trim_matches('|').split('|').map(|c| c.trim().to_owned()).collect::<Vec<_>>());
    cells.filter(|row| !["kernel", "product", "what"].contains(&&*row[0])).collect()
}

#[test]
fn every_kernel_has_a_row_with_a_time_and_a_share_of_its_bound() {
    let rows = rows(&run(&["kernels", "--threads", "1", "--threads", "2"]));
    let named = |name: &str| rows.iter().filter(|r| r[0] == name).count();
    for (name, count) in [
        ("matmul tiny nt", 16),
        ("matmul tiny nn", 16),
        ("matmul tiny tn", 16),
        ("matmul tiny row nt", 4),
        ("matmul tiny row nn", 4),
        ("matmul tiny row tn", 4),
        ("attention", 4),
        ("attention backward", 4),
        ("rms_norm", 4),
        ("rms_norm, gradient of the input", 4),
        ("rms_norm, gradient of the weight", 4),
        ("layer_norm", 4),
        ("layer_norm, gradient of the input", 4),
        ("layer_norm, gradient of the weight", 4),
        ("rope", 4),
        ("swiglu", 4),
        ("swiglu backward", 4),
        ("gelu", 4),
        ("gelu backward", 4),
        ("add", 4),
        ("sum_rows", 4),
        ("embedding", 4),
        ("embedding, gradient", 4),
        ("sum_squares", 4),
        ("AdamW", 4),
        ("accumulate", 2),
        ("cross_entropy", 2),
        ("cross_entropy with its gradient", 2),
        ("cast to bf16", 2),
        ("cast from bf16", 2),
    ] {
        assert_eq!(named(name), count, "{name}");
    }
    assert_eq!(rows.len(), 3 * 16 + 22 * 4 + 5 * 2, "a kernel that this test does not know");
    for row in rows.iter().filter(|r| r[6] != "no slice counts") {
        assert!(
            row[3].parse::<f64>().unwrap() >= 0.0 && ["arithmetic", "memory"].contains(&&*row[5]),
            "{row:?}"
        );
        assert!(row[6].strip_suffix('%').unwrap().parse::<f64>().unwrap() >= 0.0, "{row:?}");
    }
}

#[test]
fn products_are_measured_in_worker_processes_and_summed() {
    let rows = rows(&run(&["gemm", "--threads", "1"]));
    let products = rows.iter().filter(|r| !r[0].starts_with("**")).count();
    assert_eq!((products, rows.len()), (12, 16), "four sizes in three layouts, and four totals");
    for row in rows.iter().filter(|r| r[2] != "too few slices") {
        assert!(row[2].parse::<f64>().unwrap() > 0.0, "{row:?}");
    }
}

#[test]
fn predictions_of_a_large_model_take_some_time_and_single_operations_less() {
    let rows = rows(&run(&["plan"]));
    assert_eq!(rows.len(), 2 * 3 + 1 + 3);
    let median = |r: &[String]| r[1].parse::<f64>().unwrap();
    assert!(rows.iter().all(|r| median(r) > 0.0) && median(&rows[9]) < median(&rows[0]), "{rows:?}");
}

#[test]
fn what_is_no_library_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memwall-bench"));
    let out = command
        .args(["gemm", "--tiny", "--even-busy", "--threads", "1", "--library", "/nowhere.so"])
        .output()
        .unwrap();
    assert!(!out.status.success());
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(text.contains("cannot load /nowhere.so"), "{text}");
}

#[test]
fn no_threads_are_refused_before_anything_is_measured() {
    for command in ["kernels", "gemm"] {
        let out = Command::new(env!("CARGO_BIN_EXE_memwall-bench"))
            .args([command, "--tiny", "--even-busy", "--threads", "0"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{text}");
        assert!(text.contains("at least one is needed"), "{text}");
    }
}
