//! `cargo run --release -p memwall-fuzz`: feeds damaged and hostile files to everything that reads files.

use clap::Parser;
use memwall_cli::job::{parse_bytes, show_bytes};
use memwall_fuzz::{Definition, Inputs, Supervisor, TARGETS, Work, allocator::Counting, work};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Feeds damaged and hostile files to everything that reads files
#[derive(Debug, Parser)]
struct Args {
    /// Mutations of each target's corpus
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    mutations: u64,
    /// Only this target; may be given several times
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// Seed of the mutations: the same seed and corpus give the same inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Seconds of processor time that an input may take
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    seconds_per_input: f64,
    /// Memory that an input may have allocated at a time
    #[arg(long, default_value = "256 MiB", value_name = "SIZE", value_parser = parse_bytes)]
    memory: u64,
    /// Folder with a corpus for each target; inputs that break the law are put there
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"), value_name = "FOLDER")]
    corpus: PathBuf,
    /// Only run this file through the target, and say what came of it
    #[arg(long, requires = "target", value_name = "FILE")]
    replay: Option<PathBuf>,
    /// For workers: where to say how far it is
    #[arg(long, hide = true)]
    worker_progress: Option<PathBuf>,
    /// For workers: the first input
    #[arg(long, hide = true, default_value_t = 0)]
    worker_from: u64,
    /// For workers: the input after the last
    #[arg(long, hide = true, default_value_t = 0)]
    worker_to: u64,
    /// For workers: the only input
    #[arg(long, hide = true)]
    worker_file: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("memwall-fuzz: {e}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> io::Result<bool> {
    let targets = targets(&args.target)?;
    if let Some(progress) = &args.worker_progress {
        let inputs = match &args.worker_file {
            Some(file) => Inputs::File(file.clone()),
            None => Inputs::Numbers {
                corpus: args.corpus.clone(),
                seed: args.seed,
                from: args.worker_from,
                to: args.worker_to,
            },
        };
        let progress = progress.clone();
        work(&Work { definition: targets[0], inputs, memory: args.memory, progress })?;
        return Ok(true);
    }
    let time = Duration::try_from_secs_f64(args.seconds_per_input)
        .map_err(|e| io::Error::other(format!("--seconds-per-input {}: {e}", args.seconds_per_input)))?;
    let supervisor = Supervisor {
        program: std::env::current_exe()?,
        corpus: args.corpus.clone(),
        mutations: args.mutations,
        seed: args.seed,
        time,
        memory: args.memory,
    };
    if let Some(file) = &args.replay {
        let wrong = supervisor.replay(targets[0], file)?;
        println!("{}: {}", file.display(), wrong.as_deref().unwrap_or("the law holds"));
        return Ok(wrong.is_none());
    }
    let mut good = true;
    for target in targets {
        good &= search(&supervisor, target)?;
    }
    println!("limits: {:?} and {} an input; seed {}", time, show_bytes(args.memory), args.seed);
    Ok(good)
}

fn targets(names: &[String]) -> io::Result<Vec<&'static Definition>> {
    if names.is_empty() {
        return Ok(TARGETS.iter().filter(|t| !t.for_tests).collect());
    }
    let find = |name: &String| {
        let known = || TARGETS.iter().map(|t| t.name).collect::<Vec<_>>().join(", ");
        let missing = || io::Error::other(format!("there is no target {name:?}; there are {}", known()));
        TARGETS.iter().find(|t| t.name == name).ok_or_else(missing)
    };
    names.iter().map(find).collect()
}

/// Searches one target and says what came of it; whether nothing was found.
fn search(supervisor: &Supervisor, target: &'static Definition) -> io::Result<bool> {
    let report = supervisor.search(target)?;
    let p = report.progress;
    println!(
        "{}: {} inputs ({} of them the corpus) in {:.1} s; {} accepted, {} refused in {} ways; {} found",
        target.name,
        p.number,
        report.replayed,
        report.seconds,
        p.accepted,
        p.refused,
        p.kinds,
        report.findings.len()
    );
    for f in &report.findings {
        println!("  {} ({} times)", f.what, f.times);
        println!(
            "    again: cargo run --release -p memwall-fuzz -- --target {} --replay {}",
            target.name,
            f.file.display()
        );
    }
    Ok(report.findings.is_empty())
}
