"""AMQP 1.0 over proton's C engine: bytes in, batches of events out, and back. No sockets and no clocks live here.

Start with `engine.py`, which drives proton's C engine, and `links.py`, what hangs on it; `gathering.py` has the messages that
come in several frames. With `scratch.py`, their memory, these alone call C functions. A delivery is a pointer here, and an
integer everywhere else (`broker.core.links`). `management_node.py` turns management messages into maps.
"""
