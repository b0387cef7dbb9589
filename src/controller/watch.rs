//! Follows the API server, one watch per kind and namespace.
