//! The snapshot on disk: written beside the previous one and put in its place when it is whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::image::Tombstone;
use crate::recovery::load::{self, Loaded, Why};
use crate::recovery::{DiskConfig, Part, Replica, SnapshotWriter};
use crate::registry::{ExportFilter, Registry};
use crate::wire::snapshot::Error;

/// Name of the file.
const NAME: &str = "kvindexer.snapshot";

/// Name of the file while it is written. One process writes to a directory; what a killed one left is overwritten.
const UNFINISHED: &str = "kvindexer.snapshot.tmp";

/// Time for deleting what was not finished.
const TIDYING_MAX: Duration = Duration::from_millis(500);

/// Where the file lies.
pub(super) fn path(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

/// Reads the file, on a thread that may block. None if there is none, or none that can be used: that is logged and
/// counted.
pub(super) async fn read(replica: &Replica, registry: &Arc<Registry>, config: &DiskConfig) -> Option<Loaded> {
    let (path, age_max, registry) = (path(&config.dir), config.age_max, Arc::clone(registry));
    let name = path.display().to_string();
    let outcome = spawn_blocking(move || read_file(&registry, &path, age_max)).await;
    let refusal = match outcome {
        Ok(Ok(loaded)) => {
            replica.count(|counters| counters.attempt("disk", true));
            return Some(loaded);
        }
        Ok(Err(refusal)) => refusal,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => return None, // Only when the runtime is being dropped.
    };
    if let Refusal::NoFile = refusal {
        debug!(file = name, "there is no snapshot on disk");
        return None;
    }
    warn!(file = name, reason = %refusal, "snapshot on disk is not used");
    replica.count(|counters| {
        counters.attempt("disk", false);
        counters.refuse(refusal.word(), 1);
    });
    None
}

/// Who was unregistered lately, as the file says: this counts even if the state comes from elsewhere. Nothing if there is
/// no file, or none that can be read; [`read`] says so when it is wanted.
pub(super) async fn tombstones(config: &DiskConfig) -> Vec<Tombstone> {
    let path = path(&config.dir);
    let read = spawn_blocking(move || load::tombstones(File::open(path)?)).await;
    read.ok().and_then(Result::ok).unwrap_or_default()
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("there is none")]
    NoFile,
    #[error("it is {0} s old, and at most {1} s are allowed")]
    Old(u64, u64),
    #[error("{0}")]
    Foreign(Error),
    #[error("{0}")]
    Corrupt(Why),
}

impl Refusal {
    /// The word in the counter.
    fn word(&self) -> &'static str {
        match self {
            Self::NoFile => "no_file",
            Self::Old(..) => "old_file",
            Self::Foreign(_) => "foreign_file",
            Self::Corrupt(_) => "corrupt_file",
        }
    }
}

impl From<Why> for Refusal {
    fn from(why: Why) -> Self {
        match why {
            Why::Snapshot(error @ (Error::Version { .. } | Error::Magic)) => Self::Foreign(error),
            Why::Read(error) if error.kind() == io::ErrorKind::NotFound => Self::NoFile,
            why => Self::Corrupt(why),
        }
    }
}

fn read_file(registry: &Arc<Registry>, path: &Path, age_max: Duration) -> Result<Loaded, Refusal> {
    let open = || File::open(path).map_err(Why::from);
    // Its age decides before all of it is read.
    let header = load::header(&mut open()?)?;
    let age_s = super::now_ms().saturating_sub(header.created_ms) / 1000;
    if age_s > age_max.as_secs() {
        return Err(Refusal::Old(age_s, age_max.as_secs()));
    }
    load::snapshot(registry, open()?).map_err(|error| error.why.into())
}

/// Writes the file; false if it was not written, which is logged and counted. Dropping the future, or `limit`, ends the
/// writing: what is unfinished is deleted, and the previous file stays.
pub(super) async fn write(replica: &Replica, registry: &Arc<Registry>, dir: &Path, limit: Duration) -> bool {
    let tidying = (limit / 4).min(TIDYING_MAX);
    let written = match timeout(limit.saturating_sub(tidying), write_whole(replica, registry, dir)).await {
        Ok(written) => written,
        Err(_) => {
            // The thread gives its turn back once it has deleted what it had.
            let _late = timeout(tidying, replica.file_turn().acquire_owned()).await;
            Err(io::Error::new(io::ErrorKind::TimedOut, "the time is over"))
        }
    };
    let ok = match written {
        Ok(Some(bytes)) => {
            info!(dir = %dir.display(), bytes, "snapshot is on disk");
            true
        }
        Ok(None) => return false,
        Err(error) => {
            warn!(dir = %dir.display(), %error, "failed to write the snapshot to disk: the previous one stays");
            false
        }
    };
    replica.count(|counters| counters.file(ok));
    ok
}

/// Bytes written; none if there is nothing that deserves a file.
async fn write_whole(replica: &Replica, registry: &Arc<Registry>, dir: &Path) -> io::Result<Option<u64>> {
    let turn = replica.file_turn().acquire_owned().await.expect("the semaphore is never closed");
    let stop = Stop::default();
    let (stopped, registry, replica, dir) =
        (Arc::clone(&stop.0), Arc::clone(registry), replica.clone(), dir.to_owned());
    let written = spawn_blocking(move || {
        // The turn is kept until the thread has ended, also when nobody waits for it any more.
        let _turn = turn;
        // Who was unregistered, and what was cleared, must not come back from the file: a state without blocks is written,
        // too. Only a process that knows nothing at all leaves it alone.
        let blocks = registry.indexes().iter().any(|(_, index)| index.read().stats().held_blocks > 0);
        let knows = blocks || !registry.registrations().is_empty() || !registry.tombstones().is_empty();
        if !knows || registry.is_recovering() {
            return Ok(None);
        }
        let mut snapshot = SnapshotWriter::new(&replica, &registry, &ExportFilter::default(), Part::All);
        let pieces = std::iter::from_fn(|| snapshot.next_piece());
        write_pieces(&dir, pieces, &stopped).map(Some)
    });
    match written.await {
        Ok(written) => written,
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Tells the writing thread to end when it is dropped.
#[derive(Default)]
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes all pieces, then puts the file in its place. On any failure only the previous file is left.
fn write_pieces(dir: &Path, pieces: impl Iterator<Item = impl AsRef<[u8]>>, stopped: &AtomicBool) -> io::Result<u64> {
    let unfinished = dir.join(UNFINISHED);
    let write = || {
        let mut file = File::create(&unfinished)?;
        let mut bytes = 0;
        for piece in pieces {
            if stopped.load(Ordering::Relaxed) {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "stopped"));
            }
            file.write_all(piece.as_ref())?;
            bytes += piece.as_ref().len() as u64;
        }
        file.sync_all()?;
        if stopped.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "stopped"));
        }
        fs::rename(&unfinished, path(dir))?;
        // Else the name may still lead to the previous file after a power failure.
        File::open(dir)?.sync_all()?;
        Ok(bytes)
    };
    write().inspect_err(|_| drop(fs::remove_file(&unfinished)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that goes away.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("kvindexer-disk-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir(&dir).unwrap();
            Self(dir)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_whole_file_replaces_the_previous_one() {
        let dir = Dir::new("whole");
        let stopped = AtomicBool::new(false);
        for text in ["first", "second"] {
            let bytes = write_pieces(&dir.0, [&text[..2], &text[2..]].into_iter(), &stopped).unwrap();
            assert_eq!(bytes, text.len() as u64);
            assert_eq!(fs::read_to_string(path(&dir.0)).unwrap(), text);
            assert_eq!(dir.names(), [NAME]);
        }
    }

    #[test]
    fn an_unfinished_file_is_deleted_and_the_previous_one_stays() {
        let dir = Dir::new("unfinished");
        let stopped = AtomicBool::new(false);
        write_pieces(&dir.0, ["first"].into_iter(), &stopped).unwrap();
        let pieces = ["sec", "ond"].into_iter().inspect(|piece| {
            stopped.store(*piece == "ond", Ordering::Relaxed);
        });
        write_pieces(&dir.0, pieces, &stopped).expect_err("it was stopped before the last piece");
        assert_eq!(fs::read_to_string(path(&dir.0)).unwrap(), "first");
        assert_eq!(dir.names(), [NAME]);
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        let dir = Dir::new("gone");
        let gone = dir.0.join("gone");
        write_pieces(&gone, ["x"].into_iter(), &AtomicBool::new(false)).expect_err("there is no such directory");
    }

    #[test]
    fn each_refusal_has_its_word() {
        for (why, want) in [
            (Why::Snapshot(Error::Magic), "foreign_file"),
            (Why::Snapshot(Error::Version { found: 9, oldest: 1, newest: 1 }), "foreign_file"),
            (Why::Snapshot(Error::Truncated), "corrupt_file"),
            (Why::Snapshot(Error::Checksum(3)), "corrupt_file"),
            (Why::Read(io::ErrorKind::NotFound.into()), "no_file"),
            (Why::Read(io::ErrorKind::PermissionDenied.into()), "corrupt_file"),
        ] {
            assert_eq!(Refusal::from(why).word(), want);
        }
    }
}
