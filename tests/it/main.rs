//! All tests that need sockets or the whole service, in one binary.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod cli;
mod compare;
mod controller;
mod controller_status;
mod crd;
mod engines;
mod fake_kube;
mod faults_http;
mod faults_index;
mod faults_stream;
mod faults_tiers;
mod faults_wire;
mod golden_events;
mod golden_hashes;
mod golden_http;
mod golden_replay;
mod harness;
mod http;
mod limits;
mod manifests;
mod model;
mod recovery;
mod recovery_client;
mod sim_control;
mod streams;
mod tidy;
mod trust;
mod wire;
mod workload;
mod zmtp;
