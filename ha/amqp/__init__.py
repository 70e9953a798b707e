"""Consensus messages as AMQP transfers. Start with `replication_link.py`."""
