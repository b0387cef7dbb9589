//! Three replicas and a fleet of engines at full pace; replicas are killed at random moments and started again. No answer
//! that claims to be exact may differ from the engines' own truth, none may come from a replica that is not ready, and in
//! the end all replicas are exact, equal, and right.
//!
//! `KVINDEXER_TEST_CHAOS` is the number of kills (3 without it), `KVINDEXER_TEST_SEED` repeats the choices of a run;
//! `KVINDEXER_TEST_EVENTS_PER_S` is the pace of the whole fleet.

mod cache;
mod fleet;
mod replicas;

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use cache::{Offload, PROMPTS};
use fleet::{Engine, Memory, Pace, Spec};
use replicas::{QUIET_MAX, Replica, Sample, all_wrong_answers, differences};

use crate::harness::{DEADLINE, try_within};

const REPLICAS: usize = 3;
const ENGINES: usize = 14;
const KILLS: usize = 3;
const EVENTS_PER_S: usize = 5_000;
/// From the start of a process until it serves.
const READY_MAX: Duration = Duration::from_secs(60);
/// Prompts asked for at one pause of an engine.
const PROMPTS_PER_PAUSE: usize = 4;

#[test]
fn replicas_stay_exact_while_they_are_killed_and_started_again() {
    let seed = number("KVINDEXER_TEST_SEED").unwrap_or_else(|| fastrand::u64(..));
    let kills = number("KVINDEXER_TEST_CHAOS").map_or(KILLS, |kills| kills as usize);
    eprintln!("chaos: KVINDEXER_TEST_SEED={seed}, {kills} kills");
    let chaos = Chaos::new(seed);
    chaos.begin();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let mut random = fastrand::Rng::with_seed(seed);
        let engines: Vec<_> = chaos
            .engines
            .iter()
            .map(|engine| {
                let random = random.fork();
                scope.spawn(|| fleet::run(engine, &chaos.pace, random))
            })
            .collect();
        let sampling = random.fork();
        let sampler = scope.spawn(|| chaos.sample(sampling));
        for kill in 0..kills {
            chaos.kill_one(kill, &mut random);
            if chaos.has_failed() {
                break;
            }
        }
        // The last one is also looked at for a while.
        chaos.pause_for(Duration::from_secs(2));
        chaos.pace.stop.store(true, Ordering::Relaxed);
        engines.into_iter().for_each(|engine| engine.join().expect("an engine panics only when a socket fails"));
        chaos.stop_sampling.store(true, Ordering::Relaxed);
        sampler.join().expect("the sampler collects what it finds");
    });
    let (lasted, events) = (began.elapsed(), chaos.pace.events.load(Ordering::Relaxed));
    let counts = chaos.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    eprintln!(
        "chaos: {events} events in {lasted:.1?} ({:.0}/s), answers right {}, flagged {}, not ready {}, missed {}",
        events as f64 / lasted.as_secs_f64(),
        counts[0],
        counts[1],
        counts[2],
        counts[3],
    );
    chaos.fail_if_anything_was_wrong();
    let quiet = Instant::now();
    let outcome = try_within(QUIET_MAX, || match differences(&chaos.replicas, &chaos.engines) {
        found if found.is_empty() => Ok(()),
        found => Err(found.join("\n")),
    });
    if let Err(found) = outcome {
        panic!("seed {seed}: not equal and exact {QUIET_MAX:?} after quiet:\n{found}\n{}", chaos.logs());
    }
    let lives: u64 = chaos.engines.iter().map(|engine| engine.pause().lives).sum();
    let refills =
        chaos.replicas.iter().map(|replica| replica.metric("kvindexer_recovery_refills_total")).sum::<f64>() as u64;
    eprintln!(
        "chaos: equal and exact {:.1?} after quiet; {lives} engines had started anew, {refills} refills in the last processes",
        quiet.elapsed()
    );
    let wrong = all_wrong_answers(&chaos.replicas, &chaos.engines);
    assert!(wrong.is_empty(), "seed {seed}: {} wrong answers after quiet:\n{}", wrong.len(), wrong.join("\n"));
    chaos.compare_deeply();
    assert!(counts[0] >= 10 * (1 + kills), "few answers were compared: {counts:?}");
    assert!(kills == 0 || counts[2] > 0, "no answer was asked for during a recovery: {counts:?}");
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

struct Chaos {
    engines: Vec<Engine>,
    replicas: Vec<Replica>,
    pace: Pace,
    stop_sampling: AtomicBool,
    wrong: Mutex<Vec<String>>,
    /// Samples: right, flagged, not ready, missed.
    counts: [AtomicUsize; 4],
    seed: u64,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let engines = (0..ENGINES).map(|number| Engine::new(spec(number), seed ^ (number as u64) << 32)).collect();
        let events_per_s = number("KVINDEXER_TEST_EVENTS_PER_S").unwrap_or(EVENTS_PER_S as u64) as f64;
        let pace = Pace {
            events_per_s: events_per_s / ENGINES as f64,
            stop: AtomicBool::new(false),
            listeners: AtomicUsize::new(REPLICAS),
            events: AtomicUsize::new(0),
        };
        Self {
            engines,
            replicas: Replica::set(REPLICAS),
            pace,
            stop_sampling: AtomicBool::new(false),
            wrong: Mutex::new(Vec::new()),
            counts: [0; 4].map(AtomicUsize::new),
            seed,
        }
    }

    /// All replicas ready and listening to all engines; nothing was published.
    fn begin(&self) {
        self.replicas.iter().for_each(Replica::start);
        for replica in &self.replicas {
            self.wait_ready(replica);
            for body in self.engines.iter().flat_map(Engine::registrations) {
                let reply = replica.post("/register", &body).expect("a ready replica answers");
                assert_eq!(reply.status, 201, "{}", reply.text());
            }
        }
        self.engines.iter().for_each(|engine| engine.wait_subscribed(REPLICAS));
    }

    fn wait_ready(&self, replica: &Replica) {
        let ready = try_within(READY_MAX, || {
            let reply = replica.get("/ready")?;
            if reply.status == 200 { Ok(()) } else { Err(reply.text()) }
        });
        if let Err(seen) = ready {
            self.report(format!("{} is not ready after {READY_MAX:?}: {seen}; {:?}", replica.address, replica.log()));
        }
    }

    /// One engine stands still, all others go on; a replica dies, sometimes dies again while it recovers, sometimes loses
    /// the peer that it reads from; its first answers are compared. One replica that lacks nothing always stays: what
    /// nobody remembers cannot be recovered.
    fn kill_one(&self, number: usize, random: &mut fastrand::Rng) {
        self.pause_for(Duration::from_millis(random.u64(200..2_000)));
        let mut order: Vec<&Replica> = self.replicas.iter().collect();
        random.shuffle(&mut order);
        let keeper = try_within(DEADLINE, || {
            let lacks = order.iter().position(|replica| replica.lacks().is_ok_and(|lacks| lacks.is_empty()));
            lacks.ok_or_else(|| format!("{:?}", order.iter().map(|replica| replica.lacks()).collect::<Vec<_>>()))
        });
        match keeper {
            Ok(at) => order.swap(at, 2),
            Err(lacks) => return self.report(format!("no replica has everything: {lacks}")),
        }
        let [victim, other, keeper] = order[..] else { return };
        let engine = &self.engines[random.usize(0..ENGINES)];
        let life = engine.pause();
        let caught_up =
            try_within(DEADLINE, || match [other, keeper].iter().all(|it| it.has_caught_up(engine, &life)) {
                true => Ok(()),
                false => Err("the others lag".to_owned()),
            });
        self.kill(victim);
        self.pause_for(Duration::from_millis(random.u64(0..800)));
        self.start(victim);
        if random.u8(0..4) == 0 {
            self.pause_for(Duration::from_millis(random.u64(0..600)));
            self.kill(victim);
            self.start(victim);
        }
        let lost = (random.u8(0..4) == 0).then_some(other);
        if let Some(lost) = lost {
            self.pause_for(Duration::from_millis(random.u64(0..600)));
            self.kill(lost);
        }
        eprintln!(
            "chaos: kill {number}: {} looks at {}{}",
            victim.address,
            engine.spec.instance,
            lost.map(|lost| format!(", loses {}", lost.address)).unwrap_or_default(),
        );
        self.first_answers(victim, engine, (&life, caught_up.is_ok()));
        if let Some(lost) = lost {
            self.start(lost);
            self.wait_ready(lost);
        }
    }

    fn kill(&self, replica: &Replica) {
        self.pace.listeners.fetch_sub(1, Ordering::Relaxed);
        replica.kill();
    }

    fn start(&self, replica: &Replica) {
        replica.start();
        self.pace.listeners.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks until the replica answers: 503 before that, and the truth from the first answer on.
    /// The flag beside the engine's life says that the peers had caught up with it.
    fn first_answers(&self, replica: &Replica, engine: &Engine, life: (&fleet::Life, bool)) {
        let (life, is_known) = life;
        let began = Instant::now();
        let mut answered = 0;
        while answered < 3 * PROMPTS_PER_PAUSE {
            if began.elapsed() > READY_MAX {
                self.report(format!("{} does not answer after {READY_MAX:?}: {:?}", replica.address, replica.log()));
                return;
            }
            match replica.ask(engine, life, fastrand::u32(0..PROMPTS)) {
                Ok(Sample::NotReady) => {
                    self.count(Sample::NotReady);
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ok(sample) => {
                    self.count(sample);
                    answered += 1;
                }
                Err(error) if is_known => {
                    self.report(format!("first answers: {error}"));
                    return;
                }
                // The peers had not caught up: what the engine said last may still be on its way.
                Err(_) => answered += 1,
            }
        }
    }

    /// Looks at random replicas and engines until the end.
    fn sample(&self, mut random: fastrand::Rng) {
        while !self.stop_sampling.load(Ordering::Relaxed) && !self.has_failed() {
            std::thread::sleep(Duration::from_millis(random.u64(10..80)));
            let replica = &self.replicas[random.usize(0..REPLICAS)];
            let engine = &self.engines[random.usize(0..ENGINES)];
            let Some(life) = engine.try_pause() else { continue };
            let turn = replica.turn();
            let caught_up = try_within(Duration::from_secs(2), || match replica.has_caught_up(engine, &life) {
                true => Ok(()),
                false => Err("behind".to_owned()),
            });
            for _ in 0..PROMPTS_PER_PAUSE {
                match replica.ask(engine, &life, random.u32(0..PROMPTS)) {
                    Ok(sample) => self.count(sample),
                    Err(_) if caught_up.is_err() || replica.turn() != turn => self.count(Sample::Missed),
                    Err(error) => self.report(format!("sample: {error}")),
                }
            }
        }
    }

    /// What operators have to look closer: `kvindexer diff` of the replicas, and a whole replay beside the live state.
    fn compare_deeply(&self) {
        let [first, others @ ..] = &self.replicas[..] else { return };
        for other in others {
            let said = Command::new(env!("CARGO_BIN_EXE_kvindexer"))
                .args(["diff", "--deep", &first.url(), &other.url()])
                .output()
                .expect("the built binary starts");
            assert_eq!(said.status.code(), Some(0), "seed {}: {}", self.seed, String::from_utf8_lossy(&said.stdout));
        }
        for engine in self.engines.iter().filter(|engine| engine.spec.memory == Memory::Whole) {
            for rank in 0..engine.spec.ranks {
                let body = json!({
                    "model_name": engine.spec.model, "tenant_id": engine.spec.tenant, "instance_id": engine.spec.instance,
                    "dp_rank": rank,
                });
                let reply = first.post("/verify", &body).expect("a replica answers");
                assert_eq!(reply.json()["equal"], true, "seed {}: {}", self.seed, reply.text());
            }
        }
    }

    fn count(&self, sample: Sample) {
        self.counts[sample as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn report(&self, error: String) {
        eprintln!("chaos: {error}");
        self.wrong.lock().expect("no holder panics").push(error);
    }

    fn has_failed(&self) -> bool {
        !self.wrong.lock().expect("no holder panics").is_empty()
    }

    fn pause_for(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn logs(&self) -> String {
        let of = |replica: &Replica| format!("--- {}\n{}", replica.address, replica.log().join("\n"));
        self.replicas.iter().map(of).collect::<Vec<_>>().join("\n")
    }

    fn fail_if_anything_was_wrong(&self) {
        let wrong = self.wrong.lock().expect("no holder panics");
        assert!(wrong.is_empty(), "seed {}: {}\n{}", self.seed, wrong.join("\n"), self.logs());
    }
}

/// Half of the engines have no replay socket, some have one that forgets soon; some start anew; two have two ranks.
fn spec(number: usize) -> Spec {
    let (model, tenant, instance) = match number % 3 {
        0 => ("org/llama:8b", "acme:eu", json!(format!("serving/llama-{number}"))),
        _ => ("plain", "default", json!(number)),
    };
    Spec {
        model,
        tenant,
        instance,
        ranks: if number % 7 == 3 { 2 } else { 1 },
        memory: match number % 4 {
            0 | 2 => Memory::Nothing,
            1 => Memory::Short,
            _ => Memory::Whole,
        },
        offload: [Offload::None, Offload::WithTokens, Offload::HashOnly][number % 5 % 3],
        restarts: number % 5 < 2,
    }
}
