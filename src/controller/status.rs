//! Writes statuses and Events, while this replica holds the Lease.
