"""Connections between the members of a cluster. Start with `peers.py`; `names.py` looks up the hosts of their addresses."""
