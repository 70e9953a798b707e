"""Routes: messages fetched from another broker or cluster by the current primary of this cluster.

`routes.py` has the routes of the log, and answers management requests. For each route, `runner.py` executes the effects of its
life cycle (`broker.core.routes`). `intake.py` enqueues the fetched messages. `dialer.py` connects. `sequences.py` is the
source's side: the requests of a route to its source, which does not know about routes. Reasons: docs/adr/0048.
"""
