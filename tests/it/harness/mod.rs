//! The built binary as a child process, an HTTP client, and libzmq publishers and replay routers for tests.
