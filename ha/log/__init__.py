"""The parts of a replicated log's edge that own a state of their own; `ha.replicated_log` puts them together.

`retention.py` is about what stays on the disk: checkpoints, compaction, and producers that wait before the disk is full.
"""
