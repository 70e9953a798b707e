"""`make demo`: a cluster of three brokers on this machine, with a failover and a switchover under load, and their measured "
"gaps."""
