"""The parts of a replicated log's edge, each of which owns a state of its own; `ha.replicated_log` puts them together.

`applying.py` tells the listener, in order; `proposing.py` says when another batch is welcome; `sending.py` sends batches, from
memory or from disk; `requests.py` knows who waits for an answer; `retention.py` is about what stays on the disk: checkpoints,
compaction, and producers that wait before the disk is full; `bodies.py` reads bodies back.
"""
