"""Programs that cluster managers run: the OCF agent for Pacemaker (`qpidd.py`) and the LSB script for rgmanager
(`qpidd_primary.py`). Each is one executable file that needs only Python's standard library, and queries brokers with `qpid-ha`.
See docs/howto/pacemaker.md.
"""
