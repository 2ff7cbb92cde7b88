//! The command line.

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Trains language models, and says before what it will cost.
#[derive(Debug, Parser)]
#[command(name = "memwall", version = crate::VERSION, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a model as a job file says
    Train(TrainArgs),
    /// Say what a job will cost, without running it
    Plan(PlanArgs),
    /// Measure how fast this machine is, for train to refer to
    Profile(ProfileArgs),
    /// Write text with a trained model
    Generate(GenerateArgs),
    /// Look at models
    #[command(subcommand)]
    Model(ModelCommand),
    /// Prepare data, and look at it
    #[command(subcommand)]
    Data(DataCommand),
    /// Look at checkpoints, check, convert and compare them
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Run two jobs from the same state, and say whether one may take the place of the other
    Compare(CompareArgs),
    /// Go on with a run in another layout, once a few steps have shown that it gives the same
    Move(MoveArgs),
    /// Print a page of the reference, in Markdown
    Docs(DocsArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// Say what a checkpoint is of, and where it lies
    Inspect(CheckpointInspectArgs),
    /// Read every byte, and say whether it is what was written; exit code 1 if not
    Verify(CheckpointVerifyArgs),
    /// Write it in other parts, as a model folder, or begin a run with a model folder
    Convert(CheckpointConvertArgs),
    /// Say tensor by tensor how two checkpoints, or one and a model folder, differ; exit code 1 if they do
    Diff(CheckpointDiffArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CheckpointInspectArgs {
    /// Checkpoint, or run folder, of which its last one is meant
    pub(crate) path: PathBuf,
    /// List all tensors
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Print the job that it belongs to, and nothing else
    #[arg(long, conflicts_with_all = ["tensors", "json"])]
    pub(crate) job: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CheckpointVerifyArgs {
    /// Checkpoint, run folder, of which its last one is meant, or Hugging Face model folder
    pub(crate) path: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a conversion gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConvertTo {
    /// A checkpoint in --parts parts
    Checkpoint,
    /// A Hugging Face model folder
    Model,
    /// A run folder that begins with a model folder's weights, for train --resume
    Run,
}

/// Types of weights in a model folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FloatArg {
    /// 32 bits
    Float32,
    /// The upper half of it
    Bfloat16,
    /// 16 bits, more digits and a smaller range
    Float16,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CheckpointConvertArgs {
    /// Checkpoint, run folder, of which its last one is meant, or Hugging Face model folder
    pub(crate) from: PathBuf,
    /// New folder
    #[arg(value_name = "TO")]
    pub(crate) path: PathBuf,
    /// What to write
    #[arg(long)]
    pub(crate) to: ConvertTo,
    /// Parts that the state is cut in, as by so many ranks; 1 merges [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) parts: Option<u32>,
    /// Type of a model's weights [default: float32]
    #[arg(long)]
    pub(crate) dtype: Option<FloatArg>,
    /// Job file of the run that is to begin
    #[arg(long, value_name = "JOB")]
    pub(crate) job: Option<PathBuf>,
    /// Override a value of the job file; may be given several times
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CheckpointDiffArgs {
    /// Checkpoint, run folder, or Hugging Face model folder
    pub(crate) a: PathBuf,
    /// Another one
    pub(crate) b: PathBuf,
    /// Largest distance of two elements that is not held to be a difference [default: none at all]
    #[arg(long, value_name = "X", value_parser = distance)]
    pub(crate) tolerance: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CompareArgs {
    /// Job file that is known to be good
    pub(crate) a: PathBuf,
    /// Job file that is to take its place
    pub(crate) b: PathBuf,
    /// Optimizer steps to run
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) steps: u64,
    /// Begin with this checkpoint, or run folder's last one, and not with first values
    #[arg(long, value_name = "CHECKPOINT", conflicts_with = "until_loss")]
    pub(crate) from: Option<PathBuf>,
    /// Run both jobs whole with several seeds, and judge held-out losses against the noise of seeds; tells when each got
    /// below X
    #[arg(long, value_name = "X", value_parser = distance, conflicts_with = "steps")]
    pub(crate) until_loss: Option<f64>,
    /// Seeds of each job with --until-loss
    #[arg(long, value_name = "N", default_value_t = 3, requires = "until_loss", value_parser = clap::value_parser!(u32).range(2..=100))]
    pub(crate) seeds: u32,
    /// Override a value of both job files; may be given several times
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Keep the runs and the report in this new folder [default: a temporary one, deleted at the end]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct MoveArgs {
    /// Run folder
    pub(crate) run: PathBuf,
    /// Job file to go on with
    #[arg(required_unless_present = "back", conflicts_with = "back")]
    pub(crate) job: Option<PathBuf>,
    /// Override a value of the job file; may be given several times
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE", conflicts_with = "back")]
    pub(crate) set: Vec<String>,
    /// Optimizer steps to try with both
    #[arg(long, value_name = "N", default_value_t = 3, conflicts_with = "back", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) steps: u64,
    /// Undo the last move: the job and the checkpoint are again those of before it
    #[arg(long)]
    pub(crate) back: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Say what a model is made of and what training it takes, without loading it
    Inspect(InspectArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct InspectArgs {
    /// Hugging Face model folder, or a config.json
    pub(crate) path: PathBuf,
    /// Tokens in a sequence, which attention's cost depends on [default: the model's longest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) sequence: Option<u32>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// Tokenize the data of a job before a run needs it
    Prepare(PrepareArgs),
    /// Say what prepared data holds, or what a step of a job trains on
    Inspect(DataInspectArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct PrepareArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Write to this folder, for data.prepared, and not to the cache
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DataInspectArgs {
    /// Folder of prepared data, or job file (TOML)
    pub(crate) path: PathBuf,
    /// Override a value of the job file; may be given several times
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Show the samples of this optimizer step of the job; the first is 1
    #[arg(long, value_name = "K")]
    pub(crate) step: Option<u64>,
    /// Show the samples that the job evaluates on
    #[arg(long, conflicts_with = "step")]
    pub(crate) evaluation: bool,
    /// Documents to show, or with --step and --evaluation samples [default: 3, or all of them]
    #[arg(long, value_name = "N")]
    pub(crate) samples: Option<usize>,
    /// Read every file and compare its hash
    #[arg(long)]
    pub(crate) verify: bool,
    /// Print one JSON object instead of tables, or with --step and --evaluation one a sample
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DocsArgs {
    /// Which page
    pub(crate) page: DocsPage,
}

/// Pages that are generated from the program itself.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum DocsPage {
    /// Every key of the job file
    Job,
    /// What is supported, alone and in pairs
    Support,
}

/// A job file and what overrides it.
#[derive(Debug, ClapArgs)]
pub(crate) struct JobArgs {
    /// Job file (TOML)
    pub(crate) job: PathBuf,
    /// Override a value of the job file; may be given several times
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Go on from the last complete checkpoint of the run folder
    #[arg(long)]
    pub(crate) resume: bool,
    /// Processes on this machine that train together; short for --set parallel.ranks=N
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<u32>,
    /// End after N steps of this call, saved, to be gone on with by --resume; schedules stay those of the whole run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) stop_after: Option<u64>,
}

impl TrainArgs {
    /// All that is put over the job, the last one wins.
    pub(crate) fn sets(&self) -> Vec<String> {
        self.job.set.iter().cloned().chain(ranks(self.ranks)).collect()
    }
}

/// What `--ranks` puts over the job.
fn ranks(ranks: Option<u32>) -> Option<String> {
    ranks.map(|n| format!("parallel.ranks={n}"))
}

#[derive(Debug, ClapArgs)]
pub(crate) struct PlanArgs {
    /// Job file (TOML)
    #[arg(required_unless_present_any = ["model", "list_models"], conflicts_with = "model")]
    pub(crate) job: Option<PathBuf>,
    /// Plan a well-known model instead of a job file
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Tokens in a sequence
    #[arg(long, value_name = "N")]
    pub(crate) sequence: Option<u32>,
    /// Sequences computed at once
    #[arg(long, value_name = "N")]
    pub(crate) micro_batch: Option<u32>,
    /// Type of weights and activations: f32 or bf16
    #[arg(long, value_name = "MODE")]
    pub(crate) precision: Option<String>,
    /// What is computed again in the backward pass: none or full
    #[arg(long, value_name = "WHAT")]
    pub(crate) recompute: Option<String>,
    /// Memory that each rank may use, such as "80 GB"
    #[arg(long, value_name = "SIZE")]
    pub(crate) budget: Option<String>,
    /// Processes on this machine that train together
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<u32>,
    /// Override a value of the job; may be given several times
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Draw memory over one step to this file (SVG)
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) picture: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// List the well-known models
    #[arg(long)]
    pub(crate) list_models: bool,
}

impl PlanArgs {
    /// All that is put over the job, the last one wins.
    pub(crate) fn sets(&self) -> Vec<String> {
        let quoted = |key: &str, text: &Option<String>| {
            text.as_ref().map(|t| format!("{key}={}", toml::Value::String(t.clone())))
        };
        let number = |key: &str, n: Option<u32>| n.map(|n| format!("{key}={n}"));
        let short = [
            number("data.sequence_length", self.sequence),
            number("train.micro_batch", self.micro_batch),
            quoted("precision.mode", &self.precision),
            quoted("memory.recompute", &self.recompute),
            quoted("memory.budget", &self.budget),
            ranks(self.ranks),
        ];
        self.set.iter().cloned().chain(short.into_iter().flatten()).collect()
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ProfileArgs {
    /// Write to this file, and not to the user's cache, where train looks
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Small sizes alone: some seconds instead of a minute or two, and less to be relied on
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct GenerateArgs {
    /// Model folder: config.json, model.safetensors, tokenizer.json
    pub(crate) model: PathBuf,
    /// Text to go on from
    #[arg(long)]
    pub(crate) prompt: String,
    /// Tokens to write at most
    #[arg(long, default_value_t = 200, value_name = "N")]
    pub(crate) max_tokens: usize,
    /// 0 takes the likeliest token; higher is more varied
    #[arg(long, default_value_t = 0.8, value_parser = temperature)]
    pub(crate) temperature: f64,
    /// Choose among the K likeliest tokens; 0 for all
    #[arg(long, default_value_t = 0, value_name = "K")]
    pub(crate) top_k: usize,
    /// Choose among the likeliest tokens whose probabilities reach P
    #[arg(long, default_value_t = 1.0, value_name = "P", value_parser = share)]
    pub(crate) top_p: f64,
    /// Seed of the choices: the same seed writes the same text
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Threads; 0 for all cores
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
}

fn temperature(text: &str) -> Result<f64, String> {
    number(text).filter(|t| *t >= 0.0).ok_or_else(|| "expected a number of 0 or more".into())
}

fn share(text: &str) -> Result<f64, String> {
    number(text).filter(|p| *p > 0.0 && *p <= 1.0).ok_or_else(|| "expected a number above 0, up to 1".into())
}

fn distance(text: &str) -> Result<f64, String> {
    number(text).filter(|x| *x >= 0.0).ok_or_else(|| "expected a number of 0 or more".into())
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|x: &f64| x.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn impossible_samplings_are_refused() {
        for bad in [["--temperature", "-1"], ["--temperature", "nan"], ["--top-p", "0"], ["--top-p", "1.5"]] {
            let args = ["memwall", "generate", "m", "--prompt", "x"].iter().chain(bad.iter());
            assert!(Args::try_parse_from(args).is_err(), "{bad:?}");
        }
    }
}
