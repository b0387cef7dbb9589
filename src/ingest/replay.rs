//! One question to a publisher's replay socket and its answers, as a stream of items. I/O only: what an answer means
//! is decided in `rounds`.

use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{self, Stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ids::Seq;
use crate::ingest::handle::Shared;
use crate::wire;
use crate::zmtp::{Dealer, Endpoint, Error, Message};

/// What happens in an exchange.
#[derive(Debug)]
pub(super) enum Item {
    /// It has its turn: the connection is being opened.
    Begun,
    /// One answer.
    Answer(Message),
    /// The connection could not be made, or is lost; nothing follows.
    Failed(Error),
}

/// A running exchange. Dropping it closes the connection.
pub(super) type Exchange = Pin<Box<dyn Stream<Item = Item> + Send>>;

/// What an exchange needs.
pub(super) struct Question {
    /// The publisher's replay socket.
    pub(super) endpoint: Endpoint,
    /// First number wanted.
    pub(super) from: Seq,
    /// Process-wide parts.
    pub(super) shared: Arc<Shared>,
    /// One replay at a time per worker: an engine answers in its publishing thread.
    pub(super) turn: Arc<Semaphore>,
}

struct Permits(#[expect(dead_code, reason = "held until the exchange ends")] [Option<OwnedSemaphorePermit>; 2]);

enum State {
    Waiting(Question),
    Connecting(Question, Permits),
    Reading(Box<Dealer>, Permits),
    Over,
}

/// Asks, and gives what comes back.
pub(super) fn exchange(question: Question) -> Exchange {
    Box::pin(stream::unfold(State::Waiting(question), step))
}

async fn step(state: State) -> Option<(Item, State)> {
    match state {
        State::Waiting(question) => {
            let permits = permits(&question).await;
            Some((Item::Begun, State::Connecting(question, permits)))
        }
        State::Connecting(question, permits) => match ask(&question).await {
            Ok(dealer) => read(dealer, permits).await,
            Err(error) => Some((Item::Failed(error), State::Over)),
        },
        State::Reading(dealer, permits) => read(dealer, permits).await,
        State::Over => None,
    }
}

/// Waits for this worker's turn and for a place among all replays. Only who finds no place waits a random while, so
/// that a fleet that reconnects at once does not ask at once.
async fn permits(question: &Question) -> Permits {
    let worker = Arc::clone(&question.turn).acquire_owned().await.ok();
    let shared = &question.shared;
    let process = match Arc::clone(&shared.replays).try_acquire_owned() {
        Ok(permit) => Some(permit),
        Err(_) => {
            tokio::time::sleep(shared.limits.replay_jitter_max.mul_f64(fastrand::f64())).await;
            Arc::clone(&shared.replays).acquire_owned().await.ok()
        }
    };
    Permits([worker, process])
}

async fn ask(question: &Question) -> Result<Box<Dealer>, Error> {
    let shared = &question.shared;
    let mut dealer = Dealer::connect(&question.endpoint, &shared.options, &shared.context).await?;
    let [delimiter, from] = wire::replay_request(question.from);
    dealer.send(&[&delimiter, &from]).await?;
    Ok(Box::new(dealer))
}

async fn read(mut dealer: Box<Dealer>, permits: Permits) -> Option<(Item, State)> {
    match dealer.recv().await {
        Ok(message) => Some((Item::Answer(message), State::Reading(dealer, permits))),
        Err(error) => Some((Item::Failed(error), State::Over)),
    }
}
