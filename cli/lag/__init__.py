"""qpid-lag: streams, summaries and pages of replication lag."""
