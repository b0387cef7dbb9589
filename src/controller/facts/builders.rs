//! Pods and IndexerWorkers for tests, in one line each.

use crate::controller::facts::{ContainerFacts, ObjectFacts, ObjectKey, PREFIX, PodFacts, TextMap};
use crate::controller::{
    DataParallel, Discovery, DuplicatePolicy, FixedEndpoint, IndexerWorkerSpec, LabelSelector, PortRef, Ports,
    StartRankFrom,
};

/// `namespace/name`.
pub(in crate::controller) fn key(text: &str) -> ObjectKey {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() }
}

/// A Pod with one container `engine` that has not started, no address and no label. Its UID is made from its name.
pub(in crate::controller) fn pod(text: &str) -> PodFacts {
    PodFacts {
        key: key(text),
        uid: format!("uid-of-{text}"),
        created_us: 0,
        labels: TextMap::default(),
        annotations: TextMap::default(),
        ip: None,
        deleting: false,
        ended: false,
        containers: vec![ContainerFacts { name: "engine".to_owned(), ..ContainerFacts::default() }],
    }
}

impl PodFacts {
    pub(in crate::controller) fn uid(self, uid: &str) -> Self {
        Self { uid: uid.to_owned(), ..self }
    }

    pub(in crate::controller) fn ip(self, ip: &str) -> Self {
        Self { ip: Some(ip.parse().unwrap()), ..self }
    }

    pub(in crate::controller) fn created(self, created_us: i64) -> Self {
        Self { created_us, ..self }
    }

    pub(in crate::controller) fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// One of ours, without the prefix; or a whole name.
    pub(in crate::controller) fn annotation(mut self, name: &str, value: &str) -> Self {
        self.annotations.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Joins by label and annotations: this model, blocks of 16, events at 5557.
    pub(in crate::controller) fn annotated(self, model: &str) -> Self {
        self.label(&format!("{PREFIX}enabled"), "true")
            .annotation("model", model)
            .annotation("block-size", "16")
            .annotation("event-port", "5557")
    }

    /// A further regular container.
    pub(in crate::controller) fn container(mut self, name: &str) -> Self {
        self.containers.push(ContainerFacts { name: name.to_owned(), ..ContainerFacts::default() });
        self
    }

    /// The last container declares a port.
    pub(in crate::controller) fn port(mut self, name: &str, port: u16) -> Self {
        let last = self.containers.last_mut().unwrap();
        last.ports.push((Some(name.to_owned()).filter(|name| !name.is_empty()), port));
        self
    }

    /// The last container runs.
    pub(in crate::controller) fn running(mut self, id: &str, restart_count: u32) -> Self {
        let last = self.containers.last_mut().unwrap();
        (last.id, last.running, last.restart_count) = (Some(id.to_owned()), true, restart_count);
        self
    }

    /// The last container does not run.
    pub(in crate::controller) fn down(mut self) -> Self {
        self.containers.last_mut().unwrap().running = false;
        self
    }
}

/// An object for the model `m`, blocks of 16, that selects `app=vllm` and names the port 5557.
pub(in crate::controller) fn object(text: &str) -> ObjectFacts {
    ObjectFacts {
        key: key(text),
        uid: format!("uid-of-{text}"),
        generation: 1,
        created_us: 0,
        labels: TextMap::default(),
        spec: Ok(IndexerWorkerSpec {
            model_name: "m".to_owned(),
            tenant_id: "default".to_owned(),
            block_size: 16,
            selector: Some(labels(&[("app", "vllm")])),
            endpoints: None,
            ports: Some(Ports { events: PortRef::Number(5557), replay: None, http: None }),
            data_parallel: None,
            container_name: None,
            duplicate_policy: DuplicatePolicy::Auto,
            discovery: Discovery::Off,
        }),
    }
}

/// A selector by labels.
pub(in crate::controller) fn labels(labels: &[(&str, &str)]) -> LabelSelector {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    LabelSelector { match_labels: Some(labels), match_expressions: None }
}

/// A fixed endpoint.
pub(in crate::controller) fn endpoint(id: &str, rank: i32, address: &str) -> FixedEndpoint {
    FixedEndpoint { instance_id: id.to_owned(), dp_rank: rank, address: address.to_owned(), replay_address: None }
}

impl From<i32> for PortRef {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for PortRef {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl ObjectFacts {
    pub(in crate::controller) fn created(self, created_us: i64) -> Self {
        Self { created_us, ..self }
    }

    pub(in crate::controller) fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(in crate::controller) fn generation(self, generation: i64) -> Self {
        Self { generation, ..self }
    }

    /// Another spec, made from the one it has.
    pub(in crate::controller) fn with(mut self, change: impl FnOnce(&mut IndexerWorkerSpec)) -> Self {
        change(self.spec.as_mut().unwrap());
        self
    }

    pub(in crate::controller) fn model(self, model: &str) -> Self {
        self.with(|spec| spec.model_name = model.to_owned())
    }

    pub(in crate::controller) fn selects(self, key: &str, value: &str) -> Self {
        self.with(|spec| spec.selector = Some(labels(&[(key, value)])))
    }

    pub(in crate::controller) fn events(self, port: impl Into<PortRef>) -> Self {
        self.with(|spec| spec.ports.as_mut().unwrap().events = port.into())
    }

    pub(in crate::controller) fn replay(self, port: impl Into<PortRef>) -> Self {
        self.with(|spec| spec.ports.as_mut().unwrap().replay = Some(port.into()))
    }

    /// The engine is asked at this port.
    pub(in crate::controller) fn discovery(self, port: impl Into<PortRef>) -> Self {
        self.with(|spec| {
            spec.ports.as_mut().unwrap().http = Some(port.into());
            spec.discovery = Discovery::Auto;
        })
    }

    pub(in crate::controller) fn ranks(self, size: i32, start_rank: i32, start_rank_from: StartRankFrom) -> Self {
        self.with(|spec| spec.data_parallel = Some(DataParallel { size, start_rank, start_rank_from }))
    }

    /// Fixed endpoints instead of a selector.
    pub(in crate::controller) fn endpoints(self, endpoints: &[FixedEndpoint]) -> Self {
        self.with(|spec| {
            (spec.selector, spec.ports) = (None, None);
            spec.endpoints = Some(endpoints.to_vec());
        })
    }
}
