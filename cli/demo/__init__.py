"""`make demo`: a cluster of three on this machine, its failover and switchover under load, and what they cost."""
