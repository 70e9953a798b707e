"""The cluster: one replicated log, promotion by vote, links between the members.

Start with `core/` (Raft's rules, pure: events in, effects out), then `replicated_log.py`, which carries out what the core
wants with a journal, a cache of batches and the links in `net/peers.py`. `cluster_member.py` is what management sees of it;
`service.py` puts a whole broker process together. `lag.py` tells telemetry how far the backups are behind.
"""
