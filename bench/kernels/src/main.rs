//! Comparisons that need no other program: the CPU device's kernels against what the machine bounds them to, its matrix
//! products against a vendor's library, and how long predictions take.

mod cases;
mod checkpoint;
mod collectives;
mod gemm;
mod kernels;
mod library;
mod plan;
mod quiet;
mod slices;
mod worker;

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Times memwall's kernels.
#[derive(Debug, Parser)]
#[command(name = "memwall-bench", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Each kernel of the CPU device against its bound: arithmetic, or memory
    Kernels(KernelArgs),
    /// Matrix products against a library of the BLAS kind
    Gemm(GemmArgs),
    /// Predictions: of a model of 8 billion parameters, and single dry operations
    Plan(Common),
    /// Collectives between ranks of this machine, as one line of JSON: `bench/collectives` compares them
    #[command(hide = true)]
    Collectives(CollectivesArgs),
    /// Saving and loading a checkpoint, as one line of JSON: `bench/checkpoint` compares them
    #[command(hide = true)]
    Checkpoint(CheckpointArgs),
    /// One side of the comparison of matrix products: `gemm` starts it
    #[command(hide = true)]
    Worker(WorkerArgs),
}

#[derive(Debug, Args)]
struct Common {
    /// Slices of each figure that must count; up to eight times as many are tried
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Time although other processes use the machine: the figures then mean little
    #[arg(long)]
    even_busy: bool,
    /// Sizes that take no time, to see whether the program works
    #[arg(long)]
    tiny: bool,
    /// Write the table, in Markdown, to this file too
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct KernelArgs {
    #[command(flatten)]
    common: Common,
    /// Only kernels whose name has this in it
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Threads; may be given several times [default: 1, and all cores]
    #[arg(long, value_name = "N", value_parser = count)]
    threads: Vec<usize>,
}

#[derive(Debug, Args)]
struct GemmArgs {
    #[command(flatten)]
    common: Common,
    /// A library with cblas_sgemm, such as libmkl_rt.so or OpenBLAS; without one, memwall alone
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Threads of each side [default: all cores]
    #[arg(long, value_name = "N", value_parser = count)]
    threads: Option<usize>,
}

#[derive(Debug, Args)]
struct CollectivesArgs {
    /// Ranks
    #[arg(long, default_value_t = 2, value_parser = count)]
    ranks: usize,
    /// Bytes of the whole buffer
    #[arg(long, default_value_t = 64 << 20)]
    bytes: usize,
    /// Rounds that are timed
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Rounds before them
    #[arg(long, default_value_t = 3)]
    warmup: usize,
}

#[derive(Debug, Args)]
struct CheckpointArgs {
    /// Job file whose model.config it is
    #[arg(long)]
    job: PathBuf,
    /// Folder to write to; it is deleted
    #[arg(long)]
    folder: PathBuf,
    /// Tokens of a step beside a save
    #[arg(long, default_value_t = 512)]
    tokens: usize,
    /// Bytes reserved for what is not written when the optimizer begins
    #[arg(long, default_value_t = 0)]
    snapshot: u64,
    /// Threads
    #[arg(long, default_value_t = 2, value_parser = count)]
    threads: usize,
}

#[derive(Debug, Args)]
struct WorkerArgs {
    /// Threads
    #[arg(long, value_parser = count)]
    threads: usize,
    /// The library that computes; without one, memwall
    #[arg(long)]
    library: Option<PathBuf>,
}

/// A number of threads or ranks.
fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least one is needed".to_owned()),
        Ok(n) => Ok(n),
        Err(e) => Err(format!("{e}")),
    }
}

/// What ends the program, in words.
type Fault = Box<dyn std::error::Error>;

/// Writes what `--markdown` asks for.
fn write_markdown(common: &Common, text: &str) -> Result<(), Fault> {
    match &common.markdown {
        Some(path) => {
            std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()).into())
        }
        None => Ok(()),
    }
}

/// The cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Kernels(args) => kernels::kernels(&args),
        Command::Gemm(args) => gemm::gemm(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Checkpoint(args) => checkpoint::checkpoint(&args),
        Command::Collectives(args) => collectives::collectives(&args),
        Command::Worker(args) => worker::serve(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("memwall-bench: {fault}");
            ExitCode::FAILURE
        }
    }
}
