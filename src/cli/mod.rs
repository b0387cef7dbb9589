//! The commands of the program: what stands behind `kvindexer <command>`. They use the service from outside, over HTTP
//! and real sockets; only `demo` starts one in the same process.

pub mod sim;
