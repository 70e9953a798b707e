"""Programs that cluster managers run: the OCF agent for Pacemaker (`qpidd.py`) and the LSB script for rgmanager
(`qpidd_primary.py`). Each is one executable file that needs Python's standard library alone, and asks brokers by `qpid-ha`; see
docs/howto/pacemaker.md.
"""
