//! kvindexer: an exact, live index of every KV-cache block in an LLM inference fleet.
//!
//! ```text
//!  engines ──zmtp──▶ wire ──▶ ingest ──▶ index ◀── http ◀── routers
//!          frames    events   sequence   blocks    answers
//!                             rules      ▲
//!                     registry ──────────┘  the only way to add or remove a worker
//! ```
//!
//! | room | what it is for |
//! |---|---|
//! | [`ids`], [`event`], [`trust`] | names and quantities; what an engine said; how far an owner can be believed |
//! | [`hash`] | tokens and namespaces to local hashes |
//! | [`index`] | the exact set of blocks of every owner and tier, and the longest cached prefix of a query; pure |
//! | [`wire`] | bytes to events, in every published form; pure |
//! | [`zmtp`] | the connect side of ZeroMQ: moves frames, knows no events |
//! | [`ingest`] | one stream per publisher: sequence rules (pure), listener and replay |
//! | [`image`] | what the owners of a stream hold, and who is registered, as plain values: the form in which state travels |
//! | [`registry`] | owns indexes and listeners; its callers are HTTP, the command line and the controller |
//! | [`recovery`] | takes state from other replicas or from a file, and keeps replicas equal |
//! | [`controller`] | Kubernetes: watches Pods and IndexerWorkers and registers workers; writes statuses |
//! | [`http`], [`metrics`] | the API, the page, `/metrics` |
//! | [`config`], [`readiness`], [`app`] | options; why `/ready` is not yet 200; the whole, its start and its end |
//! | [`cli`] | the commands beside `serve`: a simulated fleet, the demonstration, and comparisons of replicas |
//!
//! Invariants that hold everywhere: a query sees each batch of an owner whole or not at all; nothing that an engine or a
//! client sends can end the process or grow memory without a bound; what could not be used is counted and shown in the
//! owner's trust; every task has a parent that awaits it. Who may import whom is a table in `tests/it/tidy.rs`.

pub mod app;
pub mod cli;
pub mod config;
pub mod controller;
pub mod event;
pub mod hash;
pub mod http;
pub mod ids;
pub mod image;
pub mod index;
pub mod ingest;
pub mod metrics;
pub mod readiness;
pub mod recovery;
pub mod registry;
pub mod trust;
pub mod wire;
pub mod zmtp;
