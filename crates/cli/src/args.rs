//! The command line.

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Trains language models, and says before what it will cost.
#[derive(Debug, Parser)]
#[command(name = "memwall", version, arg_required_else_help = true)]
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
    /// Print a page of the reference, in Markdown
    Docs(DocsArgs),
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
