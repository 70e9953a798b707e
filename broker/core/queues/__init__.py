"""The messages of queues: where their bodies lie, and which of them comes next.

Start with `blocks.py` and `lane.py` (columns of places: the messages of a queue without an object for each), then `discipline.py`
(the seam for "which message comes next", and the table of kinds of queues) with `fifo.py` and `priority.py` behind it, and
`scan.py`, for consumers that select messages. `residency.py` bounds the bodies that are in memory, `reading.py` plans what is
read back ahead of consumers.
"""
