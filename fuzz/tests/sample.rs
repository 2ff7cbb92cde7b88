//! The sample of every test run: the corpus and a few thousand mutations of each target; and that what breaks the
//! law is found, whichever way it does.

use memwall_fuzz::{Report, Supervisor, TARGETS};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn supervisor(corpus: &Path, mutations: u64, time: Duration) -> Supervisor {
    Supervisor {
        program: env!("CARGO_BIN_EXE_memwall-fuzz").into(),
        corpus: corpus.into(),
        mutations,
        seed: 0,
        time,
        memory: 256 << 20,
    }
}

fn search(supervisor: &Supervisor, name: &str) -> Report {
    supervisor.search(TARGETS.iter().find(|t| t.name == name).unwrap()).unwrap()
}

#[test]
fn nothing_in_the_corpus_or_near_it_breaks_the_law() {
    // A copy: findings of a test do not go into the source.
    let corpus = tempfile::tempdir().unwrap();
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in fs::read_dir(source).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()) {
        let copy = corpus.path().join(target.file_name().unwrap());
        fs::create_dir(&copy).unwrap();
        for file in fs::read_dir(target).unwrap().map(|e| e.unwrap().path()) {
            fs::copy(&file, copy.join(file.file_name().unwrap())).unwrap();
        }
    }
    for target in TARGETS.iter().filter(|t| !t.for_tests) {
        let report = search(&supervisor(corpus.path(), 2000, Duration::from_secs(10)), target.name);
        let p = report.progress;
        assert!(report.findings.is_empty(), "{}: {:?}", target.name, report.findings);
        assert_eq!(p.accepted + p.refused, report.replayed + 2000, "{}", target.name);
        assert!(p.accepted >= 2, "{}: the corpus is not valid: {p:?}", target.name);
        assert!(p.kinds >= 10, "{}: mutations do not get past the first checks: {p:?}", target.name);
    }
}

#[test]
fn each_way_to_break_the_law_is_found_and_the_rest_goes_on() {
    let corpus = tempfile::tempdir().unwrap();
    let folder = corpus.path().join("faults");
    fs::create_dir(&folder).unwrap();
    let ways = [
        ("abort", "ended by signal 6"),
        ("asleep", "took longer than 200ms"),
        ("endless", "took longer than 200ms"),
        ("greedy", "bytes allocated for 6 bytes of input"),
        ("memory", "above the memory limit; bytes: 68719476736"),
        ("panic", "as it was told"),
        ("silent", "refused without a text"),
        ("stack", "ended by signal"),
    ];
    for name in ways.map(|(name, _)| name).iter().chain(&["fine", "refused"]) {
        fs::write(folder.join(name), name).unwrap();
    }
    let report = search(&supervisor(corpus.path(), 0, Duration::from_millis(200)), "faults");
    let found: Vec<(String, &str)> = report
        .findings
        .iter()
        .map(|f| (f.file.file_name().unwrap().to_string_lossy().into_owned(), f.what.as_str()))
        .collect();
    // The two that are slow are one kind of finding.
    assert_eq!(found.len(), ways.len() - 1, "{found:?}");
    for (name, text) in ways.into_iter().filter(|(name, _)| *name != "endless") {
        assert!(found.iter().any(|(file, what)| file == name && what.contains(text)), "{name}: {found:?}");
    }
    assert_eq!(report.findings.iter().map(|f| f.times).sum::<u64>(), ways.len() as u64);
    assert_eq!((report.progress.accepted, report.progress.refused), (1, 1));
}

#[test]
fn what_is_found_joins_the_corpus_and_is_replayed_first() {
    let corpus = tempfile::tempdir().unwrap();
    let folder = corpus.path().join("faults");
    fs::create_dir(&folder).unwrap();
    // One letter away from a fault.
    fs::write(folder.join("seed"), "panib").unwrap();
    let s = supervisor(corpus.path(), 20_000, Duration::from_secs(10));
    let first = search(&s, "faults");
    assert_eq!(first.findings.len(), 1, "{first:?}");
    assert_eq!(fs::read(&first.findings[0].file).unwrap(), b"panic");
    let again = search(&Supervisor { mutations: 0, ..s.clone() }, "faults");
    assert_eq!((again.replayed, again.findings.len()), (2, 1));
    let d = TARGETS.iter().find(|t| t.name == "faults").unwrap();
    let replayed = s.replay(d, &first.findings[0].file).unwrap();
    assert!(replayed.is_some_and(|what| what.contains("exit code 101")));
    assert_eq!(s.replay(d, &folder.join("seed")).unwrap(), None);
}

#[test]
fn the_same_seed_gives_the_same_inputs() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let inputs = |seed: u64| -> Vec<Vec<u8>> {
        let cases = memwall_fuzz::Cases::new(&TARGETS[0], &corpus, seed).unwrap();
        (0..500).map(|n| cases.case(n).input).collect()
    };
    assert_eq!(inputs(1), inputs(1));
    assert_ne!(inputs(1), inputs(2));
}
