//! The `memwall` program: reads a job, checks it, says what it will cost, and runs it.
//!
//! Bad input ends with exit code 2 before anything starts, a failed run with 1.

#[macro_use]
mod output;

mod advice;
mod args;
mod balance;
mod batches;
mod checkpoint;
mod compare;
mod data;
mod docs;
mod early_stop;
mod exact;
mod failure;
pub mod figures;
mod finish;
mod generate;
mod groups;
mod inspect;
pub mod job;
mod layout;
mod machine;
mod moving;
mod picture;
mod plan;
mod preset;
pub mod profile;
mod progress;
mod ranks;
mod report;
mod resident;
mod resume;
mod run;
mod run_folder;
mod saves;
mod seat;
mod setup;
mod stop;
mod support;
mod train;
mod wire;

use clap::Parser;
use std::process::ExitCode;

/// Version and commit of the program.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("MEMWALL_COMMIT"), ")");

/// Runs the program with the process's arguments.
pub fn run() -> ExitCode {
    let outcome = match args::Args::parse().command {
        args::Command::Train(a) => train::train(&a),
        args::Command::Plan(a) => plan::plan(&a),
        args::Command::Profile(a) => profile::profile(&a),
        args::Command::Generate(a) => generate::generate(&a),
        args::Command::Model(args::ModelCommand::Inspect(a)) => inspect::inspect(&a),
        args::Command::Data(args::DataCommand::Prepare(a)) => data::prepare::prepare(&a),
        args::Command::Data(args::DataCommand::Inspect(a)) => data::inspect::inspect(&a),
        args::Command::Checkpoint(command) => checkpoint::checkpoint(&command),
        args::Command::Compare(a) => compare::compare(&a),
        args::Command::Move(a) => moving::move_run(&a),
        args::Command::Docs(a) => docs::docs(&a),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, failure::Failure::Told(_)) {
                complain!("memwall: {failure}");
            }
            ExitCode::from(failure.code())
        }
    }
}
