"""The parts of a replicated log's edge, each of which owns its own state. `ha.replicated_log` assembles them.

`applying.py` passes committed batches to the listener, in order; `proposing.py` says when another batch may be proposed;
`sending.py` sends batches from memory or disk; `requests.py` has the callers that wait for an answer; `retention.py` decides
what stays on disk: checkpoints, compaction, and the pause of producers before the disk is full; `bodies.py` reads bodies.
"""
