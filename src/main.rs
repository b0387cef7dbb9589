//! The program: parse, run, exit code. 1 for values that cannot be used and for faults, 2 for a wrong command line. The
//! commands that compare: 1 for a difference, 2 if nothing could be compared.

use std::process::ExitCode;

use kvindexer::app;
use kvindexer::cli::{self, Cli, Command, Question, crd, demo, sim};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let outcome = match Cli::from_args(std::env::args_os()).into_command() {
        Command::Serve(args) => app::main(*args),
        Command::Sim(args) => sim::main(*args).map_err(anyhow::Error::from),
        Command::Demo(args) => demo::main(args).map_err(anyhow::Error::from),
        Command::Crd => crd::main().map_err(anyhow::Error::from),
        Command::Diff(args) => return ask(&Question::Diff(args)),
        Command::Verify(args) => return ask(&Question::Verify(args)),
        Command::Digest(args) => return ask(&Question::Digest(args)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn ask(question: &Question) -> ExitCode {
    match cli::ask(question, &mut std::io::stdout()) {
        Ok(verdict) => ExitCode::from(verdict.exit_code()),
        Err(error) => {
            eprintln!("error: {:#}", anyhow::Error::from(error));
            ExitCode::from(2)
        }
    }
}
