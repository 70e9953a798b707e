"""The cluster: one replicated log, promotion by vote, links between the members.

Start with `core/` (Raft's rules as a pure state machine), then `replicated_log.py`, which executes the core's effects with a
journal, a cache of batches and the links in `net/peers.py`. `cluster_member.py` is the member as management sees it;
`service.py` assembles a broker process. `lag.py` reports the lag of the backups to telemetry.
"""
