//! kvindexer: an exact, live index of every KV-cache block in an LLM inference fleet.

pub mod app;
pub mod cli;
pub mod config;
pub mod event;
pub mod hash;
pub mod http;
pub mod ids;
pub mod index;
pub mod ingest;
pub mod metrics;
pub mod readiness;
pub mod registry;
pub mod trust;
pub mod wire;
pub mod zmtp;
