//! Recorded engine streams and golden event cases, without sockets: frames, decoder, the sequence rules of a worker
//! without a replay endpoint, then the model, alone and beside the index. The model must give the recorded answers, and
//! the index those of the model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kvindexer::event::Batch;
use kvindexer::hash;
use kvindexer::ids::{BlockSize, DuplicatePolicy, InstanceId, LocalHash, Namespace, Owner, Tier};
use kvindexer::index::{ApplyContext, Clear, Limits, OwnerSpec, PrefixIndex};
use kvindexer::wire::{self, DecodeContext};
use serde_json::Value;

use super::check::compare;
use super::walk::Answer;
use super::{INDEX_REASONS, Model};

const LIMITS: Limits = Limits {
    recent_hashes_max: 65_536,
    pending_blocks_max: 65_536,
    removals_remembered_max: 1_024,
    held_blocks_max: 0,
};

/// One index with its model, and the streams that feed it.
struct Played {
    block_size: BlockSize,
    model: Model,
    /// None: the model is asked alone.
    index: Option<PrefixIndex>,
    now_ms: u64,
}

/// One publisher as one registered owner hears it.
struct Stream {
    owner: Owner,
    last: Option<u64>,
}

impl Played {
    fn new(tokens: u32, with_index: bool) -> Self {
        let block_size = BlockSize::new(tokens).expect("at least one");
        let index = with_index.then(|| PrefixIndex::new(block_size, LIMITS));
        Self { block_size, model: Model::new(tokens, LIMITS), index, now_ms: 0 }
    }

    fn register(&mut self, owner: &Owner, policy: DuplicatePolicy) {
        let spec = OwnerSpec { policy, ..OwnerSpec::default() };
        self.model.register(owner, spec);
        if let Some(index) = &mut self.index {
            index.register(owner, spec, self.now_ms);
        }
    }

    fn unregister(&mut self, owner: &Owner) {
        let known = self.model.unregister(owner);
        if let Some(index) = &mut self.index {
            assert_eq!(index.unregister(owner), known, "{owner}");
        }
    }

    fn hear(&mut self, stream: &mut Stream, frames: &[Vec<u8>]) {
        self.now_ms += 1;
        let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let Ok((seq, payload)) = wire::live_message(&frames) else { return };
        match stream.last {
            Some(last) if seq.0 == 0 && last > 0 => self.restart(&stream.owner),
            Some(last) if seq.0 <= last => return,
            _ => {}
        }
        stream.last = Some(seq.0);
        let mut batch = Batch::default();
        let context = DecodeContext { block_size: self.block_size, default_lora: None };
        let decoded = wire::decode(payload, context, &mut batch);
        let rank = batch.rank.unwrap_or(stream.owner.rank);
        let owner = Owner { instance: stream.owner.instance.clone(), rank };
        self.model.intern(&owner, &stream.owner);
        match decoded {
            Ok(()) => self.model.apply(&owner, &batch),
            Err(reason) => self.model.skip(&owner, reason),
        }
        let Some(index) = &mut self.index else { return };
        let like = index.owner_id(&stream.owner).expect("registered");
        let id = index.owner_id(&owner).unwrap_or_else(|| index.intern(&owner, like, self.now_ms));
        match decoded {
            Ok(()) => index.apply(id, &batch, ApplyContext { seq, now_ms: self.now_ms }),
            Err(reason) => index.skip(id, reason, self.now_ms),
        }
    }

    fn restart(&mut self, of: &Owner) {
        let owners: Vec<Owner> = self.model.owners.keys().filter(|o| o.instance == of.instance).cloned().collect();
        for owner in owners {
            self.model.clear(&owner, Clear::NewLife);
            if let Some(index) = &mut self.index {
                index.clear(index.owner_id(&owner).expect("known to both"), Clear::NewLife, self.now_ms);
            }
        }
    }

    fn agree(&self, queries: &[Vec<LocalHash>]) {
        let Some(index) = &self.index else { return };
        compare(&self.model, index, queries).unwrap_or_else(|difference| panic!("{difference}"));
    }

    /// Local hashes of a query body.
    fn query(&self, request: &Value) -> Vec<LocalHash> {
        if let Some(hashes) = request.get("block_hashes") {
            let number = |value: &Value| {
                let signed = value.as_i64().map(i64::cast_unsigned);
                LocalHash(value.as_u64().or(signed).expect("a hash"))
            };
            return hashes.as_array().expect("a list").iter().map(number).collect();
        }
        let text = |key: &str| request.get(key).and_then(Value::as_str);
        let namespace = Namespace {
            lora: text("lora_name").and_then(hash::lora_name),
            salt: text("cache_salt").and_then(hash::salt),
        };
        let tokens = request["token_ids"].as_array().expect("tokens");
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|t| u32::try_from(t.as_u64().expect("a token")).expect("u32").to_le_bytes())
            .collect();
        hash::local_hashes(&bytes, self.block_size, namespace)
    }
}

/// `instances` as `/query` shows them: gpu, cpu, disk, and the device tokens of each rank.
type Instances = BTreeMap<String, ([u64; 3], BTreeMap<String, u64>)>;

fn instances(answer: &Answer, block_size: BlockSize) -> Instances {
    let mut shown = Instances::new();
    for row in &answer.rows {
        let tokens = row.reach.map(|blocks| u64::from(blocks) * u64::from(block_size.tokens()));
        let (best, ranks) = shown.entry(row.owner.instance.to_string()).or_default();
        for (best, tokens) in best.iter_mut().zip(tokens) {
            *best = tokens.max(*best);
        }
        ranks.insert(row.owner.rank.to_string(), tokens[0]);
    }
    shown
}

fn expected_instances(json: &Value) -> Instances {
    let number = |value: &Value| value.as_u64().expect("tokens");
    let instance = |value: &Value| {
        let tiers = ["gpu", "cpu", "disk"].map(|tier| number(&value[tier]));
        let ranks = value["dp"].as_object().into_iter().flatten().map(|(rank, t)| (rank.clone(), number(t))).collect();
        (tiers, ranks)
    };
    json.as_object().expect("instances").iter().map(|(id, value)| (id.clone(), instance(value))).collect()
}

fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder)
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().expect("hex");
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex")).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn number32(value: &Value) -> u32 {
    u32::try_from(value.as_u64().expect("a number")).expect("small")
}

fn instance_of(value: &Value) -> InstanceId {
    value.as_u64().map_or_else(|| InstanceId::parse(value.as_str().expect("an id")).expect("valid"), InstanceId::Number)
}

/// One golden case: an index per tenant, a stream per registration.
struct GoldenCase {
    tenants: BTreeMap<String, Played>,
    streams: Vec<(String, String, Stream)>,
}

impl GoldenCase {
    fn new(case: &Value, with_index: bool) -> Self {
        let mut this = Self { tenants: BTreeMap::new(), streams: Vec::new() };
        for worker in list(&case["workers"]) {
            let tenant = worker["tenant_id"].as_str().expect("a tenant").to_owned();
            let owner = Owner::new(instance_of(&worker["instance_id"]), number32(&worker["dp_rank"]));
            let played = this
                .tenants
                .entry(tenant.clone())
                .or_insert_with(|| Played::new(number32(&case["block_size"]), with_index));
            played.register(&owner, DuplicatePolicy::Auto);
            let publisher = worker["publisher"].as_str().expect("a name").to_owned();
            this.streams.push((publisher, tenant, Stream { owner, last: None }));
        }
        this
    }

    fn publish(&mut self, publisher: &str, frames: &[Vec<u8>]) {
        for (name, tenant, stream) in &mut self.streams {
            if name == publisher {
                self.tenants.get_mut(tenant).expect("registered").hear(stream, frames);
            }
        }
    }

    fn unregister(&mut self, request: &Value) {
        let instance = instance_of(&request["instance_id"]);
        let rank = request.get("dp_rank").and_then(Value::as_u64);
        let tenant = request.get("tenant_id").and_then(Value::as_str);
        let goes = |at: &str, owner: &Owner| {
            owner.instance == instance
                && tenant.is_none_or(|t| t == at)
                && rank.is_none_or(|r| r == u64::from(owner.rank.0))
        };
        for (_, at, stream) in self.streams.extract_if(.., |(_, at, stream)| goes(at, &stream.owner)) {
            self.tenants.get_mut(&at).expect("registered").unregister(&stream.owner);
        }
        for (at, played) in &mut self.tenants {
            if self.streams.iter().all(|(_, tenant, stream)| tenant != at || stream.owner.instance != instance) {
                let dynamic: Vec<Owner> =
                    played.model.owners.keys().filter(|o| o.instance == instance).cloned().collect();
                dynamic
                    .iter()
                    .filter(|owner| tenant.is_none_or(|t| t == at) || goes(at, owner))
                    .for_each(|o| played.unregister(o));
            }
        }
    }

    /// Asks both; returns false when this tenant has no worker left.
    fn ask(&self, request: &Value, ours: &Value) -> bool {
        let tenant = request.get("tenant_id").and_then(Value::as_str).unwrap_or("default");
        if !self.streams.iter().any(|(_, at, _)| at == tenant) {
            return false;
        }
        let played = &self.tenants[tenant];
        let query = played.query(request);
        played.agree(std::slice::from_ref(&query));
        let answer = played.model.find(&query);
        assert_eq!(instances(&answer, played.block_size), expected_instances(&ours["instances"]), "{request}");
        let frequencies: Vec<u64> = list(&ours["frequencies"]).iter().map(|f| f.as_u64().expect("a count")).collect();
        assert_eq!(answer.frequencies.iter().map(|f| u64::from(*f)).collect::<Vec<_>>(), frequencies, "{request}");
        true
    }
}

#[test]
fn golden_event_cases_are_answered_by_the_model_alone() {
    golden_events(false);
}

#[test]
fn golden_event_cases_are_answered_by_model_and_index() {
    golden_events(true);
}

fn golden_events(with_index: bool) {
    let cases = read(&data("golden/events.json"));
    let mut asked = 0;
    for case in list(&cases) {
        let name = case["name"].as_str().expect("a name");
        eprintln!("case {name}");
        let mut golden = GoldenCase::new(case, with_index);
        for step in list(&case["steps"]) {
            let publisher = || step["publisher"].as_str().expect("a name");
            match step["op"].as_str().expect("a word") {
                "publish" => {
                    let seq = step["seq"].as_u64().expect("a number").to_be_bytes().to_vec();
                    let topic = step["topic"].as_str().expect("a topic").as_bytes().to_vec();
                    golden.publish(publisher(), &[topic, seq, bytes(&step["payload_hex"])]);
                }
                "frames" => {
                    golden.publish(publisher(), &list(&step["frames_hex"]).iter().map(bytes).collect::<Vec<_>>())
                }
                "unregister" if step["ours"]["status"] == 200 => golden.unregister(&step["request"]),
                "query" | "query_by_hash" if step["ours"]["status"] == 200 => {
                    asked += usize::from(golden.ask(&step["request"], &step["ours"]["json"]));
                }
                "dump" => golden.dumps(&step["ours"], case["model_name"].as_str().expect("a name")),
                "trust" => golden.trusts(step),
                _ => {}
            }
        }
    }
    assert!(asked > 200, "only {asked} questions were asked");
}

impl GoldenCase {
    /// The model holds exactly the recorded blocks, each with the recorded parent.
    fn dumps(&self, ours: &Value, model_name: &str) {
        for (tenant, played) in &self.tenants {
            played.agree(&[]);
            let Some(entry) = ours.get(format!("{model_name}:{tenant}")) else { continue };
            let mut expected: Vec<[Option<u64>; 6]> = list(&entry["blocks"])
                .iter()
                .map(|block| {
                    let tier = Tier::ALL.iter().position(|tier| block["storage_tier"] == tier.as_str());
                    let number = |key: &str| block[key].as_u64();
                    let [worker, rank, parent] = ["worker_id", "dp_rank", "parent_hash"].map(number);
                    [worker, rank, tier.map(|t| t as u64), parent, number("block_hash"), number("tokens_hash")]
                })
                .collect();
            let mut held = Vec::new();
            for (owner, entry) in &played.model.owners {
                for row in entry.dump() {
                    let parent = row.parents.first().copied().flatten().map(|hash| hash.0);
                    let worker = owner.instance.to_string().parse().ok();
                    let rank = Some(u64::from(owner.rank.0));
                    held.push([worker, rank, Some(row.tier as u64), parent, Some(row.hash.0), Some(row.local.0)]);
                }
            }
            expected.sort_unstable();
            held.sort_unstable();
            assert_eq!(held, expected);
        }
    }

    /// Reasons that the index raises are those that the case names; an exact owner has none.
    fn trusts(&self, step: &Value) {
        let owner = Owner::new(instance_of(&step["instance_id"]), number32(&step["dp_rank"]));
        let entry = self.tenants.values().find_map(|played| played.model.owners.get(&owner)).expect("registered");
        let ours = &step["ours"];
        if ours["state"] == "exact" {
            assert!(entry.reasons.is_empty(), "{:?}", entry.reasons);
        }
        for word in ours["reasons_include"].as_array().into_iter().flatten() {
            if let Some(reason) = INDEX_REASONS.into_iter().find(|reason| *word == reason.as_str()) {
                assert!(entry.reasons.contains(&reason), "{reason:?} is not among {:?}", entry.reasons);
            }
        }
    }
}

/// Plays one run of an engine file for one of its workers; returns the number of questions.
fn play_engine_run(file: &Value, run: &Value, (worker, with_index): (&str, bool)) -> usize {
    let registration = &file["workers"][worker];
    let owner = Owner::new(instance_of(&registration["instance_id"]), number32(&registration["dp_rank"]));
    let mut played = Played::new(number32(&registration["block_size"]), with_index);
    let policy = match run["extra"].get("duplicate_policy").and_then(Value::as_str) {
        Some("copies") => DuplicatePolicy::Copies,
        Some("set") => DuplicatePolicy::Set,
        _ => DuplicatePolicy::Auto,
    };
    played.register(&owner, policy);
    let mut stream = Stream { owner, last: None };
    let frames = list(&file["frames"]);
    let mut asked = 0;
    for sent in 0..=frames.len() {
        for question in list(&file["queries"]) {
            if question["worker"] != worker || question["after_frames"] != sent {
                continue;
            }
            let mut request = question["args"].clone();
            request["token_ids"] = question["token_ids"].clone();
            let query = played.query(&request);
            played.agree(std::slice::from_ref(&query));
            let ours = &question[run["answer"].as_str().expect("a key")];
            let shown = instances(&played.model.find(&query), played.block_size);
            let (tiers, ranks) = shown[&stream.owner.instance.to_string()].clone();
            let expected = ["gpu", "cpu", "disk"].map(|tier| ours[tier].as_u64().expect("tokens"));
            assert_eq!(tiers, expected, "{}", question["label"]);
            for (rank, tokens) in ours["dp"].as_object().into_iter().flatten() {
                assert_eq!(ranks.get(rank).copied(), tokens.as_u64(), "{} rank {rank}", question["label"]);
            }
            asked += 1;
        }
        if let Some(message) = frames.get(sent) {
            let mut message: Vec<Vec<u8>> = list(message).iter().map(bytes).collect();
            message[0].clear();
            played.hear(&mut stream, &message);
        }
    }
    asked
}

#[test]
fn recorded_engine_streams_are_answered_by_the_model_alone() {
    engine_streams(false);
}

#[test]
fn recorded_engine_streams_are_answered_by_model_and_index() {
    engine_streams(true);
}

fn engine_streams(with_index: bool) {
    let mut files: Vec<PathBuf> = std::fs::read_dir(data("engines"))
        .expect("the folder")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "json"))
        .collect();
    files.sort();
    let mut asked = 0;
    for path in &files {
        let file = read(path);
        for run in list(&file["register"]) {
            for worker in file["workers"].as_object().expect("workers").keys() {
                eprintln!("{} {} {worker}", path.display(), run["extra"]);
                asked += play_engine_run(&file, run, (worker, with_index));
            }
        }
    }
    assert_eq!(files.len(), 52);
    assert!(asked >= 149, "only {asked} questions were asked");
}
