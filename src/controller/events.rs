//! Kubernetes Events about objects and Pods, written by the holder of the Lease.
