//! The `memwall` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    memwall_cli::run()
}
