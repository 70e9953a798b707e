"""The messages of queues: the places of their bodies, and their order of delivery.

Start with `blocks.py` and `lane.py` (columns of places: the messages of a queue without an object for each), then `discipline.py`
(the interface that chooses the next message, and the table of queue kinds) with its implementations `fifo.py` and `priority.py`,
and `scan.py` and `returned.py`, for consumers with selectors. `residency.py` limits the bodies in memory, `reading.py` plans
which bodies are read from disk ahead of consumers.
"""
