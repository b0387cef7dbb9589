//! A publisher that is a list of numbers, its replay socket, and one owner, in virtual time.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::super::*;
use crate::image::Position;
use crate::ingest::applied::Adoption;
use crate::ingest::rounds::RoundEnd;

const BOUNDS: Bounds = Bounds {
    held_bytes_max: 1 << 20,
    held_batches_max: 8,
    silence_ms: 1_000,
    idle_ms: 2_000,
    repair_min_ms: 30_000,
    repair_max_ms: 120_000,
};

#[derive(Clone, Copy, PartialEq)]
enum Socket {
    Alive,
    Dead,
    Silent,
    Empty,
}

pub(super) struct Lab {
    stream: Stream,
    now: Ms,
    life: u64,
    ring: Vec<(u64, u64)>,
    socket: Socket,
    loses_end: bool,
    drop_once: Option<u64>,
    /// Answers that are on their way; the end marker is `None`.
    exchange: Option<Vec<Option<(u64, u64)>>>,
    pub(super) applied: String,
    joined: String,
    asked: Vec<String>,
    pub(super) reasons: BTreeSet<&'static str>,
    counts: [u64; 5],
}

impl Lab {
    pub(super) fn new(has_replay: bool, remembered: Option<u64>) -> Self {
        let remembered = remembered.map(|seq| Mark { seq: Seq(seq), payload_hash: hash_of(1, seq) });
        Self {
            stream: Stream::new(BOUNDS, has_replay, remembered, Budget::new(1 << 30)),
            now: 0,
            life: 1,
            ring: Vec::new(),
            socket: Socket::Alive,
            loses_end: false,
            drop_once: None,
            exchange: None,
            applied: String::new(),
            joined: String::new(),
            asked: Vec::new(),
            reasons: BTreeSet::from(["nothing_heard"]),
            counts: [0; 5],
        }
    }

    /// Begins by holding.
    pub(super) fn holding(has_replay: bool) -> Self {
        let mut lab = Self::new(has_replay, None);
        lab.stream.begin_join();
        lab
    }

    pub(super) fn tell(&mut self, story: &str) {
        for word in story.split_whitespace() {
            self.word(word);
            self.settle();
        }
    }

    fn word(&mut self, word: &str) {
        let number = |text: &str| text.parse::<u64>().unwrap();
        match word {
            "c" => self.stream.connected(self.now),
            "d" => self.stream.disconnected(),
            "told" => self.stream.begin_anew(self.now),
            "pause" => self.stream.paused(),
            "without" => self.stream.set_replay(false, self.now),
            "with" => self.stream.set_replay(true, self.now),
            "life" => {
                self.life += 1;
                self.ring.clear();
            }
            "alive" => self.socket = Socket::Alive,
            "dead" => self.socket = Socket::Dead,
            "silent" => self.socket = Socket::Silent,
            "empty" => self.socket = Socket::Empty,
            "noend" => self.loses_end = true,
            "bad" => self.stream.malformed(self.now),
            "join" => self.stream.join(DpRank(1)),
            "hold" => self.stream.begin_join(),
            "keep" => self.stream.adopt(Adoption::Keep, self.now),
            "unplaced" => {
                self.reasons = BTreeSet::from(["no_watermark"]);
                self.stream.adopt(Adoption::Unplaced, self.now);
            }
            "clear" => {
                self.reasons.retain(|reason| !["gap", "replay_incomplete", "unverified_reconnect"].contains(reason));
                self.stream.healed();
            }
            _ if word.starts_with("adopt") => self.adopt(&word[5..]),
            _ if word.starts_with('~') => self.wait(number(&word[1..])),
            _ if word.starts_with("drop") => self.ring.retain(|(seq, _)| *seq != number(&word[4..])),
            _ if word.starts_with("once") => self.drop_once = Some(number(&word[4..])),
            _ if word.starts_with('p') => self.ring.push((number(&word[1..]), self.life)),
            _ => self.live(number(word)),
        }
    }

    /// `7/1!?`: at number 7 of life 1 (the present one if none is named), of a source that is not connected and has holes;
    /// `-`: of a source that has heard nothing.
    fn adopt(&mut self, what: &str) {
        let number = what.trim_end_matches(['!', '?']);
        let (seq, life) = number.split_once('/').unwrap_or((number, ""));
        let life = life.parse().unwrap_or(self.life);
        let mark = seq.parse().ok().map(|seq| Mark { seq: Seq(seq), payload_hash: hash_of(life, seq) });
        let (connected, holes) = (!what.contains('!'), what.contains('?'));
        let position = Position { mark, connected, holes, heard: mark.is_some(), ..Position::default() };
        write!(self.applied, " [{seq}]").unwrap();
        self.reasons = BTreeSet::from_iter(mark.is_none().then_some("nothing_heard"));
        self.reasons.extend(holes.then_some("gap"));
        self.stream.adopt(Adoption::Snapshot(position), self.now);
    }

    fn live(&mut self, seq: u64) {
        self.ring.push((seq, self.life));
        let step = self.stream.message(Seq(seq), &payload(self.life, seq), self.now);
        self.effects();
        match step {
            Step::Apply(mark) => self.apply(mark.seq.0),
            Step::Duplicate => self.counts[0] += 1,
            Step::Held => {}
        }
    }

    fn apply(&mut self, seq: u64) {
        self.reasons.remove("nothing_heard");
        write!(self.applied, " {seq}").unwrap();
    }

    fn settle(&mut self) {
        loop {
            self.effects();
            self.stream.advance(self.now);
            self.effects();
            if let Some(batch) = self.stream.release(self.now) {
                self.effects();
                self.apply(batch.mark.seq.0);
                continue;
            }
            self.effects();
            let Some(answer) = self.exchange.as_mut().and_then(|exchange| exchange.pop()) else {
                return;
            };
            self.answer(answer);
        }
    }

    fn answer(&mut self, answer: Option<(u64, u64)>) {
        let Some((seq, life)) = answer else {
            self.stream.round_over(RoundEnd::Marker, self.now);
            return;
        };
        let mark = Mark { seq: Seq(seq), payload_hash: hash_of(life, seq) };
        let step = self.stream.answer(mark, self.now);
        self.effects();
        match step {
            ReplayStep::Drop => {}
            ReplayStep::Apply => self.apply(seq),
            ReplayStep::ApplyToJoining => write!(self.joined, " {seq}").unwrap(),
        }
    }

    fn wait(&mut self, ms: Ms) {
        let end = self.now + ms;
        while let Some(deadline) = self.stream.deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.stream.timer(self.now);
            self.settle();
        }
        self.now = end;
    }

    fn effects(&mut self) {
        let effects: Vec<_> = self.stream.take_effects().collect();
        for effect in effects {
            self.effect(effect);
        }
    }

    fn effect(&mut self, effect: Effect) {
        let mut set = |reason, holds| if holds { self.reasons.insert(reason) } else { self.reasons.remove(reason) };
        match effect {
            Effect::Restarted => {
                self.applied.push_str(" |");
                self.reasons.clear();
                self.counts[1] += 1;
            }
            Effect::ToldAnew => {
                self.applied.push_str(" !");
                self.reasons.clear();
                self.reasons.insert("nothing_heard");
            }
            Effect::BeginRebuild => self.applied.push_str(" ^"),
            Effect::Rebuilt => {
                set("gap", false);
                set("replay_incomplete", false);
            }
            Effect::Lost { missing } => {
                set("gap", true);
                self.counts[3] = self.counts[3].saturating_add(missing);
            }
            Effect::CatchingUp(holds) => _ = set("catching_up", holds),
            Effect::Incomplete => _ = set("replay_incomplete", true),
            Effect::Unverified(holds) => _ = set("unverified_reconnect", holds),
            Effect::NothingSent => _ = set("nothing_heard", false),
            Effect::JoinWaits(_) => _ = set("join_waits", true),
            Effect::Joined => _ = set("join_waits", false),
            Effect::JoinLost => {
                set("join_waits", false);
                set("join_lost", true);
            }
            Effect::GapSeen => self.counts[2] += 1,
            Effect::DuplicateReleased => self.counts[0] += 1,
            Effect::StartReplay { from } => self.ask(from.0),
            Effect::StopReplay => self.exchange = None,
            Effect::ReplayEnded(outcome) => self.asked.push(format!("{outcome:?}")),
            Effect::Connected(_) | Effect::CountsFromOne | Effect::FillBegins => {}
            Effect::Placed => _ = set("no_watermark", false),
        }
    }

    fn ask(&mut self, from: u64) {
        self.asked.push(from.to_string());
        self.stream.round_begun(self.now);
        let once = self.drop_once.take();
        let kept = self.ring.iter().copied().filter(|(seq, _)| *seq >= from && Some(*seq) != once);
        let mut answers: Vec<_> = kept.map(Some).collect();
        answers.extend((!self.loses_end).then_some(None));
        answers.reverse();
        match self.socket {
            Socket::Alive => self.exchange = Some(answers),
            Socket::Dead => self.stream.round_over(RoundEnd::Failed, self.now),
            Socket::Silent => self.exchange = Some(Vec::new()),
            Socket::Empty => self.exchange = Some(vec![None]),
        }
    }

    pub(super) fn show(&self) -> String {
        let mut shown = self.applied.trim().to_owned();
        let mut part = |name: &str, text: String| {
            if !text.is_empty() {
                write!(shown, " ; {name} {text}").unwrap();
            }
        };
        part("join", self.joined.trim().to_owned());
        part("asked", self.asked.join(" "));
        for (name, count) in ["duplicates", "restarts", "gaps", "missing"].iter().zip(self.counts) {
            part(name, if count > 0 { count.to_string() } else { String::new() });
        }
        part("not exact:", self.reasons.iter().copied().collect::<Vec<_>>().join(" "));
        shown.trim_start().to_owned()
    }
}

fn payload(life: u64, seq: u64) -> Vec<u8> {
    format!("{life}/{seq}").into_bytes()
}

fn hash_of(life: u64, seq: u64) -> u64 {
    wire::payload_hash(&payload(life, seq))
}
