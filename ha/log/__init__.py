"""The parts of a replicated log's edge, each of which owns its own state. `ha.replicated_log` assembles them.

`applying.py` passes committed batches to the listener, in order; `proposing.py` says when another batch may be proposed;
`sending.py` sends batches from memory or disk; `requests.py` asks the core for promotions and changes, and has the callers that
wait; `members.py` reports and proposes the membership; `snapshot_effects.py` sends, stores and installs snapshots as the core
says; `retention.py` decides what stays on disk: checkpoints, compaction, and the pause of producers before the disk is full;
`bodies.py` reads bodies.
"""
