"""AMQP 1.0 over proton's C engine: bytes to batches of events, and back. There are no sockets and no clocks here.

Start with `engine.py`, which drives proton's C engine, and `links.py`, which has the state of its links. `gathering.py`
assembles messages that arrive in several frames. Only these and `scratch.py`, their memory, call C functions. A delivery is a
pointer here, and an integer everywhere else (`broker.core.links`). `management_node.py` converts management messages to maps.
"""
