"""Real Pacemaker clusters of three nodes in namespaces of their own: `make test-pacemaker`. See `nodes.py` and `rounds.py`."""
