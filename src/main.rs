//! The program: parse, run, exit code. 1 for values that cannot be used and for faults, 2 for a wrong command line.

use std::process::ExitCode;

use kvindexer::app;
use kvindexer::cli::{Cli, Command, demo, sim};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let outcome = match Cli::from_args(std::env::args_os()).into_command() {
        Command::Serve(args) => app::main(args),
        Command::Sim(args) => sim::main(args).map_err(anyhow::Error::from),
        Command::Demo(args) => demo::main(args).map_err(anyhow::Error::from),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
