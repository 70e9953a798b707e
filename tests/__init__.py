"""The tests mirror the tree: what `ha/core/log.py` promises, `tests/ha/core/test_log.py` checks. Names are sentences."""
