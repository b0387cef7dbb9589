//! One publisher and two replicas in virtual time: A applies, B holds, adopts A's state at some moment, and goes on.
//! Restarts, lost connections and lost messages fall anywhere. Property: whoever is not degraded in the end holds what
//! the publisher's present life has said, and with a whole replay buffer B always does.

use std::collections::VecDeque;

use super::super::*;
use crate::image::Position;
use crate::ingest::applied::Adoption;
use crate::ingest::rounds::RoundEnd;

const BOUNDS: Bounds = Bounds {
    held_bytes_max: 1 << 20,
    held_batches_max: 12,
    silence_ms: 1_000,
    idle_ms: 2_000,
    repair_min_ms: 30_000,
    repair_max_ms: 120_000,
};

type Sent = (u64, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Buffer {
    None,
    Last(usize),
    Whole,
}

struct Publisher {
    life: u64,
    sent: u64,
    buffer: Buffer,
    ring: VecDeque<Sent>,
}

/// A replica: its stream, what it holds, and what is on its way to it.
struct Replica {
    stream: Stream,
    content: Vec<Sent>,
    position: Position,
    lost: bool,
    incomplete: bool,
    catching_up: bool,
    connected: bool,
    wire: VecDeque<Sent>,
    heard: Vec<Sent>,
}

fn payload((life, seq): Sent) -> Vec<u8> {
    format!("{life}/{seq}").into_bytes()
}

fn mark(sent: Sent) -> Mark {
    Mark { seq: Seq(sent.1), payload_hash: wire::payload_hash(&payload(sent)) }
}

/// What a payload said.
fn read(bytes: &[u8]) -> Sent {
    let text = std::str::from_utf8(bytes).unwrap();
    let (life, seq) = text.split_once('/').unwrap();
    (life.parse().unwrap(), seq.parse().unwrap())
}

impl Publisher {
    fn publish(&mut self) -> Sent {
        let sent = (self.life, self.sent);
        self.sent += 1;
        self.ring.push_back(sent);
        if let Buffer::Last(count) = self.buffer {
            while self.ring.len() > count {
                self.ring.pop_front();
            }
        }
        sent
    }

    fn truth(&self) -> Vec<Sent> {
        (0..self.sent).map(|seq| (self.life, seq)).collect()
    }
}

impl Replica {
    fn new(has_replay: bool) -> Self {
        Self {
            stream: Stream::new(BOUNDS, has_replay, None, Budget::new(1 << 30)),
            content: Vec::new(),
            position: Position::default(),
            lost: false,
            incomplete: false,
            catching_up: false,
            connected: false,
            wire: VecDeque::new(),
            heard: Vec::new(),
        }
    }

    /// True if it goes from one life to another at the very next number and has not heard on this connection what would
    /// tell: without a buffer any smaller number of that life, with one the number before (smaller ones may be late, and
    /// its buffer begins behind it). Then nobody can know.
    fn is_fooled(&self, buffer: Buffer) -> bool {
        self.content.windows(2).any(|pair| {
            let (life, seq) = pair[1];
            let tells =
                |heard: &Sent| heard.0 == life && heard.1 < seq && (buffer == Buffer::None || heard.1 + 1 == seq);
            pair[0].0 != life && !self.heard.iter().any(tells)
        })
    }

    fn is_degraded(&self) -> bool {
        self.lost || self.incomplete || self.catching_up || self.position.unverified
    }

    fn connect(&mut self, now: Ms) {
        if !std::mem::replace(&mut self.connected, true) {
            self.heard.clear();
            self.stream.connected(now);
        }
    }

    fn disconnect(&mut self) {
        self.wire.clear();
        if std::mem::take(&mut self.connected) {
            self.stream.disconnected();
        }
    }

    fn receive(&mut self, publisher: &Publisher, now: Ms) {
        let Some(sent) = self.wire.pop_front() else {
            return;
        };
        self.heard.push(sent);
        let step = self.stream.message(Seq(sent.1), &payload(sent), now);
        self.effects(publisher, now);
        if let Step::Apply(_) = step {
            self.apply(sent);
        }
        self.settle(publisher, now);
    }

    fn apply(&mut self, sent: Sent) {
        self.content.push(sent);
        self.position.mark = Some(mark(sent));
    }

    fn settle(&mut self, publisher: &Publisher, now: Ms) {
        self.effects(publisher, now);
        self.stream.advance(now);
        self.effects(publisher, now);
        while let Some(batch) = self.stream.release(now) {
            self.effects(publisher, now);
            self.apply(read(&batch.payload));
            self.stream.advance(now);
            self.effects(publisher, now);
        }
        self.effects(publisher, now);
    }

    fn pass(&mut self, publisher: &Publisher, until: Ms) {
        while let Some(deadline) = self.stream.deadline().filter(|deadline| *deadline <= until) {
            self.stream.timer(deadline);
            self.settle(publisher, deadline);
        }
    }

    fn effects(&mut self, publisher: &Publisher, now: Ms) {
        loop {
            let effects: Vec<_> = self.stream.take_effects().collect();
            if effects.is_empty() {
                return;
            }
            let mut asked = None;
            for effect in effects {
                match effect {
                    Effect::Restarted => {
                        self.forget();
                        (self.lost, self.incomplete, self.catching_up) = (false, false, false);
                        self.position.unverified = false;
                    }
                    Effect::BeginRebuild => self.forget(),
                    Effect::Rebuilt => (self.lost, self.incomplete) = (false, false),
                    Effect::Lost { .. } => self.lost = true,
                    Effect::Incomplete => self.incomplete = true,
                    Effect::CatchingUp(holds) => self.catching_up = holds,
                    Effect::Unverified(holds) => self.position.unverified = holds,
                    Effect::CountsFromOne => self.position.counts_from_one = true,
                    Effect::Connected(holds) => self.position.connected = holds,
                    Effect::StartReplay { from } => asked = Some(from),
                    Effect::StopReplay => asked = None,
                    _ => {}
                }
            }
            self.position.holes = self.lost || self.incomplete;
            if let Some(from) = asked {
                self.answer(publisher, from, now);
            }
        }
    }

    fn forget(&mut self) {
        self.content.clear();
        self.position.mark = None;
    }

    /// Answers a replay at once, all in one go.
    fn answer(&mut self, publisher: &Publisher, from: Seq, now: Ms) {
        self.stream.round_begun(now);
        for sent in publisher.ring.iter().filter(|sent| sent.1 >= from.0) {
            self.heard.push(*sent);
            let step = self.stream.answer(mark(*sent), now);
            let replaced = self.small_effects();
            if step == ReplayStep::Apply {
                self.apply(*sent);
            }
            if replaced {
                return self.effects(publisher, now);
            }
            self.stream.advance(now);
            if !self.stream.is_replaying() {
                return;
            }
        }
        self.stream.round_over(RoundEnd::Marker, now);
    }

    /// Performs effects in the midst of an answer. True if the exchange was closed.
    fn small_effects(&mut self) -> bool {
        let effects: Vec<_> = self.stream.take_effects().collect();
        let closed = effects.iter().any(|effect| matches!(effect, Effect::StopReplay | Effect::StartReplay { .. }));
        if closed {
            self.stream.effects = effects;
            return true;
        }
        for effect in effects {
            match effect {
                Effect::BeginRebuild => self.forget(),
                Effect::Lost { .. } => self.lost = true,
                Effect::CatchingUp(holds) => self.catching_up = holds,
                Effect::Unverified(holds) => self.position.unverified = holds,
                Effect::CountsFromOne => self.position.counts_from_one = true,
                other => unreachable!("{other:?} between two answers"),
            }
        }
        false
    }

    fn adopt(&mut self, from: &Self, publisher: &Publisher, now: Ms) {
        self.content.clone_from(&from.content);
        let connected = self.position.connected;
        self.position = Position { connected, ..from.position };
        (self.lost, self.incomplete, self.catching_up) = (from.lost, from.incomplete, false);
        self.stream.adopt(Adoption::Snapshot(from.position), now);
        self.settle(publisher, now);
    }
}

struct World {
    publisher: Publisher,
    a: Replica,
    b: Replica,
    now: Ms,
    adopted: bool,
}

impl World {
    fn new(buffer: Buffer) -> Self {
        let has_replay = buffer != Buffer::None;
        let mut b = Replica::new(has_replay);
        b.stream.begin_join();
        let publisher = Publisher { life: 1, sent: 0, buffer, ring: VecDeque::new() };
        let mut world = Self { publisher, a: Replica::new(has_replay), b, now: 0, adopted: false };
        world.a.connect(0);
        if !has_replay {
            world.b.connect(0);
        }
        world
    }

    fn step(&mut self, word: u8) {
        let now = self.now;
        match word {
            0..=5 => self.publish(|_| true),
            // One of the two does not get it.
            6 => self.publish(|replica| replica == 0),
            7 => self.publish(|replica| replica == 1),
            8..=12 => self.a.receive(&self.publisher, now),
            13..=17 => self.b.receive(&self.publisher, now),
            18 => self.a.disconnect(),
            19 => self.b.disconnect(),
            20 | 21 => self.a.connect(now),
            22 | 23 => self.b.connect(now),
            24 => self.restart(),
            25 => self.wait(600),
            26 => self.wait(2_600),
            _ => {
                if !std::mem::replace(&mut self.adopted, true) {
                    self.b.adopt(&self.a, &self.publisher, now);
                }
            }
        }
        self.a.settle(&self.publisher, now);
        self.b.settle(&self.publisher, now);
    }

    fn publish(&mut self, reaches: impl Fn(usize) -> bool) {
        let sent = self.publisher.publish();
        for (number, replica) in [&mut self.a, &mut self.b].into_iter().enumerate() {
            if replica.connected && reaches(number) {
                replica.wire.push_back(sent);
            }
        }
    }

    /// Everybody loses the connection. Without a replay endpoint they are back before anything is sent: a life that goes
    /// beyond the last one's numbers unheard cannot be told from it by anybody.
    fn restart(&mut self) {
        self.publisher.life += 1;
        self.publisher.sent = 0;
        self.publisher.ring.clear();
        self.a.disconnect();
        self.b.disconnect();
        if self.publisher.buffer == Buffer::None {
            self.a.connect(self.now);
            self.b.connect(self.now);
        }
    }

    fn wait(&mut self, ms: Ms) {
        self.now += ms;
        self.a.pass(&self.publisher, self.now);
        self.b.pass(&self.publisher, self.now);
    }

    /// Until everything has come and every timer has run.
    fn quiet(&mut self) {
        if !self.adopted {
            self.step(u8::MAX);
        }
        self.a.connect(self.now);
        self.b.connect(self.now);
        for _ in 0..3 {
            self.drain();
            self.wait(6_000);
            self.publish(|_| true);
        }
        self.drain();
        self.wait(700_000);
    }

    fn drain(&mut self) {
        while !self.a.wire.is_empty() || !self.b.wire.is_empty() {
            self.a.receive(&self.publisher, self.now);
            self.b.receive(&self.publisher, self.now);
        }
        self.a.settle(&self.publisher, self.now);
        self.b.settle(&self.publisher, self.now);
    }
}

fn run(buffer: Buffer, words: &[u8]) -> Result<(), proptest::test_runner::TestCaseError> {
    let mut world = World::new(buffer);
    words.iter().for_each(|word| world.step(*word));
    world.quiet();
    let truth = world.publisher.truth();
    for (name, replica) in [("a", &world.a), ("b", &world.b)] {
        let fooled = buffer != Buffer::Whole && [replica, &world.a].iter().any(|one| one.is_fooled(buffer));
        if !replica.is_degraded() && !fooled {
            // Whoever hears 1 first cannot know that there was a 0.
            let from_one = buffer != Buffer::Whole && replica.content.first().is_some_and(|first| first.1 == 1);
            let want = &truth[usize::from(from_one)..];
            proptest::prop_assert_eq!(&replica.content[..], want, "{} believes to be exact, {:?}", name, buffer);
        }
        if buffer == Buffer::Whole {
            proptest::prop_assert_eq!(&replica.content, &truth, "{} with a whole buffer", name);
            proptest::prop_assert!(!replica.is_degraded(), "{} heals with a whole buffer", name);
        }
    }
    Ok(())
}

#[test]
fn whoever_is_exact_holds_what_the_present_life_has_said() {
    let buffer = proptest::prop_oneof![
        proptest::strategy::Just(Buffer::None),
        proptest::strategy::Just(Buffer::Last(4)),
        proptest::strategy::Just(Buffer::Whole),
    ];
    let config = proptest::test_runner::Config { cases: 3_000, ..Default::default() };
    proptest::proptest!(config, |(words in proptest::collection::vec(0..28u8, 1..120), buffer in buffer)| {
        run(buffer, &words)?;
    });
}
