//! The sockets of one simulated rank: a PUB for live batches, and a ROUTER that replays the last of them.
//!
//! One task per rank owns both, as engines serve replays in their publishing thread. Batches get their numbers here; a
//! restart closes the sockets, forgets the ring and begins at 0 on the same ports.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

/// Commands that wait for the task; the fleet waits when there are more.
const COMMANDS_MAX: usize = 1024;

/// A replay whose reader takes nothing for so long is given up.
const REPLAY_STALL: Duration = Duration::from_secs(5);

/// Number of the end marker.
const END: u64 = u64::MAX;

/// Addresses and habits of one rank's sockets.
#[derive(Debug, Clone)]
pub struct PublisherSpec {
    /// Address to bind.
    pub host: IpAddr,
    /// Port of the events; 0 lets the system choose.
    pub port: u16,
    /// Port of the replay socket, 0 likewise; none = no replay socket.
    pub replay_port: Option<u16>,
    /// Batches kept for replay.
    pub replay_batches: usize,
    /// Replay answers repeat the topic: four frames instead of three.
    pub replay_topic: bool,
    /// Topic of every batch.
    pub topic: String,
}

/// Why a rank cannot publish.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The port is not to be had.
    #[error("failed to bind {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The socket library refused.
    #[error("failed to publish")]
    Zmq(#[from] ZmqError),
    /// The task of the rank has ended.
    #[error("the publisher has ended")]
    Ended,
}

/// Handle of one rank's task.
#[derive(Debug)]
pub struct Publisher {
    commands: mpsc::Sender<Command>,
    task: JoinHandle<Result<(), Error>>,
    address: SocketAddr,
    replay_address: Option<SocketAddr>,
    next: u64,
}

#[derive(Debug)]
enum Command {
    Publish { seq: u64, payload: Bytes, lost: bool },
    Restart { done: oneshot::Sender<()> },
}

impl Publisher {
    /// Binds both sockets and starts the task.
    ///
    /// # Errors
    /// A port that cannot be bound.
    pub async fn bind(spec: PublisherSpec) -> Result<Self, Error> {
        let (sockets, address, replay_address) = Sockets::bind(&spec).await?;
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        // Later lives take the ports that this one was given.
        let spec = PublisherSpec { port: address.port(), replay_port: replay_address.map(|a| a.port()), ..spec };
        let task = tokio::spawn(run(spec, sockets, receiver));
        Ok(Self { commands, task, address, replay_address, next: 0 })
    }

    /// Publishes a batch. `lost`: it takes a number and can be replayed, but nobody hears it now.
    ///
    /// # Errors
    /// The task has ended.
    pub async fn publish(&mut self, payload: Vec<u8>, lost: bool) -> Result<u64, Error> {
        let seq = self.next;
        let command = Command::Publish { seq, payload: payload.into(), lost };
        self.commands.send(command).await.map_err(|_| Error::Ended)?;
        self.next += 1;
        Ok(seq)
    }

    /// Closes the sockets, forgets everything and begins at 0 on the same ports.
    ///
    /// # Errors
    /// The task has ended, because the ports were taken by somebody else.
    pub async fn restart(&mut self) -> Result<(), Error> {
        let (done, wait) = oneshot::channel();
        self.commands.send(Command::Restart { done }).await.map_err(|_| Error::Ended)?;
        wait.await.map_err(|_| Error::Ended)?;
        self.next = 0;
        Ok(())
    }

    /// Where events are published.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where replays are asked for.
    #[must_use]
    pub fn replay_address(&self) -> Option<SocketAddr> {
        self.replay_address
    }

    /// Number of the last batch of this life.
    #[must_use]
    pub fn last_seq(&self) -> Option<u64> {
        self.next.checked_sub(1)
    }

    /// Ends the task and waits for it.
    ///
    /// # Errors
    /// What ended the task before.
    pub async fn stop(self) -> Result<(), Error> {
        drop(self.commands);
        self.task.await.map_err(|_| Error::Ended)?
    }
}

struct Sockets {
    events: PubSocket,
    replay: Option<RouterSocket>,
}

impl Sockets {
    async fn bind(spec: &PublisherSpec) -> Result<(Self, SocketAddr, Option<SocketAddr>), Error> {
        let (listener, address) = listen(spec.host, spec.port)?;
        let mut events = PubSocket::new();
        events.bind_listener(listener).await?;
        let Some(port) = spec.replay_port else {
            return Ok((Self { events, replay: None }, address, None));
        };
        let (listener, replay_address) = listen(spec.host, port)?;
        let mut replay = RouterSocket::new();
        replay.bind_listener(listener).await?;
        Ok((Self { events, replay: Some(replay) }, address, Some(replay_address)))
    }

    /// Waits until both ports are free again.
    async fn close(self) {
        self.events.close().await;
        if let Some(replay) = self.replay {
            replay.close().await;
        }
    }
}

fn listen(host: IpAddr, port: u16) -> Result<(TcpListener, SocketAddr), Error> {
    let address = SocketAddr::new(host, port);
    let bound = TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (bound, listener) = bound.map_err(|source| Error::Bind { address, source })?;
    Ok((listener, bound))
}

/// The batches that can be replayed, oldest first.
struct Ring {
    batches: VecDeque<(u64, Bytes)>,
    batches_max: usize,
}

impl Ring {
    fn push(&mut self, seq: u64, payload: Bytes) {
        if self.batches.len() == self.batches_max {
            self.batches.pop_front();
        }
        if self.batches_max > 0 {
            self.batches.push_back((seq, payload));
        }
    }
}

async fn run(spec: PublisherSpec, sockets: Sockets, mut commands: mpsc::Receiver<Command>) -> Result<(), Error> {
    let mut sockets = sockets;
    let topic = Bytes::from(spec.topic.clone());
    let mut ring = Ring { batches: VecDeque::new(), batches_max: spec.replay_batches };
    loop {
        // Replays first: a reader that asks waits for nothing but the answer before it.
        tokio::select! {
            biased;
            request = receive(sockets.replay.as_mut()) => {
                if let (Ok(request), Some(replay)) = (request, sockets.replay.as_mut()) {
                    answer(replay, &request, &ring, spec.replay_topic.then_some(&topic)).await;
                }
            }
            command = commands.recv() => match command {
                None => return Ok(()),
                Some(Command::Publish { seq, payload, lost }) => {
                    ring.push(seq, payload.clone());
                    if !lost {
                        let frames = vec![topic.clone(), Bytes::copy_from_slice(&seq.to_be_bytes()), payload];
                        sockets.events.send(message(frames)).await?;
                    }
                }
                Some(Command::Restart { done }) => {
                    ring.batches.clear();
                    sockets.close().await;
                    (sockets, _, _) = Sockets::bind(&spec).await?;
                    // Nobody waits for the end of a restart when the fleet is stopping.
                    let _ = done.send(());
                }
            },
        }
    }
}

async fn receive(replay: Option<&mut RouterSocket>) -> Result<ZmqMessage, ZmqError> {
    match replay {
        Some(replay) => replay.recv().await,
        None => std::future::pending().await,
    }
}

/// Sends every kept batch from the wanted number on, and the end marker. A request of another form is ignored; a reader
/// that goes away or stops reading ends the answer.
async fn answer(replay: &mut RouterSocket, request: &ZmqMessage, ring: &Ring, topic: Option<&Bytes>) {
    let (Some(identity), Some(start)) = (request.get(0), request.get(2)) else {
        return;
    };
    let Ok(start) = <[u8; 8]>::try_from(start.as_ref()).map(u64::from_be_bytes) else {
        return;
    };
    let end = (END, Bytes::new());
    for (seq, payload) in ring.batches.iter().filter(|(seq, _)| *seq >= start).chain([&end]) {
        let mut frames = vec![identity.clone(), Bytes::new()];
        frames.extend(topic.cloned());
        frames.extend([Bytes::copy_from_slice(&seq.to_be_bytes()), payload.clone()]);
        if !matches!(timeout(REPLAY_STALL, replay.send(message(frames))).await, Ok(Ok(()))) {
            return;
        }
    }
}

fn message(frames: Vec<Bytes>) -> ZmqMessage {
    ZmqMessage::try_from(frames).expect("a message with frames")
}

#[cfg(test)]
mod tests {
    use zeromq::{DealerSocket, SubSocket};

    use super::*;

    fn spec(replay_topic: bool) -> PublisherSpec {
        PublisherSpec {
            host: IpAddr::from([127, 0, 0, 1]),
            port: 0,
            replay_port: Some(0),
            replay_batches: 3,
            replay_topic,
            topic: "kv".to_owned(),
        }
    }

    async fn replay(address: SocketAddr, start: u64) -> Vec<Vec<Bytes>> {
        let mut dealer = DealerSocket::new();
        dealer.connect(&format!("tcp://{address}")).await.unwrap();
        dealer.send(message(vec![Bytes::new(), Bytes::copy_from_slice(&start.to_be_bytes())])).await.unwrap();
        let mut answers = vec![];
        loop {
            let frames = dealer.recv().await.unwrap().into_vec();
            let last = frames.last().unwrap().is_empty();
            answers.push(frames);
            if last {
                return answers;
            }
        }
    }

    #[tokio::test]
    async fn the_ring_keeps_the_last_batches_and_a_lost_one_too() {
        let mut publisher = Publisher::bind(spec(true)).await.unwrap();
        for payload in 0..5_u8 {
            let seq = publisher.publish(vec![payload], payload == 3).await.unwrap();
            assert_eq!(seq, u64::from(payload));
        }
        let address = publisher.replay_address().unwrap();
        // Commands wait in a queue: ask until the last one has arrived.
        let answers = loop {
            let answers = replay(address, 3).await;
            if answers.len() == 3 {
                break answers;
            }
        };
        let numbers: Vec<_> = answers.iter().map(|frames| frames[2].to_vec()).collect();
        assert_eq!(numbers, [3, 4, END].map(|seq: u64| seq.to_be_bytes().to_vec()));
        assert_eq!(answers[0], ["", "kv", "\0\0\0\0\0\0\0\u{3}", "\u{3}"].map(|frame| Bytes::from(frame.to_owned())));
        assert_eq!(replay(address, 0).await.len(), 4, "the first two have gone");
        publisher.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_restart_begins_at_0_on_the_same_ports() {
        let mut publisher = Publisher::bind(spec(false)).await.unwrap();
        let (address, replay_address) = (publisher.address(), publisher.replay_address().unwrap());
        publisher.publish(vec![1], false).await.unwrap();
        publisher.restart().await.unwrap();
        assert_eq!((publisher.address(), publisher.last_seq()), (address, None));
        let mut subscriber = SubSocket::new();
        subscriber.connect(&format!("tcp://{address}")).await.unwrap();
        subscriber.subscribe("").await.unwrap();
        // The subscription arrives when it arrives: publish until something is heard.
        let heard = loop {
            publisher.publish(vec![2], false).await.unwrap();
            if let Ok(heard) = timeout(Duration::from_millis(20), subscriber.recv()).await {
                break heard.unwrap().into_vec();
            }
        };
        assert_eq!((heard[0].as_ref(), heard[2].as_ref()), (b"kv".as_slice(), [2].as_slice()));
        let answers = replay(replay_address, 0).await;
        assert_eq!(answers[0].len(), 3);
        assert_eq!(answers[0][2].as_ref(), [2], "the first life is forgotten");
        publisher.stop().await.unwrap();
    }
}
