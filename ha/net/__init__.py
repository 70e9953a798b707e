"""Connections between the members of a cluster. Start with `peers.py`."""
