//! Which processes run on our behalf, so that an interrupted bench leaves none behind.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use tokio::signal::unix::{SignalKind, signal};

static PIDS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Exit code after an interruption, as shells have it for SIGINT.
const INTERRUPTED: i32 = 130;

/// A process was started.
pub(crate) fn add(pid: u32) {
    PIDS.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
}

/// A process has ended and was waited for.
pub(crate) fn remove(pid: u32) {
    PIDS.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| *other != pid);
}

/// Ends all processes and this one at SIGINT or SIGTERM. The thread ends with the program.
pub(crate) fn end_at_signals() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let (Ok(mut interrupt), Ok(mut terminate)) =
                (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
            else {
                return;
            };
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            // The lock stays held: nobody starts another one.
            let pids = PIDS.lock().unwrap_or_else(PoisonError::into_inner);
            for pid in pids.iter() {
                // A process that is gone needs no end.
                let _ = Command::new("kill").args(["-s", "KILL", &pid.to_string()]).status();
            }
            std::process::exit(INTERRUPTED);
        });
    });
    Ok(())
}
