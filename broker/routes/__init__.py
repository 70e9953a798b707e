"""Routes: messages fetched from another broker, or cluster, whichever broker of this cluster is the primary.

`routes.py` has the routes of the log, and answers management; for each one `runner.py` does to the world what its life
(`broker.core.routes`) wants; `intake.py` puts what comes; `dialer.py` connects. `sequences.py` is the other side: what a route
asks of its source, which knows nothing of routes. Why it is built so: docs/adr/0048.
"""
