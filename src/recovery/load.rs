//! A peer's or a file's bytes to indexes built apart. Runs on a thread that may block; nothing of it is seen before the
//! whole was read and verified.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

use crate::event::{Batch, Event, GroupInfo, Removed};
use crate::ids::{BlockSize, IndexKey, Owner, OwnerSpec, Seq};
use crate::image::{Image, IndexHead, OwnerImage, Registration, StreamImage, StreamName, Tombstone};
use crate::index::{ApplyContext, Clear, ImportError, OwnerId, PrefixIndex};
use crate::registry::{Recovered, RecoveredIndex, RecoveredStream, Registry};
use crate::trust::{Reason, Trust};
use crate::wire::dump;
use crate::wire::snapshot::{self, Decoder, Header, Item};

/// Why a state was not taken.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub(super) struct LoadError {
    /// What is wrong with it.
    #[source]
    pub(super) why: Why,
    /// It had begun to give blocks: somebody has a state.
    pub(super) had_state: bool,
}

/// What is wrong with a state.
#[derive(Debug, thiserror::Error)]
pub(super) enum Why {
    /// No snapshot, or not a whole one.
    #[error(transparent)]
    Snapshot(#[from] snapshot::Error),
    /// No dump, or not a whole one.
    #[error(transparent)]
    Dump(#[from] dump::Error),
    /// The index does not take a stream.
    #[error("stream {0:?} is not taken: {1}")]
    Image(StreamName, ImportError),
    /// The block size of an index is 0.
    #[error("index {0:?} has no block size")]
    BlockSize(IndexKey),
    /// One index with two block sizes.
    #[error("index {0:?} is there with two block sizes")]
    TwoBlockSizes(IndexKey),
    /// It cannot be read.
    #[error("failed to read: {0}")]
    Read(#[from] io::Error),
}

/// A whole state.
#[derive(Default)]
pub(super) struct Loaded {
    /// Who wrote it; none for a dump.
    pub(super) header: Option<Header>,
    /// Everybody who is registered there.
    pub(super) registrations: Vec<Registration>,
    /// Who was unregistered there lately.
    pub(super) tombstones: Vec<Tombstone>,
    /// Indexes, built apart.
    pub(super) recovered: Recovered,
    /// Content blocks in them.
    pub(super) blocks: u64,
    /// Owners in them.
    pub(super) owners: usize,
    /// Indexes left out: ours have another block size.
    pub(super) refused: u64,
}

impl Loaded {
    /// Takes out who is registered and who was.
    pub(super) fn take_registrations(&mut self) -> (Vec<Registration>, Vec<Tombstone>) {
        (std::mem::take(&mut self.registrations), std::mem::take(&mut self.tombstones))
    }
}

/// Bytes that come from a task.
pub(super) struct Feed {
    pieces: mpsc::Receiver<Bytes>,
    /// What is left of the last piece.
    piece: Bytes,
}

impl Feed {
    /// Ends when the sender is dropped.
    pub(super) fn new(pieces: mpsc::Receiver<Bytes>) -> Self {
        Self { pieces, piece: Bytes::new() }
    }
}

impl Read for Feed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

/// Registrations and tombstones of a file are looked for so far.
const FRONT_BYTES_MAX: u64 = 256 << 20;

/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;

/// Reads a snapshot and gives out its items; the last one is [`Item::End`].
fn items(mut reader: impl Read, mut take: impl FnMut(Item) -> Result<(), Why>) -> Result<(), Why> {
    let mut decoder = Decoder::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let length = match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        decoder.push(&buffer[..length]);
        while let Some(item) = decoder.next_item()? {
            take(item)?;
        }
    }
    Ok(decoder.finish()?)
}

/// The header of a snapshot, of which no more is read.
pub(super) fn header(reader: &mut impl Read) -> Result<Header, Why> {
    let mut decoder = Decoder::new();
    let mut byte = [0; 64];
    loop {
        let length = reader.read(&mut byte)?;
        if length == 0 {
            return Err(snapshot::Error::Truncated.into());
        }
        decoder.push(&byte[..length]);
        if let Some(Item::Header(header)) = decoder.next_item()? {
            return Ok(header);
        }
    }
}

/// Who was unregistered lately, from the front of a snapshot, of which no more is read.
pub(super) fn tombstones(reader: impl Read) -> Result<Vec<Tombstone>, Why> {
    let mut tombstones = Vec::new();
    let mut over = false;
    let read = items(reader.take(FRONT_BYTES_MAX), |item| {
        match item {
            Item::Header(_) | Item::Registration(_) => {}
            Item::Tombstone(tombstone) => tombstones.push(tombstone),
            _ => over = true,
        }
        if over { Err(io::Error::from(io::ErrorKind::Interrupted).into()) } else { Ok(()) }
    });
    match read {
        Err(why) if !over => Err(why),
        _ => Ok(tombstones),
    }
}

/// A whole snapshot.
pub(super) fn snapshot(registry: &Arc<Registry>, reader: impl Read) -> Result<Loaded, LoadError> {
    let mut builder = Builder::new(registry);
    match items(reader, |item| builder.item(item)) {
        Ok(()) => Ok(builder.loaded),
        Err(why) => Err(LoadError { why, had_state: builder.loaded.owners > 0 }),
    }
}

/// One stream of a snapshot: the first of this index and name.
pub(super) fn stream(reader: impl Read, key: &IndexKey, name: &StreamName) -> Result<Option<StreamImage>, LoadError> {
    let mut here = false;
    let mut found = None;
    let read = items(reader, |item| {
        match item {
            Item::Index(head) => here = head.key == *key,
            Item::Stream(stream) if here && stream.name == *name && found.is_none() => found = Some(*stream),
            _ => {}
        }
        Ok(())
    });
    read.map(|()| found).map_err(|why| LoadError { why, had_state: false })
}

/// Builds the indexes of a snapshot.
struct Builder<'a> {
    registry: &'a Arc<Registry>,
    now_ms: u64,
    /// The index whose streams follow; none while they are left out.
    index: Option<IndexKey>,
    loaded: Loaded,
}

impl<'a> Builder<'a> {
    fn new(registry: &'a Arc<Registry>) -> Self {
        Self { registry, now_ms: super::now_ms(), index: None, loaded: Loaded::default() }
    }

    fn item(&mut self, item: Item) -> Result<(), Why> {
        match item {
            Item::Header(header) => self.loaded.header = Some(header),
            Item::Registration(registration) => self.loaded.registrations.push(*registration),
            Item::Tombstone(tombstone) => self.loaded.tombstones.push(tombstone),
            Item::Index(head) => self.begin(head)?,
            Item::Stream(stream) => self.stream(&stream)?,
            Item::End(_) => {}
        }
        Ok(())
    }

    fn begin(&mut self, head: IndexHead) -> Result<(), Why> {
        let Some(size) = head.block_size() else {
            return Err(Why::BlockSize(head.key));
        };
        self.index = None;
        if !fits(self.registry, &head.key, size) {
            self.loaded.refused += 1;
            return Ok(());
        }
        let registry = self.registry;
        let make = || RecoveredIndex { index: registry.new_index(size), streams: Vec::new() };
        let entry = self.loaded.recovered.indexes.entry(head.key.clone()).or_insert_with(make);
        if entry.index.block_size() != size {
            return Err(Why::TwoBlockSizes(head.key));
        }
        self.index = Some(head.key);
        Ok(())
    }

    fn stream(&mut self, stream: &StreamImage) -> Result<(), Why> {
        let indexes = &mut self.loaded.recovered.indexes;
        let Some(index) = self.index.as_ref().and_then(|key| indexes.get_mut(key)) else {
            return Ok(());
        };
        let taken = index.index.import(&stream.image, self.now_ms);
        taken.map_err(|error| Why::Image(stream.name.clone(), error))?;
        index.streams.push(RecoveredStream::from(stream));
        self.loaded.blocks += stream.image.block_count() as u64;
        self.loaded.owners += stream.image.owners.len();
        Ok(())
    }
}

/// False, with a warning, if our own index of that name has another block size.
fn fits(registry: &Registry, key: &IndexKey, size: BlockSize) -> bool {
    let Some(ours) = registry.index(key).map(|index| index.block_size()).filter(|ours| *ours != size) else {
        return true;
    };
    let (ours, theirs) = (ours.tokens(), size.tokens());
    tracing::warn!(model = %key.model, tenant = %key.tenant, ours, theirs, "index is refused: its block_size differs");
    false
}

/// A whole dump. `known`: names of indexes that are registered here.
pub(super) fn dump(registry: &Arc<Registry>, known: &[IndexKey], reader: impl Read) -> Result<Loaded, LoadError> {
    let mut builder = DumpBuilder {
        registry,
        now_ms: super::now_ms(),
        index: None,
        owners: HashMap::new(),
        loaded: Loaded::default(),
    };
    match dump::read(reader, known, &mut builder) {
        Ok(()) => Ok(builder.loaded),
        Err(why) => {
            let had_state = builder.loaded.owners > 0 || !builder.owners.is_empty();
            Err(LoadError { why: why.into(), had_state })
        }
    }
}

/// Builds the indexes of a dump.
struct DumpBuilder<'a> {
    registry: &'a Arc<Registry>,
    now_ms: u64,
    index: Option<PrefixIndex>,
    owners: HashMap<Owner, OwnerId>,
    loaded: Loaded,
}

impl dump::Sink for DumpBuilder<'_> {
    fn begin(&mut self, block_size: BlockSize) {
        self.index = Some(self.registry.new_index(block_size));
        self.owners.clear();
    }

    fn event(&mut self, event: dump::Event) {
        let Some(index) = &mut self.index else {
            return;
        };
        let dump::Event { owner, tier, data } = event;
        let context = ApplyContext { seq: Seq(0), now_ms: self.now_ms };
        let Some(id) = owner_id(index, &mut self.owners, owner, self.now_ms) else {
            return;
        };
        match data {
            dump::Data::Stored { parent, blocks } => {
                self.loaded.blocks += blocks.len() as u64;
                index.load(id, tier, (parent, &blocks), context);
            }
            dump::Data::Removed(hashes) => {
                let removed = Removed {
                    hashes: 0..hashes.len() as u32,
                    tier,
                    group: GroupInfo::default(),
                    remaining_copies: None,
                    remaining_copies_invalid: false,
                };
                let batch = Batch { events: vec![Event::Removed(removed)], hashes, ..Batch::default() };
                index.apply(id, &batch, context);
            }
            dump::Data::Cleared => index.clear(id, Clear::AllBlocksCleared, self.now_ms),
        }
    }

    fn end(&mut self, key: IndexKey) {
        let Some(index) = self.index.take() else {
            return;
        };
        let owners = std::mem::take(&mut self.owners).len();
        if owners == 0 {
            return;
        }
        if !fits(self.registry, &key, index.block_size()) {
            self.loaded.refused += 1;
            return;
        }
        self.loaded.owners += owners;
        self.loaded.recovered.indexes.insert(key, RecoveredIndex { index, streams: Vec::new() });
    }
}

/// The owner in the index, made at its first event: known without a number, and heard from nobody.
fn owner_id(
    index: &mut PrefixIndex,
    owners: &mut HashMap<Owner, OwnerId>,
    owner: Owner,
    now_ms: u64,
) -> Option<OwnerId> {
    if let Some(id) = owners.get(&owner) {
        return Some(*id);
    }
    let mut trust = Trust::with(Reason::NoWatermark, now_ms);
    trust.set(Reason::NotConnected, true, now_ms);
    let image = OwnerImage {
        owner: owner.clone(),
        spec: OwnerSpec::default(),
        trust,
        rows: <_>::default(),
        hashes: Vec::new(),
        recents: Vec::new(),
        rest: <_>::default(),
    };
    let made = index.import(&Image { owners: vec![image], ..Image::default() }, now_ms);
    debug_assert!(made.is_ok(), "an owner without blocks fits everywhere");
    let id = index.owner_id(&owner)?;
    owners.insert(owner, id);
    Some(id)
}

/// All indexes that are registered here, by name.
pub(super) fn known_indexes(registry: &Registry) -> Vec<IndexKey> {
    let names: BTreeMap<_, _> = registry.indexes().into_iter().collect();
    names.into_keys().collect()
}
